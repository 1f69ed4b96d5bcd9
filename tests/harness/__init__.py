"""Helpers of the broker tests: topics and workers of a test, records written and read, and waits with deadlines."""
