"""The only clock of the worker. Nothing but the oscillator's tick key and log lines depend on it."""

import time


class Clock:
    """Wall time, moved by a fixed offset so that tests can run workers hours apart."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self._offset_s = offset_s

    def now_s(self) -> float:
        """Epoch seconds."""
        return time.time() + self._offset_s
