"""The consumer's fetcher: fewer copies of records, pieces of bounded size, and positions without a broker request.

A fetch is read in pieces (:mod:`timers.kafka.aiokafka_internals.batch_pieces`). aiokafka keeps a fetch until all of it
was read, and fetches other partitions meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from struct import unpack_from
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.consumer import fetcher
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.errors import LeaderNotAvailableError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords

from timers.core.lineage import PassedBatch
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.batch_pieces import (
    PIECE_BYTES,
    PIECE_RECORDS,
    Piece,
    UnreadableBatch,
    end_of_damaged,
    passed_batch,
    pieces,
    unreadable,
)
from timers.kafka.aiokafka_internals.produce import NO_LEADER

_THEIR_RECORDS = fetcher.PartitionRecords

MAX_VALUE_BYTES = 100 * 1024 * 1024
"""If no limit of a partition is known, only the first bytes of a value above this size are read."""


def error_codes(response: Any) -> Iterator[tuple[str, int, int]]:
    """(topic, partition, error code) of each partition in a fetch response; none of any other response."""
    if getattr(response, "API_KEY", None) == FetchRequest.API_KEY:
        for topic, partitions in response.topics:
            for partition, error_code, *_ in partitions:
                yield topic, partition, error_code


def call_with_each_response(consumer: AIOKafkaConsumer, on_response: Callable[[Any], None]) -> None:
    """Call ``on_response`` with each response to a consumer, before aiokafka handles it."""
    send = consumer._client.send

    async def send_and_report(node_id: int, request: Any, **kwargs: Any) -> Any:
        response = await send(node_id, request, **kwargs)
        on_response(response)
        return response

    consumer._client.send = send_and_report


def client_of(consumer: AIOKafkaConsumer) -> AIOKafkaClient:
    """The client of a consumer, which may send other requests too."""
    return consumer._client


async def reaches_a_broker(consumer: AIOKafkaConsumer, timeout_s: float) -> bool:
    """Whether any broker takes a connection in time, also a silent one; True if no broker is known yet."""
    addresses = {(each.host, each.port) for each in consumer._client.cluster.brokers()}
    tries = [asyncio.ensure_future(asyncio.open_connection(*address)) for address in addresses]
    is_reached = not tries
    for each in asyncio.as_completed(tries, timeout=timeout_s):
        with suppress(OSError, TimeoutError):
            (await each)[1].close()
            is_reached = True
            break
    for attempt in tries:
        attempt.cancel()
    return is_reached


async def stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer and close its connections, in bounded time and without an error.

    A cancel that arrives while its fetcher waits for fetches that it drops ends this wait only. A fetch that pauses
    after an error raises CancelledError out of ``consumer.stop()``.
    """
    await sessions.end_in_time(consumer.stop())
    await sessions.end_in_time(client_of(consumer).close())  # again, for a consumer that has stopped half-way


def read_from(consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> None:
    """Let a consumer without a group read a partition from an offset on, also one that it did not read before.

    ``AIOKafkaConsumer.assign`` would forget the positions of all other partitions, and what has arrived of them.
    """
    assignment = consumer._subscription.subscription.assignment
    assignment._tp_state.setdefault(tp, TopicPartitionState(assignment)).seek(offset)
    assignment._topic_partitions |= {tp}
    consumer._fetcher._notify(consumer._fetcher._wait_consume_future)


def stop_reading(consumer: AIOKafkaConsumer, tps: Collection[TopicPartition]) -> None:
    """Let a consumer without a group read these partitions no more."""
    assignment = consumer._subscription.subscription.assignment
    assignment._topic_partitions -= set(tps)
    for tp in tps:
        consumer._fetcher._records.pop(tp, None)
        if tp in assignment._tp_state:  # a fetch may be under way, and its answer is dropped for want of a position
            assignment._tp_state[tp] = TopicPartitionState(assignment)


def positions(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """The offset of the next record of each assigned partition; without partitions that have no position yet."""
    return {tp: state.position for tp, state in _states(consumer).items() if state.has_valid_position}


def watermarks(consumer: AIOKafkaConsumer, within_s: float) -> dict[TopicPartition, tuple[int, int]]:
    """High watermark and last stable offset of each assigned partition, as of its last fetch. Any thread.

    Args:
        within_s: without partitions whose last fetch was answered longer ago.
    """
    since_ms = 1000 * (time.time() - within_s)  # the consumer notes this clock
    return {
        tp: (state.highwater, state.lso)
        for tp, state in _states(consumer).items()
        if state.highwater is not None and state.lso is not None and state.timestamp >= since_ms
    }


def leader_of(consumer: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
    """Id of the broker that leads a partition; None if there is none, or it is not known."""
    leader = consumer._client.cluster.leader_for_partition(partition)
    return leader if leader is not None and leader >= 0 else None


def connection_to_leader(consumer: AIOKafkaConsumer, partition: TopicPartition) -> object:
    """The present connection to the leader of a partition; another object after each reconnection."""
    return consumer._client._conns.get((leader_of(consumer, partition), ConnectionGroup.DEFAULT))


def has_records(consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]) -> bool:
    """Whether records of these partitions have arrived and were not read yet, or not all of them."""
    return any(tp in partitions for tp in consumer._fetcher._records)


async def exists(consumer: AIOKafkaConsumer, partition: TopicPartition) -> bool:
    """Whether the brokers have a partition. The request does not create its topic.

    Raises:
        LeaderNotAvailableError: the partition has no leader.
    """
    cluster = await consumer._client.fetch_all_metadata()
    if cluster.leader_for_partition(partition) == NO_LEADER:
        raise LeaderNotAvailableError(*partition)
    return partition.partition in (cluster.partitions_for_topic(partition.topic) or ())


def size_of(records: Sequence[Any]) -> int:
    """How many bytes fetched records unpacked to."""
    return records.size if isinstance(records, Records) else 0


def _states(consumer: AIOKafkaConsumer) -> dict[TopicPartition, Any]:
    subscription = consumer._subscription.subscription
    assignment = None if subscription is None else subscription.assignment
    if assignment is None:
        return {}
    states = {tp: assignment.state_value(tp) for tp in assignment.tps}
    return {tp: state for tp, state in states.items() if state is not None}


def install() -> None:
    """Let consumers of this process that are made with :class:`InPieces` read fetches in pieces. May be called again.

    aiokafka has no option for the classes of its fetcher. To other consumers these classes give what aiokafka's give.
    """
    fetcher.FetchResult, fetcher.PartitionRecords = PieceResult, _partition_records
    fetcher.MemoryRecords = RecordsWithData


class InPieces:
    """Makes a consumer read fetches in pieces, without copies, where :func:`install` was called.

    aiokafka has no argument for it: it is given as ``key_deserializer``, which reaches the records, and is not called.
    Such a consumer has :meth:`~aiokafka.AIOKafkaConsumer.getmany` only, and returns the records of aiokafka's parser.

    Args:
        known_limit: returns the size in bytes above which only the first bytes of a value of a partition are read; None
            if it is not known.
        on_batch: called with each record batch that is read, also those without committed records.
        on_unreadable: called with each batch that cannot be read; returns whether it is passed over. If not, reading
            stops before its first record that cannot be read. None: it is an error.
    """

    def __init__(
        self,
        known_limit: Callable[[TopicPartition], int | None] = lambda tp: None,
        on_batch: Callable[[TopicPartition, PassedBatch], None] | None = None,
        on_unreadable: Callable[[TopicPartition, UnreadableBatch], bool] | None = None,
    ) -> None:
        self._known_limit = known_limit
        self.on_batch = on_batch
        self.on_unreadable = on_unreadable

    def value_limit(self, tp: TopicPartition) -> int:
        """The size in bytes above which only the first bytes of a value are read."""
        limit = self._known_limit(tp)
        return MAX_VALUE_BYTES if limit is None else limit


class RecordsWithData(MemoryRecords):
    """aiokafka's records, with the bytes that they are parsed from."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class Records(list[Any]):
    """Records that were read.

    Attributes:
        size: bytes that they unpacked to.
    """

    size = 0


class UncopiedRecords(fetcher.PartitionRecords):
    """Returns the records of aiokafka's Cython parser without a copy, in pieces of bounded size.

    aiokafka copies each into a ``ConsumerRecord`` of twelve fields, which takes longer (0.7 µs) than parsing it. The
    parser's record has all that request formats read: ``offset``, ``key``, ``value``, ``headers``, ``timestamp``.

    Args:
        in_pieces: of the consumer.
        others: as aiokafka gives them.

    Attributes:
        finished: whether all records were returned.
    """

    def __init__(
        self,
        tp: TopicPartition,
        records: RecordsWithData,
        aborted_transactions: Any,
        fetch_offset: int,
        in_pieces: InPieces,
        *others: Any,
    ) -> None:
        super().__init__(tp, records, aborted_transactions, fetch_offset, None, *others)
        self._in_pieces = in_pieces
        # aiokafka's own iterator refers to this object: the fetched bytes would stay until the collector runs.
        self._records_iterator = None
        self.finished = False
        self._data: memoryview = memoryview(self._records.data)
        self._pieces: Iterator[Piece] | None = None
        self._end_of_batch = 0
        self._damage: UnreadableBatch | None = None

    def piece(self) -> Records:
        """The next records. There may be none, also before the end.

        Raises:
            UnreadableBatch: the next record cannot be read. All records before it were returned.
        """
        found = Records()
        if self._damage is None:
            try:
                self._collect(found)
            except UnreadableBatch as error:
                self._damage = error
        if self._damage is not None and not found:
            damage, self._damage, self._pieces = self._damage, None, None
            if self._in_pieces.on_unreadable is None:
                raise damage
            if self._in_pieces.on_unreadable(self._tp, damage):
                self.next_fetch_offset = damage.read_on_from
            else:
                self.finished = True  # the batch is fetched again: another leader may have a copy that can be read
        return found

    def _collect(self, found: Records) -> None:
        while found.size < PIECE_BYTES and len(found) < PIECE_RECORDS:
            if self._pieces is None:
                self._pieces = self._next_batch()
                if self._pieces is None:
                    self.finished = True
                    break
            piece = next(self._pieces, None)
            if piece is None:
                # Compaction may have removed the last record of the batch, so its end is taken from its header.
                self.next_fetch_offset, self._pieces = self._end_of_batch, None
                continue
            records, size = piece
            if not size:
                break  # a part of a large value was passed over
            found.size += size
            if records and records[0].offset < self.next_fetch_offset:  # a broker sends whole batches
                records = [record for record in records if record.offset >= self.next_fetch_offset]
            if records:
                found += records
                self.next_fetch_offset = records[-1].offset + 1

    def _next_batch(self) -> Iterator[Piece] | None:
        """The pieces of the next batch with committed records; None at the end of the fetch.

        Raises:
            UnreadableBatch: the checksum of a batch is wrong.
        """
        while self._records.has_next():
            batch = self._records.next_batch()
            size = 12 + unpack_from(">i", self._data, 8)[0]
            raw, self._data = self._data[:size], self._data[size:]
            self._end_of_batch = batch.next_offset
            if self._check_crcs and not batch.validate_crc():
                reason = "its checksum is wrong: a disk of a broker, or the network, has damaged it"
                end_offset = end_of_damaged(raw, self._data)
                raise unreadable(self._tp, batch, raw, self.next_fetch_offset, reason, end_offset)
            if self._in_pieces.on_batch is not None:
                self._in_pieces.on_batch(self._tp, passed_batch(raw))
            if not self._is_left_out(batch):
                return pieces(self._tp, batch, raw, self._in_pieces.value_limit)
            self.next_fetch_offset = self._end_of_batch
        return None

    def _is_left_out(self, batch: Any) -> bool:
        """Whether a batch is a marker, or is part of an aborted transaction."""
        if self._isolation_level == fetcher.READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)


class PieceResult(fetcher.FetchResult):
    """Returns the next piece of a fetch, and ignores the maximum number of records.

    For consumers without :class:`InPieces` it is aiokafka's own class.
    """

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> list[Any]:
        if not self.has_more():
            return []
        if not isinstance(self._partition_records, UncopiedRecords):
            found: list[Any] = super().getall(max_records)
            return found
        if not self.check_assignment(self._topic_partition):
            return []
        try:
            records: Records = self._partition_records.piece()
        except BaseException:
            self._partition_records = None  # fetched again from the present position
            raise
        self._update_position()
        if self._partition_records.finished:
            self._partition_records = None
        return records


def _partition_records(*args: Any) -> Any:
    is_ours = any(isinstance(each, InPieces) for each in args)
    return UncopiedRecords(*args) if is_ours else _THEIR_RECORDS(*args)
