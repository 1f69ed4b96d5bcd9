"""The first step of the engine: it packs the records of a partition for its bucket, as they were read.

A record as a row of a pandas frame costs more than to decode it, so a row has many of them. They stay in columns of
Arrow until the bucket reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import pyarrow as pa

from timers.core.timer import TopicPartition
from timers.spark.columns import Batches, batchwise, bounds, headers_of, record_batch, schema
from timers.wire.formats import RequestRecord

SCHEMA = schema("bucket int, arrivals binary")
"""Columns of the result."""


class Arrivals(NamedTuple):
    """Records of one partition that one task has read, in ascending offset."""

    tp: TopicPartition
    records: Sequence[RequestRecord]

    @classmethod
    def unpack(cls, data: bytes) -> Arrivals:
        """Read the bytes that :func:`pack` has returned."""
        with pa.ipc.open_stream(data) as stream:
            batch = stream.read_next_batch()
        offset, key, value, at, kind = (
            batch[name].to_pylist() for name in ("offset", "key", "value", "timestamp_ms", "timestamp_type")
        )
        columns = zip(offset, key, value, headers_of(batch["headers"]), at, kind, strict=True)
        # As RequestRecord._make does, without a call of Python for each record.
        records = list(map(tuple.__new__, repeat(RequestRecord), columns))
        place = batch.schema.metadata
        return cls((place[b"topic"].decode(), int(place[b"partition"])), records)


def pack(batch: pa.RecordBatch) -> bytes:
    """Returns the requests of one partition as bytes. Inverse: :meth:`Arrivals.unpack`."""
    place = {name: str(batch[name][0].as_py()) for name in ("topic", "partition")}
    part = batch.drop_columns(list(place)).replace_schema_metadata(place)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as stream:
        stream.write_batch(part)
    return bytes(sink.getvalue())


def packing(buckets: Sequence[int]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: of each batch of requests (:data:`timers.spark.columns.RECORD`) it yields a row
    for each partition, and one more if other partitions are in between."""

    def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
        parts = [batch.slice(first, end - first) for first, end in pairwise(bounds(batch))]
        rows = [(buckets[part["partition"][0].as_py() % len(buckets)], pack(part)) for part in parts]
        return record_batch(rows, SCHEMA)

    return batchwise(packed)
