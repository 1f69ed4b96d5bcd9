"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 40.0
"""Deadline for an action that takes a few seconds on an idle machine; a busy one is slower."""

_POLL_S = 0.05

_T = TypeVar("_T")


def wait_until(ask: Callable[[], _T | None], what: str, deadline_s: float = DEADLINE_S) -> _T:
    """Call ``ask`` until it returns a true value, and return that value."""
    give_up = time.monotonic() + deadline_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < give_up, f"{what}: not within {deadline_s:.0f} s; last answer: {answer!r}"
        time.sleep(_POLL_S)


def due_in(seconds: int) -> int:
    """An epoch second that begins ``seconds - 1`` to ``seconds`` from now."""
    return int(time.time()) + seconds
