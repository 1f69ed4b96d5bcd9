"""Sends each tick to a partition whose leader answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic

from timers.core.tick_partitions import TickPartitions

NEXT_AFTER_S = 0.5
"""Without an acknowledgement within this time, the tick also goes to a partition of another broker."""


class TickSender:
    """Tries one broker after the other. A tick that is acknowledged late does no harm: a duplicate has no effect.

    Args:
        send: sends a tick to a partition, or to any if it is None; returns whether the tick counts. It does not raise.
        leaders: returns partition -> id of its leader, without partitions that have none.
        learn: asks the brokers for the leaders; called while none is known.
    """

    def __init__(
        self,
        send: Callable[[int | None], Awaitable[bool]],
        leaders: Callable[[], Mapping[int, int]],
        learn: Callable[[], Awaitable[None]],
    ) -> None:
        self._send = send
        self._leaders = leaders
        self._learn = learn
        self._partitions = TickPartitions()
        self._under_way: set[asyncio.Task[bool]] = set()

    async def send(self, second: int) -> bool:
        """Send the tick of a second. Returns whether a broker took one that counts."""
        leaders = self._leaders()
        if not leaders:
            await self._learn()
            leaders = self._leaders()
        probed = self._partitions.probe(leaders, monotonic())
        if probed is not None:
            self._start(probed, leaders)
        waiting: set[asyncio.Task[bool]] = set()
        choices: list[int | None] = [*self._partitions.order(second, leaders)]
        for partition in choices or [None]:
            sending = self._start(partition, leaders)
            done, waiting = await asyncio.wait(
                {*waiting, sending}, timeout=NEXT_AFTER_S, return_when=asyncio.FIRST_COMPLETED
            )
            if any(task.result() for task in done):
                return True
            if sending in waiting and partition is not None:
                self._partitions.note_silent(leaders[partition], monotonic())
        return await self._any(waiting)

    async def send_to_each_broker(self) -> bool:
        """Send a tick to one partition of each broker. Returns whether one counts; others may still be under way."""
        leaders = self._leaders()
        return await self._any({self._start(each, leaders) for each in self._partitions.order(0, leaders)})

    @staticmethod
    async def _any(waiting: set[asyncio.Task[bool]]) -> bool:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                return True
        return False

    def _start(self, partition: int | None, leaders: Mapping[int, int]) -> asyncio.Task[bool]:
        async def send() -> bool:
            counts = await self._send(partition)
            if counts and partition is not None:
                self._partitions.note_answer(leaders[partition])
            return counts

        sending = asyncio.create_task(send())
        self._under_way.add(sending)
        sending.add_done_callback(self._under_way.discard)
        return sending
