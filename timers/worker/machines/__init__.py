"""The machines of this worker: how they are opened, run on a thread each, and closed when partitions are revoked."""
