"""The idle window: the part of each second in which listings may run, after the timers of that second have fired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

START = 0.25
END = 0.85
"""Start and end of the window in a second, by the brokers' clock. At a steady load all due timers have fired before the
start. Without the window a long list doubled the lag of due timers (``bench.listing``)."""


class IdleWindow:
    """Waits for the idle window.

    Args:
        now_s: returns the brokers' time; None if it is not known yet, and then no timer fires.
    """

    def __init__(self, now_s: Callable[[], float | None]) -> None:
        self._now_s = now_s

    @property
    def wait_s(self) -> float:
        """Seconds until the window begins; 0 inside it."""
        now_s = self._now_s()
        if now_s is None or START <= now_s % 1 < END:
            return 0.0
        return (START - now_s) % 1

    async def wait(self) -> None:
        """Wait until the window begins; return at once inside it."""
        await asyncio.sleep(self.wait_s)
