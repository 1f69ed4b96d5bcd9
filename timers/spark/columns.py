"""The wire contract as column expressions, which Spark evaluates without Python, and as rows of Arrow batches.

If an expression repeats a rule of ``timers.wire``, a test compares both on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from inspect import signature
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from timers.core.grouping import groups
from timers.wire import headers as h
from timers.wire.checks import MAX_DUE_DIGITS

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_LONG_DIGITS = 18
"""Each number of this many digits fits into a long."""

_JSON_TYPES = {"int": "integer", "bigint": "long", "headers": HEADERS.jsonValue()}
"""Types whose names in Spark's JSON are others."""


def schema(ddl: str) -> StructType:
    """The schema of a text such as ``topic string, headers headers``. Spark's own parser needs a session."""
    columns = (column.split() for column in ddl.split(","))
    types = ((name, _JSON_TYPES.get(kind, kind)) for name, kind in columns)
    fields = [{"name": name, "type": type, "nullable": True, "metadata": {}} for name, type in types]
    return StructType.fromJson({"fields": fields})


RECORD_SCHEMA = schema(
    "topic string, partition int, offset bigint, timestamp_ms bigint, timestamp_type int, key binary, value binary, "
    "headers headers"
)
"""One record of a topic. ``timestamp_type`` is Kafka's, such as :data:`timers.wire.formats.LOG_APPEND_TIME`.
``headers`` is null if the record has none."""


def records(kafka: DataFrame) -> DataFrame:
    """The rows of Spark's Kafka source, as :data:`RECORD_SCHEMA`."""
    return kafka.select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        F.col("headers").cast(HEADERS).alias("headers"),
    )


def header(name: str) -> Column:
    """The value of the last header with this name, as bytes; null without such a header."""
    named = F.filter("headers", lambda each: each["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"]


def header_text(name: str) -> Column:
    return header(name).cast("string")


def source() -> Column:
    """The name of a record: ``<topic>/<partition>/<offset>``. It is the ``timer-id`` of a timer without an id."""
    return F.concat_ws("/", "topic", "partition", "offset")


def due_second(text: Column) -> Column:
    """The due epoch second in a key or header, as :func:`timers.wire.checks.decode_due` reads it; null if invalid."""
    return digits(text, MAX_DUE_DIGITS)


def digits(text: Column, most: int) -> Column:
    """The number in a text of 1 to ``most`` ASCII digits; null for any other text."""
    whole = text.cast("string")
    return F.when(whole.rlike(rf"^[0-9]{{1,{most}}}\z"), whole.cast("long"))  # $ would allow a line break at the end


def id_shown(id: Column) -> Column:
    """The text of an id, as :func:`timers.wire.headers.id_shown` shows it."""
    text = id.cast("string")
    by_bytes = F.concat(F.lit(h.HEX_PREFIX), F.lower(F.hex(id)))
    return F.when(F.is_valid_utf8(text) & ~text.startswith(h.HEX_PREFIX), text).when(id.isNotNull(), by_bytes)


def timer_id() -> Column:
    """The ``timer-id`` of a fired message, as text."""
    return id_shown(header(h.TIMER_ID))


def timer_due() -> Column:
    return due_second(header(h.TIMER_DUE))


def timer_fired() -> Column:
    """The time of the tick that fired a message, in epoch milliseconds."""
    return digits(header(h.TIMER_FIRED), _LONG_DIGITS)


def content(topic: Column, key: Column, value: Column, request_topic: str) -> Column:
    """A hash of the key, the value and the headers of a callback, without the headers of the engine.

    A request and its callback have the same hash. Flags tell null from empty.

    Args:
        request_topic: topic of native requests. The engine counts in a header how many timers have set each other.
    """
    headers, nulls = _users_headers(topic, request_topic)
    return F.xxhash64(key, key.isNull(), value, value.isNull(), F.size(headers), headers, nulls)


PART_BITS = 21


def parts(topic: Column, key: Column, value: Column, request_topic: str) -> Column:
    """Three short hashes in one number, the headers' in the lowest :data:`PART_BITS`, above them the value's, above
    these the key's: they say which of them differs if :func:`content` does. Arguments as there."""
    headers, nulls = _users_headers(topic, request_topic)
    hashes = F.xxhash64(key, key.isNull()), F.xxhash64(value, value.isNull()), F.xxhash64(headers, nulls)
    mask = F.lit((1 << PART_BITS) - 1).cast("long")
    return reduce(
        lambda high, low: F.shiftleft(high, PART_BITS).bitwiseOR(low), (each.bitwiseAND(mask) for each in hashes)
    )


def part(hashes: Column, place: int) -> Column:
    """One of the hashes of :func:`parts`, counted from the lowest."""
    return F.shiftright(hashes, PART_BITS * place).bitwiseAND(F.lit((1 << PART_BITS) - 1).cast("long"))


def _users_headers(topic: Column, request_topic: str) -> tuple[Column, Column]:
    """The headers of a callback that are not the engine's, and which of them have a null value."""
    is_chain = topic == request_topic
    headers = F.filter(
        F.coalesce("headers", F.array().cast(HEADERS)),
        lambda each: ~each["key"].startswith(h.PREFIX) & ~(is_chain & (each["key"] == h.DEPTH)),
    )
    return headers, F.transform(headers, lambda each: each["value"].isNull())


def size_bytes() -> Column:
    """Bytes of the key, the value and the headers of a record."""
    headers = F.aggregate(
        F.coalesce("headers", F.array().cast(HEADERS)),
        F.lit(0),
        lambda total, each: total + F.octet_length(each["key"]) + F.coalesce(F.octet_length(each["value"]), F.lit(0)),
    )
    return payload_bytes() + headers


def payload_bytes() -> Column:
    """Bytes of the key and the value of a record."""
    return F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))


Batches: TypeAlias = Iterable[pa.RecordBatch]


def batchwise(call: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow`` that calls ``call`` with each batch."""

    def mapped(batches: Batches) -> Iterator[pa.RecordBatch]:
        return map(call, batches)

    return mapped


_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
"""From Spark 4.2 on the zone of instants must be given."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of batches of Arrow.

    Raises:
        Exception: of several classes: Arrow has no such type.
    """
    return pa.schema([pa.field(each.name, to_arrow_type(each.dataType, **_IN_UTC)) for each in schema.fields])


def record_batch(rows: Iterable[Sequence[Any]], schema: StructType) -> pa.RecordBatch:
    """Rows as one Arrow batch. Headers may be (name, value) pairs; a batch without rows is allowed."""
    arrow, columns = arrow_schema(schema), list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


BATCH_ROWS = 10_000
MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Largest batch that Python makes. Arrow cannot have 2 GiB in a column, and Java has 1 GB by default."""


def record_batches(
    rows: Iterable[Sequence[Any]], schema: StructType, size_of: Callable[[Any], int]
) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of limited number and size: values may have 64 MB."""
    for group in groups(rows, size_of, BATCH_ROWS, MAX_BATCH_BYTES):
        yield record_batch(group, schema)


def bounds(batch: pa.RecordBatch) -> list[int]:
    """Where the records of a partition begin in a batch of records (:data:`RECORD_SCHEMA`), and its end. A task reads
    one partition after the other. An offset that does not grow is of another log, after a cut."""
    if not len(batch):
        return []
    topics = np.diff(np.asarray(batch["topic"].dictionary_encode().indices)) != 0
    begins = topics | (np.diff(np.asarray(batch["partition"])) != 0) | (np.diff(np.asarray(batch["offset"])) <= 0)
    return [0, *(np.flatnonzero(begins) + 1).tolist(), len(batch)]


def headers_of(column: Any) -> list[Sequence[tuple[str, bytes | None]]]:
    """The headers of each record in an Arrow column, as (name, value) pairs; empty where the column has null."""
    if column.null_count == len(column):
        return [()] * len(column)
    # to_pylist() makes a dict of each header, which costs more than decoding the request.
    bounds = column.offsets.to_pylist()
    fields = column.values
    pairs = list(zip(fields.field("key").to_pylist(), fields.field("value").to_pylist(), strict=True))
    return [pairs[first:end] for first, end in pairwise(bounds)]
