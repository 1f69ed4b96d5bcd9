"""A client that asks the leader of each partition by itself, and metadata updates that do not follow without a pause.

This module relies on:

==========================================================  ==========================================================
``AIOKafkaClient.bootstrap``, ``set_topics``, ``send``      connect, choose the topics of the metadata, ask a broker
``AIOKafkaClient.cluster.leader_for_partition``             id of the leader; None or -1 without a leader
``AIOKafkaClient.force_metadata_update``                    called for each update that does not come from the timer
``AIOKafkaClient._sync_task``                               None after the client was closed
``AIOKafkaClient._conns``                                   (broker, group of connections) -> connection
``AIOKafkaClient.coordinator_lookup``                       id of the broker that has what a group has committed
``OffsetRequest``, ``FetchRequest``                         requests of offsets and of records, with an isolation level
``OffsetFetchRequest``                                      what a group has committed; up to version 3 it does not wait
                                                            for open transactions
``MemoryRecords(data)``: ``has_next``, ``next_batch``       splits the bytes of a fetch into whole batches
``batch.is_control_batch``, ``producer_id``,                the header of a batch
``is_transactional``, ``next_offset``, ``validate_crc``
key of the record in a control batch                        version and kind of the marker, two bytes each; kind 1 is a
                                                            commit, 0 an abort (Kafka's ``EndTransactionMarker``)
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from struct import Struct
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    for_code,
)
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy
from aiokafka.record.memory_records import MemoryRecords

from timers.core.lineage import EpochEnd
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.requests import ANY_REPLICA, UNKNOWN_EPOCH, EpochRequest, by_topic
from timers.wire.topics import partition_name

UPDATE_PAUSE_S = 0.5
"""Seconds between two forced metadata updates. While a partition has no leader, aiokafka forces one after the other."""

FETCH_BYTES = 1024 * 1024
"""Maximum bytes of a fetch of :meth:`LeaderClient.fetch`; a broker returns at least one whole batch."""

METADATA_MAX_AGE_S = 30.0

_READ_UNCOMMITTED = 0
_READ_COMMITTED = 1


class RawFetch(NamedTuple):
    """Record batches of one partition, as they are in the log."""

    log_start: int
    """First offset of the log."""
    end: int
    """End of the log for readers (high watermark)."""
    data: bytes
    """Whole batches, and perhaps a part of one after them. The first one may begin before the offset that was asked
    for."""


class LeaderClient:
    """Asks leaders of partitions. Connects at the first request. On one event loop. Its methods raise KafkaError if no
    leader answers, or it returns an error.
    """

    def __init__(self, arguments: Mapping[str, Any], timeout_s: float) -> None:
        self._arguments = {
            **arguments,
            "request_timeout_ms": int(timeout_s * 1000),
            "metadata_max_age_ms": int(METADATA_MAX_AGE_S * 1000),
        }
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._topics: set[str] = set()

    async def connect(self, topics: Collection[str]) -> None:
        """Connect, if that was not done, and learn the leaders of ``topics``.

        The metadata keep the topics of earlier calls: several callers ask at one time, each for topics of its own.
        """
        async with self._connecting:
            if self._client is None:
                client = AIOKafkaClient(**self._arguments)
                limit_updates(client)
                try:
                    await client.bootstrap()
                except BaseException:
                    await sessions.end_in_time(client.close())
                    raise
                self._client = client
        self._topics.update(topics)
        await self._client.set_topics(self._topics)
        if any(self._client.cluster.partitions_for_topic(topic) is None for topic in topics):
            await self._client.force_metadata_update()  # another caller named this topic, and its answer is under way

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await sessions.end_in_time(client.close())

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Id of the leader of a partition; None without a leader, and then the metadata is updated soon."""
        leader: int | None = self._client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if leader is None or leader < 0:
            self._client.force_metadata_update()
            return None
        return leader

    async def by_leader(self, tps: Collection[tuple[str, int]]) -> dict[int | None, list[tuple[str, int]]]:
        """Connect, and return the partitions of each leader; None -> those without one."""
        await self.connect({topic for topic, _ in tps})
        found: dict[int | None, list[tuple[str, int]]] = {}
        for tp in tps:
            found.setdefault(self.leader_of(*tp), []).append(tp)
        return found

    def connection_to(self, leader: int) -> object:
        """The present connection to a broker; another object after each reconnection, so after each of its restarts."""
        return self._client._conns.get((leader, ConnectionGroup.DEFAULT))

    async def last_stable_offsets(self, leader: int, tps: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Last stable offsets of partitions with one leader, without those for which it returns an error."""
        latest = by_topic(dict.fromkeys(tps, (OffsetResetStrategy.LATEST,)))
        request = OffsetRequest(ANY_REPLICA, _READ_COMMITTED, latest)
        response = await self._send(leader, request)
        found: dict[tuple[str, int], int] = {}
        for topic, partitions in response.topics:
            for partition, error_code, _timestamp, offset, *_ in partitions:
                if error_code:
                    self._client.force_metadata_update()
                else:
                    found[topic, partition] = offset
        return found

    async def epoch_ends(self, leader: int, epochs: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], EpochEnd]:
        """Where leader epochs end, for partitions with one leader; without those for which it returns an error."""
        asked = by_topic({tp: (UNKNOWN_EPOCH, epoch) for tp, epoch in epochs.items()})
        response = await self._send(leader, EpochRequest(ANY_REPLICA, asked))
        found: dict[tuple[str, int], EpochEnd] = {}
        for topic, partitions in response.topics:
            for error_code, partition, epoch, end in partitions:
                if error_code:
                    self._client.force_metadata_update()
                else:
                    found[topic, partition] = EpochEnd(epoch, end)
        return found

    async def offset_at(self, leader: int, tp: tuple[str, int], timestamp_ms: int) -> int | None:
        """Offset of the first record with this or a later time; None if there is none."""
        topic, partition = tp
        request = OffsetRequest(ANY_REPLICA, _READ_UNCOMMITTED, [(topic, [(partition, timestamp_ms)])])
        response = await self._send(leader, request)
        _, error_code, _, offset, *_ = response.topics[0][1][0]
        if error_code:
            self._client.force_metadata_update()
            raise for_code(error_code)(partition_name(*tp))
        return offset if offset >= 0 else None

    async def ends(self, leader: int, tp: tuple[str, int]) -> tuple[int, int]:
        """First offset and end of a log, including open transactions."""
        which = OffsetResetStrategy.EARLIEST, OffsetResetStrategy.LATEST
        low, end = await asyncio.gather(*(self.offset_at(leader, tp, each) for each in which))
        return low or 0, end or 0

    async def committed(self, group: str, tp: tuple[str, int]) -> tuple[int, str]:
        """What a group has committed for a partition: an offset, negative if nothing, and a text.

        Raises:
            KafkaError: its coordinator is not known, does not answer, or refuses.
        """
        topic, partition = tp
        await self.connect({topic})
        coordinator = await self._client.coordinator_lookup(CoordinationType.GROUP, group)
        response = await self._send(coordinator, OffsetFetchRequest(group, [(topic, [partition])]))
        error_code = getattr(response, "error_code", 0) or response.topics[0][1][0][3]
        if error_code:
            raise for_code(error_code)(group)
        _, offset, text, _ = response.topics[0][1][0]
        return offset, text or ""

    async def fetch(
        self, leader: int, tp: tuple[str, int], offset: int, max_bytes: int = FETCH_BYTES, wait_s: float = 0.0
    ) -> RawFetch:
        """Record batches from the one that holds ``offset`` on, open and aborted transactions and markers included.

        Args:
            wait_s: seconds that the leader waits at the end of the log for a record. Meanwhile it answers nothing else
                on this connection.

        Raises:
            OffsetOutOfRangeError: the log does not hold this offset.
            KafkaError: the leader does not answer, returns an error, or throttles: then its answer names no topic.
        """
        topic, partition = tp
        wanted = [(topic, [(partition, offset, max_bytes)])]
        request = FetchRequest(int(1000 * wait_s), 1, max_bytes, _READ_UNCOMMITTED, wanted)
        response = await self._send(leader, request)
        if not response.topics:
            raise RequestTimedOutError(f"{partition_name(*tp)}: a quota of the brokers lets this client wait")
        _, error_code, end, *others = response.topics[0][1][0]
        if error_code:
            self._client.force_metadata_update()
            raise for_code(error_code)(partition_name(*tp))
        return RawFetch(others[1] if response.API_VERSION >= 5 else 0, end, others[-1] or b"")

    async def _send(self, leader: int, request: Any) -> Any:
        try:
            return await self._client.send(leader, request)
        except AttributeError:  # closed meanwhile
            raise KafkaConnectionError("the client was closed") from None
        except KafkaError:
            if self._client is not None:
                self._client.force_metadata_update()  # the leader is silent, and another one may be elected
            raise


_T = TypeVar("_T")

Question: TypeAlias = Callable[[LeaderClient], Coroutine[Any, Any, _T]]


class AskLeaders(Protocol):
    """Asks leaders from a thread: runs a question on the event loop of a client, and returns its answer."""

    def __call__(self, question: Question[_T]) -> _T:
        """Return the answer; wait for it."""


async def log_ends(client: LeaderClient, places: Collection[TopicPartition]) -> list[tuple[int, int]] | None:
    """First offset and end of each log, including open transactions; None if one has no leader."""
    await client.connect({topic for topic, _ in places})
    leaders = [(leader, place) for place in places if (leader := client.leader_of(*place)) is not None]
    if len(leaders) < len(places):
        return None
    return list(await asyncio.gather(*(client.ends(*each) for each in leaders)))


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


_MARKER = Struct(">hh")
_COMMIT = 1


class NewestCommitted:
    """The newest committed value of some keys of one partition, from records that were read uncommitted.

    A reader of committed records gets nothing behind the first open transaction of any producer. But a producer whose
    transactions are all decided has markers behind its records, and no other producer's transaction changes this.

    Args:
        keys: the others are passed over; None: none is.
        position: offset of the first record that counts.

    Attributes:
        position: offset after the last batch that was added.
        values: key -> its newest committed value, without keys that have none; empty if the newest record has none.
    """

    def __init__(self, keys: Collection[bytes] | None, position: int) -> None:
        self.position = position
        self.values: dict[bytes, bytes] = {}
        self._keys = keys
        self._open: dict[int, dict[bytes, bytes]] = {}
        """Id of a producer -> what its open transaction has written."""

    @property
    def undecided(self) -> set[bytes]:
        """The keys that open transactions have written."""
        return {key for written in self._open.values() for key in written}

    def add(self, data: bytes) -> None:
        """Add the bytes of a fetch: whole batches in the order of the log, and perhaps a part of one after them.

        Raises:
            CorruptRecordException: a batch is damaged.
        """
        records = MemoryRecords(data)
        while records.has_next():
            batch: Any = records.next_batch()
            if not batch.validate_crc():
                raise CorruptRecordException(f"the batch at offset {batch.base_offset} has a wrong checksum")
            if batch.next_offset <= self.position:
                continue  # a fetch may begin before its offset
            self.position = batch.next_offset
            if batch.is_control_batch:
                written = self._open.pop(batch.producer_id, {})
                if any(_MARKER.unpack_from(marker.key or bytes(4))[1] == _COMMIT for marker in batch):
                    self.values.update(written)
                continue
            wanted = self._keys
            found = {
                record.key: record.value or b""
                for record in batch
                if (record.key if wanted is None else record.key in wanted and record.value)
            }
            if not batch.is_transactional:
                self.values.update(found)
            elif found:
                self._open.setdefault(batch.producer_id, {}).update(found)
