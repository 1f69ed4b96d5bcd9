"""Decodes requests of any request format into a table, over Arrow batches.

It uses the decoders of the worker, so both read the same timers from a topic. They cost 1 to 3 µs a record; column
expressions compute the rest (sizes, names of records, hashes). Native requests in their usual form need no Python
(:func:`decode_native`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise, starmap
from operator import and_
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.keys import MAX_OFFSET
from timers.core.levels import FIRST
from timers.core.timer import Decoded, TopicPartition, id_bytes, key_bytes
from timers.spark.columns import (
    HEADERS,
    RECORD,
    content,
    due_second,
    header,
    headers_of,
    record_batch,
    schema,
    size_bytes,
)
from timers.spark.columns import source as source_column
from timers.wire import headers as h
from timers.wire.cold import PartitionColdFormat
from timers.wire.formats import RequestFormat, RequestRecord, schedule
from timers.wire.future import decode_retry
from timers.wire.topics import LEGAL_TOPIC, source

TIMER, CANCEL, REJECTED, COPY, ENDED = "timer", "cancel", "rejected", "copy", "ended"

_DECODED = (
    "kind string, timer_id string, due_s bigint, wait_s bigint, callback_topic string, attempt int, request string, "
    "code string, callback_key binary"
)
_RECORD = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, timestamp_type int, bytes bigint, "
    "record_key binary, conditional boolean"
)

REQUEST = schema(f"{_RECORD}, {_DECODED}, content bigint")
"""One row for each record of a request topic.

``kind`` is one of ``timer``, ``cancel``, ``rejected`` (with the reason in ``code``), ``copy`` (a promoted copy of a
cold request) and ``ended`` (a tombstone of the engine in a topic of schedules). ``timer_id`` is that of the fired
message, as :func:`timers.wire.headers.id_shown` shows it; for a rejected record it is the id that the record ended, if
any. ``due_s`` is the requested due second, and ``wait_s`` is the second that the record waits for; they differ on the
retry topic. ``request`` is the original request: on the retry topic another record, for a tombstone the record that it
ended. ``attempt`` is the number of failed attempts to send, ``bytes`` the size of key, value and headers.
``record_key`` is the key of the record and ``callback_key`` that of the callback. ``conditional``: it may have been
refused, because it has a condition. ``content`` is the hash of the
callback (:func:`timers.spark.columns.content`)."""

_CALLBACK = "value binary, headers headers"

_WITH_CALLBACK = schema(f"{_RECORD}, {_DECODED}, {_CALLBACK}")
_ARROW = to_arrow_schema(_WITH_CALLBACK)
_ARROW_DECODED = to_arrow_schema(schema(f"{_DECODED}, {_CALLBACK}"))
_GIVEN = ("topic", "partition", "offset", "timestamp_ms", "timestamp_type", "bytes", "key", "conditional")
"""Columns of a batch that stay as they are."""


History: TypeAlias = Sequence[tuple[int, int]]
"""(first offset, feature level) of the raises of one partition, in ascending order."""


def decode(
    records: DataFrame,
    formats: Mapping[str, RequestFormat],
    max_request_bytes: int,
    request_topic: str,
    levels: Mapping[TopicPartition, History] = MappingProxyType({}),
) -> DataFrame:
    """The records of request topics, decoded by their request formats.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`, in ascending offset within a partition.
        formats: topic -> its request format, as :func:`timers.request_formats.enabled_formats` opens them.
        max_request_bytes: largest value accepted, as in the worker.
        request_topic: the topic of native requests.
        levels: partition -> its raises: each record is read at its feature level [I21].

    Returns:
        In the shape of :data:`REQUEST`.
    """
    opened, raises = dict(formats), dict(levels)

    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield decode_batch(batch, opened, max_request_bytes, raises)

    may_have = [topic for topic, request_format in formats.items() if request_format.has_conditions]
    conditional = F.col("topic").isin(*may_have) & header(h.TIMER_IF).isNotNull()
    sizes = size_bytes().cast("long").alias("bytes")
    needed = records.select(*RECORD.names, sizes, F.coalesce(conditional, F.lit(False)).alias("conditional"))
    decoded = needed.mapInArrow(decode_batches, _WITH_CALLBACK)
    hash = content(F.col("callback_topic"), F.col("callback_key"), F.col("value"), request_topic)
    return decoded.withColumn("content", F.when(F.col("kind") == TIMER, hash)).select(REQUEST.names)


def decode_batch(
    batch: pa.RecordBatch,
    formats: Mapping[str, RequestFormat],
    max_request_bytes: int,
    levels: Mapping[TopicPartition, History] = MappingProxyType({}),
) -> pa.RecordBatch:
    """Decode one Arrow batch, which may have records of several partitions."""
    topics = batch.column("topic").to_pylist()
    partitions = batch.column("partition").to_pylist()
    places = list(zip(topics, partitions, strict=True))
    starts = [0, *(i for i in range(1, len(places)) if places[i] != places[i - 1]), len(places)]
    read = _records(batch)
    rows: list[tuple[Any, ...]] = []
    for first, end in pairwise(starts):
        if first < end:
            tp, chunk = places[first], read[first:end]
            decoded = _decoded(tp, formats[tp[0]], chunk, max_request_bytes, levels.get(tp, ()))
            rows += [decoded[each.offset] for each in chunk]
    decoded_columns = record_batch(rows, _ARROW_DECODED).columns
    return pa.RecordBatch.from_arrays([*map(batch.column, _GIVEN), *decoded_columns], schema=_ARROW)


def _records(batch: pa.RecordBatch) -> list[RequestRecord]:
    columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
    headers, times = headers_of(batch.column("headers")), batch.column("timestamp_ms").to_pylist()
    return list(starmap(RequestRecord, zip(*columns, headers, times, strict=True)))


def _decoded(
    tp: TopicPartition,
    request_format: RequestFormat,
    chunk: Sequence[RequestRecord],
    max_request_bytes: int,
    history: History,
) -> dict[int, tuple[Any, ...]]:
    """Offset -> columns ``kind`` to ``headers`` of its row."""
    topic, partition = tp
    rows_by_offset: dict[int, tuple[Any, ...]] = {}
    if request_format.allows_cold_tier:
        is_copy = PartitionColdFormat(topic, partition).is_copy
        for copy in filter(is_copy, chunk):
            rows_by_offset[copy.offset] = _without_timer(COPY, source(topic, partition, copy.offset))
        if rows_by_offset:
            chunk = [each for each in chunk if each.offset not in rows_by_offset]
    decoded = Decoded()
    for (start, level), (end, _) in pairwise([(0, FIRST), *history, (MAX_OFFSET, 0)]):
        if part := [each for each in chunk if start <= each.offset < end] if history else chunk:
            decoded.extend(request_format.decoder(level, rejects_overdue=False)(part, max_request_bytes))
    moved = request_format.decode is decode_retry
    own_topic = topic.encode()
    for wait_s, rows in decoded.rows.items():
        for row in rows:
            origin = row[5]
            id = request = source(topic, partition, row[0])
            due_s, attempt = wait_s, 0
            if origin is not None:
                id = h.id_shown(id_bytes(origin.timer_id))
                due_s, attempt = origin.due_s, origin.attempt
                if moved:
                    request = origin.request
            if request_format.topic_is_compacted:
                row = schedule.callback_row(row, own_topic)
            callback = key_bytes(row[2]), row[3], row[4]
            rows_by_offset[row[0]] = (TIMER, id, due_s, wait_s, row[1], attempt, request, None, *callback)
    ended: dict[int, str] = {}
    for named, offset, new_due_s, _ in decoded.operations:
        if new_due_s is None:
            version = decoded.fired_versions.get(offset)
            kind, about = (CANCEL, offset) if version is None else (ENDED, version)
            ended[offset] = id = h.id_shown(named)
            rows_by_offset[offset] = _without_timer(kind, source(topic, partition, about), id)
    for rejected in decoded.rejected:
        name, ended_id = source(topic, partition, rejected.offset), ended.get(rejected.offset)
        rows_by_offset[rejected.offset] = _without_timer(REJECTED, name, ended_id, rejected.code)
    return rows_by_offset


def _without_timer(kind: str, request: str, id: str | None = None, code: str | None = None) -> tuple[Any, ...]:
    """The columns ``kind`` to ``headers`` of a record that sets no timer."""
    return kind, id, None, None, None, 0, request, code, None, None, None


OTHER = "other"
"""Kind of a record that these expressions do not decode."""

_TOPIC, _KEY, _VALUE = 0x0A, 0x12, 0x1A
"""Tags of the fields of a ``Future``."""

_MAX_LENGTH = 127
"""Largest length that takes one byte."""

_VALUE_LIMITS = (128, 128**2, 128**3)
"""The length of the value takes one, two or three bytes below these limits."""


def decode_native(records: DataFrame, max_request_bytes: int, request_topic: str) -> DataFrame:
    """The records of the topic of native requests, in the shape of :data:`timers.spark.requests.REQUEST`.

    The usual form is what protobuf libraries write: the fields in order, a topic and a key of less than 128 bytes.
    Other records (a longer key, fields in another order, a promoted copy, a record that is no request) are left to the
    worker's decoder, :func:`decode`. A test compares both.

    A record that is not in the usual form has the kind :data:`OTHER`, and null in the columns that depend on its value.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`.
        max_request_bytes: largest value accepted, as in the worker.
        request_topic: the topic of native requests.
    """
    hash = content(F.col("callback_topic"), F.col("callback_key"), F.col("payload"), request_topic)
    columns = {
        "bytes": size_bytes().cast("long"),
        "record_key": F.col("key"),
        "conditional": F.lit(False),
        "kind": F.when(F.col("usual"), TIMER).otherwise(OTHER),
        "timer_id": _if_usual(source_column()),
        "wait_s": _if_usual(F.col("due_s")),
        "attempt": F.lit(0),
        "request": _if_usual(source_column()),
        "code": F.lit(None).cast("string"),
        "content": _if_usual(hash),
        **{name: _if_usual(F.col(name)) for name in ("due_s", "callback_topic", "callback_key")},
    }
    found = _fields(records).withColumn("usual", F.coalesce(_is_usual(max_request_bytes), F.lit(False)))
    return found.withColumns(columns).select(REQUEST.names)


def unusual_native(records: DataFrame, max_request_bytes: int) -> DataFrame:
    """The records that :func:`decode_native` leaves to the worker's decoder."""
    found = _fields(records).where(~F.coalesce(_is_usual(max_request_bytes), F.lit(False)))
    return found.select(RECORD.names)


def _if_usual(column: Column) -> Column:
    return F.when(F.col("usual"), column)


def _fields(records: DataFrame) -> DataFrame:
    """The records with the fields of their ``Future``. Positions count from 1, and an end is that of the last byte."""
    has_key = _bytes(F.col("topic_end") + 1, 1) == F.lit(bytes([_KEY]))
    key = _bytes(F.col("topic_end") + 3, F.col("key_length"))
    # A field without content is left out. `rest`, if any, is a tag, a length and the payload.
    rest = F.octet_length("value") - F.col("key_end")
    payload_length = F.when(F.col("rest") == 0, 0)
    for length_bytes, limit in enumerate(_VALUE_LIMITS, 1):
        length = F.col("rest") - 1 - length_bytes
        payload_length = payload_length.when(length < limit, length)
    steps: list[dict[str, Column]] = [
        {"topic_end": _length(F.lit(2)) + 2, "due_s": due_second(F.col("key"))},
        {"key_length": F.when(has_key, _length(F.col("topic_end") + 2))},
        {"key_end": F.col("topic_end") + F.coalesce(F.col("key_length") + 2, F.lit(0))},
        {"rest": rest},
        {"payload_length": payload_length},
        {
            "callback_topic": _bytes(F.lit(3), F.col("topic_end") - 2).cast("string"),
            "callback_key": F.when(F.col("key_length").isNull(), F.lit(b"")).otherwise(key),
            "payload": _bytes(F.octet_length("value") - F.col("payload_length") + 1, F.col("payload_length")),
        },
    ]
    return reduce(DataFrame.withColumns, steps, records)


def _is_usual(max_request_bytes: int) -> Column:
    legal_topic = F.col("callback_topic").rlike(rf"^{LEGAL_TOPIC.pattern}\z")
    headers = F.coalesce("headers", F.array().cast(HEADERS))
    return reduce(
        and_,
        [
            F.col("due_s").isNotNull(),
            F.octet_length("value") <= max_request_bytes,
            _bytes(F.lit(1), 1) == F.lit(bytes([_TOPIC])),
            F.col("topic_end") - 2 <= _MAX_LENGTH,
            F.coalesce("key_length", F.lit(0)) <= _MAX_LENGTH,
            (F.col("rest") == 0) | (_value_prefix() == _usual_value_prefix()),
            legal_topic,
            F.is_valid_utf8(F.col("callback_key").cast("string")),
            # Such a header may make the record a promoted copy, or give it another key.
            ~F.exists(headers, lambda each: each["key"].startswith(h.PREFIX)),
        ],
    )


def _value_prefix() -> Column:
    """Tag and length of the payload in the record, in hexadecimal digits."""
    return F.hex(_bytes(F.col("key_end") + 1, F.col("rest") - F.col("payload_length")))


def _usual_value_prefix() -> Column:
    """Tag and length of a payload of this length, as protobuf writes them, in hexadecimal digits."""
    length, more = F.col("payload_length"), F.lit(128)
    first, second, third = (F.shiftright(length, 7 * index).bitwiseAND(127) for index in range(3))
    tag = F.lit(_VALUE)
    one_byte = F.shiftleft(tag, 8).bitwiseOR(first)
    two_bytes = F.shiftleft(tag, 16).bitwiseOR(F.shiftleft(first.bitwiseOR(more), 8)).bitwiseOR(second)
    three_bytes = (
        F.shiftleft(tag, 24)
        .bitwiseOR(F.shiftleft(first.bitwiseOR(more), 16))
        .bitwiseOR(F.shiftleft(second.bitwiseOR(more), 8))
        .bitwiseOR(third)
    )
    one, two, _ = _VALUE_LIMITS
    return F.hex(F.when(length < one, one_byte).when(length < two, two_bytes).otherwise(three_bytes))


def _bytes(start: Column, count: Column | int) -> Column:
    return F.substring("value", start, count if isinstance(count, Column) else F.lit(count))


def _length(position: Column) -> Column:
    """The number in one byte of the value; more than :data:`_MAX_LENGTH` if it is not below 128."""
    return F.ascii(_bytes(position, 1).cast("string"))
