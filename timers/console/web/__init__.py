"""The pages of the console, for people with a browser. They ask the handlers of the API, with the same checks."""
