"""Declares, reads and checks the settings."""
