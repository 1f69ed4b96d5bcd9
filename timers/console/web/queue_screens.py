"""The pages of queues."""

from __future__ import annotations

from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.web.page import Page, Screen


async def queues(page: Page) -> Reply:
    """``GET /queues``"""
    listed = await page.soon(page.api("listQueues"))
    return page.show("queues.html", listed=listed)


async def queue(page: Page) -> Reply:
    """``GET /queue``"""
    name = page.given.get("name")
    if not name:
        raise Problem("parameter-invalid", "the parameter 'name' is missing: the name of a queue")
    found = await page.soon(page.api("getQueue", name=name, topic=page.given.get("topic")))
    return page.show("queue.html", name=name, queue=found)


SCREENS = (Screen("GET", "/queues", "queues", queues), Screen("GET", "/queue", "queue", queue))
