"""Converts bytes to core values and back. Holds every topic name, header name, key format and value format. Pure."""
