"""The part of each second in which listings may run: not just after its start, when the timers of that second fire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FROM = 0.25
TO = 0.85
"""Start and end of that part, by the brokers' clock. At a steady load all due timers have fired before ``FROM``.
Without this limit a long list doubled the lag of due timers (``bench.listing``)."""


class IdleWindow:
    """Waits for that part of a second.

    Args:
        now_s: returns the brokers' time; None if it is not known yet, and then no timer fires.
    """

    def __init__(self, now_s: Callable[[], float | None]) -> None:
        self._now_s = now_s

    @property
    def wait_s(self) -> float:
        """Seconds until it begins; 0 while it lasts."""
        now_s = self._now_s()
        if now_s is None or FROM <= now_s % 1 < TO:
            return 0.0
        return (FROM - now_s) % 1

    async def wait(self) -> None:
        """Wait until it begins."""
        await asyncio.sleep(self.wait_s)
