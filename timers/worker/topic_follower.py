"""Reads new records of all partitions of a topic, outside the group and without commits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from mode import Service

from timers.kafka import aiokafka_clients
from timers.kafka.aiokafka_internals.fetch import InPieces, client_of, leader_of, stop
from timers.kafka.aiokafka_internals.leader_client import limit_updates
from timers.kafka.aiokafka_internals.metadata import start_patiently
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

ABSENT_POLL_S = 0.5
RETRY_S = 0.5
POLL_MS = 1000
SEEK_S = 2.0

MAX_VALUE_BYTES = 4096
"""Ticks have no value, and that of a canary timer is short. Of a longer one, only the first bytes are read."""

NEW_LEADER_S = 2.0
"""For this many seconds after a change of a partition's leader, its records may be those of the former leader."""


class TopicFollower(Service):
    """Passes the records of a topic to :meth:`handle`.

    Args:
        partitions: returns how many partitions the topic has now; 0: it was deleted.
        client: end of the Kafka client id, after the worker's id.
    """

    def __init__(
        self, settings: Settings, topic: str, partitions: Callable[[], int], client: str, isolation: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._topic = topic
        self._partitions = partitions
        self._client = client
        self._isolation = isolation
        self._leaders: dict[TopicPartition, tuple[int | None, float]] = {}

    def broker_of(self, partition: TopicPartition) -> int | None:
        """Id of the broker that appended the records of the last poll; None if it is not known."""
        leader, since = self._leaders.get(partition, (None, -inf))
        return leader if monotonic() - since > NEW_LEADER_S else None

    @abstractmethod
    async def handle(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Handle the records of a poll; there may be none."""

    @Service.task
    async def _read(self) -> None:
        failed = ""
        while not self.should_stop:
            count = self._partitions()
            if not count:  # aiokafka would ask for it without a pause
                await self.sleep(ABSENT_POLL_S)
                continue
            consumer = AIOKafkaConsumer(
                **aiokafka_clients.arguments(self._settings, self._client),
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                fetch_max_wait_ms=POLL_MS,
                isolation_level=self._isolation,
                # Otherwise aiokafka fails at a header whose name is not UTF-8. No record of such a topic must be read.
                key_deserializer=InPieces(lambda tp: MAX_VALUE_BYTES, on_unreadable=lambda tp, batch: True),
            )
            try:
                limit_updates(client_of(consumer))
                if not await start_patiently(consumer.start, f"the reader of {self._topic}", lambda: self.should_stop):
                    continue
                partitions = [TopicPartition(self._topic, partition) for partition in range(count)]
                consumer.assign(partitions)
                # A partition without a leader begins at its end as soon as it has one. The others do not wait for it.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(consumer.seek_to_end(*partitions), SEEK_S)
                while not self.should_stop and self._partitions() == count:
                    records = await consumer.getmany(timeout_ms=POLL_MS)
                    for partition in partitions:
                        leader = leader_of(consumer, partition)
                        known, _ = self._leaders.setdefault(partition, (leader, -inf))
                        if leader != known:
                            self._leaders[partition] = (leader, monotonic())
                    await self.handle(records)
                    failed = ""
            except KafkaError as error:
                if repr(error) != failed:  # such as a missing right, for as long as it is missing
                    logger.warning("reading %s failed (%r); trying until it succeeds", self._topic, error)
                failed = repr(error)
                await self.sleep(RETRY_S)
            except Exception:  # of a record that no code expects
                logger.exception("reading %s failed; trying again from its end", self._topic)
                await self.sleep(RETRY_S)
            finally:
                await stop(consumer)
