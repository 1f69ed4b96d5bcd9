"""When somebody may read who is in no hurry: not while the timers of a second fire, which is just after it turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FROM = 0.25
TO = 0.85
"""Part of each second, by the brokers' clock. At a steady load all that is due is out before, and what is read takes
the interpreter from nobody. Without it a long list doubled the lag of what is due (``bench.listing``)."""


class IdleWindow:
    """The quiet part of each second.

    Args:
        now_s: the brokers' time; None if nobody knows it yet, and then nothing fires either.
    """

    def __init__(self, now_s: Callable[[], float | None]) -> None:
        self._now_s = now_s

    @property
    def away_s(self) -> float:
        """How long until it begins; 0 while it lasts."""
        now_s = self._now_s()
        if now_s is None or FROM <= now_s % 1 < TO:
            return 0.0
        return (FROM - now_s) % 1

    async def wait(self) -> None:
        """Wait for it."""
        await asyncio.sleep(self.away_s)
