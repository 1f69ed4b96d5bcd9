"""The machines of this worker: opened from their logs, run on a thread each, and closed when partitions go."""
