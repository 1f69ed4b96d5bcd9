"""The first page: whether timers fire, how many wait, how late they are, and what is wrong."""

from __future__ import annotations

from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.web.diagnosis import RED, findings
from timers.console.web.page import Page, Screen

NEXT_TIMERS = 8


async def overview(page: Page) -> Reply:
    """``GET /``"""
    figures = await page.board.look(page)
    try:
        coming = await page.soon(page.api("listTimers", limit=NEXT_TIMERS)) or {}
    except Problem as problem:
        coming = {"problem": problem.body}
    if figures is None:
        return page.show("overview.html", figures=None, found=[], level="unknown", recent=None, coming=coming)
    found = findings(figures)
    level = "red" if any(each.level == RED for each in found) else "amber" if found else "green"
    return page.show(
        "overview.html", figures=figures, found=found, level=level, recent=page.board.recent(), coming=coming
    )


SCREENS = (Screen("GET", "/", "overview", overview),)
