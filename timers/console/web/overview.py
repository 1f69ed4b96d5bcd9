"""The first page: whether timers fire, how many wait, how late they are, and what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.web.board import Figures, Recent, lag_s
from timers.console.web.diagnosis import findings, headline, level
from timers.console.web.page import Page, Screen

NEXT_TIMERS = 8


async def overview(page: Page) -> Reply:
    """``GET /``"""
    figures, coming = await asyncio.gather(page.figures(), _coming(page))
    found = findings(figures, page.board.new_letters()) if figures else []
    recent = page.board.recent()
    lags = [_tile(percent, recent, figures) for percent in (50, 99)]
    return page.show(
        "overview.html",
        figures=figures,
        found=found,
        level=level(found) if figures else "unknown",
        headline=headline(figures, found) if figures else "",
        recent=recent,
        lags=lags,
        coming=coming,
    )


async def _coming(page: Page) -> dict[str, Any]:
    """The next timers."""
    try:
        return await page.soon(page.api("listTimers", limit=NEXT_TIMERS)) or {}
    except Problem as problem:
        return {"problem": problem.body}


def _tile(percent: int, recent: Recent | None, figures: Figures | None) -> dict[str, Any]:
    """The lag of the last minute; if nothing fired in it, since the workers started."""
    now_s = lag_s(recent.ways, percent / 100) if recent else None
    ever_s = lag_s(figures.ways, percent / 100) if figures else None
    words = "of the last minute" if now_s is not None else "since the workers started"
    return {"percent": percent, "lag_s": ever_s if now_s is None else now_s, "of": words}


SCREENS = (Screen("GET", "/", "overview", overview),)
