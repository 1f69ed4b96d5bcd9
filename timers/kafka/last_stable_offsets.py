"""Asks the brokers for last stable offsets at the beginning of each second.

A timer with an id fires when the machine has read all records that were in its log when the second began
(:mod:`timers.core.second_barrier`). The end known from the last fetch is older than the tick. So a worker asks the
brokers once a second: each leader for all its partitions together, and no leader waits for another one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from aiokafka.errors import KafkaError

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.leader_client import LeaderClient

logger = logging.getLogger(__name__)

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
