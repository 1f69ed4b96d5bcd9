"""Reads timers from JSON or CSV, for ``timers schedule --from-file`` and the HTTP API. Pure, except for the file.

One object a line. Bytes that are not text are ``{"base64": "..."}``, as ``timers watch -o json`` shows them::

    {"topic": "orders", "key": "order-17", "value": "expired", "delay": "15m"}
    {"topic": "orders", "value": {"base64": "/wA="}, "at": "2030-01-31T12:00:00Z", "id": "order-18",
     "token": "t", "headers": {"trace": "abc"}}        (in the file this is one line)

Each line has ``at`` (as :func:`~timers.client.times.parse_due` reads it), ``delay`` (``15m`` or seconds) or
``repeat`` (as :func:`repeat_of` reads it). ``key`` may be missing or null: then the callback has no key. ``headers``
may also be a list of pairs, for names that repeat. A ``value`` that is another object, or a list, is sent as JSON
without spaces.

In CSV the first line names the fields, and cells that are empty are missing, except that of the value::

    topic,key,value,at
    orders,order-17,expired,2030-01-31T12:00:00 Europe/Berlin
"""

from __future__ import annotations

import base64
import binascii
import csv
import difflib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from timers.client.request import TimerRequest
from timers.client.times import due_second, parse_due, parse_duration, tell
from timers.core.printable import is_utf8, quoted
from timers.errors import InvalidTimerError
from timers.process.counted import counted
from timers.wire.repeat import Repeat

_FIELDS = ("topic", "key", "value", "at", "delay", "repeat", "id", "token", "headers")
_SHOWN = 100
"""Characters of a wrong name that an error repeats."""

_EXAMPLE = '{"topic": "orders", "key": "order-17", "value": "expired", "delay": "15m"}'


def numbered(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line  # the mark that some editors write
        if text.strip():
            yield number, text


def timers_in(
    file: Iterable[bytes], topic: str | None, now_ns: int, say: Callable[[str], object]
) -> Iterator[tuple[int, TimerRequest | InvalidTimerError]]:
    """The timers of a file of JSON lines or CSV, each with the number of the line where it begins, or why it is none.

    Args:
        topic: callback topic of those that name none.
        now_ns: epoch nanoseconds from which delays count.
        say: called with a sentence for a local time that is missing or comes twice.
    """
    for number, read in fields_in(file):
        try:
            fields = read()
            named = {"topic": topic, **fields} if topic is not None else fields
            yield number, parse_fields(named, now_ns, lambda note, number=number: say(f"line {number}: {note}"))  # type: ignore[misc]
        except InvalidTimerError as error:
            yield number, error


def fields_in(
    file: Iterable[bytes], *, csv_only: bool = False
) -> Iterator[tuple[int, Callable[[], Mapping[str, Any]]]]:
    """The rows of a file of JSON lines or CSV: the number of the line where one begins, and a function that returns its
    fields, or raises InvalidTimerError.

    Args:
        csv_only: whether the first line is that of CSV, whatever it is.
    """
    file = iter(file)
    lines = numbered(file)
    first = next(lines, None)
    if first is None:
        return
    try:
        header = csv_header(first[1], csv_only=csv_only)
    except InvalidTimerError as error:
        yield first[0], partial(_raise, str(error))
        return
    if header is not None:
        yield from _csv_rows(file, first[0], *header)
        return
    for number, line in itertools.chain([first], lines):
        yield number, partial(parse_object, line)


_CSV_NAMES = {name: name for name in _FIELDS} | {"due": "at"}
"""Name of a column -> field. ``timers spark import`` reads the column ``due``."""

_SECONDS = re.compile(r"[0-9]{1,11}(\.[0-9]{1,9})?", re.ASCII)

_MAX_CELL_BYTES = 2**31 - 1


def csv_header(line: bytes, *, csv_only: bool = False) -> tuple[list[str], str] | None:
    """Fields of the columns and delimiter of a header line of CSV; None for a line of JSON.

    Raises:
        InvalidTimerError: it is neither, a field is there twice, or lines end with carriage returns only.
    """
    csv.field_size_limit(_MAX_CELL_BYTES)  # by default 131,072 characters, and a value may have more
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("{") and not csv_only:
        return None
    delimiter = max(",;\t", key=text.count)
    try:
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter))]
    except csv.Error as error:
        raise InvalidTimerError(
            f"this is neither JSON nor CSV ({error}): save the file with the line ends of Unix or Windows"
        ) from None
    columns = [_CSV_NAMES.get(name, name) for name in names]
    if not csv_only and not {"value", "topic", "at", "delay"} & {*columns}:
        if len(columns) == 1 or text.startswith("["):
            return None
        raise InvalidTimerError(
            f"{quoted(text):.100} is neither a JSON object nor the first line of CSV, which names the columns: write a "
            f"line such as topic,key,value,at before the rows (the names are {', '.join(_FIELDS)}), and save the file "
            "as UTF-8"
        )
    for name in {*columns}:
        if columns.count(name) > 1:
            same = " (`due` is another name of `at`)" if name == "at" else ""
            raise InvalidTimerError(f"the column {quoted(name)} is there twice{same}: keep one of them")
    return columns, delimiter


def _csv_rows(
    file: Iterable[bytes], number: int, columns: list[str], delimiter: str
) -> Iterator[tuple[int, Callable[[], Mapping[str, Any]]]]:
    """The rows after the header line, which has this number, and functions that return their fields."""
    reader = csv.reader((line.decode("utf-8", "surrogateescape") for line in file), delimiter=delimiter, strict=True)
    while True:
        begin = number + reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield begin, partial(_raise, f"this is no row of CSV: {error}")
            continue
        if any(cell.strip() for cell in cells):  # spreadsheets write empty rows at the end
            yield begin, partial(_csv_fields, columns, cells)


def _raise(sentence: str) -> Mapping[str, Any]:
    raise InvalidTimerError(sentence)


def _csv_fields(columns: list[str], cells: list[str]) -> dict[str, Any]:
    """The fields of a row.

    Raises:
        InvalidTimerError: it has more or fewer cells than the header line, or text that is not UTF-8.
    """
    if len(cells) != len(columns):
        raise InvalidTimerError(
            f"this row has {counted(len(cells), 'cell')}, and the header line has {len(columns)}: write a cell with "
            'commas, quotes or line ends in quotes, and a quote in it as ""'
        )
    fields: dict[str, Any] = {}
    for column, cell in zip(columns, cells, strict=True):
        if not cell.isascii() and not is_utf8(cell):
            raise InvalidTimerError(f"{column} {quoted(cell):.100} is not UTF-8: save the file as UTF-8")
        if cell and column in _READ:
            fields[column] = _READ[column](cell)
        elif cell or column == "value":
            fields[column] = cell
    return fields


def _delay(cell: str) -> str | float | None:
    return float(cell) if _SECONDS.fullmatch(cell.strip()) else _at(cell)


def _at(cell: str) -> str | None:
    return cell.strip() or None  # spreadsheets and people write a space after the comma


_HEADERS = '{"name": "value"} or a list of pairs [["name", "value"]]'


def headers_cell(cell: str) -> Any:
    """The value of ``headers``, as JSON text; :func:`headers_of` reads it.

    Raises:
        InvalidTimerError: it is no JSON.
    """
    try:
        return json.loads(cell, object_pairs_hook=_unique, parse_float=Number)
    except (ValueError, RecursionError) as error:
        raise InvalidTimerError(f"headers is no JSON ({error}): write {_HEADERS}") from None


_READ: dict[str, Callable[[str], Any]] = {"headers": headers_cell, "delay": _delay, "at": _at}
"""Column -> how a cell of it is read. All other ones are text."""


def parse_object(text: bytes) -> dict[str, Any]:
    """The fields of one JSON object.

    Raises:
        InvalidTimerError: the text is something else, or has a field twice.
    """
    try:
        fields = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique, parse_float=Number)
    except UnicodeDecodeError as error:
        raise InvalidTimerError(f"this is no JSON object (byte {error.start} is not UTF-8): write {_EXAMPLE}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidTimerError(f"this is no JSON object ({error}): write {_EXAMPLE}") from None
    if not isinstance(fields, dict):
        raise InvalidTimerError(f"this is no JSON object, but {_kind(fields)}: write {_EXAMPLE}")
    return fields


def parse_fields(
    fields: Mapping[str, Any], now_ns: int, say: Callable[[str], object] = tell, zone: str | None = None
) -> TimerRequest:
    """The timer with these fields. Its due time is an epoch second, or its rule is one that comes again.

    Args:
        say, zone: as in :func:`due_of`.

    Raises:
        InvalidTimerError: they are no timer; the sentence says what is expected.
    """
    check_names(fields)
    repeat = repeat_in(fields, now_ns // 10**9, say)
    return request_of(fields, due_of(fields, now_ns, say, zone) if repeat is None else None, repeat)


def check_names(fields: Mapping[str, Any]) -> None:
    """Check that timers have all these fields.

    Raises:
        InvalidTimerError: there is no such field.
    """
    for name in (unknown[:_SHOWN] for unknown in fields.keys() - set(_FIELDS)):
        nearest = difflib.get_close_matches(name, _FIELDS, n=1)
        meant = f"did you mean {nearest[0]!r}?" if nearest else f"the fields are {', '.join(_FIELDS)}"
        raise InvalidTimerError(f"there is no field {quoted(name)}: {meant}")


def due_of(fields: Mapping[str, Any], now_ns: int, say: Callable[[str], object] = tell, zone: str | None = None) -> int:
    """The due second that the fields name.

    Args:
        now_ns: epoch nanoseconds from which a delay counts.
        say: called with a sentence for a local time that is missing or comes twice.
        zone: of a time that names neither an offset nor a zone.

    Raises:
        InvalidTimerError: there is none, or there are two, or it is wrong.
    """
    at = fields.get("at")
    if isinstance(at, str):
        at = parse_due(at, say, zone)
    delay = fields.get("delay")
    return due_second(at, parse_duration(delay) if isinstance(delay, str) else delay, now_ns=now_ns)


_PARTS = ("cron", "zone", "every", "from", "until", "catch_up", "spread", "except")
_TIME = 'a text such as "2030-01-31T12:00:00Z", or an epoch second'
_SPAN = 'a text such as "15m", or whole seconds'
_NUMBERS = {"every": _SPAN, "spread": _SPAN, "from": _TIME, "until": _TIME}
"""Part of a rule -> what it may be besides a text."""


def repeat_in(fields: Mapping[str, Any], now_s: int, say: Callable[[str], object] = tell) -> Repeat | None:
    """The rule among the fields of a timer, which comes again; None: it does not repeat.

    Raises:
        InvalidTimerError: it is none, never comes again, or there is a due time, too.
    """
    rule = fields.get("repeat")
    if rule is None:
        return None
    if fields.get("at") is not None or fields.get("delay") is not None:
        raise InvalidTimerError("a timer that repeats has neither at nor delay: its rule may have from")
    repeat = repeat_of(rule, say)
    repeat.check(now_s)
    return repeat


def repeat_of(rule: Any, say: Callable[[str], object] = tell) -> Repeat:
    """The rule of a timer that repeats: the text of the header ``timer-repeat``, or an object with its parts.

    In an object ``every`` and ``spread`` are texts such as ``15m`` or seconds, ``from`` and ``until`` are texts such as
    ``2030-01-31T12:00:00Z`` or epoch seconds, and ``except`` is a list of dates.

    Raises:
        InvalidTimerError: it is none.
    """
    if isinstance(rule, str):
        return Repeat.of_header(rule.encode("utf-8", "surrogatepass"))
    if not isinstance(rule, Mapping):
        raise InvalidTimerError(f'repeat is {_kind(rule)}: give {{"cron": "0 9 * * 1-5", "zone": "Europe/Paris"}}')
    parts: dict[str, str] = {}
    for name, part in rule.items():
        if name not in _PARTS:
            raise InvalidTimerError(f"repeat has no field {quoted(name[:_SHOWN])}: the fields are {', '.join(_PARTS)}")
        if name == "except" and isinstance(part, list | tuple) and all(isinstance(each, str) for each in part):
            part = ",".join(part) or None
        elif isinstance(part, str) and name in ("every", "spread"):
            part = parse_duration(part)
        elif isinstance(part, str) and name in ("from", "until"):
            part = parse_due(part, say)
        elif not isinstance(part, str | None) and (name not in _NUMBERS or type(part) is not int):
            raise InvalidTimerError(f"{name} of repeat is {_kind(part)}: give {_NUMBERS.get(name, 'a text')}")
        if part is not None:
            parts[name.replace("_", "-")] = str(part)
    return Repeat.of_parts(parts)


def request_of(fields: Mapping[str, Any], due_s: int | None, repeat: Repeat | None = None) -> TimerRequest:
    """The timer with these fields, due then, or with this rule.

    Raises:
        InvalidTimerError: another field than the due time is wrong.
    """
    if fields.get("value") is None:
        raise InvalidTimerError('there is no value: give text, "" for an empty one')
    if fields.get("topic") is None:
        raise InvalidTimerError("there is no topic: name the callback topic")
    return TimerRequest(
        fields["topic"],
        data_of("key", fields.get("key")),
        _value(fields["value"]) or b"",
        due_s,
        None,
        headers_of(fields.get("headers")),
        fields.get("token"),
        fields.get("id"),
        repeat,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def data_of(name: str, value: Any) -> str | bytes | None:
    """Text, the bytes of ``{"base64": ...}``, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidTimerError(f"{name} is no base64 ({error})") from None
    raise InvalidTimerError(f'{name} is {_kind(value)}: give a text, or {{"base64": "..."}} for bytes')


def _value(value: Any) -> str | bytes | None:
    """The value of a callback: text, the bytes of ``{"base64": ...}``, or another object or a list as JSON."""
    if isinstance(value, list) or (isinstance(value, dict) and value.keys() != {"base64"}):
        try:
            return json_text(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidTimerError(f"value cannot be sent as JSON ({error})") from None
    return data_of("value", value)


class Number(float):
    """A number of a JSON text, which keeps its digits: as a float, 99999999999999999.99 is 1e+17, and 10.50 is 10.5."""

    _text: str

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text


def json_text(value: Any) -> str:
    """A JSON text without spaces, and with the digits of its numbers. Takes about 1 µs for each field."""
    if isinstance(value, dict):
        return f"{{{','.join([f'{_json_scalar(name)}:{json_text(each)}' for name, each in value.items()])}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join([json_text(each) for each in value])}]"
    return str(value) if isinstance(value, Number) and math.isfinite(value) else _json_scalar(value)


_json_scalar = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def laid_out(text: str) -> str:
    """A JSON text on several lines, with its digits and with names that an object has twice.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return _laid_out(json.loads(text, object_pairs_hook=tuple, parse_float=Number), "\n")


def _laid_out(value: Any, line: str) -> str:
    """The text of a value whose objects are tuples of pairs; ``line`` is a line end with the indent."""
    if not isinstance(value, tuple | list) or not value:
        return "{}" if value == () else json_text(value)
    inner = f"{line}  "
    if isinstance(value, tuple):
        lines, ends = [f"{_json_scalar(name)}: {_laid_out(each, inner)}" for name, each in value], "{}"
    else:
        lines, ends = [_laid_out(each, inner) for each in value], "[]"
    return f"{ends[0]}{inner}{f',{inner}'.join(lines)}{line}{ends[1]}"


def headers_of(value: Any) -> list[tuple[str, str | bytes | None]]:
    """The headers of a JSON object, or of a list of pairs, in which names may repeat.

    Raises:
        InvalidTimerError: it is neither.
    """
    pairs = list(value.items()) if isinstance(value, dict) else [] if value is None else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidTimerError(f"headers is not {_HEADERS}")
    return [(name, data_of(f"header {quoted(str(name)[:_SHOWN])}", data)) for name, data in pairs]


def _kind(value: Any) -> str:
    kinds = {str: "a text", bool: "true or false", dict: "an object", list: "a list", type(None): "null"}
    return kinds.get(type(value), "a number")
