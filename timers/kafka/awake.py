"""Waits with a time-out that counts only time in which this process was running."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any, TypeVar

AWAKE_S = 0.5
"""Seconds; a running process checks its time-outs more often than this."""

_Task = TypeVar("_Task", bound=asyncio.Future[Any])


async def wait_awake(tasks: Iterable[_Task], seconds: float, return_when: str = asyncio.FIRST_EXCEPTION) -> set[_Task]:
    """Wait for all of ``tasks``, or the first that fails. Returns those that have not ended.

    Only time in which this process was running counts. After a pause all its time-outs end together, before it has
    read any answer: then targets would seem to fail, and a takeover by another worker would be hidden.
    """
    waiting = set(tasks)
    for _ in range(math.ceil(seconds / AWAKE_S) if waiting else 0):
        done, waiting = await asyncio.wait(waiting, timeout=AWAKE_S, return_when=return_when)
        failed = any(task.cancelled() or task.exception() for task in done)
        if not waiting or (failed and return_when == asyncio.FIRST_EXCEPTION):
            break
    return waiting
