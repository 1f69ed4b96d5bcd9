"""The worker's wall clock. Only the key of its ticks and the metric of its skew depend on it."""

import time


class Clock:
    """Wall time plus a fixed offset, with which tests run workers whose clocks differ by hours."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self._offset_s = offset_s

    def now_s(self) -> float:
        """Epoch seconds."""
        return time.time() + self._offset_s
