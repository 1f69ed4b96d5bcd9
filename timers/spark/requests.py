"""Requests of any request format as a table: the request formats' own decoders, run over Arrow batches.

Which timers a topic asks for is decided by the very functions that the worker runs. They cost 1 to 3 us a record, so
what a column expression can do (sizes, names of records) stays out of here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from timers.core.operation import ANY_VERSION
from timers.core.timer import id_bytes
from timers.spark.arrow import headers_of
from timers.spark.columns import size_bytes
from timers.wire import headers as h
from timers.wire.cold import PartitionFormat
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.future import decode_retry
from timers.wire.topics import source

TIMER, CANCEL, REJECTED, COPY, ENDED = "timer", "cancel", "rejected", "copy", "ended"

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
        StructField("bytes", LongType()),
    ]
)
"""One row for each record of a request topic.

``kind`` is ``timer``, ``cancel``, ``rejected`` (then ``code`` says why), ``copy`` (of a request that was cold, which
asks for nothing new) or ``ended`` (a tombstone of the engine's in a topic of schedules). ``timer_id`` is what the fired
message will carry, as :func:`timers.wire.headers.id_shown` shows it; of what was rejected it is the id that ended with
it, if any. ``due_s`` is the second first asked for; ``wait_s`` the one that the record waits for, which differs on the
retry topic. ``request`` is the record that asked first: another one on the retry topic, and of a tombstone the one that
it ended. ``attempt`` counts failed sendings, ``bytes`` those of key, value and headers.
"""

_ARROW = to_arrow_schema(REQUEST)


def decode(records: DataFrame, formats: Mapping[str, RequestFormat], max_request_bytes: int) -> DataFrame:
    """Each record of request topics as its request format reads it.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`, those of a partition in ascending offset.
        formats: topic -> its request format, as :func:`timers.request_formats.enabled_formats` opens them.
        max_request_bytes: largest value accepted, as the worker has it.

    Returns:
        In the shape of :data:`REQUEST`.
    """
    opened = dict(formats)

    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode_batch(batch, opened, max_request_bytes)

    of_format = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
    needed = records.select(*of_format, size_bytes().cast("long").alias("bytes"))
    return needed.mapInArrow(decode_batches, REQUEST)


def decode_batch(
    batch: pa.RecordBatch, formats: Mapping[str, RequestFormat], max_request_bytes: int
) -> Iterator[pa.RecordBatch]:
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
            said = _said(topic, partition, formats[topic], chunk, max_request_bytes)
            rows = [(topic, partition, each.offset, each.timestamp, *said[each.offset]) for each in chunk]
            columns = list(zip(*rows, strict=True))
            arrays = [pa.array(column, _ARROW.field(index).type) for index, column in enumerate(columns)]
            sizes = batch.column("bytes").slice(first, end - first)
            yield pa.RecordBatch.from_arrays([*arrays, sizes], schema=_ARROW)


def _records(batch: pa.RecordBatch) -> list[RequestRecord]:
    columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
    headers, times = headers_of(batch.column("headers")), batch.column("timestamp_ms").to_pylist()
    return list(map(RequestRecord._make, zip(*columns, headers, times, strict=True)))


def _said(
    topic: str, partition: int, request_format: RequestFormat, chunk: Sequence[RequestRecord], max_request_bytes: int
) -> dict[int, tuple[Any, ...]]:
    """Offset -> columns ``kind`` to ``code`` of its row."""
    said: dict[int, tuple[Any, ...]] = {}
    if request_format.allows_cold_tier:
        has_returned = PartitionFormat(topic, partition).has_returned
        for copy in filter(has_returned, chunk):
            said[copy.offset] = (COPY, None, None, None, None, 0, source(topic, partition, copy.offset), None)
        if said:
            chunk = [each for each in chunk if each.offset not in said]
    decoded = request_format.decode(chunk, max_request_bytes)
    moved = request_format.decode is decode_retry
    for wait_s, rows in decoded.rows.items():
        for row in rows:
            origin = row[5]
            name = source(topic, partition, row[0])
            if origin is None:
                said[row[0]] = (TIMER, name, wait_s, wait_s, row[1], 0, name, None)
            else:
                request = origin.request if moved else name
                id = h.id_shown(id_bytes(origin.timer_id))
                said[row[0]] = (TIMER, id, origin.due_s, wait_s, row[1], origin.attempt, request, None)
    ended: dict[int, str] = {}
    for named, offset, due_s, version in decoded.operations:
        if due_s is None:
            ours = request_format.topic_is_compacted and version != ANY_VERSION
            kind, about = (ENDED, version) if ours else (CANCEL, offset)
            ended[offset] = id = h.id_shown(named)
            said[offset] = (kind, id, None, None, None, 0, source(topic, partition, about), None)
    for rejected in decoded.rejected:
        name = source(topic, partition, rejected.offset)
        said[rejected.offset] = (REJECTED, ended.get(rejected.offset), None, None, None, 0, name, rejected.code)
    return said
