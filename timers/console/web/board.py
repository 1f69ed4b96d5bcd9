"""The newest figures of the workers. They are read while a page shows them, and at no other time.

All users of a console see the same figures, so the workers are asked once for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from timers.console.figures import FIRE, NOT_KNOWN, SILENCE_S, Judged, Ways, added, judged, parsed, quantile
from timers.console.problems import Problem

logger = logging.getLogger(__name__)

FRESH_S = 1.0
"""Younger figures are shown again."""

SPAN_S = 60.0
"""Rates and quantiles are those of the last minute, or of the time since the first look if that is shorter."""

KEPT_S, STEP_S = 1800.0, 4.0
"""Older figures are kept for this time, one for each step."""

GAP_S = 30.0
"""A longer time between two looks, when no page was open, is left out of the line of time."""

WAITED = "waited"
"""The way of timers that waited for their second. Others are late because of their sender, or of their target."""


Ask: TypeAlias = Callable[[], Awaitable[Any]]
"""Asks the route ``workers`` of the API."""


class Figures(NamedTuple):
    """What the workers said at one time.

    Attributes:
        ways: the lags since the workers' starts.
        problem: why they could not be asked since then; without an earlier answer there are no workers.
        is_old: whether the answer of a question that was asked later does not come.
        fired_at_s: when all timers were last known to fire; None: never.
    """

    at_s: float
    workers: list[dict[str, Any]]
    ways: Ways
    problem: Problem | None = None
    is_old: bool = False
    fired_at_s: float | None = None

    @property
    def state(self) -> Judged:
        """Whether all timers fired at that time."""
        return judged(self.workers)

    @property
    def is_known(self) -> bool:
        """Whether it is known which timers fire."""
        return self.problem is None and not self.is_old and self.state.timers != NOT_KNOWN

    @property
    def known_at_s(self) -> float:
        """When that was known last."""
        return self.at_s if self.is_known or self.fired_at_s is None else self.fired_at_s

    @property
    def dead_lettered(self) -> int | None:
        """Dead letters since the starts of the workers that answered; None if none answered."""
        return self._sum("dead_lettered")

    @property
    def pending(self) -> int | None:
        """Timers that wait on the workers that answered; None if none answered."""
        return self._sum("pending")

    def _sum(self, figure: str) -> int | None:
        counts = [int(worker.get(figure) or 0) for worker in self.workers if worker["ready"] is not None]
        return sum(counts) if counts else None


def lag_s(ways: Ways, share: float) -> float | None:
    """The lag below which this share of the punctual timers is; None: there are none."""
    return quantile(ways.get(WAITED, Counter()), share)


class Look(NamedTuple):
    """What is kept of older figures."""

    at_s: float
    pending: int | None
    ways: Ways
    dead_lettered: int = 0

    @property
    def fired(self) -> int:
        """Callbacks since the workers' starts."""
        return sum(max(counts.values(), default=0) for counts in self.ways.values())


class Recent(NamedTuple):
    """Firings of a stretch of time.

    Attributes:
        at_s: its end.
        seconds: its length; 0: only one look was taken.
        per_s: callbacks a second; None if it is not known yet.
        pending: at its end.
        ways: the lags.
    """

    at_s: float
    seconds: float
    per_s: float | None
    pending: int | None
    ways: Ways

    @classmethod
    def between(cls, since: Look, until: Look) -> Recent:
        """What fired between two looks."""
        seconds, fired = until.at_s - since.at_s, until.fired - since.fired
        if seconds < 1 or fired < 0:  # fewer than before: a worker has started again
            return cls(until.at_s, 0.0, None, until.pending, {})
        ways = {}
        for way, counts in until.ways.items():
            ways[way] = Counter(counts)
            ways[way].subtract(since.ways.get(way, {}))
        return cls(until.at_s, seconds, fired / seconds, until.pending, ways)


class Board:
    """Keeps the newest figures, and something of those of the last half hour."""

    def __init__(self) -> None:
        self._newest: Figures | None = None
        self._kept: deque[Look] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._asked_at_s = float("-inf")
        self._fired_at_s: float | None = None

    async def look(self, ask: Ask, clock: Callable[[], float], wait_s: float) -> Figures | None:
        """The newest figures; None if there are none yet. They are read in the background if they are old.

        Args:
            clock: returns epoch seconds.
            wait_s: how long the caller waits for new figures.
        """
        if self._newest is None or clock() - self._newest.at_s > FRESH_S:
            if self._reading is None or self._reading.done():
                self._asked_at_s = clock()
                self._reading = asyncio.create_task(self._read(ask, clock))
            await asyncio.wait([self._reading], timeout=wait_s)
        newest = self._newest
        if newest is None or newest.problem is not None:
            return newest
        if clock() - newest.at_s < FRESH_S + SILENCE_S:
            return newest
        # No page was open for a while, and the first answer is on its way; or it does not come.
        return newest._replace(is_old=True) if clock() - self._asked_at_s >= SILENCE_S else None

    async def _read(self, ask: Ask, clock: Callable[[], float]) -> None:
        try:
            self._keep((await ask())["workers"], clock())
        except Exception as error:
            if not isinstance(error, Problem):
                logger.exception("the workers' figures cannot be read")
                error = Problem("failed", "the workers' figures cannot be read: see the log of the console")
            self._newest = (self._newest or Figures(clock(), [], {}))._replace(problem=error)

    def _keep(self, workers: list[dict[str, Any]], now_s: float) -> None:
        ways = added(parsed(worker.get("lags", {})) for worker in workers)
        newest = Figures(now_s, workers, ways)
        if newest.state.timers == FIRE:
            self._fired_at_s = now_s
        self._newest = newest = newest._replace(fired_at_s=self._fired_at_s)
        if not self._kept or newest.at_s - self._kept[-1].at_s > STEP_S:
            self._kept.append(Look(newest.at_s, newest.pending, ways, newest.dead_lettered or 0))
        while self._kept[0].at_s < newest.at_s - KEPT_S:
            self._kept.popleft()

    def recent(self) -> Recent | None:
        """The last minute, or the time since the first look; None without figures."""
        newest = self._newest
        if newest is None or not self._kept:
            return None
        since = next(each for each in self._kept if each.at_s >= newest.at_s - SPAN_S)
        return Recent.between(since, Look(newest.at_s, newest.pending, newest.ways))

    def new_letters(self) -> int:
        """Dead letters of the last half hour, as far as pages were open."""
        counts = [look.dead_lettered for look in self._kept]
        # A count that falls: a worker has started again, or does not answer.
        return sum(max(0, later - earlier) for earlier, later in pairwise(counts))

    def line(self) -> list[Recent]:
        """The last half hour in steps, as far as pages were open."""
        return [
            Recent.between(since, until) for since, until in pairwise(self._kept) if until.at_s - since.at_s < GAP_S
        ]
