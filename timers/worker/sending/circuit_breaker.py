"""Targets that fail: spared for a while, so that nothing else waits for them (rule 6).

A failed transaction costs every timer in it a delay, so a failing target is tried again by retried timers alone: they
wait for one failing target or another anyway. New timers for it take the way of the retry topic until it has worked
again, or until nobody has tried for another while (its retries may be another worker's).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

logger = logging.getLogger(__name__)

FIRST_S = 30.0
LONGEST_S = 600.0
"""How long a failing target is spared, doubling with every failure."""

MAX_DOUBLINGS = 32
"""Far beyond the longest. A target that fails for weeks has strikes by the thousand: no float has room for those."""


class Trouble(NamedTuple):
    """Why a callback cannot be sent now."""

    code: str
    reason: str
    spared_s: float | None
    """For how many seconds more; None if it never can be."""


@dataclass(slots=True)
class _Case:
    code: str
    reason: str
    since: float
    strikes: int
    until: float
    """Until then nobody sends."""
    fresh_until: float
    """Until then only retried timers are sent."""


class Quarantine:
    """Failing targets of one worker. Any thread.

    Args:
        clock: seconds that only ever grow.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._cases: dict[str, _Case] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._cases

    @property
    def count(self) -> int:
        """How many topics have failed and not worked since."""
        return len(self._cases)

    def enter(self, topic: str, code: str, reason: str, first_s: float = FIRST_S) -> None:
        """Spare ``topic`` for a while, longer each time it fails. Said in the log only the first time.

        Args:
            topic: of the callbacks.
            code: of the dead letters, should it never work again.
            reason: one sentence.
            first_s: how long the first time.
        """
        with self._lock:
            now = self._clock()
            case = self._cases.get(topic)
            if case is not None and case.until > now:
                return  # another machine's word of the same failure
            strikes = case.strikes + 1 if case else 1
            spared_s = min(math.ldexp(first_s, min(strikes - 1, MAX_DOUBLINGS)), LONGEST_S)
            since = case.since if case else now
            self._cases[topic] = _Case(code, reason, since, strikes, now + spared_s, now + 2 * spared_s)
        if strikes == 1:
            logger.warning("target %s fails: %s; its timers wait in the retry topic", topic, reason)

    def trouble(self, topic: str, *, retried: bool) -> Trouble | None:
        """Why nothing may be sent to ``topic`` now, None if it may be tried.

        Args:
            topic: of the callback.
            retried: whether the timer has been in the retry topic.
        """
        case = self._cases.get(topic)
        if case is None:
            return None
        now = self._clock()
        if now >= (case.until if retried else case.fresh_until):
            return None
        return Trouble(case.code, case.reason, max(0.0, case.until - now))

    def worked(self, topics: Iterable[str]) -> None:
        """Release targets that have taken records."""
        if not self._cases:
            return
        for topic in topics:
            with self._lock:
                case = self._cases.get(topic)
                now = self._clock()
                if case is None or case.until > now:  # sent before it failed: that says nothing
                    continue
                del self._cases[topic]
            logger.info("target %s works again, %.0f s after it failed", topic, now - case.since)

    def drop(self, topic: str, why: str) -> None:
        """Release a target that is no target any more."""
        with self._lock:
            case = self._cases.pop(topic, None)
        if case is not None:
            logger.info("target %s %s", topic, why)
