"""Threads for blocking calls: those of each kind have some of their own.

asyncio has one pool of a few threads for all that a process does. If reads of slow brokers filled it, no timer could be
set and no password checked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from timers.console.problems import Problem
from timers.process.http.slots import Slots

MAX_WAIT_S = 5.0
"""How long a request waits for a thread before it is refused."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


_current = threading.local()


class AbandonedError(Exception):
    """The task that waited for the result of a call was cancelled."""


def check() -> None:
    """Raise AbandonedError if no task waits for the call of this thread. Long calls ask between two steps."""
    gone: threading.Event | None = getattr(_current, "gone", None)
    if gone is not None and gone.is_set():
        raise AbandonedError


class Threads:
    """A few threads for blocking calls of one kind: ``count`` calls run at the same time."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, f"timers-console-{name}")
        self._slots = Slots(count, MAX_WAIT_S, _no_free_thread)

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of a call. If the awaiting task is cancelled, the call holds its thread until it ends or asks
        :func:`check`.

        Raises:
            Problem: no thread became free in time.
        """
        await self._slots.take()

        def give_back(running: asyncio.Future[_T]) -> None:
            self._slots.give_back()
            if not running.cancelled():
                running.exception()  # read here, or asyncio logs the failure of a call whose task was cancelled

        gone = threading.Event()

        def run() -> _T:
            _current.gone = gone
            return call(*args, **kwargs)

        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._executor, run)
        running.add_done_callback(give_back)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            gone.set()
            raise

    async def close(self) -> None:
        """Wait for the calls that run."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)


def _no_free_thread() -> Problem:
    """For a request that got no thread within :data:`MAX_WAIT_S`."""
    return Problem("busy", "other requests of this kind are being answered", {"Retry-After": "5"})
