"""Changes timers while they fire."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.harness.records import Reader, Record

_Name = TypeVar("_Name")


def race(
    names: Sequence[_Name], due_s: int, change: Callable[[int, _Name], None], flush: Callable[[], None], fired: Reader
) -> list[Record]:
    """Change timers of one due second: the first tenth now, the last tenth after the first callback, the others evenly
    over one second around the start of the due second.

    Returns:
        The callbacks that were read.
    """
    tenth = len(names) // 10
    seen: list[Record] = []
    for number, name in enumerate(names):
        if number == tenth:
            flush()  # the brokers have these changes before the timers fire
        if number >= len(names) - tenth:
            if not seen:
                flush()
                seen = fired.take(1)
        elif number >= tenth:
            turn_s = due_s - 0.5 + number / len(names)
            time.sleep(max(0.0, turn_s - time.time()))
        change(number, name)
    flush()
    return seen
