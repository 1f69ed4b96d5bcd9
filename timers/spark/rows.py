"""Reads rows of files, and converts them into requests of timers with an id, or says why a row is no valid timer.

A row has ``due``, ``topic``, ``key``, ``value`` and ``headers``. The id of its timer is computed from these fields
only, so the same rows in another order or in other files request the same timers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from timers.core.operation import ABSENT
from timers.core.printable import quoted
from timers.errors import SettingsError
from timers.spark.columns import batchwise, record_batch, schema
from timers.wire import checks, future
from timers.wire import headers as h
from timers.wire.checks import MAX_DUE_S, InvalidRequestError
from timers.wire.cold import framed
from timers.wire.formats import future_by_id
from timers.wire.headers import Header
from timers.wire.instants import parse_instant, parse_local

FIELDS = ("due", "topic", "key", "value", "headers")
REQUIRED = ("due", "topic")

BROKEN, WHY, FILE = "_broken", "_why", "_file"
"""Columns with the bytes of a line that is no row, with the reason: a code, a colon and a sentence, and with the URL of
the row's file. Spark does not know the number of a line."""

UTF_8 = "utf-8"

ENTRY = schema("content string, due_s bigint, value binary, headers headers, reason string, row string, file string")
"""``content``: hash of the fields of the row. ``value`` and ``headers``: those of the request. ``reason``: why the row
is not a valid timer; then only ``reason``, ``row`` (the row as JSON) and ``file`` (its URL) are not null."""

_EXPECTED = "epoch seconds, RFC 3339 such as 2030-01-31T12:00:00Z, or 2030-01-31T12:00:00 Europe/Berlin"
_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]*))?", re.ASCII)
_SHOWN = 80
CONDITION = future_by_id.encode_condition(ABSENT)
"""Of each request. If Spark repeats a task on another executor, its rows are sent again, with the same ids. Without the
condition a row whose timer had fired meanwhile would fire again."""

HASH_DIGITS = 40
"""160 bits: two different rows do not get the same hash by chance."""


def entries(rows: DataFrame, max_request_bytes: int, *, as_base64: bool, encoding: str | None) -> DataFrame:
    """Each row as a request, or with the reason why it is not valid.

    Args:
        rows: with columns of :data:`FIELDS`, :data:`BROKEN`, :data:`WHY` and :data:`FILE`; missing ones count as null.
        max_request_bytes: largest value of a request.
        as_base64: whether values are base64.
        encoding: that of all texts; None: texts are UTF-8, and values are bytes.

    Returns:
        In the shape of :data:`ENTRY`.
    """

    def read(batch: pa.RecordBatch) -> pa.RecordBatch:
        return record_batch([_entry(row, max_request_bytes, as_base64, encoding) for row in batch.to_pylist()], ENTRY)

    return _canonical(rows).mapInArrow(batchwise(read), ENTRY)


def _canonical(rows: DataFrame) -> DataFrame:
    """All fields as bytes, because Arrow fails for text that is not UTF-8; headers may be maps or lists of bytes."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    columns = []
    for name in FIELDS:
        column = F.col(name) if name in types else F.lit(None).cast("string")
        kind: DataType = types.get(name, StringType())
        is_nested = isinstance(kind, ArrayType | MapType | StructType)
        if is_nested and name != "headers":
            raise SettingsError(
                f"column {quoted(name)} is of type {kind.simpleString()}: expected is text, a number or bytes"
            )
        if name == "due" and isinstance(kind, TimestampType | TimestampNTZType):
            column = F.ceil(F.unix_micros(column.cast("timestamp")) / 1_000_000)
        if not is_nested:
            column = column.cast("string")
        columns.append(column.cast(_in_bytes(kind) if is_nested else "binary").alias(name))
    for name, kind in ((BROKEN, BinaryType()), (WHY, StringType()), (FILE, StringType())):
        columns.append((F.col(name) if name in types else F.lit(None)).cast(kind).alias(name))
    return rows.select(*columns)


def _in_bytes(kind: DataType) -> DataType:
    """The same type with bytes instead of texts."""
    if isinstance(kind, ArrayType):
        return ArrayType(_in_bytes(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_in_bytes(kind.keyType), _in_bytes(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _in_bytes(each.dataType), each.nullable) for each in kind.fields])
    return BinaryType() if isinstance(kind, StringType) else kind


def _entry(row: dict[str, Any], max_request_bytes: int, as_base64: bool, encoding: str | None) -> tuple[Any, ...]:
    def shown(value: Any) -> str:
        return value.decode(encoding or UTF_8, "backslashreplace") if isinstance(value, bytes) else str(value)

    if row[WHY] is not None:
        return None, None, None, None, row[WHY], shown(row[BROKEN]), row[FILE]
    try:
        timer = _timer_of(row, max_request_bytes, as_base64, encoding)
    except InvalidRequestError as error:
        whole = json.dumps({name: row[name] for name in FIELDS}, default=shown, ensure_ascii=False)
        return None, None, None, None, f"{error.code}: {error}", whole, row[FILE]
    return *timer, None, None, None


def _timer_of(row: dict[str, Any], max_request_bytes: int, as_base64: bool, encoding: str | None) -> tuple[Any, ...]:
    """The columns ``content`` to ``headers`` of a row that is a valid timer."""
    due_s = due_second(_text("due", row["due"], encoding))
    topic = _text("topic", row["topic"], encoding)
    key = _text("key", row["key"], encoding)
    # Bytes of a value in Parquet stay as they are.
    value = (row["value"] or b"") if encoding is None else _text("value", row["value"], encoding).encode()
    value = _value(value, as_base64)
    headers = _headers(row["headers"], encoding)
    request = future.encode(topic, key, value)
    future.check(request, topic, max_request_bytes)
    flat = (piece for name, content in headers for piece in (name.encode(), content))
    pieces = framed([b"%d" % due_s, topic.encode(), key.encode(), value, *flat])
    content = hashlib.sha256(pieces).hexdigest()[:HASH_DIGITS]
    if h.has_schema_ids(headers):  # of key and value of the callback: those of a Future do not arrive
        request, headers = value, [*headers, *future.encode_by_headers(topic, key)]
    return content, due_s, request, [*headers, *future_by_id.encode_headers(due_s), *CONDITION]


def _text(name: str, given: bytes | None, encoding: str | None) -> str:
    """The text of a field."""
    try:
        return (given or b"").decode(encoding or UTF_8)
    except UnicodeDecodeError as error:
        what = f"{name} is not {encoding or UTF_8}: byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise InvalidRequestError("row-undecodable", f"{what}{encoding_hint(encoding)}") from None


def encoding_hint(encoding: str | None) -> str:
    """What to do about a text that is not in this encoding; empty for Parquet, whose texts are UTF-8."""
    return (
        "" if encoding is None else ": name the encoding of the file with --encoding, such as latin-1 or windows-1252"
    )


def due_second(text: str) -> int:
    """The due second of a text: epoch seconds, RFC 3339, or a local time with its zone. Fractions are rounded up."""
    text = text.strip()
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
        local = parse_local(text)
        instant_s = parse_instant(text) if local is None else local[0]
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            "due-invalid", f"due {quoted(text[:_SHOWN])} is not a due time: {_EXPECTED}"
        ) from None
    if instant_s is None:
        raise InvalidRequestError("due-invalid", f"due {quoted(text[:_SHOWN])} has no offset: add Z for UTC, or a zone")
    if not 0 <= instant_s <= MAX_DUE_S:
        raise InvalidRequestError("due-invalid", f"due {quoted(text[:_SHOWN])} is before 1970")
    return instant_s


def _value(value: bytes, as_base64: bool) -> bytes:
    if not as_base64:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError("value-not-base64", f"value is not base64: {error}") from None


def _headers(given: Any, encoding: str | None) -> list[Header]:
    """The headers of a row: JSON text (an object or a list of pairs), a map, or a list of structs or pairs."""
    if not given:
        return []
    if isinstance(given, bytes):
        try:
            given = json.loads(_text("headers", given, encoding), object_pairs_hook=_without_repeated)
        except InvalidRequestError:
            raise
        except (ValueError, RecursionError):
            raise _bad_headers("are not JSON") from None
    pairs = given.items() if isinstance(given, dict) else given
    if not isinstance(pairs, Iterable):
        raise _bad_headers(f"are of type {type(given).__name__}")
    headers: list[Header] = []
    for pair in pairs:
        each = tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) if isinstance(pair, list | tuple) else ()
        if len(each) != 2 or not isinstance(each[0], str | bytes) or not isinstance(each[1], str | bytes | None):
            raise _bad_headers("have an entry that is not a pair of a name and a text")
        try:
            name = each[0].decode() if isinstance(each[0], bytes) else each[0]
            name.encode()
            value = each[1].encode() if isinstance(each[1], str) else each[1]
        except UnicodeError:
            raise _bad_headers("have a name that is not UTF-8, or half a surrogate pair") from None
        if name.startswith(h.PREFIX):
            raise InvalidRequestError(
                "headers-invalid", f"header {quoted(name[:_SHOWN])} is reserved: {h.PREFIX}* belongs to the engine"
            )
        headers.append((name, value))
    return headers


def _without_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of fields with one name, Python would keep the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _bad_headers("have a name twice in an object (a list of pairs may repeat names)")
    return found


def _bad_headers(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "headers-invalid", f'headers {what}: expected is an object such as {{"name": "value"}}, or a list of pairs'
    )


PARQUET, CSV, JSON = "parquet", "csv", "json"

_EACH_BYTE = "ISO-8859-1"
"""Latin-1: each byte is one character, and each character below 256 is one byte."""

_BOM = "\xef\xbb\xbf"
"""The mark at the begin of a file in UTF-8, read as Latin-1."""

_NOT_CSV = "row-broken: this line is not valid CSV, or has more or fewer columns than the header line"
_NOT_JSON = "row-broken: this line is not one JSON object"
_HALF_PAIR = "row-broken: this line has half a surrogate pair, which is no character"
_REPEATED = "field-repeated: this line has a field twice, and it is not defined which one counts"

_ESCAPES = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
"""In JSON: an escaped backslash, or a whole surrogate pair."""

_HALF = r"\\u[dD][89a-fA-F]"

_TEXT, _PARSED, _KEYS = "_text", "_parsed", "_keys"
"""Columns while JSON is read: a line as text, an array of its objects, and the names of its fields."""


@dataclass(frozen=True)
class RowFiles:
    """Files with rows of timers.

    Spark's reader of CSV replaces bytes that are not in the encoding of the file, and that of JSON fails because of
    them. So CSV is read as Latin-1, in which each byte is one character, and JSON as lines of bytes. Their texts are
    decoded afterwards, where a wrong byte is a reason to reject its row.

    Attributes:
        paths: files or directories.
        format: ``parquet``, ``csv`` (with a header line) or ``json`` (one object in each line).
        encoding: of CSV and JSON, by Python's name. Its bytes below 128 are those of ASCII.
        ignored: names of columns that are left out.
    """

    paths: tuple[str, ...]
    format: str
    encoding: str = UTF_8
    ignored: tuple[str, ...] = ()

    @property
    def encoding_read(self) -> str | None:
        """The encoding of the texts and values that :meth:`read` returns; None if values are bytes."""
        return {PARQUET: None, CSV: self.encoding, JSON: UTF_8}[self.format]

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows: columns of :data:`timers.spark.rows.FIELDS`, and FILE. For lines that are no row, BROKEN and WHY.

        Raises:
            SettingsError: a column is missing, or it is no field of a timer.
        """
        if self.format == CSV:
            return self._csv(spark)
        if self.format == JSON:
            return self._json(spark)
        # By default Spark takes the columns of one of the files, and drops those that only others have.
        rows = spark.read.option("mergeSchema", "true").parquet(*self.paths)
        self._check(rows.columns)
        return rows.select(*self._fields(rows.columns), _file())

    def _fields(self, names: Collection[str]) -> list[str]:
        return [name for name in FIELDS if name in names and name not in self.ignored]

    def _check(self, names: Sequence[str]) -> None:
        """Check the names of the columns of all rows."""
        expected = f"expected are {', '.join(FIELDS)}"
        missing = [name for name in REQUIRED if name not in self._fields(names)]
        if missing:
            found = ", ".join(sorted(names)) or "none"
            advice = ". They look like UTF-16: convert the files first, such as with `iconv -f UTF-16 -t UTF-8 FILE`"
            raise SettingsError(
                f"the rows have no column {' and no '.join(missing)}: {expected}; found are {found}"
                f"{advice if chr(0) in found else ''}"
            )
        unknown = sorted({*names}.difference(FIELDS, self.ignored))
        if unknown:
            raise SettingsError(
                f"column {quoted(unknown[0])} of the rows is no field of a timer: {expected}. Rename it, or leave it "
                f"out with --ignore-column {unknown[0]}"
            )

    # ---- CSV --------------------------------------------------------------------------------------------------------

    def _csv(self, spark: SparkSession) -> DataFrame:
        paths = list(self.paths)
        reader = spark.read.options(header="true", multiLine="true", escape='"', encoding=_EACH_BYTE)
        # Spark matches columns by position, and by default it does not read the header line of the other files.
        header = reader.csv(paths).columns
        names = [self._name(cell) for cell in header]
        self._check(names)
        broken = max((*header, BROKEN), key=len) + "_"  # no name of the files
        reader = reader.options(enforceSchema="false", columnNameOfCorruptRecord=broken)
        rows = reader.schema(_texts((*header, broken))).csv(paths).select("*", _file())
        rows = rows.toDF(*(name if name in FIELDS else f"_{place}" for place, name in enumerate(names)), BROKEN, FILE)
        cells = (F.encode(name, _EACH_BYTE).alias(name) for name in (*self._fields(names), BROKEN))
        return rows.select(*cells, F.when(F.col(BROKEN).isNotNull(), _NOT_CSV).alias(WHY), FILE)

    def _name(self, cell: str) -> str:
        """The name of a column, from a cell of the header line that was read as Latin-1."""
        if cell.startswith(_BOM):
            cell = cell.removeprefix(_BOM).strip('"')  # quotes that do not begin a cell are text for Spark
        return cell.encode(_EACH_BYTE).decode(self.encoding, "backslashreplace")

    # ---- JSON -------------------------------------------------------------------------------------------------------

    def _json(self, spark: SparkSession) -> DataFrame:
        lines = spark.read.text(list(self.paths))
        line, *places = lines.columns  # a directory `topic=orders` is a column of its files
        self._check([*FIELDS, *places])
        lines = self._with_text(lines.select(F.col(line).alias(BROKEN), *self._fields(places), _file()))
        in_lines = [name for name in self._fields(FIELDS) if name not in places]
        # After the end of an object Spark ignores the rest of a text, but not in an array.
        array = F.concat(F.lit("["), F.col(_TEXT), F.lit("]"))
        parsed = F.from_json(array, ArrayType(_texts(in_lines)))
        steps = [{_PARSED: parsed, _KEYS: F.json_object_keys(_TEXT)}, {WHY: self._why(in_lines)}]
        is_blank = F.coalesce(~F.col(_TEXT).rlike(r"\S"), F.lit(False))
        rows = reduce(DataFrame.withColumns, steps, lines.where(~is_blank))
        first = F.get(_PARSED, F.lit(0))
        fields = (first[name].alias(name) for name in in_lines)
        broken = F.when(F.col(WHY).isNotNull(), F.col(BROKEN)).alias(BROKEN)
        return rows.select(*fields, *self._fields(places), broken, WHY, FILE)

    def _why(self, fields: Sequence[str]) -> Column:
        """Why a line is no row; null if it is one."""
        is_one = (F.size(_PARSED) == 1) & F.get(_PARSED, F.lit(0)).isNotNull() & F.col(_KEYS).isNotNull()
        rest = F.regexp_replace(_TEXT, F.lit(_ESCAPES), F.lit(" "))
        unknown = F.array_except(_KEYS, F.array(*map(F.lit, (*fields, *self.ignored))))
        sentence = F.concat(
            F.lit("column-unknown: "),
            F.array_join(unknown, ", "),
            F.lit(f" is no field of a timer: expected are {', '.join(fields)}; --ignore-column leaves a field out"),
        )
        return (
            F.when(
                F.col(_TEXT).isNull(),
                f"row-undecodable: this line is not {self.encoding}{encoding_hint(self.encoding)}",
            )
            .when(~F.coalesce(is_one, F.lit(False)), _NOT_JSON)
            .when(rest.rlike(_HALF), _HALF_PAIR)
            .when(F.size(F.array_distinct(_KEYS)) < F.size(_KEYS), _REPEATED)
            .when(F.size(unknown) > 0, sentence)
        )

    def _with_text(self, lines: DataFrame) -> DataFrame:
        """The lines as bytes, and as text; null if they cannot be decoded."""
        encoding, raw = self.encoding, F.col(BROKEN).cast("binary")
        if encoding == UTF_8:
            return lines.withColumns({_TEXT: F.when(F.is_valid_utf8(BROKEN), F.col(BROKEN)), BROKEN: raw})
        lines = lines.withColumn(BROKEN, raw)

        def decode(batch: pa.RecordBatch) -> pa.RecordBatch:
            texts = pa.array([_decoded(line, encoding) for line in batch.column(BROKEN).to_pylist()], pa.string())
            return pa.RecordBatch.from_arrays([*batch.columns, texts], names=[*batch.schema.names, _TEXT])

        return lines.mapInArrow(batchwise(decode), StructType([*lines.schema.fields, StructField(_TEXT, StringType())]))


def _decoded(line: bytes, encoding: str) -> str | None:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return None


def _file() -> Column:
    """The URL of the file of each row, as long as no other step came between."""
    return F.col("_metadata.file_path").alias(FILE)


def _texts(names: Iterable[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])
