"""Finds partitions that no worker owns although one of the group reads their topic, and gets them an owner [I22].

The group's leader computes a new assignment when partitions are added, but not every leader knows that it is one: a
static member that restarts quickly stays the leader for the broker, and is not told. So each worker looks itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from mode import Service

from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.group import unowned_partitions
from timers.worker.consumer.group import Unsettled
from timers.worker.consumer.requests import PartitionConsumer
from timers.worker.machines.pool import Pool
from timers.worker.periodic import every

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two requests to the group's coordinator."""

TIMEOUT_S = 10.0

REBALANCE_S = 10.0
"""After this long without an owner, the worker with the lowest id asks for a rebalance; after twice as long the one
with the next id, and so on, as the worker with the lowest id may have an older version or fail."""

MAX_PAUSE_S = 600.0
"""Longest pause between two requests of this worker for a rebalance. The first pause is :data:`REBALANCE_S`; each is
twice as long as the one before, because a rebalance interrupts all partitions."""

RED_S = 30.0
"""After this long without an owner, a partition is red."""

Unowned = Mapping[TopicPartition, Sequence[str]]
"""Partition without an owner -> ids of the workers that read its topic, sorted."""


class UnownedPartitions:
    """Notes for how long partitions have had no owner, and decides when a worker asks for a rebalance.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since: Mapping[TopicPartition, float] = {}
        self._pause_s = REBALANCE_S
        self._next_rebalance_at = float("-inf")
        self._logged: set[TopicPartition] = set()

    def note(self, unowned: Unowned, worker_id: str) -> bool:
        """Note the partitions that have no owner now. Returns whether the worker with this id asks for a rebalance."""
        now = self._clock()
        self._since = {tp: self._since.get(tp, now) for tp in unowned}
        self._log()
        if not unowned:
            self._pause_s = REBALANCE_S
            return False
        due = any(
            now - self._since[tp] >= REBALANCE_S * (1 + workers.index(worker_id))
            for tp, workers in unowned.items()
            if worker_id in workers
        )
        if not due or now < self._next_rebalance_at:
            return False
        self._next_rebalance_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        return True

    def red(self) -> dict[TopicPartition, float]:
        """Partitions without an owner for :data:`RED_S` or longer -> seconds. Any thread."""
        now = self._clock()
        return {tp: now - since for tp, since in self._since.items() if now - since >= RED_S}

    def _log(self) -> None:
        red = self.red().keys()
        for topic, partition in sorted(red - self._logged):
            logger.error(
                "%s/%d has had no owner for %.0f s: its timers do not fire, although a worker of the group reads the "
                "topic",
                topic,
                partition,
                RED_S,
            )
        for topic, partition in sorted(self._logged - self._since.keys()):
            logger.info("%s/%d has an owner again, or no worker reads its topic any more", topic, partition)
        self._logged = set(red)


class GroupWatch(Service):
    """Looks for partitions without an owner.

    Args:
        worker_id: id of this worker.
        unowned: notes the partitions without an owner.
        consumer: the member of the group.
        pool: knows the request topics and their numbers of partitions.
    """

    def __init__(
        self, worker_id: str, unowned: UnownedPartitions, consumer: PartitionConsumer, pool: Pool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._worker_id = worker_id
        self._unowned = unowned
        self._consumer = consumer
        self._pool = pool

    @Service.task
    async def _watch(self) -> None:
        async for _ in every(LOOK_S, self):
            if not self._consumer.in_group:
                continue  # the group rebalances, or the worker has not joined yet
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._check_group()
            except (Unsettled, TimeoutError) as error:
                logger.debug("the group's coordinator did not answer: %r", error)

    async def _check_group(self) -> None:
        counts = self._pool.partitions
        partitions = {topic: range(counts[topic]) for topic in self._pool.formats if topic in counts}
        own = self._consumer.dealt
        found: Unowned = {}  # a worker that owns all partitions need not ask, which takes 1.5 ms of CPU
        if not all((topic, each) in own for topic, ids in partitions.items() for each in ids):
            found = unowned_partitions(await self._consumer.described(), partitions)
        if self._unowned.note(found, self._worker_id):
            names = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(found))
            logger.warning("no worker owns %s: asking for a rebalance", names)
            self._consumer.request_rebalance()
