"""Gives ticks to the machines of timers with an id, each with the present end of its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from timers.core.timer import Tick, TopicPartition
from timers.kafka.last_stable_offsets import LastStableOffsets
from timers.worker.machines.runner import Runner

logger = logging.getLogger(__name__)


class LogEndTicks:
    """One request to each leader at a time: ticks that arrive meanwhile wait for the next one. On one event loop.

    Args:
        offsets: asks the leaders.
        runners: returns the open machines of timers with an id.
    """

    def __init__(self, offsets: LastStableOffsets, runners: Callable[[], Mapping[TopicPartition, Runner]]) -> None:
        self._offsets = offsets
        self._runners = runners
        self._tick: Tick | None = None
        self._grouping: asyncio.Task[None] | None = None
        self._asking: dict[int | None, asyncio.Task[None]] = {}

    def tick(self, tick: Tick) -> None:
        """Give a tick to each machine as soon as the end of its log is known."""
        self._tick = tick
        if self._runners() and (self._grouping is None or self._grouping.done()):
            self._grouping = asyncio.create_task(self._ask_leaders())

    async def _ask_leaders(self) -> None:
        seen = None
        while seen != self._tick:
            seen = self._tick
            try:
                groups = await self._offsets.by_leader(list(self._runners()))
            except Exception:  # without the ends the machines still get the time, and release no second
                logger.exception("the leaders of logs are not known")
                groups = {None: list(self._runners())}
            for leader, tps in groups.items():
                asking = self._asking.get(leader)
                if asking is None or asking.done():
                    self._asking[leader] = asyncio.create_task(self._ask(leader, tps))

    async def _ask(self, leader: int | None, tps: list[TopicPartition]) -> None:
        seen = None
        while seen != self._tick:
            seen = self._tick
            assert seen is not None
            try:
                ends = await self._offsets.ask(leader, tps)
            except Exception:
                logger.exception("broker %s: asking for the ends of logs failed", leader)
                ends = {}
            runners = self._runners()
            for tp in tps:
                if tp in runners:
                    runners[tp].tick(seen, ends.get(tp))

    async def close(self) -> None:
        """End the requests."""
        for task in (self._grouping, *self._asking.values()):
            if task is not None:
                task.cancel()
        await self._offsets.close()
