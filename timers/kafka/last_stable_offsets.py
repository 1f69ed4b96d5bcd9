"""Asks the brokers where logs end, as each second begins.

A timer with an id fires once all is read that stood in its log when its second began
(:mod:`timers.core.second_barrier`). What the last fetch said of the end is older than the tick: so it is asked for
anew, once a second, for all of a worker's partitions together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.kafka.clients import librdkafka

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""A second whose question is not answered by then fires with the next one."""


class LastStableOffsets:
    """Last stable offsets, asked for on a connection of its own: behind a fetch a question would wait as long as it.

    Opened when it is first needed. All methods on the event loop.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None

    async def ask(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the logs of ``tps`` end now for committed readers. One that nobody answers for is missing."""
        if self._admin is None:
            self._admin = AdminClient(librdkafka(self._settings))
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {KafkaTopicPartition(*tp): latest for tp in tps}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
        )
        ends = {}
        for where, answer in answers.items():
            try:
                ends[where.topic, where.partition] = (await asyncio.wrap_future(answer)).offset
            except KafkaException as error:
                logger.debug("%s/%d: where the log ends is not known: %s", where.topic, where.partition, error)
        return ends
