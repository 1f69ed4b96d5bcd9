"""The second barrier: timers of a second fire after the machine has read what was in the log before it [I17].

A timer with an id can be cancelled up to its due second. A cancel that was acknowledged before that second is in time,
also if the machine reads it later: after a downtime, days later.
"""

from __future__ import annotations

UNCOMPACTED_S = 5
"""Records appended less than this many seconds ago are in the active segment, which compaction does not touch."""


class SecondBarrier:
    """Releases seconds. At most two seconds wait: the earliest and the newest.

    The newest does not replace the earliest. So the earliest is released at some time, even if many requests arrive.

    Args:
        max_wait_s: for a compacted log: the newest second replaces the earliest, if it is more seconds later than
            this. Compaction may have removed records before the end of the log at the earliest second; the records that
            replaced them are after this end, and before the end at the newest second.

    Attributes:
        released_s: the last second that was released; None: none yet.
    """

    def __init__(self, max_wait_s: int | None = None) -> None:
        self._max_wait_s = max_wait_s
        self.released_s: int | None = None
        self._earliest: tuple[int, int] | None = None
        self._newest: tuple[int, int] | None = None

    def through(self, second: int) -> int | None:
        """Returns the last second, up to ``second``, whose timers may fire; None: no timer may fire."""
        return None if self.released_s is None else min(second, self.released_s)

    def tick(self, second: int, end: int, position: int, held_from: set[int] | None = None) -> bool:
        """Note that a second has begun.

        Args:
            end: end of the log for committed readers, read after the second began.
            position: offset up to which the machine has read.
            held_from: first offsets that the machine's own transactions have in this log; those below an end that
                counts are removed. While such a transaction is open, the end is not above it. After its end, the end is
                above it. An end may come late: the machine may have begun other transactions after the answer.

        Returns:
            False: such a transaction held back the end, which must be asked again. A cancel behind it may have been
            acknowledged before the second began.
        """
        if held_from:
            if end in held_from:
                return False
            held_from.difference_update([each for each in held_from if each < end])
        # If the log lost its end, it may not reach the former ends: they become the new, smaller end.
        self._earliest = self._earliest and (self._earliest[0], min(self._earliest[1], end))
        self._newest = self._newest and (self._newest[0], min(self._newest[1], end))
        newest = self._newest or self._earliest
        known_s = newest[0] if newest is not None else self.released_s
        if known_s is None or second > known_s:
            if self._earliest is None:
                self._earliest = (second, end)
            else:
                self._newest = (second, end)
        self.read(position)
        return True

    def read(self, position: int) -> None:
        """Release the seconds whose end is at or below ``position``, up to which the machine has read."""
        while self._earliest is not None and position >= self._earliest[1]:
            (second, _), later = self._earliest, self._newest
            if self._max_wait_s is None or later is None or later[0] - second <= self._max_wait_s:
                self.released_s = second
            self._earliest, self._newest = later, None

    def start_again(self) -> None:
        """Start again after the clock went back: the released seconds belong to the former time."""
        self.released_s = self._earliest = self._newest = None
