"""The page of firings as they happen. Its script reads the stream of the API."""

from __future__ import annotations

import re

from timers.console.call import Reply
from timers.console.web.page import Page, Screen

MAX_TOPICS = 10
PER_S = 20
"""Firings that are shown in a second: more cannot be read. The others are counted."""


async def live(page: Page) -> Reply:
    """``GET /live``"""
    names = list(dict.fromkeys(re.split(r"[\s,]+", page.given.get("topics", "").strip())))
    topics = [name for name in names if name][:MAX_TOPICS]
    return page.show("live.html", topics=topics, per_s=PER_S)


SCREENS = (Screen("GET", "/live", "live", live),)
