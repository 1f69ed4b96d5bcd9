"""What was there before a second began is read before that second fires [I17].

A timer with an id can be cancelled up to its second. What the log holds when the second begins has come in time, though
the machine may not have read it yet: after a downtime that can be days of updates. So a second fires once the machine
has read what the log held when the tick came.
"""

from __future__ import annotations


class SecondBarrier:
    """Lets seconds through. Not one after the other: only the earliest that waits, and the latest of all.

    The earliest is never exchanged for a later one, so that it is let through in the end, however much comes in.

    Args:
        max_wait_s: where the log is compacted, it is exchanged after all once it has waited for longer: what was read
            since may have had gaps, and what explains these stands behind the end that was asked for. By then the end
            of a later second is near.
    """

    def __init__(self, max_wait_s: int | None = None) -> None:
        self._max_wait_s = max_wait_s
        self._second: int | None = None
        self._target: tuple[int, int] | None = None
        self._latest: tuple[int, int] | None = None

    @property
    def second(self) -> int | None:
        """What may fire: everything due by this second. None: nothing yet."""
        return self._second

    def tick(self, second: int, end: int, position: int) -> None:
        """A second has begun.

        Args:
            second: which.
            end: offset up to which committed readers could read when it had begun.
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
        """The machine has read up to ``position``."""
        while self._target is not None and position >= self._target[1]:
            (second, _), later = self._target, self._latest
            if self._max_wait_s is None or later is None or later[0] - second <= self._max_wait_s:
                self._second = second
            self._target, self._latest = later, None

    def close(self) -> None:
        """Time was set back: what was let through by the time before has to be asked for anew."""
        self._second = self._target = self._latest = None
