"""When machines may be read for questions, so that due timers fire first.

Most reading is done in the idle window of each second, after its timers have fired. The first page of a list may be
read at any time: it is small, and someone waits for it. Both take a limited share of the time of one processor, so any
number of readers delays due timers by a limited time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from timers.worker.queries.reading import SLICE_S

START = 0.25
END = 0.85
"""Start and end of the idle window in a second, by the brokers' clock. At a steady load all due timers have fired by
then. Without the window a long list doubled the lag of due timers (``bench.listing``)."""

IDLE_SHARE = 0.5
"""Share of the time in which machines are read in the idle window."""

BUSY_SHARE = 0.35
"""The same in the rest of the second."""

BURST_S = 0.02
"""Time for which machines may be read before the shares count, and longest time that is made up for afterwards."""


class Turns:
    """Says when to read. One event loop calls it.

    Args:
        now_s: returns the brokers' time; None if it is not known yet, and then no timer fires.
        clock: returns monotonic time.
    """

    def __init__(self, now_s: Callable[[], float | None], clock: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._clock = clock
        self._left_s = BURST_S
        self._refilled_at = clock()
        self._given_back = asyncio.Event()

    def wait_s(self, *, quick: bool) -> float:
        """Seconds until a machine may be read; 0: now.

        Args:
            quick: whether it is for the first page of a list, and need not wait for the idle window.
        """
        until_window_s = self._until_window_s()
        if until_window_s and not quick:
            return until_window_s
        share = BUSY_SHARE if until_window_s else IDLE_SHARE
        now = self._clock()
        self._left_s = min(BURST_S, self._left_s + (now - self._refilled_at) * share)
        self._refilled_at = now
        return 0.0 if self._left_s > 0 else (BURST_S / 100 - self._left_s) / share

    def _until_window_s(self) -> float:
        now_s = self._now_s()
        if now_s is None or START <= now_s % 1 < END:
            return 0.0
        return (START - now_s) % 1

    async def wait(self, *, quick: bool) -> None:
        """Wait until a machine may be read. A whole slice counts as read, until :meth:`correct` says how much it was:
        else all questions that wait would begin together."""
        while wait_s := self.wait_s(quick=quick):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._given_back.wait()
        self.spend(SLICE_S)

    def correct(self, seconds: float) -> None:
        """Note how long a machine was read after :meth:`wait`. Most slices are shorter, so others may read earlier."""
        self.spend(seconds - SLICE_S)
        self._given_back.set()  # wakes those that wait now
        self._given_back.clear()

    def spend(self, seconds: float) -> None:
        """Note how long a machine was read."""
        self._left_s = max(-BURST_S, self._left_s - seconds)
