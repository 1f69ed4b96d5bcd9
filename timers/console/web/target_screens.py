"""The pages of callback topics: of those whose timers wait, and what creates one."""

from __future__ import annotations

from typing import Any

from timers.console.call import Reply
from timers.console.target_pages import seconds
from timers.console.web.page import Page, screen


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
