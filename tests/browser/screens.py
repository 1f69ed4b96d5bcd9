"""The screens of the console."""

from __future__ import annotations

from typing import Any

SCREENS = (
    *("/", "/timers", "/timers/new", "/timer?id=seen%2F1", "/timer?id=none"),
    *("/due", "/lag", "/live", "/workers", "/dead-letters", "/queues", "/runbook?name=clocks"),
)


def settled(page: Any) -> None:
    """Wait until no part of the page is awaited any longer."""
    page.wait_for_function("() => !document.querySelector('[data-soon], .waiting, .htmx-request')")
