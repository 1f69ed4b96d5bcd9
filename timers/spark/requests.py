"""Decodes requests of any request format into a table, over Arrow batches.

It uses the decoders of the worker, so both read the same timers from a topic. They cost 1 to 3 us a record; column
expressions compute the rest (sizes, names of records).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.operation import ANY_VERSION
from timers.core.timer import id_bytes
from timers.spark.arrow import headers_of, record_batch
from timers.spark.columns import schema, size_bytes
from timers.wire import headers as h
from timers.wire.cold import PartitionColdFormat
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.future import decode_retry
from timers.wire.topics import source

TIMER, CANCEL, REJECTED, COPY, ENDED = "timer", "cancel", "rejected", "copy", "ended"

REQUEST = schema(
    "topic string, partition int, offset bigint, timestamp_ms bigint, kind string, timer_id string, due_s bigint, "
    "wait_s bigint, callback_topic string, attempt int, request string, code string, bytes bigint"
)
"""One row for each record of a request topic.

``kind`` is one of ``timer``, ``cancel``, ``rejected`` (with the reason in ``code``), ``copy`` (a promoted copy of a
cold request) and ``ended`` (a tombstone of the engine in a topic of schedules). ``timer_id`` is that of the fired
message, as :func:`timers.wire.headers.id_shown` shows it; for a rejected record it is the id that the record ended, if
any. ``due_s`` is the requested due second, and ``wait_s`` is the second that the record waits for; they differ on the
retry topic. ``request`` is the original request: on the retry topic another record, for a tombstone the record that it
ended. ``attempt`` is the number of failed attempts to send, ``bytes`` the size of key, value and headers. """

_ARROW = to_arrow_schema(REQUEST)


def decode(records: DataFrame, formats: Mapping[str, RequestFormat], max_request_bytes: int) -> DataFrame:
    """The records of request topics, decoded by their request formats.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`, in ascending offset within a partition.
        formats: topic -> its request format, as :func:`timers.request_formats.enabled_formats` opens them.
        max_request_bytes: largest value accepted, as in the worker.

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
    """Decode one Arrow batch, which may have records of several partitions."""
    topics = batch.column("topic").to_pylist()
    partitions = batch.column("partition").to_pylist()
    places = list(zip(topics, partitions, strict=True))
    starts = [0, *(i for i in range(1, len(places)) if places[i] != places[i - 1]), len(places)]
    read, sizes = _records(batch), batch.column("bytes").to_pylist()
    for first, end in pairwise(starts):
        if first < end:
            topic, partition = places[first]
            chunk = read[first:end]
            decoded = _decoded(topic, partition, formats[topic], chunk, max_request_bytes)
            rows = [
                (topic, partition, each.offset, each.timestamp, *decoded[each.offset], size)
                for each, size in zip(chunk, sizes[first:end], strict=True)
            ]
            yield record_batch(rows, _ARROW)


def _records(batch: pa.RecordBatch) -> list[RequestRecord]:
    columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
    headers, times = headers_of(batch.column("headers")), batch.column("timestamp_ms").to_pylist()
    return list(map(RequestRecord._make, zip(*columns, headers, times, strict=True)))


def _decoded(
    topic: str, partition: int, request_format: RequestFormat, chunk: Sequence[RequestRecord], max_request_bytes: int
) -> dict[int, tuple[Any, ...]]:
    """Offset -> columns ``kind`` to ``code`` of its row."""
    rows_by_offset: dict[int, tuple[Any, ...]] = {}
    if request_format.allows_cold_tier:
        is_copy = PartitionColdFormat(topic, partition).is_copy
        for copy in filter(is_copy, chunk):
            rows_by_offset[copy.offset] = (COPY, None, None, None, None, 0, source(topic, partition, copy.offset), None)
        if rows_by_offset:
            chunk = [each for each in chunk if each.offset not in rows_by_offset]
    decoded = request_format.decode(chunk, max_request_bytes)
    moved = request_format.decode is decode_retry
    for wait_s, rows in decoded.rows.items():
        for row in rows:
            origin = row[5]
            name = source(topic, partition, row[0])
            if origin is None:
                rows_by_offset[row[0]] = (TIMER, name, wait_s, wait_s, row[1], 0, name, None)
            else:
                request = origin.request if moved else name
                id = h.id_shown(id_bytes(origin.timer_id))
                rows_by_offset[row[0]] = (TIMER, id, origin.due_s, wait_s, row[1], origin.attempt, request, None)
    ended: dict[int, str] = {}
    for named, offset, due_s, version in decoded.operations:
        if due_s is None:
            ours = request_format.topic_is_compacted and version != ANY_VERSION
            kind, about = (ENDED, version) if ours else (CANCEL, offset)
            ended[offset] = id = h.id_shown(named)
            rows_by_offset[offset] = (kind, id, None, None, None, 0, source(topic, partition, about), None)
    for rejected in decoded.rejected:
        name, ended_id = source(topic, partition, rejected.offset), ended.get(rejected.offset)
        rows_by_offset[rejected.offset] = (REJECTED, ended_id, None, None, None, 0, name, rejected.code)
    return rows_by_offset
