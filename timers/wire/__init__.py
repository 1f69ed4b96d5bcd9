"""Bytes to core values and back: every topic name, header name, key and value format. Pure."""
