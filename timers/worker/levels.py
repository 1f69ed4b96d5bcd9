"""Raises the feature level of this worker's machines, when the operator and all members of the group allow it."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from mode import Service

from timers.config.settings import Settings
from timers.core import levels
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.errors import LevelTooHigh, LogMismatch, MachineStopped
from timers.kafka.allowed_level import AllowedLevel
from timers.worker.consumer.group import Unsettled, member_of
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.machines.pool import Pool
from timers.worker.machines.runner import Ended, Runner
from timers.worker.periodic import every

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks while a machine could be raised, or this worker owns none."""

RAISE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""


class LevelWatch(Service):
    """Raises machines, and notices that this worker does not support the level of the app.

    Args:
        settings: of the worker.
        pool: its machines.
        consumer: of the worker.

    Attributes:
        refusal: why this worker may own no partitions; None if it may.
    """

    def __init__(self, settings: Settings, pool: Pool, consumer: PartitionConsumer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.refusal: LevelTooHigh | None = None
        self._settings = settings
        self._pool = pool
        self._consumer = consumer
        self._allowed = AllowedLevel(settings)
        self._rejoined_with = 0

    @Service.task
    async def _watch(self) -> None:
        async for _ in every(LOOK_S, self):
            try:
                await self._check_group()
            except (KafkaException, LogMismatch, Unsettled) as error:
                logger.warning("the feature level cannot be looked up (%s); trying again", error)

    async def _check_group(self) -> None:
        runners = self._pool.runners.values()
        stopped = [why.level for why in self._pool.stopped.values() if isinstance(why, LevelTooHigh)]
        self._consumer.note_raised(max((*stopped, *(each.machine.progress.level for each in runners)), default=0))
        lower = [each for each in runners if each.machine.progress.level < _wanted(each, levels.RAISED_TO)]
        if runners and not lower and not stopped:
            return
        members = [member_of(each) for each in await self._consumer.described()]
        raised = max((*stopped, *(member.raised for member in members)))
        if raised > levels.SUPPORTED:
            await self._refuse(raised, sum(member.supports >= raised for member in members))
            return
        self.refusal = None
        if lower:
            allowed = await asyncio.to_thread(self._allowed.read)
            await self._raise(lower, levels.level_to_raise_to(allowed, [member.supports for member in members]))

    async def _refuse(self, raised: int, able: int) -> None:
        """Let the group's leader give the partitions to members that support the level, if there are any."""
        if self.refusal is None:
            self.refusal = LevelTooHigh(raised, levels.SUPPORTED, f"app {self._settings.app_id!r}")
            logger.error("%s", self.refusal)
        if self._pool.stopped and able != self._rejoined_with:
            self._rejoined_with = able
            if able:
                self._consumer.rejoin()

    async def _raise(self, runners: list[Runner], permitted: int) -> None:
        for runner, level in ((each, _wanted(each, permitted)) for each in runners):
            if runner.machine.progress.level >= level:
                continue
            raising: Future[bool] = runner.ask(partial(_raised, level=level))
            try:
                async with asyncio.timeout(RAISE_TIMEOUT_S):
                    if await asyncio.wrap_future(raising):
                        logger.info("%s: raised to feature level %d", runner.name, level)
            except (Ended, Lost, MachineStopped, TimeoutError) as error:  # the pool handles it; the next look raises it
                logger.warning("%s: not raised to feature level %d yet (%r)", runner.name, level, error)


def _wanted(runner: Runner, permitted: int) -> int:
    return levels.wanted(runner.machine.progress.level, permitted, is_verified=runner.is_verified)


def _raised(machine: Machine, level: int) -> bool:
    return machine.raise_level(level)
