"""The stores of pending timers: one on disk, one in memory, both behind :class:`timers.core.ports.Store`."""
