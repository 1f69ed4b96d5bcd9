"""Waiting for things, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 40.0
"""For anything that takes a second or a few: the machine may be busy with other things."""

_POLL_S = 0.05

_T = TypeVar("_T")


def wait_until(ask: Callable[[], _T], what: str, deadline_s: float = DEADLINE_S) -> _T:
    """The first answer that is true, asking again and again."""
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
