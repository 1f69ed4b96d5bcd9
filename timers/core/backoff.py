"""How long to wait after a failure, and after how long the machine of a partition is opened again."""

from __future__ import annotations

from typing import NamedTuple

MAX_DOUBLINGS = 100
"""More than any longest pause needs. Without this limit, thousands of failures would overflow a float."""


class Pauses(NamedTuple):
    """Pauses between attempts that fail, in seconds: each is twice as long as the one before, up to the longest."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row, 1 or more."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS))


class ReopenBackoff(NamedTuple):
    """Before a machine is opened again: no pause after its first failure, then ``pauses``."""

    pauses: Pauses
    forget_s: float
    """Seconds without a failure after which earlier ones do not count."""


AFTER_LOST = ReopenBackoff(Pauses(0.2, 5.0), 60.0)
"""Brokers did not answer, or refused. Short pauses: timers fire again soon after the brokers are back."""

AFTER_UNFORESEEN = ReopenBackoff(Pauses(1.0, 60.0), 600.0)
"""An exception that no code expects. It may come from a record that every opening meets again."""


class Reopening:
    """The failures of one partition's machine. Failures of one kind are alike; each kind has its own pauses."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, float]] = {}

    def pause_s(self, kind: str, backoff: ReopenBackoff, now_s: float) -> float:
        """Note a failure; return the seconds to wait before the machine is opened again.

        Args:
            kind: what failures that are alike have in common.
            now_s: seconds of any clock that never goes back.
        """
        count, last_s = self._kinds.get(kind, (0, now_s))
        if now_s - last_s > backoff.forget_s + backoff.pauses.longest_s:
            count = 0
        self._kinds[kind] = count + 1, now_s
        return backoff.pauses.after(count) if count else 0.0
