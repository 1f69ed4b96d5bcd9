"""The first page (whether timers fire, how many wait, how late, what is wrong), and those of workers and of lags."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from timers.console.call import Reply
from timers.console.figures import SILENCE_S, Ways, quantile
from timers.console.problems import Problem
from timers.console.web.board import WAITED, Figures, Recent, lag_s
from timers.console.web.diagnosis import UNKNOWN, findings, headline, level
from timers.console.web.page import Page, screen
from timers.console.web.rendering import runbooks, span
from timers.wire.printable import quoted

NEXT_TIMERS = 8

MOST_OF_TOPIC, SHOWN_OF_TOPIC = 2000, 100
"""Newest firings of a topic that are counted, and that are listed."""

FIRED = 200
"""Firings that the page of the last hour shows."""


@screen("/")
async def overview(page: Page) -> Reply:
    figures, coming = await asyncio.gather(page.figures(), _coming(page))
    found = findings(figures, page.board.new_letters()) if figures else []
    recent = page.board.recent()
    lags = [_tile(percent, recent, figures) for percent in (50, 99)]
    return page.show(
        "overview.html",
        figures=figures,
        found=found,
        level=level(found) if figures else UNKNOWN,
        headline=headline(figures, found) if figures else "",
        recent=recent,
        lags=lags,
        line=_line(page.board.line()),
        coming=coming,
    )


async def _coming(page: Page) -> dict[str, Any]:
    """The next timers."""
    try:
        # The page waits for it, and must say within this time that it does not know more.
        return await page.soon(page.api("listTimers", limit=NEXT_TIMERS), SILENCE_S) or {}
    except Problem as problem:
        return {"problem": problem.body}


def _tile(percent: int, recent: Recent | None, figures: Figures | None) -> dict[str, Any]:
    """The lag of the last minute; if nothing fired in it, since the workers started."""
    now_s = lag_s(recent.ways, percent / 100) if recent else None
    ever_s = lag_s(figures.ways, percent / 100) if figures else None
    words = "of the last minute" if now_s is not None else "since the workers started"
    return {"percent": percent, "lag_s": ever_s if now_s is None else now_s, "of": words}


WAY_NAMES = {
    WAITED: "punctual: the timer waited for its second",
    "late": "late request: its second was over when it arrived",
    "retried": "retried: its target failed before",
}

LAG_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds of the bars for a topic. Those of a way are the worker's own."""


class Bar(NamedTuple):
    """One bar of a histogram.

    Attributes:
        percent: its length, relative to the longest.
    """

    label: str
    callbacks: int
    percent: float


@screen("/workers")
async def workers(page: Page) -> Reply:
    figures = await page.figures()
    found = findings(figures) if figures else []
    return page.show("workers.html", figures=figures, found=found, level=level(found) if figures else UNKNOWN)


@screen("/lag")
async def lag(page: Page) -> Reply:
    figures = await page.figures()
    topic = page.given.get("topic", "")
    of_topic: dict[str, Any] | None = None
    problem = None
    if topic:
        try:
            of_topic = await page.soon(page.api("listFired", topic=topic, since=0, limit=MOST_OF_TOPIC))
        except Problem as error:
            problem = error.body
    recent = page.board.recent()
    spans = [("the last minute", recent.ways)] if recent and recent.seconds else []
    spans += [("since the workers started", figures.ways)] if figures and not figures.problem else []
    return page.show(
        "lag.html",
        figures=figures,
        ways=[_way(way, spans) for way in WAY_NAMES if any(way in ways for _, ways in spans)],
        line=_line(page.board.line()),
        topic=topic,
        of_topic=of_topic and _topic(of_topic),
        problem=problem,
    )


def _way(way: str, spans: list[tuple[str, Ways]]) -> dict[str, Any]:
    """Histograms of one way of firing, newest time first."""
    return {
        "name": way,
        "why": WAY_NAMES[way],
        "spans": [
            {
                "of": words,
                "count": max(ways[way].values(), default=0),
                **{f"p{percent}": quantile(ways[way], percent / 100) for percent in (50, 99)},
                "bars": bars(ways[way]),
            }
            for words, ways in spans
            if way in ways
        ],
    }


def bars(counts: Counter[float]) -> list[Bar]:
    """The bars of a histogram with cumulative counts, without empty ones at both ends."""
    steps = [(0.0, 0), *sorted(counts.items())]
    found = [
        (f"over {span(low_s)}" if high_s == float("inf") else f"to {span(high_s)}", upto - before)
        for (low_s, before), (high_s, upto) in pairwise(steps)
    ]
    filled = [number for number, (_, count) in enumerate(found) if count > 0]
    shown = found[filled[0] : filled[-1] + 1] if filled else []
    most = max((count for _, count in shown), default=1)
    return [Bar(label, count, round(100 * count / most, 2)) for label, count in shown]


def _line(steps: Sequence[Recent]) -> dict[str, Any]:
    """The time line of lags and of the rate, as columns for a chart."""
    known = [step for step in steps if step.per_s is not None]
    return {
        "at": [round(step.at_s) for step in known],
        "p50": [_ms(lag_s(step.ways, 0.5)) for step in known],
        "p99": [_ms(lag_s(step.ways, 0.99)) for step in known],
        "rate": [round(step.per_s or 0, 2) for step in known],
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _topic(said: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of the newest callbacks of a topic."""
    fired = [each for each in said["fired"] if each["lag_ms"] is not None]
    lags_s = sorted(each["lag_ms"] / 1000 for each in fired)
    counts: Counter[float] = Counter()
    for bound_s in (*LAG_BOUNDS_S, float("inf")):
        counts[bound_s] = sum(lag_s <= bound_s for lag_s in lags_s)
    worst: dict[int, int] = {}
    for each in fired:
        worst[each["due_s"]] = max(each["lag_ms"], worst.get(each["due_s"], each["lag_ms"]))
    return {
        "count": len(lags_s),
        "newest": fired[:SHOWN_OF_TOPIC],
        "left_out": [each["reason"] for each in said["left_out"]],
        "p50": lags_s[len(lags_s) // 2] if lags_s else None,
        "p99": lags_s[min(len(lags_s) - 1, len(lags_s) * 99 // 100)] if lags_s else None,
        "most": lags_s[-1] if lags_s else None,
        "bars": bars(counts),
        "line": {"at": sorted(worst), "lag": [worst[due_s] for due_s in sorted(worst)]},
    }


@screen("/fired")
async def fired(page: Page) -> Reply:
    listed = await page.soon(page.api("listFired", limit=FIRED))
    return page.show("fired.html", listed=listed)


@screen("/runbook")
async def runbook(page: Page) -> Reply:
    """A section of docs/operations.md."""
    name = page.given.get("name", "")
    if name not in runbooks():
        raise Problem("not-found", f"docs/operations.md has no section {quoted(name[:100])}")
    heading, text = runbooks()[name]
    return page.show("runbook.html", heading=heading, text=text)
