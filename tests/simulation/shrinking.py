"""Shrinks a failing run of simulated days to a few of its actions, by removing more and more of them.

Each action of :mod:`tests.simulation.days` chooses by itself, whatever came before. So a run without some of its
actions is a run, and what is left can be repeated by a command (``--only``).
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]


def shrunk(
    places: Sequence[Place], fails: Callable[[Collection[Place]], Collection[Place] | None], seconds: float
) -> list[Place]:
    """Remove actions as long as the run fails without them.

    It first tries the last days alone, and then removes shorter and shorter pieces of what is left, as delta debugging
    does (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).

    Args:
        places: the actions of a run that fails, in their order.
        fails: does some of the actions. Returns those up to the failure; None: the run did not fail.
        seconds: no run is begun after that much real time.

    Returns:
        The actions that are left.
    """
    until = time.monotonic() + seconds
    left = list(places)

    def tried(candidate: list[Place]) -> bool:
        nonlocal left
        if not candidate or time.monotonic() > until or (done := fails(candidate)) is None:
            return False
        left = [place for place in candidate if place in done]
        return True

    last_day = left[-1][0] if left else 0
    days = 1
    while days <= last_day and not tried([place for place in left if place[0] > last_day - days]):
        days *= 2
    size = max(1, len(left) // 2)
    while size and time.monotonic() <= until:
        removed = False
        start = len(left)
        while start > 0:  # what is near the failure is removed last: it is needed more often
            start = min(start, len(left)) - size
            removed |= tried([*left[: max(start, 0)], *left[start + size :]])
        size = size // 2 if size > 1 else int(removed)
    return left
