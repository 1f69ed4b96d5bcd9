"""Limits how many requests of one kind are answered at the same time, and how many wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


class Slots:
    """A few slots, and a queue of those that wait for one. ``async with slots:`` holds one.

    Args:
        wait_s: longest wait in seconds.
        refusal: returns the error to raise when it is over, or when too many wait.
        most_waiting: length of the queue.
    """

    def __init__(
        self, count: int, wait_s: float, refusal: Callable[[], Exception], most_waiting: int = sys.maxsize
    ) -> None:
        self._slots = asyncio.Semaphore(count)
        self._wait_s = wait_s
        self._refusal = refusal
        self._most_waiting = most_waiting
        self._waiting = 0

    async def take(self) -> None:
        """Wait for a slot, if it must be held for longer than a block."""
        if self._slots.locked() and self._waiting >= self._most_waiting:
            raise self._refusal()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._refusal() from None
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        """Let the next one have the slot."""
        self._slots.release()

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()
