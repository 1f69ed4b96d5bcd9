"""Limits how many requests of one kind are answered at the same time, and how many wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


class Slots:
    """A few slots, and a queue of those that wait for one.

    Args:
        count: of the slots.
        most_waiting: length of the queue; None: any.
    """

    def __init__(self, count: int, most_waiting: int | None = None) -> None:
        self._slots = asyncio.Semaphore(count)
        self._most_waiting = sys.maxsize if most_waiting is None else most_waiting
        self._waiting = 0

    async def take(self, wait_s: float) -> bool:
        """Wait for a slot. Returns False if the queue is full, or none was free in time."""
        if self._slots.locked() and self._waiting >= self._most_waiting:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                return await self._slots.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        """Let the next one have the slot."""
        self._slots.release()


class Slot:
    """Holds a slot while its block runs; waits until one is free.

    Args:
        wait_s: longest wait in seconds.
        refusal: returns the error to raise when it is over, or when too many wait.
    """

    def __init__(self, slots: Slots, wait_s: float, refusal: Callable[[], Exception]) -> None:
        self._slots = slots
        self._wait_s = wait_s
        self._refusal = refusal

    async def take(self) -> None:
        """Wait for the slot, if it must be held for longer than a block."""
        if not await self._slots.take(self._wait_s):
            raise self._refusal()

    def give_back(self) -> None:
        """Let another request have the slot."""
        self._slots.give_back()

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()
