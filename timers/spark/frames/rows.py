"""Reads files of timers: Parquet, CSV and JSON lines, each row as a timer or with the reason why it is none.

Python reads the files, in Spark's tasks: Spark's own readers refuse types that pandas, polars and DuckDB write by
default, replace bytes that are not in the encoding of a file, and do not know the numbers of lines. A row is read as
``timers schedule --from-file`` reads it (:mod:`timers.client.timer_lines`), and in Parquet as that of any DataFrame
(:mod:`timers.spark.frames.timer_columns`).
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from timers.client.request import Encoder
from timers.client.timer_lines import csv_header, fields_in, json_text, numbered, parse_fields
from timers.client.times import parse_duration
from timers.core.operation import ABSENT
from timers.core.printable import json_value, printable_json, quoted
from timers.errors import InvalidTimerError, SettingsError
from timers.spark.columns import MAX_BATCH_BYTES, record_batches, schema
from timers.spark.frames.timer_columns import (
    PANDAS_INDEX_PREFIX,
    RowOptions,
    TimerColumns,
    TimerRow,
    as_given,
    delay_hashed,
    past_sentence,
    row_hash,
    values_of,
)
from timers.spark.storage import is_uri
from timers.wire import headers as h
from timers.wire.formats import future_by_id

PARQUET, CSV, JSON = "parquet", "csv", "json"
UTF_8 = "utf-8"

ENTRY_SCHEMA = schema("content string, id string, due_s bigint, value binary, headers headers, row string")
"""A row of a file. ``content``: hash of its fields, if it has no ``id``. ``value`` and ``headers`` are those of the
request. ``row``: of one that is no timer, a JSON line that can be mended and imported; all else is null then. One that
is refused because it is past has ``content`` or ``id``, ``due_s`` and ``row``: an earlier run may have sent it."""

FILE, LINE, REASON = "_file", "_line", "_reason"
"""Further fields of such a line, which an import passes over: file and number of the line (in Parquet of the row), and
why it is no timer."""

_OF_REJECTS = frozenset((FILE, LINE, REASON))

_READ_ROWS = 1_000
"""Rows of Parquet that are read at once. Ten times as many save 3 % of the time, and need ten times the memory for
large values that are equal, whose size no file says."""

_GZIP, _PARQUET_MAGIC, _UTF_16 = b"\x1f\x8b", b"PAR1", (b"\xff\xfe", b"\xfe\xff")
_PLACE = re.compile(r"([^=/]+)=([^/]*)")
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""How Spark, polars, DuckDB and pyarrow write null in the name of a directory."""


class Line(NamedTuple):
    """A row of a file."""

    number: int
    timer: TimerRow | InvalidTimerError
    source: Mapping[str, Any] | tuple[pa.RecordBatch, int]
    """Its fields, as far as they could be read; or in Parquet where they are."""


@dataclass(frozen=True)
class RowFiles:
    """Files with rows of timers.

    Attributes:
        paths: files, directories and patterns as they were given, as paths or URLs.
        urls: the files themselves; None: they are on a storage that only Spark reads.
        format: ``parquet``, ``csv`` (with a header line) or ``json`` (one object in each line).
        options: what is said about all rows. Their ``key`` is that of rows without one.
        encoding: of CSV and JSON, by Python's name. Its bytes below 128 are those of ASCII.
        ignored: names of columns that are left out.
    """

    paths: tuple[str, ...]
    urls: tuple[str, ...] | None
    format: str
    options: RowOptions
    encoding: str = UTF_8
    ignored: tuple[str, ...] = ()
    as_base64: bool = False

    def check(self) -> None:
        """Check what the begins of the files say about all their rows, if Python can read them.

        Raises:
            SettingsError: see :meth:`check_file`.
        """
        for url in self.urls or ():
            with opened(url) as file:
                self.check_file(url, file)

    def check_file(self, url: str, file: BinaryIO) -> None:
        """Check what the begin of a file says about all its rows.

        Raises:
            SettingsError: the file is of another format, or a column is missing or unknown.
        """
        places = self._places(url)
        try:
            if self.format == PARQUET:
                self._columns(_parquet(file), places)
            elif self.format == CSV:
                first = next(numbered(self._lines(file)), None)
                if first is None:
                    raise SettingsError(
                        "the file is empty: its first line names the columns, such as topic,key,value,due"
                    )
                header = csv_header(first[1], csv_only=True)
                assert header is not None
                self._check_names([*header[0], *places])
        except (SettingsError, InvalidTimerError) as error:
            raise SettingsError(f"{shown(url)}: {error}") from None

    def entries(self, url: str, file: BinaryIO, now_ns: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in the shape of :data:`ENTRY_SCHEMA`.

        Args:
            now_ns: epoch nanoseconds from which delays count, and before which a row is past.
        """
        if self.urls is None:
            self.check_file(url, file)
            file.seek(0)
        yield from record_batches(self._entries(url, file, now_ns, most_bytes), ENTRY_SCHEMA, _size_of)

    def _entries(self, url: str, file: BinaryIO, now_ns: int, most_bytes: int) -> Iterator[tuple[Any, ...]]:
        encode, conditions = Encoder(most_bytes), future_by_id.encode_condition(ABSENT)
        first_s = now_ns // 10**9 if self.options.past == "refuse" else 0
        for number, timer, source in self.rows(file, self._places(url), now_ns):
            try:
                if isinstance(timer, InvalidTimerError):
                    raise timer
                request, due_s, digits = timer
                _, value, headers = encode(request)
                if digits:  # the id is made of the hash when all rows are known, of which some may be equal
                    headers = [*(headers or ()), *future_by_id.encode_headers(due_s)]
                content, id = (digits, None) if digits else (None, request.id)
                if due_s < first_s:
                    yield content, id, due_s, None, None, _reject(source, url, number, past_sentence(due_s))
                else:
                    yield content, id, due_s, value, [*(headers or ()), *conditions], None
            except InvalidTimerError as error:
                yield None, None, None, None, None, _reject(source, url, number, str(error))

    def rows(self, file: BinaryIO, places: Mapping[str, str | None], now_ns: int) -> Iterator[Line]:
        """Yield the rows of a file. One that is past is a timer."""
        if self.format == PARQUET:
            yield from self._rows_of_parquet(file, places, now_ns)
            return
        for number, read in fields_in(self._lines(file), csv_only=self.format == CSV):
            fields: Mapping[str, Any] = {}
            try:
                fields = read()
                timer: TimerRow | InvalidTimerError = self._timer({**places, **fields}, now_ns)
            except InvalidTimerError as error:
                timer = error
            yield Line(number, timer, fields)

    def _places(self, url: str) -> dict[str, str | None]:
        """The columns that the directories of a file name below a path that was given, such as ``topic=orders``."""
        roots = [path.rstrip("/") for path in self.paths if url.startswith(path.rstrip("/"))]
        below = url[len(max(roots, key=len, default=url)) :]
        found = _PLACE.findall(below.rpartition("/")[0])
        return {name: None if value == _NULL else unquote(value) for name, value in found}

    # ---- CSV and JSON ------------------------------------------------------------------------------------------------

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        """The lines of a file in UTF-8. A byte that is not in its encoding stays, and its row is refused."""
        lines = iter(_unzipped(file))
        first = next(lines, b"")
        if first.startswith(_UTF_16):
            raise InvalidTimerError(
                "this looks like UTF-16: convert it first, such as with `iconv -f UTF-16 -t UTF-8 FILE`"
            )
        lines = itertools.chain([first], lines)
        if self.encoding == UTF_8:
            return lines
        return (_in_utf_8(line, self.encoding) for line in lines)

    def _timer(self, fields: dict[str, Any], now_ns: int) -> TimerRow:
        """The timer with these fields.

        Raises:
            InvalidTimerError: they are none.
        """
        if (due := fields.pop("due", None)) is not None:
            if fields.get("at") is not None:
                raise InvalidTimerError("due and at are there, which are one field: keep one of them")
            fields["at"] = due
        if self.ignored or not _OF_REJECTS.isdisjoint(fields):
            fields = {
                name: each for name, each in fields.items() if name not in self.ignored and name not in _OF_REJECTS
            }
        if fields.get("repeat") is not None:
            raise InvalidTimerError("timers that repeat are not imported: `timers apply` sets them")
        options = self.options
        for name, default in (("topic", options.topic), ("key", options.key), ("value", "")):
            if fields.get(name) is None:
                fields[name] = default
        for name in ("key", "value"):
            if isinstance(fields[name], int | float):
                fields[name] = json_text(fields[name])
        if self.as_base64:
            fields["value"] = {"base64": fields["value"]}
        request = parse_fields(fields, now_ns, _quiet, options.zone)
        due_s = cast("int", request.at)
        request = request._replace(at=as_given(due_s))
        if request.id is not None:
            return TimerRow(request, due_s, "")
        pairs = [*cast("Sequence[tuple[str, Any]]", request.headers or ())]
        if request.token is not None:
            pairs.append((h.TOKEN, request.token))
        delay = fields.get("delay")
        delay = parse_duration(delay) if isinstance(delay, str) else delay
        when = due_s if delay is None else delay_hashed(delay)
        key = cast("str | bytes", request.key)
        digits = row_hash(when, request.topic, key, _bytes(request.value), pairs)
        return TimerRow(request, due_s, digits)

    def _check_names(self, names: Sequence[str]) -> None:
        """Check the names of the columns of all rows of CSV."""
        known = [name for name in names if name not in self.ignored and name not in _OF_REJECTS]
        kinds = {name: pa.string() for name in known if name != "token"}
        if len(kinds) < len([name for name in known if name != "token"]):
            raise SettingsError("a column is there twice (`due` is another name of `at`): keep one of them")
        TimerColumns(pa.schema(kinds.items()), self.options)

    # ---- Parquet -----------------------------------------------------------------------------------------------------

    def _columns(self, whole: pq.ParquetFile, places: Mapping[str, str | None]) -> TimerColumns:
        found = _schema(whole)
        fields = [each for each in found if each.name not in self.ignored and each.name not in places]
        fields += [pa.field(name, pa.string()) for name in places if name not in self.ignored]
        # Whether a row is in the past is checked later.
        return TimerColumns(pa.schema(fields), replace(self.options, past="fire"))

    def _rows_of_parquet(self, file: BinaryIO, places: Mapping[str, str | None], now_ns: int) -> Iterator[Line]:
        whole = _parquet(file)
        columns, begin = self._columns(whole, places), 1
        names = [name for name in whole.schema_arrow.names if name not in self.ignored and name not in places]
        types = [_schema(whole).field(name).type for name in names]
        for read in whole.iter_batches(_rows_at_once(whole), columns=names):
            arrays = [
                each.cast(kind) if each.type != kind else each for each, kind in zip(read.columns, types, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, names=names)
            for name, value in places.items():
                batch = batch.append_column(name, pa.array([value] * len(batch), pa.string()))
            for index, timer in enumerate(columns.rows(batch, now_ns)):
                if isinstance(timer, TimerRow) and self.as_base64:
                    timer = self._of_base64(timer)
                yield Line(begin + index, timer, (batch, index))
            begin += len(batch)

    def _of_base64(self, timer: TimerRow) -> TimerRow | InvalidTimerError:
        request = timer.request
        try:
            value = base64.b64decode(_bytes(request.value), validate=True)
        except binascii.Error as error:
            return InvalidTimerError(f"value is not base64: {error}")
        pairs = cast("Sequence[tuple[str, Any]]", request.headers or ())
        key = cast("str | bytes", request.key)
        digits = timer.hash and row_hash(timer.due_s, request.topic, key, value, pairs)
        return TimerRow(request._replace(value=value), timer.due_s, digits)


def _quiet(sentence: str) -> None:
    """Nothing is said of each local time that is missing: a file may have thousands of them."""


def _bytes(value: Any) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)


def _size_of(entry: tuple[Any, ...]) -> int:
    _, _, _, value, headers, row = entry
    size = len(value or b"") + len(row or "")
    for _, content in headers or ():
        size += len(content or b"")
    return size


def _reject(source: Mapping[str, Any] | tuple[pa.RecordBatch, int], url: str, number: int, reason: str) -> str:
    """A row as a JSON line that can be mended and imported."""
    return printable_json(json_text({**_fields_of(source), FILE: shown(url), LINE: number, REASON: reason}))


def _fields_of(source: Mapping[str, Any] | tuple[pa.RecordBatch, int]) -> dict[str, Any]:
    """The fields of a row, as JSON has them. One that JSON cannot have gets a name that no import takes, so that it
    must be mended, too."""
    if not isinstance(source, Mapping):
        batch, index = source
        source = {name: values_of(batch.column(name).slice(index, 1))[0] for name in batch.schema.names}
    found: dict[str, Any] = {}
    for name, value in source.items():
        if value is None or name in _OF_REJECTS or name.startswith(PANDAS_INDEX_PREFIX):
            continue
        try:
            form = _json_form(value)
            json_text(form)
        except (InvalidTimerError, TypeError, ValueError, RecursionError) as error:
            found[f"{name} cannot be shown"] = str(error)
        else:
            found[name] = form
    return found


def _json_form(value: Any) -> Any:
    if isinstance(value, InvalidTimerError):
        raise value
    if isinstance(value, bytes):
        return json_value(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _json_form(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_form(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _in_utf_8(line: bytes, encoding: str) -> bytes:
    try:
        return line.decode(encoding).encode()
    except UnicodeDecodeError:
        return line.decode(encoding, "surrogateescape").encode("utf-8", "surrogateescape")


def _unzipped(file: BinaryIO) -> Any:
    """A file, whose content may be compressed."""
    buffered = file if hasattr(file, "peek") else io.BufferedReader(cast("Any", file))
    return gzip.GzipFile(fileobj=buffered) if buffered.peek(2)[:2] == _GZIP else buffered


def _parquet(file: BinaryIO) -> pq.ParquetFile:
    try:
        # As nanoseconds, which end in 2262, a time of 96 bits would silently be one of another century.
        return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    except (pa.ArrowInvalid, OSError) as error:
        raise SettingsError(f"it is no whole file of Parquet ({str(error).splitlines()[0]:.200})") from None


def _rows_at_once(whole: pq.ParquetFile) -> int:
    """How many rows are read at once: fewer if they are large."""
    about = whole.metadata
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    largest = max((each.total_byte_size // max(1, each.num_rows) for each in groups), default=0)
    return max(1, min(_READ_ROWS, MAX_BATCH_BYTES // max(1, largest)))


def _schema(whole: pq.ParquetFile) -> pa.Schema:
    """The schema of a file. Times of 96 bits, as Spark writes them by default, are UTC, and no file says so."""
    found = whole.schema_arrow
    leaves = (whole.schema.column(number) for number in range(len(whole.schema)))
    for name in [leaf.path for leaf in leaves if leaf.physical_type == "INT96" and leaf.path in found.names]:
        index = found.get_field_index(name)
        found = found.set(index, pa.field(name, pa.timestamp("us", "UTC")))
    return found


# ---- files ----------------------------------------------------------------------------------------------------------


def local_path(url: str) -> Path | None:
    """The path of a local file; None for a URL of another scheme."""
    if not is_uri(url):
        return Path(url)
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def local_files(path: str) -> list[str]:
    """The files of a local path, which may be a directory or a pattern.

    Raises:
        SettingsError: there is none.
    """
    root = local_path(path)
    assert root is not None
    if root.is_dir():
        below = sorted(each for each in root.rglob("*") if each.is_file())
        # Spark and others write further files, whose names begin with a dot or a line, and which hold no rows.
        found = [
            each for each in below if all(part[0] not in "._" or "=" in part for part in each.relative_to(root).parts)
        ]
    else:
        found = [root] if root.exists() else sorted(root.parent.glob(root.name))
    if not found:
        raise SettingsError(f"{quoted(path)} is no file and no directory with files: check its name")
    return [str(each) for each in found]


@contextmanager
def opened(url: str, content: bytes | None = None) -> Iterator[BinaryIO]:
    """Open a local file, or what Spark has read of another one.

    Raises:
        SettingsError: it cannot be read.
    """
    path = local_path(url)
    if content is not None or path is None:
        yield io.BytesIO(content or b"")
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise SettingsError(f"{quoted(str(path))} cannot be read ({error.strerror or error})") from None
    with file:
        yield file


def format_of(file: BinaryIO) -> str:
    """The format of a file, by how it begins."""
    begin = _unzipped(file).read(4096)
    if begin.startswith(_PARQUET_MAGIC):
        return PARQUET
    return JSON if begin.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" else CSV


def shown(url: str) -> str:
    """A URL as a person writes it: that of a local file as a path."""
    path = local_path(url)
    return url if path is None else str(path)
