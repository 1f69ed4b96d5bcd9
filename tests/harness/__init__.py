"""What the broker tests stand on: a system of topics and workers of its own, records written and read, and patience."""
