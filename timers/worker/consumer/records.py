"""What the fetcher makes of the bytes it got: aiokafka's parser, with less copying, and proof against broken names.

Kafka says that a header's name is UTF-8, and no broker checks it. aiokafka refuses such a batch with an error that
would end the worker, and every later one at the same record. Here the batch is read again the way Java reads it, with
U+FFFD in place of what is not UTF-8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar, SupportsIndex

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy

logger = logging.getLogger(__name__)


class KeptRecords(MemoryRecords):
    """aiokafka's records, which also remember the bytes they are parsed from."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class _AsOne:
    """A batch whose records come as one list: one by one, handing them on costs more than parsing them."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)  # a control batch is looked into

    def __iter__(self) -> Iterator[_Records]:
        records = _Records(self._batch)
        if records:
            yield records


class _Records(list[Any]):
    """Stands for its last record."""

    @property
    def offset(self) -> int:
        offset: int = self[-1].offset
        return offset

    def starting_at(self, offset: int) -> list[Any]:
        """What is not before that: a broker answers from the batch that holds what was asked for."""
        return self if self[0].offset >= offset else [record for record in self if record.offset >= offset]


class _Batches:
    """Batches, each :class:`_AsOne`."""

    def __init__(self, records: KeptRecords) -> None:
        self._records = records
        self.data = records.data
        self.has_next = records.has_next

    def next_batch(self) -> _AsOne:
        return _AsOne(self._records.next_batch())


class LeanRecords(fetcher.PartitionRecords):
    """Hands out the records of aiokafka's Cython parser as they are.

    aiokafka copies each into a ``ConsumerRecord`` of twelve fields, which costs more (0.7 us) than parsing it. What
    request formats read of a record is there before: ``offset``, ``key``, ``value``, ``headers``, ``timestamp``.
    """

    _records: Any
    _told: ClassVar[set[Any]] = set()

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        return record.starting_at(self.next_fetch_offset) if isinstance(record, _Records) else record

    def all(self) -> list[Any]:
        """All records from here on; none was taken before."""
        self._records = _Batches(self._records)
        records: list[Any] = []
        for some in self:
            if isinstance(some, list):
                records += some
            else:  # of a batch with a broken name
                records.append(some)
        return records

    def _unpack_records(self) -> Iterator[Any]:
        try:
            yield from super()._unpack_records()
        except UnicodeDecodeError:
            if self._tp not in self._told:  # whoever may write requests could fill the log otherwise
                self._told.add(self._tp)
                logger.warning(
                    "%s/%d: a header name near offset %d is not UTF-8; it is read with U+FFFD, as others there will be",
                    *self._tp,
                    self.next_fetch_offset,
                )
            kept: KeptRecords = self._records
            self._records = _LenientRecords(kept.data, self.next_fetch_offset)
            yield from super()._unpack_records()


class _LenientRecords(_MemoryRecordsPy):
    """The batches that hold ``from_offset`` or what comes after, read in Python."""

    def __init__(self, data: bytes, from_offset: int) -> None:
        super().__init__(data)
        # What comes before was handed out; its transaction markers must not be counted twice.
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
    """Bytes that decode as Java decodes: nothing is an error."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        piece = super().__getitem__(index)
        return _LenientBytes(piece) if isinstance(piece, bytearray) else piece

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")


class LeanResult(fetcher.FetchResult):
    """Hands out all records of a fetch at once, where no bound is asked for."""

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
    """Make aiokafka's fetcher use these. It has no seam for that but the names it looks up."""
    fetcher.FetchResult = LeanResult
    fetcher.PartitionRecords = LeanRecords
    fetcher.MemoryRecords = KeptRecords
