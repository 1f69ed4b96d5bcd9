"""The newest figures of the workers. They are read while a page shows them, and at no other time.

All users of a console see the same figures, so the workers are asked once for all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any, NamedTuple

from timers.console import worker_pages
from timers.console.problems import Problem
from timers.console.web.page import Page

FRESH_S = 2.0
"""Younger figures are shown again."""

SPAN_S = 60.0
"""Rates and quantiles are those of the last minute, or of the time since the first look if that is shorter."""

KEPT_S = 1800.0


class Figures(NamedTuple):
    """What the workers said at one time.

    Attributes:
        problem: why they could not be asked.
        ways: way of firing -> number and quantiles of lags since the workers' starts.
    """

    at_s: float
    workers: list[dict[str, Any]]
    ways: dict[str, dict[str, Any]]
    problem: Problem | None = None

    @property
    def pending(self) -> int | None:
        """Timers that wait on the workers that answered; None if none answered."""
        counts = [worker["pending"] for worker in self.workers if worker["ready"] is not None]
        return sum(counts) if counts else None

    @property
    def fired(self) -> int:
        """Callbacks since the workers' starts."""
        return sum(way["timers"] for way in self.ways.values())


class Recent(NamedTuple):
    """Firings of the last minute.

    Attributes:
        seconds: length of the time that was seen; 0: only one look was taken.
        per_s: callbacks a second; None if it is not known yet.
        ways: way -> number and quantiles of lags in this time.
    """

    seconds: float
    per_s: float | None
    ways: dict[str, dict[str, Any]]


class Board:
    """Keeps the newest figures, and those of the last half hour."""

    def __init__(self) -> None:
        self._kept: deque[Figures] = deque()
        self._reading: asyncio.Task[None] | None = None

    async def look(self, page: Page) -> Figures | None:
        """The newest figures; None if there are none yet. They are read in the background if they are old."""
        newest = self._kept[-1] if self._kept else None
        if newest is None or page.now_s - newest.at_s > FRESH_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(page))
            await asyncio.wait([self._reading], timeout=page.patience_s)
        return self._kept[-1] if self._kept else None

    async def _read(self, page: Page) -> None:
        try:
            workers, lateness = await asyncio.gather(page.api("workers"), page.api("lateness"))
            figures = Figures(page.call.console.now_s(), workers["workers"], lateness["ways"])
        except Problem as problem:
            figures = Figures(page.call.console.now_s(), [], {}, problem)
        self._kept.append(figures)
        while self._kept[0].at_s < figures.at_s - KEPT_S:
            self._kept.popleft()

    def recent(self) -> Recent:
        """Firings between the newest figures and those of a minute before."""
        newest = self._kept[-1]
        since = next(
            (each for each in self._kept if each.at_s >= newest.at_s - SPAN_S and each.problem is None), newest
        )
        seconds = newest.at_s - since.at_s
        fired = newest.fired - since.fired
        if newest.problem or seconds < 1 or fired < 0:  # fewer than before: a worker has started again
            return Recent(0.0, None, {})
        ways = {way: _since(said, since.ways.get(way, {})) for way, said in newest.ways.items()}
        return Recent(seconds, fired / seconds, ways)


def _since(newest: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    counts = _buckets(newest)
    counts.subtract(_buckets(before))
    return worker_pages.summary(counts)


def _buckets(way: dict[str, Any]) -> Counter[float]:
    return Counter({float("inf") if bound is None else bound: count for bound, count in way.get("buckets", [])})
