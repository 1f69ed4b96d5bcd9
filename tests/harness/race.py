"""Changes that race with the firing of what they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.harness.records import Reader, Record
from tests.harness.waiting import wait_until

_Name = TypeVar("_Name")


def race(
    names: Sequence[_Name], due_s: int, change: Callable[[int, _Name], None], flush: Callable[[], None], fired: Reader
) -> list[Record]:
    """Change timers that are due together: the first tenth at once, the last one when firing has begun, and those
    between evenly over the half seconds around the beginning of their second.

    Returns:
        What has fired until then.
    """
    tenth = len(names) // 10
    seen: list[Record] = []
    for number, name in enumerate(names):
        if number == tenth:
            flush()  # these come in time
        if number >= len(names) - tenth:
            if not seen:
                flush()
                seen = fired.take(1)
        elif number >= tenth:
            turn_s = due_s - 0.5 + number / len(names)
            wait_until(lambda turn_s=turn_s: time.time() > turn_s, "its turn")
        change(number, name)
    flush()
    return seen
