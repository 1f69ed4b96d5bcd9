"""The screens of the console."""

from __future__ import annotations

from typing import Any

from tests.harness.console_pages import SCREENS

SEEN = (*SCREENS, "/timer?id=seen%2F1", "/timer?id=none")
"""The screens, with one of a timer, and one of an id that no timer has."""


def settled(page: Any) -> None:
    """Wait until no part of the page is awaited any longer."""
    page.wait_for_function("() => !document.querySelector('[data-soon], .waiting, .htmx-request')")
