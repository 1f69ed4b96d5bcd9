"""The pages whose scripts ask the API: when timers are due, by hour, minute and second, and firings as they happen."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.web.page import Page, screen
from timers.console.web.rendering import link
from timers.wire.printable import quoted
from timers.wire.query import format_due

MAX_TOPICS = 10
PER_S = 20
"""Firings that are shown in a second: more cannot be read. The others are counted."""


@screen("/live")
async def live(page: Page) -> Reply:
    names = list(dict.fromkeys(re.split(r"[\s,]+", page.given.get("topics", "").strip())))
    topics = [name for name in names if name][:MAX_TOPICS]
    return page.show("live.html", topics=topics, per_s=PER_S)


DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
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


_GRIDS = (
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
    number = next((number for number in (2, 1) if _GRIDS[number].parameter in page.given), 0)
    shown = _shown(number, _start(_GRIDS[number], page), topic)
    ready = sum(worker["ready"] is True for worker in figures.workers) if figures else 0
    # With ids, the workers' figure counts cancelled timers until their due second: it would not agree with the cells.
    pending = figures.pending if figures and not page.settings.id_topic else None
    return page.show("due.html", topic=topic or "", per_s=WORKER_PER_S * max(1, ready), pending=pending, **shown)


def _start(grid: _Grid, page: Page) -> int:
    """The epoch second with which a grid begins; without a parameter, today.

    Raises:
        Problem: the parameter is no time of this form.
    """
    text = page.given.get(grid.parameter, format_due(int(page.now_s))[: grid.digits])
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
    grid, inner = _GRIDS[number], _GRIDS[number + 1] if number + 1 < len(_GRIDS) else None

    def address(grid: _Grid, second: int) -> str:
        return link("/due", **{grid.parameter: format_due(max(0, second))[: grid.digits]}, topic=topic)

    def timers(second: int, length_s: int) -> str:
        return link("/timers", topic=topic, from_=second, to=second + length_s)

    def cell(second: int) -> dict[str, Any]:
        name = format_due(second).replace("T", " ")[: 20 if grid.cell_s == 1 else 16]
        return {"from": second, "name": name, "target": address(inner, second) if inner else timers(second, 1)}

    def row(second: int) -> dict[str, Any]:
        at, day = format_due(second), f"{datetime.fromtimestamp(second, UTC):%a}"
        name = f"{day} {at[:10]}" if grid.by == "hour" else at[11:19] if grid.by == "second" else at[11:16]
        cells = [cell(each) for each in range(second, second + grid.row_s, grid.cell_s)]
        return {"name": name, "list": timers(second, grid.row_s), "cells": cells}

    counts = {by: link("/v1/pending", by=by, topic=topic, from_=start, to=start + grid.length_s) for by in _SIZES}
    return {
        "by": grid.by,
        "title": grid.title.format(format_due(start)[: grid.digits].replace("T", " ")),
        "rows": [row(second) for second in range(start, start + grid.length_s, grid.row_s)],
        "columns": grid.columns,
        "list": timers(start, grid.length_s),
        "up": address(_GRIDS[number - 1], start) if number else None,
        "before": address(grid, start - grid.length_s),
        "after": address(grid, start + grid.length_s),
        "count": counts[grid.by],
        "minutes": counts["minute"],
        "seconds": counts["second"],
    }


_SIZES = ("hour", "minute", "second")
