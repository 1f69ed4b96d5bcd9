"""The parts of the page of timers that cancel all timers of its filter: a count, a confirmation, steps."""

from __future__ import annotations

from typing import Any

from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.timer_pages import UNDECIDED
from timers.console.web.page import Page, Screen, kept_number
from timers.console.web.timer_screens import selected
from timers.core.operation import ALREADY_FIRED, CANCELLED, UNKNOWN

COUNTED = {
    CANCELLED: "cancelled",
    ALREADY_FIRED: "fired before",
    UNKNOWN: "were no longer pending",
    UNDECIDED: "undecided: their cancel takes effect when a worker reads it",
    "left_out": "left out: they have no id, wait for a retry, or are not yours",
}
"""Name of a number in the answer of a step -> what the page says."""


async def cancel_all(page: Page) -> Reply:
    """``POST /timers/cancel``: counts the timers that match; with a confirmation, cancels for some seconds."""
    form = await page.form()
    selection = selected(form, page.now_s)
    if not form.get("confirm"):
        preview = await page.api("cancelTimers", selection)
        return page.show("parts/cancel_preview.html", preview=preview, selection=selection)
    counts, problem, following = {name: kept_number(form.get(name)) for name in COUNTED}, None, form["confirm"]
    try:
        step = await page.api("cancelTimers", {**selection, "confirm": following})
        counts = {name: counts[name] + step["verdicts"][name] for name in COUNTED}
        following = step["next"]
    except Problem as error:  # what was cancelled before is still said, and the rest of the step can be tried again
        problem = error.body
        counts = {name: counts[name] + problem.get("verdicts", {}).get(name, 0) for name in COUNTED}
        following = problem.get("next", following)
    context: dict[str, Any] = {"counts": counts, "problem": problem, "following": following, "words": COUNTED}
    return page.show("parts/cancel_step.html", selection=selection, matching=form.get("matching", ""), **context)


SCREENS = (Screen("POST", "/timers/cancel", "cancel-all", cancel_all),)
