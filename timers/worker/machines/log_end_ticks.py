"""Gives ticks to the machines of timers with an id, each with the present end of its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from time import monotonic

from aiokafka.errors import KafkaError

from timers.config.settings import Settings
from timers.core.timer import Tick, TopicPartition
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.worker.machines.failures import BROKERS, Waiting
from timers.worker.machines.runner import Runner

TIMEOUT_S = 5.0
"""Without an answer within this time, the timers of the second fire with the next second."""


class LastStableOffsets:
    """Asks for last stable offsets on its own connections: on a shared one the request would wait for a fetch.

    Connects at the first request. Call it from the event loop only.
    """

    def __init__(self, settings: Settings) -> None:
        self._client = LeaderClient(settings, "last-stable-offsets", TIMEOUT_S)

    async def by_leader(self, tps: Collection[TopicPartition]) -> dict[int | None, list[TopicPartition]]:
        """Id of a leader -> its partitions; None -> partitions without a leader, or all if no broker answers."""
        try:
            await self._client.connect({topic for topic, _ in tps})
        except KafkaError as error:
            logger.debug("no broker answers: %r", error)
            return {None: list(tps)}
        found: dict[int | None, list[TopicPartition]] = {}
        for tp in tps:
            found.setdefault(self._client.leader_of(*tp), []).append(tp)
        return found

    async def ask(self, leader: int | None, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets of partitions with one leader, without those for which it does not answer."""
        if leader is None:
            return {}
        try:
            return await self._client.last_stable_offsets(leader, tps)
        except KafkaError as error:
            logger.debug("broker %d does not tell its last stable offsets: %r", leader, error)
            return {}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


logger = logging.getLogger(__name__)

UNKNOWN_S = 10.0
"""A new leader is elected within this time: ``broker.session.timeout.ms`` is 9 s."""


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
        self._led_by: Mapping[int | None, list[TopicPartition]] = {}
        self._unknown_since: dict[TopicPartition, float] = {}
        """Machines with a tick without the end of their log -> time of the first such tick."""
        self._tasks: dict[int | str | None, asyncio.Task[None]] = {}

    @property
    def waiting(self) -> Mapping[TopicPartition, Waiting]:
        """Open machines that fire nothing, since the end of their log has been unknown for :data:`UNKNOWN_S` -> why."""
        now_s = monotonic()
        return {
            tp: Waiting(
                BROKERS, f"its leader has not told the end of its log for {now_s - since:.0f} s; its timers wait"
            )
            for tp, since in self._unknown_since.items()
            if now_s - since > UNKNOWN_S
        }

    def tick(self, tick: Tick) -> None:
        """Give a tick to each machine as soon as the end of its log is known."""
        self._tick = tick
        runners = self._runners()
        now_s = monotonic()
        self._unknown_since = {tp: self._unknown_since.get(tp, now_s) for tp in runners}
        if runners:
            self._repeat("leaders", self._ask_leaders)

    def _repeat(self, name: int | str | None, step: Callable[[Tick], Awaitable[None]]) -> None:
        """Run ``step`` with the newest tick until no newer one has come, unless ``name`` already does so."""

        async def steps() -> None:
            seen = None
            while seen != self._tick:
                seen = self._tick
                assert seen is not None
                await step(seen)

        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = asyncio.create_task(steps())

    async def _ask_leaders(self, _: Tick) -> None:
        try:
            groups = await self._offsets.by_leader(list(self._runners()))
        except Exception:  # without the ends the machines still get the time, and release no second
            logger.exception("the leaders of logs are not known")
            groups = {None: list(self._runners())}
        self._led_by = groups
        for leader in groups:
            self._repeat(leader, partial(self._ask, leader))

    async def _ask(self, leader: int | None, tick: Tick) -> None:
        # Read anew for each request: a slow leader's requests follow each other while machines open and leaders move.
        tps = self._led_by.get(leader, [])
        try:
            ends = await self._offsets.ask(leader, tps) if tps else {}
        except Exception:
            logger.exception("broker %s: asking for the ends of logs failed", leader)
            ends = {}
        runners = self._runners()
        for tp in ends:
            self._unknown_since.pop(tp, None)
        for tp in tps:
            if tp in runners:
                runners[tp].tick(tick, ends.get(tp))

    async def close(self) -> None:
        """End the requests."""
        for task in self._tasks.values():
            task.cancel()
        await self._offsets.close()
