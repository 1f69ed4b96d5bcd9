"""Limits how many requests of one kind are answered at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Slot:
    """Holds one of a few slots while its block runs; waits until one is free.

    Args:
        wait_s: longest wait in seconds.
        refusal: returns the error to raise when it is over.
    """

    def __init__(self, slots: asyncio.Semaphore, wait_s: float, refusal: Callable[[], Exception]) -> None:
        self._slots = slots
        self._wait_s = wait_s
        self._refusal = refusal

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._refusal() from None

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()
