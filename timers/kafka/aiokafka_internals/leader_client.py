"""A client that asks the leader of each partition by itself, and metadata updates that do not follow without a pause.

This module relies on:

==========================================================  ==========================================================
``AIOKafkaClient.bootstrap``, ``set_topics``, ``send``      connect, choose the topics of the metadata, ask a broker
``AIOKafkaClient.cluster.leader_for_partition``             id of the leader; None or -1 without a leader
``AIOKafkaClient.force_metadata_update``                    called for each update that does not come from the timer
``AIOKafkaClient._sync_task``                               None after the client was closed
``OffsetRequest``                                           request of offsets, with an isolation level
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy

UPDATE_PAUSE_S = 0.5
"""Seconds between two forced metadata updates. While a partition has no leader, aiokafka forces one after the other."""

_READ_COMMITTED = 1
_ANY_REPLICA = -1


class LeaderClient:
    """Asks leaders of partitions. Connects at the first request. On one event loop.

    Args:
        arguments: of an aiokafka client.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._client: Any = None

    async def connect(self, topics: Collection[str]) -> None:
        """Connect, if that was not done, and learn the leaders of ``topics``.

        Raises:
            KafkaError: no broker answers.
        """
        if self._client is None:
            client = AIOKafkaClient(**self._arguments)
            limit_updates(client)
            try:
                await client.bootstrap()
            except BaseException:
                await client.close()
                raise
            self._client = client
        await self._client.set_topics(topics)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Id of the leader of a partition; None without a leader, and then the metadata is updated soon."""
        leader: int | None = self._client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if leader is None or leader < 0:
            self._client.force_metadata_update()
            return None
        return leader

    async def last_stable_offsets(self, leader: int, tps: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Last stable offsets of partitions with one leader, without those for which it returns an error.

        Raises:
            KafkaError: the leader does not answer.
        """
        by_topic: dict[str, list[tuple[int, int]]] = {}
        for topic, partition in tps:
            by_topic.setdefault(topic, []).append((partition, OffsetResetStrategy.LATEST))
        request = OffsetRequest(_ANY_REPLICA, _READ_COMMITTED, list(by_topic.items()))
        try:
            response = await self._client.send(leader, request)
        except AttributeError:  # closed meanwhile
            raise KafkaConnectionError("the client was closed") from None
        found: dict[tuple[str, int], int] = {}
        for topic, partitions in response.topics:
            for partition, error_code, _timestamp, offset, *_ in partitions:
                if error_code:
                    self._client.force_metadata_update()
                else:
                    found[topic, partition] = offset
        return found


def limit_updates(client: Any) -> None:
    """Let a client force at most one metadata update in each :data:`UPDATE_PAUSE_S`."""
    update = client.force_metadata_update
    last_s = -math.inf
    waiting: asyncio.Future[Any] | None = None

    async def later() -> bool:
        nonlocal last_s
        await asyncio.sleep(last_s + UPDATE_PAUSE_S - monotonic())
        last_s = monotonic()
        return bool(client._sync_task is not None and await update())

    def limited() -> asyncio.Future[Any]:
        nonlocal last_s, waiting
        if waiting is not None and not waiting.done():
            return asyncio.shield(waiting)
        if monotonic() - last_s >= UPDATE_PAUSE_S:
            last_s = monotonic()
            updated: asyncio.Future[Any] = update()
            return updated
        waiting = asyncio.ensure_future(later())
        return asyncio.shield(waiting)

    client.force_metadata_update = limited


def limit_updates_of(consumer: AIOKafkaConsumer) -> None:
    """Apply :func:`limit_updates` to the client of a consumer."""
    limit_updates(consumer._client)
