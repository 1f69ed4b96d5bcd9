"""Requests of any door as a table: the doors' own decoders, run over Arrow batches.

Which timers a topic asks for is decided by the very functions that the worker runs. They cost 1 to 3 us a record, so
what a column expression can do (sizes, names of records) stays out of here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from timers.core.timer import Decoded
from timers.wire.doors import Door
from timers.wire.topics import source

TIMER, CANCEL, REJECTED = "timer", "cancel", "rejected"

REQUEST = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp_ms", LongType()),
        StructField("kind", StringType()),
        StructField("timer_id", StringType()),
        StructField("due_s", LongType()),
        StructField("wait_s", LongType()),
        StructField("callback_topic", StringType()),
        StructField("attempt", IntegerType()),
        StructField("request", StringType()),
        StructField("code", StringType()),
    ]
)
"""One row for each record of a request topic.

``kind`` is ``timer``, ``cancel`` or ``rejected`` (then ``code`` says why). ``timer_id`` is what the fired message will
carry. ``due_s`` is the second first asked for; ``wait_s`` the one that the record waits for, which differs on the retry
topic. ``request`` is the record that asked first: on the retry topic another one. ``attempt`` counts failed sendings.
"""

_ARROW = to_arrow_schema(REQUEST)


class _Record(NamedTuple):
    """What a door's decoder asks of a record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def decode(records: DataFrame, doors: Mapping[str, Door], max_request_bytes: int) -> DataFrame:
    """Each record of request topics as its door reads it.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`, those of a partition in ascending offset.
        doors: topic -> its door, as :func:`timers.doors.open_doors` opens them.
        max_request_bytes: largest value accepted, as the worker has it.

    Returns:
        In the shape of :data:`REQUEST`.
    """
    opened = dict(doors)

    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode_batch(batch, opened, max_request_bytes)

    needed = records.select("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
    return needed.mapInArrow(decode_batches, REQUEST)


def decode_batch(batch: pa.RecordBatch, doors: Mapping[str, Door], max_request_bytes: int) -> Iterator[pa.RecordBatch]:
    """One Arrow batch of records, which may hold several partitions, each in one piece or in more."""
    topics = batch.column("topic").to_pylist()
    partitions = batch.column("partition").to_pylist()
    places = list(zip(topics, partitions, strict=True))
    starts = [0, *(i for i in range(1, len(places)) if places[i] != places[i - 1]), len(places)]
    read = _records(batch)
    for first, end in pairwise(starts):
        if first < end:
            topic, partition = places[first]
            chunk = read[first:end]
            yield _as_batch(topic, partition, chunk, doors[topic].decode(chunk, max_request_bytes))


def _records(batch: pa.RecordBatch) -> list[_Record]:
    columns = [batch.column(name).to_pylist() for name in ("offset", "timestamp_ms", "key", "value")]
    return list(map(_Record._make, zip(*columns, headers_of(batch.column("headers")), strict=True)))


def headers_of(column: Any) -> list[Sequence[tuple[str, bytes | None]]]:
    """An Arrow column of headers as the lists of pairs that Kafka clients give; none and null are empty."""
    if column.null_count == len(column):
        return [()] * len(column)
    # Item by item, Arrow would make a dict of each header, which costs more than reading the request.
    bounds = column.offsets.to_pylist()
    fields = column.values
    pairs = list(zip(fields.field("key").to_pylist(), fields.field("value").to_pylist(), strict=True))
    return [pairs[first:end] for first, end in pairwise(bounds)]


def _as_batch(topic: str, partition: int, chunk: Sequence[_Record], decoded: Decoded) -> pa.RecordBatch:
    said: dict[int, tuple[Any, ...]] = {}
    for wait_s, rows in decoded.rows.items():
        for row in rows:
            origin = row[5]
            name = source(topic, partition, row[0])
            if origin is None:
                said[row[0]] = (TIMER, name, wait_s, wait_s, row[1], 0, name, None)
            else:
                request = origin.request if origin.attempt or origin.source else name
                said[row[0]] = (TIMER, origin.timer_id, origin.due_s, wait_s, row[1], origin.attempt, request, None)
    for operation in decoded.operations:
        if operation[2] is None:
            name = source(topic, partition, operation[1])
            said[operation[1]] = (CANCEL, operation[0].decode(), None, None, None, 0, name, None)
    for rejected in decoded.rejected:
        name = source(topic, partition, rejected.offset)
        said[rejected.offset] = (REJECTED, None, None, None, None, 0, name, rejected.code)
    rows_out = [(topic, partition, each.offset, each.timestamp, *said[each.offset]) for each in chunk]
    columns = zip(*rows_out, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
