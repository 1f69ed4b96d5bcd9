"""Waits for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 120.0
"""Deadline for an action that takes a few seconds on an idle machine. A busy one is slower, and may be paused; a long
deadline costs nothing where all is well."""

_LATER = (1, 4, 16)

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


def done_in_time(lead_s: int, attempt: Callable[[int], bool]) -> None:
    """Call ``attempt`` with so many seconds, and with more if it was not done within them.

    A test of what comes before a due second needs this: a machine that is busy, or was paused, may be done after it. No
    other failure is forgiven.

    Args:
        lead_s: enough on an idle machine.
        attempt: gets the seconds, and returns whether all that had to come before was done in time.
    """
    assert any(attempt(lead_s * factor) for factor in _LATER), f"not done within {lead_s * _LATER[-1]} s"


def due_in(seconds: int) -> int:
    """An epoch second that begins ``seconds - 1`` to ``seconds`` from now."""
    return int(time.time()) + seconds
