"""The pages of what fires: the overview, when timers are due, firings as they happen and as they were,
workers, and callback topics."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from timers.console.call import Reply
from timers.console.figures import SILENT_AFTER_S, Ways, quantile
from timers.console.problems import Problem
from timers.console.schemas import MAX_LIMIT
from timers.console.target_pages import seconds
from timers.console.web.board import (
    FIGURES_CURRENT_S,
    UNKNOWN,
    WAITED,
    Figures,
    Recent,
    findings,
    headline,
    lag_s,
    level,
)
from timers.console.web.page import CSP_HEADER, Page, link, runbooks, screen
from timers.core.printable import quoted, utc_text
from timers.offline.app_state import AppState
from timers.process.counted import span
from timers.wire.dead_letter import QUEUE_CODES

_T = TypeVar("_T")

NEXT_TIMERS = 8

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60

LETTERS_S = 60.0
"""How long a count of dead letters is shown. They are counted for a day."""

MOST_OF_TOPIC, SHOWN_OF_TOPIC = 2000, 100
"""Newest firings of a topic that are counted, and that are listed."""

FIRED = 200
"""Firings that the page of the last hour shows."""


@screen("/")
async def overview(page: Page) -> Reply:
    figures, coming, queue_letters = await asyncio.gather(page.figures(), _coming(page), _queue_letters(page))
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
        queue_letters=queue_letters,
        queue_codes=QUEUE_CODES,
    )


async def _coming(page: Page) -> dict[str, Any]:
    """The next timers. A first paint takes those of the last seconds, and the script asks for newer ones at once."""
    kept, user = _fresh(page.board.coming, page.now_s, FIGURES_CURRENT_S), page.call.user.name
    if user in kept and not page.waits:
        return kept[user][1]
    try:
        # The page waits for it, and must say within this time that it does not know more.
        asked = page.api("listTimers", limit=NEXT_TIMERS)
        found = await page.soon(asked, SILENT_AFTER_S, "worker-unreachable") or {}
    except Problem as problem:
        return {"problem": problem.body}
    if found:
        kept[user] = page.now_s, found
    return found


def _fresh(kept: dict[str, tuple[float, _T]], now_s: float, life_s: float) -> dict[str, tuple[float, _T]]:
    """``kept``, without what is older. It stays the same object: other requests write into it, too."""
    for user in [user for user, (at_s, _) in kept.items() if not 0 <= now_s - at_s < life_s]:
        del kept[user]
    return kept


async def _queue_letters(page: Page) -> str | None:
    """How many dead letters of queues the last day has; None: it is not known. Their topic is read once a minute.

    A page does not wait for a long read, which goes on for the next one: it is long when there are many letters.
    """
    kept, user = _fresh(page.board.queue_letters, page.now_s, LETTERS_S), page.call.user.name
    if user not in kept:
        counting = page.board.counting
        if user not in counting:
            counting[user] = asyncio.create_task(_count_letters(page))
            counting[user].add_done_callback(lambda _: counting.pop(user))
        with suppress(Problem):
            await page.soon(asyncio.shield(counting[user]), SILENT_AFTER_S)
    return kept[user][1] if user in kept else None


async def _count_letters(page: Page) -> None:
    since_s, shown = int(page.now_s) - DAY_S, None
    with suppress(Problem):
        found = await page.api("listDeadLetters", code=[*QUEUE_CODES], since=since_s, limit=MAX_LIMIT)
        shown = f"{len(found['dead_letters']):,}{'+' if found['next'] else ''}"
    page.board.queue_letters[page.call.user.name] = page.now_s, shown


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
    "held": "held: its topic was paused, or had so many timers that those of others would wait",
}

LAG_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds of the bars for a topic. Those of a way are the worker's own."""


class Bar(NamedTuple):
    """One bar of a histogram; its length ``percent`` is relative to the longest."""

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
    spans = [("the last minute", recent.ways)] if recent else []
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
    return {
        "at": [round(step.at_s) for step in steps],
        "p50": [_ms(lag_s(step.ways, 0.5)) for step in steps],
        "p99": [_ms(lag_s(step.ways, 0.99)) for step in steps],
        "rate": [round(step.per_s, 2) for step in steps],
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
    """A section of docs/operations.md; without a name, all of them."""
    name = page.given.get("name", "").lower()
    if not name:
        return page.show("runbooks.html", sections=runbooks())
    if name not in runbooks():
        raise Problem("not-found", f"docs/operations.md has no section {quoted(name[:100])}")
    heading, text = runbooks()[name]
    return page.show("runbook.html", heading=heading, text=text)


@screen("/try")
async def try_calls(page: Page) -> Reply:
    """Swagger UI for the API of this console. Its style sheet has pictures in itself, which the policy must allow."""
    shown = page.show("try.html")
    return replace(shown, headers={**shown.headers, CSP_HEADER: f"{shown.headers[CSP_HEADER]}; img-src 'self' data:"})


@screen("/cluster")
async def cluster(page: Page) -> Reply:
    """What the brokers know of the app. They are asked only for the request that waits: it takes seconds."""
    topic, user = page.given.get("topic", ""), page.call.user

    def may_see(name: str) -> bool:
        return topic in ("", name) and user.may_use_topic(name)

    async def asked() -> AppState | Problem | None:
        try:
            return await page.soon(page.call.console.cluster.state(may_see, page.now_s)) if page.waits else None
        except Problem as problem:
            return problem

    figures, state = await asyncio.gather(page.figures(), asked())
    missed: Counter[str] = Counter()
    for worker in figures.workers if figures else ():
        missed.update(worker.get("occurrences_missed") or {})
    found = {"problem": state.body, "state": None} if isinstance(state, Problem) else {"problem": None, "state": state}
    paused = figures.total("paused_targets", max) if figures else None
    return page.show("cluster.html", figures=figures, **found, paused=paused, missed=dict(missed), topic=topic)


@screen("/changes")
async def changes(page: Page) -> Reply:
    """The newest entries of the log of changes. A user who may not use all topics and ids sees his own."""
    user, given = page.call.user, page.given
    is_limited = user.topics is not None or user.ids is not None
    id, of, ends = given.get("id", ""), user.name if is_limited else given.get("user", ""), given.get("ends", "")
    if not re.fullmatch(r"(\d{1,18}(-\d{1,18})*)?", ends, re.ASCII):
        raise Problem("parameter-invalid", "ends is what the link to older changes has: offsets with - between them")
    upto = [int(end) for end in ends.split("-")] if ends else None
    found = await page.soon(page.call.console.cluster.changes(id, of, upto)) if page.waits else None
    template = "parts/who.html" if "part" in given else "changes.html"
    return page.show(template, changes=found, id=id, of=of, is_limited=is_limited)


MAX_TOPICS = 10
PER_S = 20
"""Firings that are shown in a second: more cannot be read. The others are counted."""


@screen("/live")
async def live(page: Page) -> Reply:
    names = list(dict.fromkeys(re.split(r"[\s,]+", page.given.get("topics", "").strip())))
    topics = [name for name in names if name][:MAX_TOPICS]
    return page.show("live.html", topics=topics, per_s=PER_S)


MAX_S = 99_999_999_999 - 7 * DAY_S

WORKER_PER_S = 100_000
"""Timers that a worker fires in a second; docs/operations.md says so. The forecast can be made with another figure."""


class _Grid(NamedTuple):
    """A table of cells, each of which leads to the next grid; those of the last one lead to a list of timers.

    Attributes:
        parameter: of the page's address, with the beginning.
        digits: that the parameter has of a time such as 2030-01-31T12:00:00Z.
        by: what the API calls a cell.
    """

    parameter: str
    digits: int
    length_s: int
    row_s: int
    cell_s: int
    by: str
    columns: tuple[str, ...]
    title: str


_ZOOM_LEVELS = (
    _Grid("from", 10, 7 * DAY_S, DAY_S, HOUR_S, "hour", tuple(f"{hour:02}" for hour in range(24)), "Hours of a week"),
    _Grid(
        *("day", 10, DAY_S, HOUR_S, MINUTE_S, "minute"),
        tuple("" if minute % 10 else f"{minute:02}" for minute in range(60)),
        "Minutes of {}",
    ),
    _Grid("minute", 16, MINUTE_S, 10, 1, "second", tuple(f"+{second}" for second in range(10)), "Seconds of {}"),
)


@screen("/due")
async def due(page: Page) -> Reply:
    figures = await page.figures()
    topic = page.given.get("topic")
    # Of two parameters, that of the shorter time counts.
    number = next((number for number in (2, 1) if _ZOOM_LEVELS[number].parameter in page.given), 0)
    shown = _shown(number, _start(_ZOOM_LEVELS[number], page), topic)
    ready = sum(worker["ready"] is True for worker in figures.workers) if figures else 0
    # With ids, the workers' figure counts cancelled timers until their due second: it would not agree with the cells.
    pending = figures.pending if figures and not page.settings.id_topic else None
    return page.show("due.html", topic=topic or "", per_s=WORKER_PER_S * max(1, ready), pending=pending, **shown)


def _start(grid: _Grid, page: Page) -> int:
    """The epoch second with which a grid begins; without a parameter, today."""
    text = page.given.get(grid.parameter, utc_text(int(page.now_s))[: grid.digits])
    try:
        if len(text) == grid.digits and re.fullmatch(r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2})?", text, re.ASCII):
            second = int(datetime.fromisoformat(text + "0000-00-00T00:00:00Z"[grid.digits :]).timestamp())
            if 0 <= second <= MAX_S:
                return second
    except ValueError:
        pass
    why = f"{grid.parameter}={quoted(text[:100])} is no time of this page, such as 2030-01-31"
    raise Problem("parameter-invalid", why)


def _shown(number: int, start: int, topic: str | None) -> dict[str, Any]:
    grid, inner = _ZOOM_LEVELS[number], _ZOOM_LEVELS[number + 1] if number + 1 < len(_ZOOM_LEVELS) else None

    def address(grid: _Grid, second: int) -> str:
        return link("/due", **{grid.parameter: utc_text(max(0, second))[: grid.digits]}, topic=topic)

    def timers(second: int, length_s: int) -> str:
        return link("/timers", topic=topic, from_=second, to=second + length_s)

    def cell(second: int) -> dict[str, Any]:
        name = utc_text(second).replace("T", " ")[: 20 if grid.cell_s == 1 else 16]
        return {"from": second, "name": name, "target": address(inner, second) if inner else timers(second, 1)}

    def row(second: int) -> dict[str, Any]:
        at, day = utc_text(second), f"{datetime.fromtimestamp(second, UTC):%a}"
        name = f"{day} {at[:10]}" if grid.by == "hour" else at[11:19] if grid.by == "second" else at[11:16]
        cells = [cell(each) for each in range(second, second + grid.row_s, grid.cell_s)]
        return {"name": name, "list": timers(second, grid.row_s), "cells": cells}

    counts = {by: link("/v1/pending", by=by, topic=topic, from_=start, to=start + grid.length_s) for by in _SIZES}
    return {
        "by": grid.by,
        "title": grid.title.format(utc_text(start)[: grid.digits].replace("T", " ")),
        "rows": [row(second) for second in range(start, start + grid.length_s, grid.row_s)],
        "columns": grid.columns,
        "list": timers(start, grid.length_s),
        "up": address(_ZOOM_LEVELS[number - 1], start) if number else None,
        "before": address(grid, start - grid.length_s),
        "after": address(grid, start + grid.length_s),
        "count": counts[grid.by],
        "minutes": counts["minute"],
        "seconds": counts["second"],
    }


_SIZES = ("hour", "minute", "second")


@screen("/targets")
async def targets(page: Page) -> Reply:
    listed = await page.soon(page.api("listTargets"))
    return page.show("targets.html", listed=listed, topic=page.given.get("topic", ""))


@screen("/targets/pause", "POST")
async def pause_target(page: Page) -> Reply:
    form = await page.form()
    body = {name: text for name in ("topic", "for", "over", "why") if (text := form.get(name, "").strip())}
    command = await page.api("pauseTarget", body)
    return page.show("parts/target_command.html", command=command)


@screen("/targets/create", "POST")
async def create_target(page: Page) -> Reply:
    created = await page.api("createTarget", {"topic": (await page.form()).get("topic", "")})
    return page.show("parts/target_created.html", topic=created["topic"])


@screen("/targets/resume", "POST")
async def resume_target(page: Page) -> Reply:
    """Says what a release would do, then begins it."""
    form = await page.form()
    body = {name: text for name in ("topic", "over") if (text := form.get(name, "").strip())}
    if form.get("confirm"):
        return page.show("parts/target_command.html", command=await page.api("resumeTarget", body))
    listed = await page.api("listTargets")
    target: dict[str, Any] = next((each for each in listed["targets"] if each["topic"] == body.get("topic")), {})
    return page.show(
        "parts/resume_preview.html", body=body, target=target, over_s=seconds("over", body.get("over", "0s"))
    )
