"""The pages of dead letters (their list by code, one of them, and retries), and those of queues."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from timers.console.call import Reply
from timers.console.web.page import Page, kept_number, screen
from timers.console.web.rendering import link, moment
from timers.dead_letters.meanings import MEANINGS, Meaning


@screen("/queues")
async def queues(page: Page) -> Reply:
    listed = await page.soon(page.api("listQueues"))
    return page.show("queues.html", listed=listed)


@screen("/queue")
async def queue(page: Page) -> Reply:
    name = page.needed("name", "the name of a queue")
    found = await page.soon(page.api("getQueue", name=name, topic=page.given.get("topic")))
    return page.show("queue.html", name=name, queue=found)


PAGE_LETTERS = 50
NO_MEANING = Meaning("This version does not know the code.", "Look at the version that wrote it.")


@screen("/dead-letters")
async def letters(page: Page) -> Reply:
    selection = selected(page, page.given)
    figures, listed = await asyncio.gather(
        page.figures(),
        page.soon(page.api("listDeadLetters", limit=PAGE_LETTERS, cursor=page.given.get("cursor"), **selection)),
    )
    following = link("/dead-letters", **selection, cursor=listed["next"]) if listed and listed["next"] else ""
    counts: Counter[str] = Counter()
    for worker in figures.workers if figures else ():
        counts.update(worker.get("dead_letters") or {})
    return page.show(
        "letters.html",
        listed=listed,
        selection=selection,
        following=following,
        counts=counts.most_common(),
        meanings=MEANINGS,
        no_meaning=NO_MEANING,
    )


def selected(page: Page, given: dict[str, str]) -> dict[str, Any]:
    """The filter of a list, with its times as epoch seconds."""
    found: dict[str, Any] = {name: given[name] for name in ("code", "topic", "queue") if given.get(name)}
    for name in ("since", "until"):
        if given.get(name):
            found[name] = moment(name, given[name], page.now_s, is_past=True)
    return found


@screen("/dead-letter")
async def letter(page: Page) -> Reply:
    name = page.needed("name", "the position of a dead letter")
    found = await page.soon(page.api("getDeadLetter", name=name))
    code = found["code"] if found else ""
    return page.show("letter.html", name=name, letter=found, meaning=MEANINGS.get(code, NO_MEANING))


@screen("/dead-letter/request")
async def request_of(page: Page) -> Reply:
    """Key, value and headers of its request."""
    found = await page.api("getDeadLetter", name=page.given.get("name"), value="1")
    return page.show("parts/letter_request.html", request=json.dumps(found["request"], indent=2, ensure_ascii=False))


@screen("/dead-letter/retry", "POST")
async def retry_one(page: Page) -> Reply:
    await page.form()
    done = await page.api("retryDeadLetters", {"names": [page.given.get("name")]})
    return page.show("parts/retried.html", done=done)


@screen("/dead-letters/retry", "POST")
async def retry_all(page: Page) -> Reply:
    """Says how many match, then publishes them in steps."""
    form = await page.form()
    selection = selected(page, form)
    body = {("codes" if name == "code" else name): value for name, value in selection.items()}
    if "codes" in body:
        body["codes"] = [body["codes"]]
    if form.get("confirm"):
        done = await page.api("retryDeadLetters", {**body, "confirm": form["confirm"]})
        published = kept_number(form.get("published")) + done["published"]
        return page.show(
            "parts/retried.html", done=done, published=published, selection=selection, confirm=done["confirm"]
        )
    preview = await page.api("retryDeadLetters", body)
    return page.show("parts/retry_preview.html", preview=preview, selection=selection)
