"""Decides when the machine of a partition is opened again after it failed."""

from __future__ import annotations

from typing import NamedTuple

MAX_DOUBLINGS = 30


class ReopenBackoff(NamedTuple):
    """Pauses before a machine is opened again: none after its first failure, then ``first_s`` seconds, then doubled."""

    first_s: float
    longest_s: float
    forget_s: float
    """Seconds without a failure after which earlier ones do not count."""


AFTER_LOST = ReopenBackoff(0.2, 5.0, 60.0)
"""Brokers did not answer, or refused. Short pauses: timers fire again soon after the brokers are back."""

AFTER_UNFORESEEN = ReopenBackoff(1.0, 60.0, 600.0)
"""An exception that no code expects. It may come from a record that every opening meets again."""


class Reopening:
    """The failures of one partition's machine. Failures of one kind are alike; each kind has its own pauses."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, float]] = {}

    def pause_s(self, kind: str, backoff: ReopenBackoff, now_s: float) -> float:
        """Note a failure; return the seconds to wait before the machine is opened again.

        Args:
            kind: what failures that are alike have in common.
            backoff: of this kind.
            now_s: seconds of any clock that never goes back.
        """
        count, last_s = self._kinds.get(kind, (0, now_s))
        if now_s - last_s > backoff.forget_s + backoff.longest_s:
            count = 0
        self._kinds[kind] = count + 1, now_s
        if not count:
            return 0.0
        return min(backoff.longest_s, backoff.first_s * 2.0 ** min(count - 1, MAX_DOUBLINGS))
