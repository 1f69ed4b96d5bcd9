"""Limits how often a user may do something. Pure: the caller passes the time."""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED = 10_000


class Rates:
    """A token bucket for each name: ``per_s`` a second, and up to ``burst`` at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Name -> what is left, and at which time. A name that is forgotten has a full bucket."""

    def wait_s(self, name: str, now_s: float) -> float:
        """Seconds until ``name`` may go on; 0: it may, now."""
        left, at_s = self._buckets.get(name, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        return 0.0 if left >= 1 else (1 - left) / self._per_s

    def take(self, name: str, now_s: float) -> None:
        """Count one."""
        left, at_s = self._buckets.pop(name, (self._burst, now_s))
        self._buckets[name] = min(self._burst, left + (now_s - at_s) * self._per_s) - 1, now_s
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
