"""Decodes requests of any request format into a table, over Arrow batches.

It uses the decoders of the worker, so both read the same timers from a topic. They cost 1 to 3 µs a record; column
expressions compute the rest (sizes, hashes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, starmap
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.core.keys import MAX_OFFSET
from timers.core.levels import FIRST_LEVEL
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.core.repeating import is_occurrence, occurrence_of
from timers.core.timer import Decoded, TopicPartition, id_bytes, key_bytes
from timers.spark.columns import (
    RECORD_SCHEMA,
    batchwise,
    bounds,
    content,
    header,
    headers_of,
    parts,
    record_batch,
    schema,
    size_bytes,
)
from timers.wire import headers as h
from timers.wire.cold import PartitionColdFormat
from timers.wire.formats import RequestFormat, RequestRecord, schedule
from timers.wire.future import decode_retry
from timers.wire.topics import source

TIMER, CANCEL, REJECTED, COPY, ENDED = "timer", "cancel", "rejected", "copy", "ended"
DEFINITION, WAYPOINT = "definition", "waypoint"

_DECODED = (
    "kind string, timer_id string, due_s bigint, wait_s bigint, callback_topic string, attempt int, request string, "
    "code string, callback_key binary"
)
_RECORD = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, timestamp_type int, bytes bigint, "
    "record_key binary, conditional boolean"
)

_CHAIN = "rule binary, nominal_s bigint, decided_s bigint, follows bigint, version string, is_last boolean"

REQUEST_SCHEMA = schema(f"{_RECORD}, {_DECODED}, content bigint, parts bigint, {_CHAIN}")
"""One row for each record of a request topic.

``kind`` is one of ``timer``, ``cancel``, ``rejected`` (with the reason in ``code``), ``copy`` (a promoted copy of a
cold request), ``ended`` (a tombstone of the engine in a topic of schedules), ``definition`` (of a timer that repeats;
its second is that of its append) and ``waypoint`` (an occurrence that sends nothing). ``timer_id`` is that of the fired
message, as :func:`timers.wire.headers.id_shown` shows it; for a rejected record it is the id that the record ended, if
any. ``due_s`` is the requested due second, and ``wait_s`` is the second that the record waits for; they differ on the
retry topic. ``request`` is the original request: on the retry topic another record, for a tombstone the record that it
ended. ``attempt`` is the number of failed attempts to send, ``bytes`` the size of key, value and headers.
``record_key`` is the key of the record and ``callback_key`` that of the callback. ``conditional``: it may have been
refused, because it has a condition. ``content`` is the hash of the
callback (:func:`timers.spark.columns.content`), ``parts`` has those of its parts.

A record of a timer that repeats has its ``rule``. An occurrence also has ``nominal_s``, or a waypoint ``decided_s``,
the offset of the record that it ``follows``, the ``version`` of its definition, and whether it is the last one. The
``version`` of a copy is the cold request that it names."""

_CALLBACK = "value binary, headers headers"

_WITH_CALLBACK = schema(f"{_RECORD}, {_DECODED}, {_CALLBACK}, {_CHAIN}")
_DECODED_COLUMNS = schema(f"{_DECODED}, {_CALLBACK}, {_CHAIN}")
_NO_CHAIN: tuple[Any, ...] = (None,) * 6
_GIVEN = ("topic", "partition", "offset", "timestamp_ms", "timestamp_type", "bytes", "key", "conditional")
"""Columns of a batch that stay as they are."""


def decode(
    records: DataFrame,
    formats: Mapping[str, RequestFormat],
    max_request_bytes: int,
    request_topic: str,
    progress: Mapping[TopicPartition, Progress] = MappingProxyType({}),
    more: Sequence[Column] = (),
) -> DataFrame:
    """The records of request topics, decoded by their request formats.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD_SCHEMA`, in ascending offset within a partition.
            With a column ``source``, which is the name of each record: two may have one offset, before and after a cut.
        formats: topic -> its request format, as :func:`timers.kafka.request_formats.enabled_formats` opens them.
        max_request_bytes: largest value accepted, as in the worker.
        progress: of the partitions: each record is read at its feature level [I21]. A record without a ``source`` is
            named with its cut [I28].
        more: further columns, of value and headers of the callback.

    Returns:
        In the shape of :data:`REQUEST_SCHEMA`, and ``more``.
    """
    each = partial(decode_batch, formats=dict(formats), max_request_bytes=max_request_bytes, progress=dict(progress))
    may_have = [topic for topic, request_format in formats.items() if request_format.has_conditions]
    conditional = F.col("topic").isin(*may_have) & header(h.TIMER_IF).isNotNull()
    sizes = size_bytes().cast("long").alias("bytes")
    given = [*RECORD_SCHEMA.names, *(name for name in records.columns if name == "source")]
    needed = records.select(*given, sizes, F.coalesce(conditional, F.lit(False)).alias("conditional"))
    decoded = needed.mapInArrow(batchwise(each), _WITH_CALLBACK)
    sent = F.col("callback_topic"), F.col("callback_key"), F.col("value"), request_topic
    hashes = {name: F.when(F.col("kind") == TIMER, of(*sent)) for name, of in (("content", content), ("parts", parts))}
    return decoded.withColumns(hashes).select(*REQUEST_SCHEMA.names, *more)


def decode_batch(
    batch: pa.RecordBatch,
    formats: Mapping[str, RequestFormat],
    max_request_bytes: int,
    progress: Mapping[TopicPartition, Progress],
) -> pa.RecordBatch:
    """Decode one Arrow batch, which may have records of several partitions."""
    topics, partitions = (batch.column(name).to_pylist() for name in ("topic", "partition"))
    sources = batch.column("source").to_pylist() if "source" in batch.schema.names else None
    read = _records(batch)
    rows: list[tuple[Any, ...]] = []
    for first, end in pairwise(bounds(batch)):
        tp, chunk = (topics[first], partitions[first]), read[first:end]
        known = progress.get(tp, Progress())
        name: Callable[[int], str] = partial(source, *tp, cuts=known.cuts)
        if sources is not None:
            name = dict(zip((each.offset for each in chunk), sources[first:end], strict=True)).__getitem__
        decoded = _decoded(tp, formats[tp[0]], chunk, max_request_bytes, known, name)
        rows += [decoded[each.offset] for each in chunk]
    columns = [*map(batch.column, _GIVEN), *record_batch(rows, _DECODED_COLUMNS).columns]
    return pa.RecordBatch.from_arrays(columns, names=_WITH_CALLBACK.names)


def _records(batch: pa.RecordBatch) -> list[RequestRecord]:
    columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
    headers, times = headers_of(batch.column("headers")), batch.column("timestamp_ms").to_pylist()
    return list(starmap(RequestRecord, zip(*columns, headers, times, strict=True)))


def _decoded(
    tp: TopicPartition,
    request_format: RequestFormat,
    chunk: Sequence[RequestRecord],
    max_request_bytes: int,
    progress: Progress,
    name: Callable[[int], str],
) -> dict[int, tuple[Any, ...]]:
    """Offset -> columns ``kind`` to ``is_last`` of its row.

    Args:
        name: returns the name of the record at an offset.
    """
    topic, partition = tp
    raises = [(each.from_offset, each.value) for each in progress.settings if each.name == FEATURE_LEVEL]
    rows_by_offset: dict[int, tuple[Any, ...]] = {}
    if request_format.allows_cold_tier:
        is_copy = PartitionColdFormat(topic, partition).is_copy
        for copy in filter(is_copy, chunk):
            promoted = dict(copy.headers or ()).get(h.TIMER_PROMOTED) or b""
            chain = (*_NO_CHAIN[:4], promoted.decode("ascii", "replace"), None)
            rows_by_offset[copy.offset] = *_without_timer(COPY, name(copy.offset))[: -len(chain)], *chain
        if rows_by_offset:
            chunk = [each for each in chunk if each.offset not in rows_by_offset]
    decoded = Decoded()
    for (start, level), (end, _) in pairwise([(0, FIRST_LEVEL), *raises, (MAX_OFFSET, 0)]):
        if part := [each for each in chunk if start <= each.offset < end] if raises else chunk:
            decoded.extend(request_format.decoder(level, rejects_overdue=False)(part, max_request_bytes))
    moved = request_format.decode is decode_retry
    own_topic = topic.encode()
    for wait_s, rows in decoded.rows.items():
        for row in rows:
            origin = row[5]
            id = request = name(row[0])
            due_s, attempt = wait_s, 0
            if origin is not None:
                id = h.id_shown(id_bytes(origin.timer_id))
                due_s, attempt = origin.due_s, origin.attempt
                if moved:
                    request = origin.request
            kind, chain = TIMER, _NO_CHAIN
            if (follows := decoded.follows.get(row[0])) is not None and is_occurrence(row):
                rule, set_by, nominal_s, decided_s, _owed_s, is_last, row = occurrence_of(row)
                kind = WAYPOINT if nominal_s is None else TIMER
                decided = decided_s if nominal_s is None else None
                chain = rule, nominal_s, decided, follows.offset, set_by.decode("ascii", "replace"), is_last
            if request_format.topic_is_compacted:
                row = schedule.callback_row(row, own_topic)
            callback = key_bytes(row[2]), row[3], row[4]
            rows_by_offset[row[0]] = (kind, id, due_s, wait_s, row[1], attempt, request, None, *callback, *chain)
    for offset, definition in decoded.definitions.items():
        row, append_s = definition.row, definition.append_s
        assert row[5] is not None
        id = h.id_shown(id_bytes(row[5].timer_id))
        callback = key_bytes(row[2]), row[3], row[4]
        said = DEFINITION, id, append_s, append_s, row[1], 0, name(offset), None, *callback
        rows_by_offset[offset] = *said, definition.rule, None, definition.decided_s, *_NO_CHAIN[3:]
    ended: dict[int, str] = {}
    for named, offset, new_due_s, _ in decoded.operations:
        if new_due_s is None:
            version = decoded.fired_versions.get(offset)
            kind, about = (CANCEL, offset) if version is None else (ENDED, version)
            ended[offset] = id = h.id_shown(named)
            rows_by_offset[offset] = _without_timer(kind, name(about), id)
    for rejected in decoded.rejected:
        id_ended = ended.get(rejected.offset)
        rows_by_offset[rejected.offset] = _without_timer(REJECTED, name(rejected.offset), id_ended, rejected.code)
    return rows_by_offset


def _without_timer(kind: str, request: str, id: str | None = None, code: str | None = None) -> tuple[Any, ...]:
    """The columns ``kind`` to ``is_last`` of a record that sets no timer."""
    return kind, id, None, None, None, 0, request, code, None, None, None, *_NO_CHAIN
