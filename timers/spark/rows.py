"""Rows of files that ask for timers, each to a request of the request format of timers with an id, or to what is wrong
with it.

A row has ``due``, ``topic``, ``key``, ``value`` and ``headers``. Its id is made of these alone, so the same file, in
any order and cut in any way, asks for the same timers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from timers.errors import SettingsError
from timers.spark.columns import HEADERS
from timers.wire import checks, future
from timers.wire import headers as h
from timers.wire.checks import MAX_DUE_S, InvalidRequestError
from timers.wire.formats import future_by_id
from timers.wire.headers import Header

FIELDS = ("due", "topic", "key", "value", "headers")
REQUIRED = ("due", "topic")

BROKEN = "_broken"
"""Column of a line that is neither CSV nor JSON as it should be."""

ENTRY = StructType(
    [
        StructField("content", StringType()),
        StructField("due_s", LongType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("reason", StringType()),
        StructField("row", StringType()),
    ]
)
"""``content``: hash of all that a row says. ``value`` and ``headers``: of the request. ``reason``: why the row asks for
nothing that can be done, and then nothing but it and ``row``, the row as JSON, is there."""

_ARROW = to_arrow_schema(ENTRY)
_EXPECTED = "epoch seconds, or RFC 3339 such as 2030-01-31T12:00:00Z"
_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]*))?", re.ASCII)
_FINER = re.compile(r"\.[0-9]{6}([0-9]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 80
_HASH_DIGITS = 40
"""160 bits: no two rows of any number of files are alike by chance."""


class _Asked(NamedTuple):
    content: str
    due_s: int
    value: bytes
    headers: list[Header]


def entries(rows: DataFrame, max_request_bytes: int, *, as_base64: bool) -> DataFrame:
    """Each row as a request, or with a reason against it.

    Args:
        rows: with columns of :data:`FIELDS`, as files have them; those that are missing are null.
        max_request_bytes: largest value of a request.
        as_base64: values that are text are base64.

    Returns:
        In the shape of :data:`ENTRY`.

    Raises:
        SettingsError: the files have not the columns, or not of a type that can be read.
    """
    canonical = _canonical(rows, as_base64)

    def read_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read = [_entry(row, max_request_bytes, as_base64) for row in batch.to_pylist()]
            columns = list(zip(*read, strict=True)) or [()] * len(_ARROW)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

    return canonical.mapInArrow(read_batches, ENTRY)


def _canonical(rows: DataFrame, as_base64: bool) -> DataFrame:
    """All fields, of few types: due, topic and headers as text, key and value as bytes."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    missing = [name for name in REQUIRED if name not in types]
    if missing:
        raise SettingsError(
            f"the rows have no column {' and no '.join(missing)}: expected are {', '.join(FIELDS)}; there are "
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
    """One row of :data:`ENTRY`."""
    try:
        asked = _read(row, max_request_bytes, as_base64)
    except InvalidRequestError as error:
        whole = row[BROKEN] or json.dumps({name: row[name] for name in FIELDS}, default=_shown, ensure_ascii=False)
        return None, None, None, None, f"{error.code}: {error}", whole
    pairs = [{"key": name, "value": value} for name, value in asked.headers]
    return asked.content, asked.due_s, asked.value, pairs, None, None


def _read(row: dict[str, Any], max_request_bytes: int, as_base64: bool) -> _Asked:
    if row[BROKEN] is not None:
        raise InvalidRequestError("row-broken", "this line cannot be read")
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
    content = _hash([b"%d" % due_s, topic.encode(), key.encode(), value, *_flat(headers)])
    return _Asked(content, due_s, request, [*headers, *future_by_id.encode_headers(due_s)])


def due_second(text: str | None) -> int:
    """Epoch second of a due time as files have it: epoch seconds, or RFC 3339 with an offset. Rounded up.

    Raises:
        InvalidRequestError: it is neither.
    """
    text = (text or "").strip()
    if not text:
        raise InvalidRequestError(
            "due-missing", "due is missing: epoch seconds, or RFC 3339 such as 2030-01-31T12:00:00Z"
        )
    number = _NUMBER.fullmatch(text)
    if number is not None:
        try:
            due_s = checks.decode_due(number[1].encode(), "due")
        except InvalidRequestError as error:
            raise InvalidRequestError("due-invalid", str(error)) from None
        return due_s + bool((number[2] or "").strip("0"))
    finer = _FINER.search(text)  # which Python cuts off
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError("due-invalid", f"due {text[:_SHOWN]!r} is no due time: {_EXPECTED}") from None
    if at.tzinfo is None:
        raise InvalidRequestError(
            "due-invalid", f"due {text[:_SHOWN]!r} names no offset, so it is no instant: add Z for UTC"
        )
    due_s = -((_EPOCH - at) // timedelta(seconds=1))  # the floor of the negative is the ceiling
    due_s += bool(finer and not at.microsecond and finer[1].strip("0"))
    if not 0 <= due_s <= MAX_DUE_S:
        raise InvalidRequestError("due-invalid", f"due {text[:_SHOWN]!r} is before 1970")
    return due_s


def _value(value: bytes, as_base64: bool) -> bytes:
    if not as_base64:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError("value-not-base64", f"value is not base64: {error}") from None


def _headers(given: Any) -> list[Header]:
    """Headers as a column has them: JSON, an object or a list of pairs; a map; or a list of structs or pairs."""
    if given is None or given == "":
        return []
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise _bad_headers("are no JSON") from None
    pairs = given.items() if isinstance(given, dict) else given
    if not isinstance(pairs, Iterable):
        raise _bad_headers(f"are of type {type(given).__name__}")
    headers: list[Header] = []
    for pair in pairs:
        each = tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) if isinstance(pair, list | tuple) else ()
        if len(each) != 2 or not isinstance(each[0], str) or not isinstance(each[1], str | bytes | None):
            raise _bad_headers("have something that is no pair of a name and a text")
        name, value = each
        if name.startswith(h.PREFIX):
            raise InvalidRequestError(
                "headers-invalid", f"header {name[:_SHOWN]!r} is in the reserved name space {h.PREFIX}*"
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


def _hash(pieces: Iterable[bytes | None]) -> str:
    """Of pieces, each framed by its length, so that no two lists of them look alike."""
    framed = (struct.pack(">i", -1) if piece is None else struct.pack(">i", len(piece)) + piece for piece in pieces)
    return hashlib.sha256(b"".join(framed)).hexdigest()[:_HASH_DIGITS]


def _shown(value: Any) -> str:
    """Bytes of a row that was set apart, as JSON has them."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
