"""The pages of the console in a real browser."""
