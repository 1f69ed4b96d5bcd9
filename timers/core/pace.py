"""The catch-up limit: how many overdue timers of a backlog fire in one second.

A machine fires in the order of due seconds. If overdue timers waited, timers that are not late would wait behind them.
So timers above the limit are moved to the retry topic, due at the first second below the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

OVERDUE_S = 10
"""A timer that is late by more seconds than this belongs to a backlog. In a burst of timers the lag is smaller."""


class Pace:
    """Assigns overdue timers to this second and later ones. Its counts are in memory only, and lost at a restart.

    Args:
        per_s: maximum number of overdue timers in one second.
    """

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._now_s = 0
        self._second = 0
        self._assigned = 0

    def spread(self, now_s: int, count: int) -> Iterator[tuple[int, int]]:
        """Yields (second, number of timers) for ``count`` timers; the first second is ``now_s`` or later."""
        if self._second < now_s or now_s < self._now_s:  # all assigned seconds are over, or the clock went back
            self._second, self._assigned = now_s, 0
        self._now_s = now_s
        while count:
            if self._assigned == self._per_s:
                self._second, self._assigned = self._second + 1, 0
            part = min(count, self._per_s - self._assigned)
            self._assigned += part
            count -= part
            yield self._second, part
