"""Decodes native requests in their usual form as column expressions: no record goes to Python.

The usual form is what protobuf libraries write: the fields in order, a topic and a key of less than 128 bytes. Other
records (a longer key, fields in another order, a promoted copy, a record that is no request) are left to the worker's
decoder (:mod:`timers.spark.requests`). A test compares both.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.spark.columns import HEADERS, RECORD, content, due_second, size_bytes, source
from timers.spark.requests import REQUEST, TIMER
from timers.wire import headers as h
from timers.wire.topics import LEGAL_TOPIC

OTHER = "other"
"""Kind of a record that these expressions do not decode."""

_TOPIC, _KEY, _VALUE = 0x0A, 0x12, 0x1A
"""Tags of the fields of a ``Future``."""

_MAX_LENGTH = 127
"""Largest length that takes one byte."""

_VALUE_LIMITS = (128, 128**2, 128**3)
"""The length of the value takes one, two or three bytes below these limits."""


def decode(records: DataFrame, max_request_bytes: int, request_topic: str) -> DataFrame:
    """The records of the topic of native requests, in the shape of :data:`timers.spark.requests.REQUEST`.

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
        "timer_id": _if_usual(source()),
        "wait_s": _if_usual(F.col("due_s")),
        "attempt": F.lit(0),
        "request": _if_usual(source()),
        "code": F.lit(None).cast("string"),
        "content": _if_usual(hash),
        **{name: _if_usual(F.col(name)) for name in ("due_s", "callback_topic", "callback_key")},
    }
    found = _fields(records).withColumn("usual", F.coalesce(_is_usual(max_request_bytes), F.lit(False)))
    return found.withColumns(columns).select(REQUEST.names)


def unusual(records: DataFrame, max_request_bytes: int) -> DataFrame:
    """The records that :func:`decode` leaves to the worker's decoder."""
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
    legal_topic = F.col("callback_topic").rlike(rf"^{LEGAL_TOPIC.pattern}\z") & ~F.col("callback_topic").isin(".", "..")
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
