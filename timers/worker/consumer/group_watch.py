"""What a worker watches of its group: partitions without an owner, and feature levels.

It finds partitions that no worker owns although one of the group reads their topic, and gets them an owner [I22]. The
group's leader computes a new assignment when partitions are added, but not every leader knows that it is one: a
static member that restarts quickly stays the leader for the broker, and is not told. So each worker looks itself.

It raises the feature level of its machines, when the operator and all members of the group allow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import starmap
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException
from mode import Service

from timers.core import levels
from timers.core.backoff import Pauses
from timers.core.listing import NoAnswer
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.errors import LevelTooHigh, LogMismatch, MachineStopped
from timers.kafka.aiokafka_internals.group import unowned_partitions
from timers.kafka.progress_log import permitted_level
from timers.process.config.settings import Settings
from timers.process.periodic import every
from timers.wire.topics import partition_name
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.machines.pool import Pool
from timers.worker.machines.runner import Ended, Runner

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two requests to the group's coordinator."""

TIMEOUT_S = 10.0

REBALANCE_S = 10.0
"""After this long without an owner, the worker with the lowest id asks for a rebalance; after twice as long the one
with the next id, and so on, as the worker with the lowest id may have an older version or fail."""

PAUSES = Pauses(REBALANCE_S, 600.0)
"""Between two requests of this worker for a rebalance, which interrupts all partitions."""

RED_S = 30.0
"""After this long without an owner, a partition is red."""

LEVEL_LOOK_S = 5.0
"""Seconds between two looks while a machine could be raised, or this worker owns none."""

RAISE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""

Unowned = Mapping[TopicPartition, Sequence[str]]
"""Partition without an owner -> ids of the workers that read its topic, sorted."""


class UnownedPartitions:
    """Notes for how long partitions have had no owner, and decides when a worker asks for a rebalance.

    Args:
        clock: seconds, monotonic.

    Attributes:
        is_known: whether the last look had an answer.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.is_known = False
        self._clock = clock
        self._since: Mapping[TopicPartition, float] = {}
        self._requests = 0
        self._next_rebalance_at = float("-inf")
        self._logged: set[TopicPartition] = set()

    def note(self, unowned: Unowned, worker_id: str) -> bool:
        """Note the partitions that have no owner now. Returns whether the worker with this id asks for a rebalance."""
        now = self._clock()
        self.is_known = True
        self._since = {tp: self._since.get(tp, now) for tp in unowned}
        self._log()
        if not unowned:
            self._requests = 0
            return False
        due = any(
            now - self._since[tp] >= REBALANCE_S * (1 + workers.index(worker_id))
            for tp, workers in unowned.items()
            if worker_id in workers
        )
        if not due or now < self._next_rebalance_at:
            return False
        self._requests += 1
        self._next_rebalance_at = now + PAUSES.after(self._requests)
        return True

    def red(self) -> dict[TopicPartition, float]:
        """Partitions without an owner for :data:`RED_S` or longer -> seconds. Any thread."""
        now = self._clock()
        return {tp: now - since for tp, since in self._since.items() if now - since >= RED_S}

    @property
    def count(self) -> int | None:
        """Number of the red partitions; None if the last look had no answer and there were none before."""
        return len(self.red()) or (0 if self.is_known else None)

    def _log(self) -> None:
        red = self.red().keys()
        for name in starmap(partition_name, sorted(red - self._logged)):
            text = (
                "%s has had no owner for %.0f s: its timers do not fire, although a worker of the group reads the topic"
            )
            logger.error(text, name, RED_S)
        for name in starmap(partition_name, sorted(self._logged - self._since.keys())):
            logger.info("%s has an owner again, or no worker reads its topic any more", name)
        self._logged = set(red)


class GroupWatch(Service):
    """Looks for partitions without an owner, raises machines, and notices that this worker does not support the level
    of the app.

    Args:
        pool: its machines; knows the request topics and their numbers of partitions.

    Attributes:
        refusal: why this worker may own no partitions; None if it may.
    """

    def __init__(self, settings: Settings, pool: Pool, consumer: PartitionConsumer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.unowned = UnownedPartitions()
        self.refusal: LevelTooHigh | None = None
        self._settings = settings
        self._pool = pool
        self._consumer = consumer
        self._rejoined_with = 0

    @Service.task
    async def _watch_owners(self) -> None:
        async for _ in every(LOOK_S, self):
            is_known = False
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    # Else the group rebalances, other programs have it, or the worker has not joined yet.
                    if self._consumer.in_group and not self._consumer.taken:
                        await self._check_owners()
                        is_known = True
            except (NoAnswer, TimeoutError) as error:
                logger.debug("the group's coordinator did not answer: %r", error)
            self.unowned.is_known = is_known

    async def _check_owners(self) -> None:
        partitions = {topic: range(count) for topic, count in self._pool.partitions.items()}
        own = self._consumer.dealt
        found: Unowned = {}  # a worker that owns all partitions need not ask, which takes 1.5 ms of CPU
        if not all((topic, each) in own for topic, ids in partitions.items() for each in ids):
            found = unowned_partitions(await self._consumer.described(), partitions)
        if self.unowned.note(found, self._settings.worker_id):
            names = ", ".join(starmap(partition_name, sorted(found)))
            logger.warning("no worker owns %s: asking for a rebalance", names)
            self._consumer.request_rebalance()

    @Service.task
    async def _watch_levels(self) -> None:
        async for _ in every(LEVEL_LOOK_S, self):
            if self._consumer.taken:
                continue  # the brokers do not tell which levels the workers support
            try:
                await self._check_levels()
            except (KafkaException, LogMismatch, NoAnswer) as error:
                logger.warning("the feature level cannot be looked up (%s); trying again", error)

    async def _check_levels(self) -> None:
        runners = self._pool.runners.values()
        stopped = [why.level for why in self._pool.stopped.values() if isinstance(why, LevelTooHigh)]
        self._consumer.note_raised(max((*stopped, *(each.machine.progress.level for each in runners)), default=0))
        lower = [each for each in runners if each.machine.progress.level < levels.RAISED_TO_LEVEL]
        if runners and not lower and not stopped:
            return
        members = await self._consumer.described()
        raised = max((*stopped, *(member.raised for member in members)), default=0)
        if raised > levels.SUPPORTED:
            await self._refuse(raised, sum(member.supports >= raised for member in members))
            return
        self.refusal = None
        if lower:
            allowed = await asyncio.to_thread(permitted_level, self._settings)
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

    async def _raise(self, runners: list[Runner], level: int) -> None:
        for runner in runners:
            if runner.machine.progress.level >= level:
                continue
            raising: Future[bool] = runner.ask(partial(Machine.raise_level, level=level))
            try:
                async with asyncio.timeout(RAISE_TIMEOUT_S):
                    if await asyncio.wrap_future(raising):
                        logger.info("%s: raised to feature level %d", runner.name, level)
            except (Ended, Lost, MachineStopped, TimeoutError) as error:  # the pool handles it; the next look raises it
                logger.warning("%s: not raised to feature level %d yet (%r)", runner.name, level, error)
