"""Where timers wait: one port (:class:`timers.core.ports.Store`), two stores, one on disk and one in memory."""
