"""Converts rows of files into requests of timers with an id, or into a reason why a row is not a valid timer.

A row has ``due``, ``topic``, ``key``, ``value`` and ``headers``. The id of its timer is computed from these fields
only, so the same rows in another order or in other files request the same timers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from timers.core.operation import ABSENT
from timers.errors import SettingsError
from timers.spark.arrow import record_batch
from timers.spark.columns import schema
from timers.wire import checks, future
from timers.wire import headers as h
from timers.wire.checks import MAX_DUE_S, InvalidRequestError
from timers.wire.cold import framed
from timers.wire.formats import future_by_id
from timers.wire.headers import Header
from timers.wire.instants import parse_instant

FIELDS = ("due", "topic", "key", "value", "headers")
REQUIRED = ("due", "topic")

BROKEN = "_broken"
"""Column with the text of a line that is not valid CSV or JSON."""

ENTRY = schema("content string, due_s bigint, value binary, headers headers, reason string, row string")
"""``content``: hash of the fields of the row. ``value`` and ``headers``: those of the request. ``reason``: why the row
is not a valid timer; then only ``reason`` and ``row`` (the row as JSON) are not null."""

_ARROW = to_arrow_schema(ENTRY)
_EXPECTED = "epoch seconds, or RFC 3339 such as 2030-01-31T12:00:00Z"
_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]*))?", re.ASCII)
_SHOWN = 80
CONDITION = future_by_id.encode_condition(ABSENT)
"""Of each request. If Spark repeats a task on another executor, its rows are sent again, with the same ids. Without the
condition a row whose timer had fired meanwhile would fire again."""

HASH_DIGITS = 40
"""160 bits: two different rows do not get the same hash by chance."""


class _Timer(NamedTuple):
    content: str
    due_s: int
    value: bytes
    headers: list[Header]


def entries(rows: DataFrame, max_request_bytes: int, *, as_base64: bool) -> DataFrame:
    """Each row as a request, or with the reason why it is not valid.

    Args:
        rows: with the columns of :data:`FIELDS`; missing columns count as null.
        max_request_bytes: largest value of a request.
        as_base64: whether values are base64.

    Returns:
        In the shape of :data:`ENTRY`.
    """
    canonical = _canonical(rows)

    def read_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield record_batch([_entry(row, max_request_bytes, as_base64) for row in batch.to_pylist()], _ARROW)

    return canonical.mapInArrow(read_batches, ENTRY)


def _canonical(rows: DataFrame) -> DataFrame:
    """All fields with fixed types: due and topic as text, key and value as bytes, headers as they are."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    missing = [name for name in REQUIRED if name not in types]
    if missing:
        raise SettingsError(
            f"the rows have no column {' and no '.join(missing)}: expected are {', '.join(FIELDS)}; found are "
            f"{', '.join(sorted(types)) or 'none'}"
        )
    columns = []
    for name in FIELDS:
        column = F.col(name) if name in types else F.lit(None).cast("string")
        kind: DataType = types.get(name, StringType())
        if name == "due" and isinstance(kind, TimestampType | TimestampNTZType):
            column = F.ceil(F.unix_micros(column.cast("timestamp")) / 1_000_000)
        if name != "headers":
            column = column.cast("binary" if name in ("key", "value") else "string")
        columns.append(column.alias(name))
    broken = (F.col(BROKEN) if BROKEN in types else F.lit(None).cast("string")).alias(BROKEN)
    return rows.select(*columns, broken)


def _entry(row: dict[str, Any], max_request_bytes: int, as_base64: bool) -> tuple[Any, ...]:
    try:
        timer = _timer_of(row, max_request_bytes, as_base64)
    except InvalidRequestError as error:
        whole = row[BROKEN] or json.dumps({name: row[name] for name in FIELDS}, default=_shown, ensure_ascii=False)
        return None, None, None, None, f"{error.code}: {error}", whole
    return *timer, None, None


def _timer_of(row: dict[str, Any], max_request_bytes: int, as_base64: bool) -> _Timer:
    if row[BROKEN] is not None:
        raise InvalidRequestError("row-broken", "this line is not valid CSV or JSON")
    due_s = due_second(row["due"])
    topic = row["topic"] or ""
    value = _value(row["value"] or b"", as_base64)
    headers = _headers(row["headers"])
    try:
        key = (row["key"] or b"").decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("key-not-text", "key is not UTF-8: callBackKey is text") from None
    request = future.encode(topic, key, value)
    future.check(request, topic, max_request_bytes)
    pieces = framed([b"%d" % due_s, topic.encode(), key.encode(), value, *_flat(headers)])
    content = hashlib.sha256(pieces).hexdigest()[:HASH_DIGITS]
    return _Timer(content, due_s, request, [*headers, *future_by_id.encode_headers(due_s), *CONDITION])


def due_second(text: str | None) -> int:
    """The due second of a text: epoch seconds, or RFC 3339 with an offset. A fraction of a second is rounded up."""
    text = (text or "").strip()
    if not text:
        raise InvalidRequestError("due-missing", f"due is missing: {_EXPECTED}")
    number = _NUMBER.fullmatch(text)
    if number is not None:
        try:
            due_s = checks.decode_due(number[1].encode(), "due")
        except InvalidRequestError as error:
            raise InvalidRequestError("due-invalid", str(error)) from None
        return due_s + bool((number[2] or "").strip("0"))
    try:
        instant_s = parse_instant(text)
    except ValueError:
        raise InvalidRequestError("due-invalid", f"due {text[:_SHOWN]!r} is not a due time: {_EXPECTED}") from None
    if instant_s is None:
        raise InvalidRequestError("due-invalid", f"due {text[:_SHOWN]!r} has no offset from UTC: add Z for UTC")
    if not 0 <= instant_s <= MAX_DUE_S:
        raise InvalidRequestError("due-invalid", f"due {text[:_SHOWN]!r} is before 1970")
    return instant_s


def _value(value: bytes, as_base64: bool) -> bytes:
    if not as_base64:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError("value-not-base64", f"value is not base64: {error}") from None


def _headers(given: Any) -> list[Header]:
    """The headers of a row: JSON text (an object or a list of pairs), a map, or a list of structs or pairs."""
    if given is None or given == "":
        return []
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise _bad_headers("are not JSON") from None
    pairs = given.items() if isinstance(given, dict) else given
    if not isinstance(pairs, Iterable):
        raise _bad_headers(f"are of type {type(given).__name__}")
    headers: list[Header] = []
    for pair in pairs:
        each = tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) if isinstance(pair, list | tuple) else ()
        if len(each) != 2 or not isinstance(each[0], str) or not isinstance(each[1], str | bytes | None):
            raise _bad_headers("have an entry that is not a pair of a name and a text")
        name, value = each
        if name.startswith(h.PREFIX):
            raise InvalidRequestError(
                "headers-invalid", f"header {name[:_SHOWN]!r} is reserved: {h.PREFIX}* belongs to the engine"
            )
        headers.append((name, value.encode() if isinstance(value, str) else value))
    return headers


def _bad_headers(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "headers-invalid", f'headers {what}: expected is an object such as {{"name": "value"}}, or a list of pairs'
    )


def _flat(headers: Sequence[Header]) -> Iterator[bytes | None]:
    for name, value in headers:
        yield name.encode()
        yield value


def _shown(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
