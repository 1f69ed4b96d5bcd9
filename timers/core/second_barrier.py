"""The second barrier: a second fires after the machine has read what the log held when the second began [I17].

A timer with an id can be cancelled up to its due second. A cancel that was acknowledged before that second is in time,
although the machine may read it later: after a downtime, days later.
"""

from __future__ import annotations

CLEANING_S = 5
"""Records appended less than this many seconds ago are in the active segment, which compaction does not touch."""


class SecondBarrier:
    """Releases seconds. At most two wait: the earliest, and the newest.

    A later second does not replace the earliest one. So the earliest is released in the end, at any rate of requests.

    Args:
        max_wait_s: for a compacted log: the earliest second is replaced by the newest after all, if the newest is more
            seconds later than this. Compaction may have removed records before the end that was asked for; the records
            that replaced them are after this end, but before the end of the newer second.
    """

    def __init__(self, max_wait_s: int | None = None) -> None:
        self._max_wait_s = max_wait_s
        self._second: int | None = None
        self._target: tuple[int, int] | None = None
        self._latest: tuple[int, int] | None = None

    @property
    def second(self) -> int | None:
        """The last second that was released; None: no second yet."""
        return self._second

    def through(self, second: int) -> int | None:
        """Returns the last second, up to ``second``, whose timers may fire; None: no timer may fire."""
        return None if self._second is None else min(second, self._second)

    def tick(self, second: int, end: int, position: int) -> None:
        """Note that a second has begun.

        Args:
            second: the second.
            end: end of the log for committed readers, read after the second began.
            position: offset up to which the machine has read.
        """
        newest = self._latest or self._target
        known_s = newest[0] if newest is not None else self._second
        if known_s is None or second > known_s:
            if self._target is None:
                self._target = (second, end)
            else:
                self._latest = (second, end)
        self.read(position)

    def read(self, position: int) -> None:
        """Release the seconds whose end is at or below ``position``, up to which the machine has read."""
        while self._target is not None and position >= self._target[1]:
            (second, _), later = self._target, self._latest
            if self._max_wait_s is None or later is None or later[0] - second <= self._max_wait_s:
                self._second = second
            self._target, self._latest = later, None

    def close(self) -> None:
        """Start again after the clock went back: what was released belongs to the former time."""
        self._second = self._target = self._latest = None


class NoBarrier(SecondBarrier):
    """Lets each second fire when it begins: timers without ids cannot be cancelled."""

    def through(self, second: int) -> int | None:
        """Returns ``second``."""
        return second

    def tick(self, second: int, end: int, position: int) -> None:
        """Note nothing."""

    def read(self, position: int) -> None:
        """Release nothing."""
