"""The contract as columns: a record of any topic, and what our headers and keys say, without a row in Python.

Where an expression repeats a rule of ``timers.wire``, a test compares both on the same inputs.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from timers.wire import headers as h
from timers.wire.checks import MAX_DUE_DIGITS

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

RECORD = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp_ms", LongType()),
        StructField("timestamp_type", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
    ]
)
"""One record. ``timestamp_type`` is Kafka's: 0 the producer's time, 1 the broker's at its append; ``headers`` is null
for none."""

LOG_APPEND_TIME = 1

_DUE = rf"^[0-9]{{1,{MAX_DUE_DIGITS}}}\z"
"""A full match of the contract's due second. Not ``$``: that would allow a line break behind it."""


def records(kafka: DataFrame) -> DataFrame:
    """What Spark's Kafka source gives, as :data:`RECORD`."""
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
    """Value of the last header of this name, as bytes; null if there is none."""
    named = F.filter("headers", lambda each: each["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"]


def header_text(name: str) -> Column:
    """The same as text."""
    return header(name).cast("string")


def source() -> Column:
    """Name of a record: ``<topic>/<partition>/<offset>``. Also the id of the timer that a request without one makes."""
    return F.concat_ws("/", "topic", "partition", "offset")


def due_second(text: Column) -> Column:
    """The due epoch second that a key or a header says, as long; null where it says none.

    As :func:`timers.wire.checks.decode_due`: one to eleven ASCII digits, and nothing else.
    """
    digits = text.cast("string")
    return F.when(digits.rlike(_DUE), digits.cast("long"))


def id_shown(id: Column) -> Column:
    """An id's bytes as :func:`timers.wire.headers.id_shown` shows them."""
    text = id.cast("string")
    by_bytes = F.concat(F.lit(h.HEX), F.lower(F.hex(id)))
    return F.when(F.is_valid_utf8(text) & ~text.startswith(h.HEX), text).when(id.isNotNull(), by_bytes)


def timer_id() -> Column:
    """Of a fired message, as text."""
    return id_shown(header(h.TIMER_ID))


def timer_due() -> Column:
    """Of a fired message: the second asked for."""
    return due_second(header(h.TIMER_DUE))


def timer_fired() -> Column:
    """Of a fired message: epoch milliseconds of the tick that fired it."""
    return header_text(h.TIMER_FIRED).cast("long")


def size_bytes() -> Column:
    """Bytes of a record's key, value and headers."""
    headers = F.aggregate(
        F.coalesce("headers", F.array().cast(HEADERS)),
        F.lit(0),
        lambda total, each: total + F.octet_length(each["key"]) + F.coalesce(F.octet_length(each["value"]), F.lit(0)),
    )
    return F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0)) + headers
