"""The consumer's fetcher: fewer copies of records, headers with invalid names, and positions without a broker request.

By Kafka's protocol the name of a header is UTF-8, but no broker checks it. For another name aiokafka raises an error,
which would end this worker and each later one at the same record. This module parses such a batch again as Java does,
with U+FFFD in place of bytes that are not UTF-8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar, SupportsIndex

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy

logger = logging.getLogger(__name__)


def fetch_errors(response: Any) -> Iterator[tuple[str, int, int]]:
    """(topic, partition, error code) of each partition in a fetch response; none of any other response."""
    if getattr(response, "API_KEY", None) == FetchRequest.API_KEY:
        for topic, partitions in response.topics:
            for partition, error_code, *_ in partitions:
                yield topic, partition, error_code


def positions(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """The offset of the next record of each assigned partition; without partitions that have no position yet."""
    return {tp: state.position for tp, state in _states(consumer).items() if state.has_valid_position}


def watermarks(consumer: AIOKafkaConsumer) -> dict[TopicPartition, tuple[int, int]]:
    """High watermark and last stable offset of each assigned partition, as of its last fetch. Any thread."""
    return {
        tp: (state.highwater, state.lso)
        for tp, state in _states(consumer).items()
        if state.highwater is not None and state.lso is not None
    }


def leader_of(consumer: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
    """Id of the broker that leads a partition; None if there is none, or it is not known."""
    leader = consumer._client.cluster.leader_for_partition(partition)
    return leader if leader is not None and leader >= 0 else None


def _states(consumer: AIOKafkaConsumer) -> dict[TopicPartition, Any]:
    subscription = consumer._subscription.subscription
    assignment = None if subscription is None else subscription.assignment
    if assignment is None:
        return {}
    states = {tp: assignment.state_value(tp) for tp in assignment.tps}
    return {tp: state for tp, state in states.items() if state is not None}


class RecordsWithData(MemoryRecords):
    """aiokafka's records, with the bytes that they are parsed from."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class _BatchAsList:
    """A batch that yields all its records as one list: passing on single records takes longer than parsing them."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)  # aiokafka reads the record of a control batch

    def __iter__(self) -> Iterator[_RecordList]:
        records = _RecordList(self._batch)
        if records:
            yield records


class _RecordList(list[Any]):
    """The records of one batch. aiokafka treats the list as one record with the last offset."""

    @property
    def offset(self) -> int:
        offset: int = self[-1].offset
        return offset

    def starting_at(self, offset: int) -> list[Any]:
        """The records from ``offset`` on: a broker sends whole batches, also records before the requested offset."""
        return self if self[0].offset >= offset else [record for record in self if record.offset >= offset]


class _BatchesAsLists:
    """Batches, each as :class:`_BatchAsList`."""

    def __init__(self, records: RecordsWithData) -> None:
        self._records = records
        self.data = records.data
        self.has_next = records.has_next

    def next_batch(self) -> _BatchAsList:
        return _BatchAsList(self._records.next_batch())


class UncopiedRecords(fetcher.PartitionRecords):
    """Returns the records of aiokafka's Cython parser without a copy.

    aiokafka copies each into a ``ConsumerRecord`` of twelve fields, which takes longer (0.7 us) than parsing it. The
    parser's record has all that request formats read: ``offset``, ``key``, ``value``, ``headers``, ``timestamp``.
    """

    _records: Any
    _warned: ClassVar[set[Any]] = set()

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        return record.starting_at(self.next_fetch_offset) if isinstance(record, _RecordList) else record

    def all(self) -> list[Any]:
        """All records of the fetch. Call it before any record was taken."""
        self._records = _BatchesAsLists(self._records)
        records: list[Any] = []
        for item in self:
            if isinstance(item, list):
                records += item
            else:  # a record of a batch that was parsed again
                records.append(item)
        return records

    def _unpack_records(self) -> Iterator[Any]:
        try:
            yield from super()._unpack_records()
        except UnicodeDecodeError:
            if self._tp not in self._warned:  # once, since any sender of requests can cause it
                self._warned.add(self._tp)
                logger.warning(
                    "%s/%d: a header name near offset %d is not UTF-8; it is read with U+FFFD; "
                    "this is not logged again for the partition",
                    *self._tp,
                    self.next_fetch_offset,
                )
            with_data: RecordsWithData = self._records
            self._records = _LenientRecords(with_data.data, self.next_fetch_offset)
            yield from super()._unpack_records()


class _LenientRecords(_MemoryRecordsPy):
    """The batches that hold ``from_offset`` or later offsets, parsed in Python."""

    def __init__(self, data: bytes, from_offset: int) -> None:
        super().__init__(data)
        # Earlier batches were returned before; their transaction markers must not be counted twice.
        while self.has_next() and _DefaultRecordBatchPy(self._next_slice).next_offset <= from_offset:
            self._cache_next()

    def next_batch(self) -> _DefaultRecordBatchPy:
        batch = _LenientBatch(self._next_slice)
        self._cache_next()
        return batch


class _LenientBatch(_DefaultRecordBatchPy):
    _buffer: Any

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _LenientBytes(self._buffer)


class _LenientBytes(bytearray):
    """Bytes whose ``decode`` replaces invalid UTF-8 with U+FFFD, as Java does."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        piece = super().__getitem__(index)
        return _LenientBytes(piece) if isinstance(piece, bytearray) else piece

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")


class WholeFetchResult(fetcher.FetchResult):
    """Returns all records of a fetch at once if no maximum is given."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> list[Any]:
        if max_records is not None or not self.check_assignment(self._topic_partition) or not self.has_more():
            records: list[Any] = super().getall(max_records)
            return records
        records = self._partition_records.all()
        self._update_position()
        self._partition_records = None
        return records


def install() -> None:
    """Make aiokafka's fetcher use these classes. It has no option for this, so the names in its module are replaced."""
    fetcher.FetchResult = WholeFetchResult
    fetcher.PartitionRecords = UncopiedRecords
    fetcher.MemoryRecords = RecordsWithData
