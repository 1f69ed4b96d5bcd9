"""The clocks of this machine. They decide whether a tick counts, and never change its time [I20]."""

import time
from functools import cache
from pathlib import Path

from timers.core.clock_guard import Clocks

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # on macOS the monotonic clock counts sleep


@cache
def boot_id() -> str:
    """Returns a name for the present run of this machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Clock:
    """The machine's clocks, and a fixed offset with which tests run workers whose wall clocks differ by hours."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self._offset_s = offset_s

    def now_s(self) -> float:
        """Epoch seconds of the wall clock."""
        return time.time() + self._offset_s

    def boot_s(self) -> float:
        """Seconds since the machine started; sleep is included."""
        return time.clock_gettime(_BOOT_CLOCK)

    def read(self) -> Clocks:
        return Clocks(self.boot_s(), self.now_s())
