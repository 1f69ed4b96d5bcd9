"""How fast a backlog goes out: so many overdue timers in a second, each of the others in a second of its own choosing.

A bound that let the first timers out and made the next ones wait in their order would also hold up those that are not
late at all, since a machine fires in the order of due seconds. So nothing waits: what is over the bound is asked for
anew, for the first second that has room.
"""

from __future__ import annotations

from collections.abc import Iterator

OVERDUE_S = 10
"""A timer that is late by more than this belongs to a backlog. A burst that the engine is busy with does not."""


class Pace:
    """Gives out the room of this second and of those to come. In memory only: after a restart the count starts anew.

    Args:
        per_s: timers for each second; 0 means no bound.
    """

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._now_s = 0
        self._second = 0
        self._given = 0

    @property
    def bounded(self) -> bool:
        """Whether there is anything to ask for."""
        return self._per_s > 0

    def share(self, now_s: int, count: int) -> Iterator[tuple[int, int]]:
        """Room for ``count`` timers: (second, how many of them), the first second not before ``now_s``."""
        if self._second < now_s or now_s < self._now_s:  # time has passed what was given out, or was set back
            self._second, self._given = now_s, 0
        self._now_s = now_s
        while count:
            if self._given == self._per_s:
                self._second, self._given = self._second + 1, 0
            some = min(count, self._per_s - self._given)
            self._given += some
            count -= some
            yield self._second, some
