"""Asks the brokers for last stable offsets at the beginning of each second.

A timer with an id fires when the machine has read all records that were in its log when the second began
(:mod:`timers.core.second_barrier`). The end known from the last fetch is older than the tick. So a worker asks the
brokers once a second, for all its partitions together.
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
"""Without an answer within this time, the timers of the second fire with the next second."""


class LastStableOffsets:
    """Asks for last stable offsets on its own connection: on a shared one the request would wait for a fetch.

    Connects at the first request. Call it from the event loop only.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None

    async def ask(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets of ``tps``, without partitions for which no broker answers."""
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
                logger.debug("%s/%d: the last stable offset is not known: %s", where.topic, where.partition, error)
        return ends
