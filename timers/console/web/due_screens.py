"""The pages whose scripts ask the API: when timers are due, by hour, minute and second, and firings as they happen."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.web.page import Page, Screen
from timers.console.web.rendering import link
from timers.wire.printable import quoted
from timers.wire.query import format_due

MAX_TOPICS = 10
PER_S = 20
"""Firings that are shown in a second: more cannot be read. The others are counted."""


async def live(page: Page) -> Reply:
    """``GET /live``"""
    names = list(dict.fromkeys(re.split(r"[\s,]+", page.given.get("topics", "").strip())))
    topics = [name for name in names if name][:MAX_TOPICS]
    return page.show("live.html", topics=topics, per_s=PER_S)


DAYS = 7
DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
SECONDS_OF_A_ROW = 10
MAX_S = 99_999_999_999

WORKER_PER_S = 100_000
"""Timers that a worker fires in a second; docs/operations.md says so. The forecast can be made with another figure."""


async def due(page: Page) -> Reply:
    """``GET /due``"""
    figures = await page.figures()
    topic = page.given.get("topic")
    if "minute" in page.given:
        start = _instant("minute", page.given["minute"], r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}", ":00Z")
        shown = _minute(start, topic)
    elif "day" in page.given:
        start = _instant("day", page.given["day"], r"\d{4}-\d{2}-\d{2}", "T00:00:00Z")
        shown = _day(start, topic)
    else:
        now_s = int(page.now_s)
        first = page.given.get("from")
        start = _instant("from", first, r"\d{4}-\d{2}-\d{2}", "T00:00:00Z") if first else now_s - now_s % DAY_S
        shown = _week(start, topic)
    ready = sum(worker["ready"] is True for worker in figures.workers) if figures else 0
    # With ids, the workers' figure counts cancelled timers until their due second: it would not agree with the cells.
    pending = figures.pending if figures and not page.settings.id_topic else None
    return page.show("due.html", topic=topic or "", per_s=WORKER_PER_S * max(1, ready), pending=pending, **shown)


def _instant(name: str, text: str, form: str, rest: str) -> int:
    """The epoch second of a time in the address of a page.

    Raises:
        Problem: it is none.
    """
    try:
        if re.fullmatch(form, text, re.ASCII):
            second = int(datetime.fromisoformat(text + rest).timestamp())
            if 0 <= second <= MAX_S - DAYS * DAY_S:
                return second
    except ValueError:
        pass
    raise Problem("parameter-invalid", f"{name}={quoted(text[:100])} is no time of this page, such as 2030-01-31")


def _week(start: int, topic: str | None) -> dict[str, Any]:
    rows = [
        _row(
            f"{datetime.fromtimestamp(day, UTC):%a} {format_due(day)[:10]}",
            range(day, day + DAY_S, HOUR_S),
            HOUR_S,
            topic,
            lambda second: link("/due", day=format_due(second)[:10], topic=topic),
        )
        for day in range(start, start + DAYS * DAY_S, DAY_S)
    ]
    return {
        **_shared("hour", start, DAYS * DAY_S, rows, [f"{hour:02}" for hour in range(24)], topic),
        "title": "Hours of a week",
        "up": None,
        "before": link("/due", **{"from": format_due(max(0, start - DAYS * DAY_S))[:10]}, topic=topic),
        "after": link("/due", **{"from": format_due(start + DAYS * DAY_S)[:10]}, topic=topic),
    }


def _day(start: int, topic: str | None) -> dict[str, Any]:
    rows = [
        _row(
            format_due(hour)[11:16],
            range(hour, hour + HOUR_S, MINUTE_S),
            MINUTE_S,
            topic,
            lambda second: link("/due", minute=format_due(second)[:16], topic=topic),
        )
        for hour in range(start, start + DAY_S, HOUR_S)
    ]
    columns = [f"{minute:02}" if minute % 10 == 0 else "" for minute in range(60)]
    return {
        **_shared("minute", start, DAY_S, rows, columns, topic),
        "title": f"Minutes of {format_due(start)[:10]}",
        "up": link("/due", **{"from": format_due(start)[:10]}, topic=topic),
        "before": link("/due", day=format_due(max(0, start - DAY_S))[:10], topic=topic),
        "after": link("/due", day=format_due(start + DAY_S)[:10], topic=topic),
    }


def _minute(start: int, topic: str | None) -> dict[str, Any]:
    rows = [
        _row(
            format_due(first)[11:19],
            range(first, first + SECONDS_OF_A_ROW),
            1,
            topic,
            lambda second: _list(second, 1, topic),
        )
        for first in range(start, start + MINUTE_S, SECONDS_OF_A_ROW)
    ]
    return {
        **_shared("second", start, MINUTE_S, rows, [f"+{second}" for second in range(SECONDS_OF_A_ROW)], topic),
        "title": f"Seconds of {format_due(start)[:16].replace('T', ' ')}",
        "up": link("/due", day=format_due(start)[:10], topic=topic),
        "before": link("/due", minute=format_due(max(0, start - MINUTE_S))[:16], topic=topic),
        "after": link("/due", minute=format_due(start + MINUTE_S)[:16], topic=topic),
    }


def _shared(by: str, start: int, length: int, rows: list[Any], columns: list[str], topic: str | None) -> dict[str, Any]:
    return {
        "by": by,
        "start": start,
        "end": start + length,
        "rows": rows,
        "columns": columns,
        "list": _list(start, length, topic),
        "count": link("/v1/pending", by=by, topic=topic, from_=start, to=start + length),
        "minutes": link("/v1/pending", by="minute", topic=topic, from_=start, to=start + length),
        "seconds": link("/v1/pending", by="second", topic=topic, from_=start, to=start + length),
    }


def _row(name: str, seconds: range, length: int, topic: str | None, target: Any) -> dict[str, Any]:
    return {
        "name": name,
        "list": _list(seconds.start, seconds.stop - seconds.start, topic),
        "cells": [{"from": second, "name": _name(second, length), "target": target(second)} for second in seconds],
    }


def _name(second: int, length: int) -> str:
    return format_due(second).replace("T", " ")[: 20 if length == 1 else 16]


def _list(start: int, length: int, topic: str | None) -> str:
    return link("/timers", topic=topic, from_=start, to=start + length)


SCREENS = (
    Screen("GET", "/due", "due", due),
    Screen("GET", "/live", "live", live),
)
