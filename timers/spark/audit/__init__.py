"""The audit: finds the outcome of each request from the topics alone. Only ``reading`` and ``gaps`` ask the brokers."""
