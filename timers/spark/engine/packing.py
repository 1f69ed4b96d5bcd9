"""The first step of the engine: it packs the records of a partition for its bucket, as they were read.

A record as a row of a pandas frame costs more than to decode it, so a row has many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgpack
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.timer import TopicPartition
from timers.spark.columns import headers_of, record_batch, schema
from timers.wire.formats import RequestRecord

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers", "timestamp_ms", "timestamp_type")
"""Columns of a request that the engine reads."""

SCHEMA = schema("bucket int, arrivals binary")
"""Columns of the result."""

_ARROW = to_arrow_schema(SCHEMA)


class Arrivals(NamedTuple):
    """Records of one partition that one task has read, in ascending offset."""

    tp: TopicPartition
    records: Sequence[RequestRecord]

    def pack(self) -> bytes:
        """Inverse: :meth:`unpack`."""
        return bytes(msgpack.packb(self))

    @classmethod
    def unpack(cls, data: bytes) -> Arrivals:
        (topic, partition), records = msgpack.unpackb(data, use_list=False)
        return cls((topic, partition), list(map(RequestRecord._make, records)))


def packing(buckets: Sequence[int]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: it yields the requests of each Arrow batch, one row for each partition."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [(buckets[each.tp[1] % len(buckets)], each.pack()) for each in _by_partition(batch)]
            yield record_batch(rows, _ARROW)

    return pack


def _by_partition(batch: pa.RecordBatch) -> list[Arrivals]:
    """The requests of each partition, in ascending offset."""
    offset, key, value, at, kind = (
        batch[name].to_pylist() for name in ("offset", "key", "value", "timestamp_ms", "timestamp_type")
    )
    headers = headers_of(batch["headers"])
    found: dict[TopicPartition, list[RequestRecord]] = {}
    records = map(RequestRecord._make, zip(offset, key, value, headers, at, kind, strict=True))
    for topic, partition, record in zip(
        batch["topic"].to_pylist(), batch["partition"].to_pylist(), records, strict=True
    ):
        found.setdefault((topic, partition), []).append(record)
    return [Arrivals(tp, some) for tp, some in found.items()]
