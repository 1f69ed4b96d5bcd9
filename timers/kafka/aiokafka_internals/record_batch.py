"""Record batches that a thread fills before aiokafka's event loop gets them.

aiokafka's public ``create_batch`` belongs to a started producer, and its ``append`` copies each record's metadata. This
module relies on:

==========================================================  ==========================================================
``BatchBuilder._builder``, ``_relative_offset``, ``_buffer``  the Cython builder, the number of records, the built batch
``DefaultRecordBatchBuilder.append``, ``size_in_bytes``     arguments: relative offset, timestamp, key, value, headers
==========================================================  ==========================================================
"""

from __future__ import annotations

from typing import Any

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from timers.wire.headers import Header

NO_COMPRESSION = 0

BATCH_OVERHEAD_BYTES = 61
"""Header of a record batch, which ``max.message.bytes`` counts too."""

_SIZER = DefaultRecordBatchBuilder(
    magic=2,
    compression_type=NO_COMPRESSION,
    is_transactional=1,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    batch_size=0,
)


def size_alone(key: bytes | None, value: bytes | None, headers: list[Header]) -> int:
    """The bytes of a batch that holds only this record: Kafka compares them with the topic's limit."""
    size: int = _SIZER.size_in_bytes(0, 0, key, value, headers)
    return BATCH_OVERHEAD_BYTES + size


class RecordBatch(BatchBuilder):
    """A transactional batch for one partition.

    Attributes:
        add: the builder's own append: (relative offset, timestamp ms, key, value, headers); None if the batch is full.
        offsets: of the request of each record so far, or None if a record is no callback; the caller appends it.
    """

    def __init__(self, max_bytes: int, first: Any = None) -> None:
        super().__init__(max_bytes, NO_COMPRESSION, is_transactional=1)
        self.add = self._builder.append
        self.offsets: list[int | None] = []
        if first is not None:
            self.add(0, *first)

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        if self._buffer is None:  # a batch that is sent again keeps its sequence number
            super()._set_producer_state(producer_id, producer_epoch, base_sequence)

    def seal(self) -> None:
        """End the batch: tell aiokafka the number of records."""
        self._relative_offset = len(self.offsets)
        del self.add
        self.close()
