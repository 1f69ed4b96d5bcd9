"""Reads the rows of Arrow batches as requests for timers: of any DataFrame, and of files of Parquet.

A row has the fields of ``timers schedule``, in any type that Arrow has for them. What a field may be says
:mod:`timers.client`; this module turns whole columns into the values that it reads. 2 to 3 µs a row.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from timers.client.request import TimerRequest, id_key
from timers.client.timer_lines import Number, headers_of, json_text, parse_object
from timers.client.times import due_second, in_range, parse_due, parse_duration, tell
from timers.core.printable import quoted, utc_text
from timers.errors import InvalidTimerError, SettingsError
from timers.wire import topics
from timers.wire.cold import framed
from timers.wire.instants import local_second
from timers.wire.zones import UnknownZone
from timers.wire.zones import zone as zone_of

FIELDS = ("due", "at", "delay", "topic", "key", "value", "headers", "id")
"""Names of columns. ``due`` and ``at`` are one field."""

HASH_DIGITS = 40
"""160 bits: two different rows do not get the same hash by chance."""

PAST_MODES = ("refuse", "fire")

PANDAS_INDEX_PREFIX = "__index_level_"
"""Begin of the names that pandas gives to an index without a name."""

_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_FIRST_S, _END_S = 10**9, 10**11
"""Whole seconds in this range need no further look: see :func:`timers.client.times.due_second`."""

_DELAY_WITHOUT_ID = (
    "a row with a delay needs an id of its own, because the same row of another day is another timer; or give due"
)

_TIMES = "a timestamp, epoch seconds, or text such as 2030-01-31T12:00:00Z"

Cell: TypeAlias = Any
"""A value of a column, as :class:`~timers.client.request.TimerRequest` takes it; None; or why it is none."""

_Read: TypeAlias = Callable[[pa.Array], Iterable[Cell]]


@dataclass(frozen=True)
class RowOptions:
    """What a writer says about rows, besides their columns."""

    topic: str | None = None
    """Callback topic of rows that name none."""
    key: str | None = None
    """Key of callbacks of rows that name none; None: they have no key."""
    name: str | None = None
    """Begin of the ids of rows that have none. Equal rows have the same id then."""
    gives_ids: bool = True
    """Whether a request has an id of its hash. An import gives ids when it knows which rows are equal."""
    zone: str | None = None
    """Of times without an offset."""
    past: str = "refuse"
    """Whether a row that is due before the write is an error, or fires at once."""
    began: str | None = None
    """When the write began, from which delays count and before which a row is past; None: now."""

    def check(self) -> None:
        """Check what can be checked without rows.

        Raises:
            SettingsError: an option is wrong.
        """
        if self.past not in PAST_MODES:
            raise SettingsError(f"past={quoted(self.past):.100} is not one of {' and '.join(PAST_MODES)}")
        if self.zone is not None:
            try:
                zone_of(self.zone)
            except UnknownZone as error:
                raise SettingsError(f"zone={quoted(self.zone):.100}: {error}") from None
        try:
            if self.name is not None:
                id_key(f"{self.name}-{'0' * HASH_DIGITS}" if self.name else "")
        except InvalidTimerError as error:
            raise SettingsError(f"name={quoted(self.name):.100} begins no id, such as renewals ({error})") from None
        if self.topic is not None and not topics.is_legal(self.topic):
            raise SettingsError(f"topic={quoted(self.topic):.100} is not {topics.LEGAL_FORM}")
        try:
            self.began_ns()
        except InvalidTimerError as error:
            raise SettingsError(f"began: {error}") from None

    def began_ns(self) -> int | None:
        """:attr:`began` in epoch nanoseconds."""
        return None if self.began is None else parse_due(self.began.strip()) * 10**9


class TimerRow(NamedTuple):
    """A row that is a timer."""

    request: TimerRequest
    due_s: int
    hash: str
    """Of its fields without the id; empty if it has an id."""


class TimerColumns:
    """The columns of one schema.

    Raises:
        SettingsError: a column is missing or unknown, or its type is none of a field; one sentence with the way out.
    """

    def __init__(self, schema: pa.Schema, options: RowOptions) -> None:
        options.check()
        self._options = options
        names = [name for name in schema.names if not name.startswith(PANDAS_INDEX_PREFIX)]
        _check_names(names, options)
        self._columns = {
            "at" if name == "due" else name: (name, _reader(name, schema.field(name).type, options.zone))
            for name in names
        }

    def rows(self, batch: pa.RecordBatch, now_ns: int) -> Iterator[TimerRow | InvalidTimerError]:
        """Yield each row of a batch as a timer, or why it is none.

        Args:
            now_ns: epoch nanoseconds from which delays count, and before which a row is past.
        """
        nothing = [None] * len(batch)

        def cells(field: str) -> Iterable[Cell]:
            if field not in self._columns:
                return nothing
            name, read = self._columns[field]
            return read(batch.column(name))

        now_s, may_be_past = now_ns // 10**9, self._options.past == "fire"
        topic_of_all, key_of_all, name = self._options.topic, self._options.key, self._options.name
        fields = map(cells, ("at", "delay", "topic", "key", "value", "headers", "id"))
        for at, delay, topic, key, value, headers, id in zip(*fields, strict=True):
            try:
                due_s = at
                if type(at) is not int or delay is not None:
                    due_s = due_second(_checked(at), _checked(delay), now_ns=now_ns)
                if due_s < now_s and not may_be_past:
                    raise InvalidTimerError(past_sentence(due_s))
                topic = _checked(topic)
                if topic is None:
                    topic = topic_of_all
                    if topic is None:
                        raise InvalidTimerError("topic is null: name the callback topic")
                key = key_of_all if key is None else _checked(key)
                pairs = _checked(headers) or ()
                digits = ""
                if id is None:
                    if name is None:
                        raise InvalidTimerError("id is null: give each row an id, or the option name, for ids of rows")
                    if delay is not None and self._options.gives_ids:
                        raise InvalidTimerError(_DELAY_WITHOUT_ID)
                    when = due_s if delay is None else delay_hashed(delay)
                    digits = row_hash(when, topic, key, _checked(value) or b"", pairs)
                    id = f"{name}-{digits}" if self._options.gives_ids else None
                given = as_given(due_s)
                request = TimerRequest(topic, key, _checked(value) or b"", given, None, pairs, None, _checked(id))
                yield TimerRow(request, due_s, digits)
            except InvalidTimerError as error:
                yield error


def row_hash(
    when: int | str, topic: str, key: str | bytes | None, value: bytes, headers: Iterable[tuple[str, Any]]
) -> str:
    """The hash of a row: the same for equal rows, in whatever files and types they are. It is part of ids: never change
    it.

    Args:
        when: the due second, or a text for a delay.
    """
    flat: list[bytes | None] = []
    for name, content in headers:
        flat += [name.encode("utf-8", "surrogatepass"), _encoded(content)]
    pieces = [str(when).encode(), topic.encode("utf-8", "surrogatepass"), _encoded(key), value, *flat]
    return hashlib.sha256(framed(pieces)).hexdigest()[:HASH_DIGITS]


def past_sentence(due_s: int) -> str:
    """Why a row is not taken that is due in the past."""
    return f"{utc_text(due_s)} is in the past: past=fire, in an import --past fire, lets such timers fire at once"


def delay_hashed(delay: Any) -> str:
    """A delay in the hash of a row: whole seconds, in whatever type it is."""
    return f"+{due_second(None, delay, now_ns=0)}"


def as_given(due_s: int) -> int | datetime:
    """A due second as clients take it: they take a number before 2002 for a delay."""
    return due_s if due_s >= _FIRST_S else datetime.fromtimestamp(due_s, UTC)


def _encoded(text: str | bytes | None) -> bytes | None:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _checked(cell: Cell) -> Any:
    """A cell that is a value.

    Raises:
        InvalidTimerError: it is the reason why it is none.
    """
    if isinstance(cell, InvalidTimerError):
        raise cell
    return cell


# ---- columns --------------------------------------------------------------------------------------------------------


def _check_names(names: Sequence[str], options: RowOptions) -> None:
    expected = f"the columns are {', '.join(FIELDS)}"
    for name in names:
        if name not in FIELDS:
            nearest = difflib.get_close_matches(name.lower(), FIELDS, n=1)
            meant = f"did you mean {nearest[0]!r}? " if nearest else ""
            index = " (pandas writes its index so: index=False leaves it out)" if not name else ""
            raise SettingsError(
                f"column {quoted(name):.100} is no field of a timer{index}: {meant}{expected}. Rename it, or leave it "
                "out (an import does so with --ignore-column NAME)"
            )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"the column {quoted(twice)} is there twice: keep one of them")
    if {"due", "at"} <= {*names}:
        raise SettingsError("the columns due and at are there, which are one field: keep one of them")
    found = ", ".join(map(quoted, names)) or "none"
    if not {"due", "at", "delay"} & {*names}:
        raise SettingsError(f"there is no column due (or delay): {expected}; found are {found}")
    if "topic" not in names and options.topic is None:
        raise SettingsError(
            f"there is no column topic: add it, or give the option topic, one for all rows; found are {found}"
        )
    if "delay" in names and "id" not in names and options.gives_ids:
        raise SettingsError(f"there is a column delay and no column id: {_DELAY_WITHOUT_ID}")
    if "id" not in names and options.name is None:
        raise SettingsError(
            "there is no column id: add one, or give the option name, such as renewals; then the id of a row is "
            "NAME-HASH, and equal rows are one timer"
        )


def _reader(name: str, kind: pa.DataType, zone: str | None) -> _Read:
    """The function that reads a column.

    Raises:
        SettingsError: the field has no such type.
    """
    plain = _plain_type(kind)
    if pa.types.is_null(plain):
        return lambda array: [None] * len(array)
    if name == "id" and isinstance(kind, pa.UuidType):
        return lambda array: [None if each is None else str(UUID(bytes=each)) for each in _bytes(_plain(array))]
    read, expected = _READERS[name](plain, zone)
    if read is None:
        raise SettingsError(f"column {name} is of type {kind}: expected is {expected}")
    return lambda array: read(_plain(array))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind):
            kind = kind.value_type
        else:
            return kind


def _plain(array: pa.Array) -> pa.Array:
    """An array without extension types and dictionaries."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _bytes(array: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return found


def values_of(array: pa.Array) -> list[Cell]:
    """The values of an array as Python has them; in place of one that Python cannot have, why it is none.

    It cannot have texts that are not UTF-8, nor years that are not 1 to 9999.
    """
    kind = _in_utc(array.type)
    if kind != array.type:
        array = array.cast(kind)
    try:
        found: list[Cell] = array.to_pylist()
    except _NOT_OF_PYTHON:
        found = []
        for index in range(len(array)):
            try:
                found += array.slice(index, 1).to_pylist()
            except UnicodeDecodeError as error:
                found.append(InvalidTimerError(f"a text in it is not UTF-8: byte {error.start}"))
            except _NOT_OF_PYTHON as error:
                found.append(InvalidTimerError(f"a value in it cannot be read: {error}"))
    return found


_NOT_OF_PYTHON = (ValueError, OverflowError, LookupError)
"""What pyarrow raises for a text, a date or a zone that Python does not have."""


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """A type whose instants are in UTC. For others pyarrow looks up the zone, and Spark's sessions may have zones that
    it does not know, such as ``+8``, ``PST`` and ``Z``."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_dictionary(kind):
        inner = _in_utc(kind.value_type)
        return kind if inner == kind.value_type else inner
    if pa.types.is_map(kind):
        return pa.map_(*(each.with_type(_in_utc(each.type)) for each in (kind.key_field, kind.item_field)))
    if pa.types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return pa.struct([each.with_type(_in_utc(each.type)) for each in fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_in_utc(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return kind


def _texts(array: pa.Array) -> list[str | None]:
    """Texts. A byte that is not UTF-8 is half a surrogate pair, which no field takes."""
    try:
        found: list[str | None] = array.to_pylist()
    except UnicodeDecodeError:
        return [None if each is None else each.decode("utf-8", "surrogateescape") for each in _bytes(array)]
    return found


# ---- times ----------------------------------------------------------------------------------------------------------


def _times(kind: pa.DataType, zone: str | None) -> tuple[_Read | None, str]:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return lambda array: _within(*_seconds(array)), ""
        if zone is None:
            what = "a timestamp without a zone" if pa.types.is_timestamp(kind) else "a date"
            return (
                None,
                f"an instant, and this is {what}: the option zone, such as Europe/Berlin, says whose time it is",
            )
        return lambda array: _local(*_seconds(array), zone), ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers, ""
    if pa.types.is_decimal(kind):
        return lambda array: [_each(_due, each) for each in array.to_pylist()], ""
    if _is_text(kind):
        return lambda array: [_each(lambda text: _due_of_text(text, zone), each) for each in _texts(array)], ""
    return None, _TIMES


def _seconds(array: pa.Array) -> tuple[np.ndarray[Any, Any], Any]:
    """Seconds of timestamps or dates, rounded up, and where there is none."""
    nulls = np.asarray(array.is_null()) if array.null_count else None
    if pa.types.is_date(array.type):
        days = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()).fill_null(0)
        return days.to_numpy() * _DAY_S, nulls
    counted = array.cast(pa.int64()).fill_null(0).to_numpy()
    return -(-counted // _PER_S[array.type.unit]), nulls


def _within(seconds: np.ndarray[Any, Any], nulls: Any) -> list[Cell]:
    """Epoch seconds, each with a look at its range."""
    found: list[Cell] = seconds.tolist()
    if len(seconds) and (seconds.min() < 0 or seconds.max() >= _END_S):
        found = [_each(_in_range, each) for each in found]
    return _with_nulls(found, nulls)


def _in_range(second: int) -> int:
    return in_range(second, f"due {second}")


def _local(seconds: np.ndarray[Any, Any], nulls: Any, zone: str) -> list[Cell]:
    return _with_nulls([_each(lambda second: _local_second(second, zone), each) for each in seconds.tolist()], nulls)


@lru_cache(4096)
def _local_second(second: int, zone: str) -> int:
    """The epoch second of a local time, which is counted as if it were UTC."""
    try:
        local = datetime(1970, 1, 1) + timedelta(seconds=second)  # noqa: DTZ001  # its zone is the argument
    except OverflowError:
        raise InvalidTimerError(f"{second} seconds from 1970 are no date") from None
    return in_range(local_second(local, zone)[0], f"due {local.isoformat()} {zone}")


def _numbers(array: pa.Array) -> list[Cell]:
    """Epoch seconds of numbers, rounded up."""
    nulls = np.asarray(array.is_null()) if array.null_count else None
    if not pa.types.is_floating(array.type) and array.type != pa.uint64():
        counted = array.cast(pa.int64()).fill_null(_FIRST_S).to_numpy()
    else:
        counted = np.ceil(array.cast(pa.float64(), safe=False).fill_null(_FIRST_S).to_numpy())
    if not len(counted) or (counted.min() >= _FIRST_S and counted.max() < _END_S):  # false if one is not a number
        return _with_nulls(counted.astype(np.int64).tolist(), nulls)
    return [_each(_due, each) for each in array.to_pylist()]


def _due(value: float | Decimal) -> int:
    return due_second(value, None)  # type: ignore[arg-type]  # it takes decimals


def _due_of_text(text: str, zone: str | None) -> int:
    return parse_due(text.strip(), _tell_once, zone)


@cache
def _first_told() -> list[str]:
    return []


def _tell_once(sentence: str) -> None:
    """Say what becomes of the first local time that is missing or comes twice: there may be thousands of them."""
    if not _first_told():
        _first_told().append(sentence)
        tell(f"{sentence} (said once)")


def _each(read: Callable[[Any], Any], cell: Any) -> Cell:
    """A cell as it is read; None if it is null; or why it cannot be read."""
    if cell is None or isinstance(cell, InvalidTimerError):
        return cell
    try:
        return read(cell)
    except InvalidTimerError as error:
        return error


def _with_nulls(found: list[Cell], nulls: Any) -> list[Cell]:
    if nulls is None:
        return found
    return [None if is_null else each for each, is_null in zip(found, nulls.tolist(), strict=True)]


def _spans(kind: pa.DataType, zone: str | None) -> tuple[_Read | None, str]:
    if pa.types.is_duration(kind):
        per_s = _PER_S[kind.unit]
        return lambda array: [None if n is None else Decimal(n) / per_s for n in array.cast(pa.int64()).to_pylist()], ""
    if _is_number(kind):
        return lambda array: array.to_pylist(), ""
    if _is_text(kind):
        return lambda array: [_each(_span_of_text, each) for each in _texts(array)], ""
    return None, "seconds, an interval, or text such as 15m"


def _span_of_text(text: str) -> int:
    return parse_duration(text.strip())


# ---- texts, bytes and what is sent as JSON --------------------------------------------------------------------------


def _names(kind: pa.DataType, zone: str | None) -> tuple[_Read | None, str]:
    return (_texts if _is_text(kind) else None), "text"


def _ids(kind: pa.DataType, zone: str | None) -> tuple[_Read | None, str]:
    if pa.types.is_integer(kind):
        return lambda array: [None if each is None else str(each) for each in array.to_pylist()], ""
    return (_texts if _is_text(kind) else None), "text or whole numbers"


def _contents(kind: pa.DataType, zone: str | None) -> tuple[_Read | None, str]:
    """Of keys and values: bytes as they are, text in UTF-8, other scalars as text, and all else as JSON."""
    if _is_bytes(kind) or _is_text(kind):
        return _bytes, ""
    if pa.types.is_nested(kind):
        convert = _json_form(kind)
        return (None, "text or bytes") if convert is None else (lambda array: _jsons(array, convert), "")
    if pa.types.is_duration(kind) or _json_form(kind) is None:
        return None, "text, bytes, a number, or a structure, which is sent as JSON"
    return lambda array: [_each(lambda value: _scalar_text(value).encode(), each) for each in values_of(array)], ""


def _scalar_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)  # Spark gives instants in the zone of the session
    if isinstance(value, date | time):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _jsons(array: pa.Array, convert: Callable[[Any], Any]) -> list[Cell]:
    def text(value: Any) -> bytes:
        try:
            return json_text(convert(value)).encode()
        except (TypeError, ValueError) as error:
            raise InvalidTimerError(f"the value cannot be sent as JSON ({error})") from None

    return [_each(text, each) for each in values_of(array)]


def _json_form(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that makes JSON's objects, lists, numbers and texts of values of a type; None: JSON has no form."""
    kind = _plain_type(kind)
    if pa.types.is_map(kind):
        each = _json_form(kind.item_type)
        if each is None or not (_is_text(kind.key_type) or pa.types.is_integer(kind.key_type)):
            return None
        return _of_some(lambda pairs: {str(name): each(value) for name, value in pairs})
    if pa.types.is_struct(kind):
        forms = {field.name: _json_form(field.type) for field in (kind.field(n) for n in range(kind.num_fields))}
        if None in forms.values() or len(forms) < kind.num_fields:
            return None
        known: dict[str, Any] = forms
        return _of_some(lambda row: {name: known[name](value) for name, value in row.items()})
    if pa.types.is_nested(kind):
        item = _json_form(kind.value_type) if hasattr(kind, "value_type") else None
        return None if item is None else _of_some(lambda values: [item(value) for value in values])
    if _is_bytes(kind):
        return _of_some(lambda data: base64.b64encode(data).decode())
    if pa.types.is_decimal(kind):
        return _of_some(lambda value: Number(format(value, "f")))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return _of_some(_scalar_text)
    is_plain = _is_text(kind) or _is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return (lambda value: value) if is_plain else None


def _of_some(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _header_pairs(kind: pa.DataType, zone: str | None) -> tuple[_Read | None, str]:
    expected = "a map of text to text or bytes, a list of pairs, or a JSON object as text"
    if _is_text(kind):
        return lambda array: [_each(_headers_of_text, each or None) for each in _texts(array)], ""
    pair: Any = None
    if pa.types.is_map(kind):
        pair = [kind.key_type, kind.item_type]
    elif pa.types.is_struct(kind):
        is_text = all(_is_content(kind.field(n).type) for n in range(kind.num_fields))
        is_plain = is_text and len({*_names_of(kind)}) == kind.num_fields
        return (lambda array: [_each(_present, row) for row in values_of(array)], "") if is_plain else (None, expected)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = _plain_type(kind.value_type)
        pair = [of.field(n).type for n in range(of.num_fields)] if pa.types.is_struct(of) else []
    if pair is None or len(pair) != 2 or not all(map(_is_content, pair)):
        return None, expected
    return lambda array: [_each(_pairs, row) for row in values_of(array)], ""


def _names_of(kind: pa.StructType) -> list[str]:
    return [kind.field(number).name for number in range(kind.num_fields)]


def _is_content(kind: pa.DataType) -> bool:
    plain = _plain_type(kind)
    return _is_text(plain) or _is_bytes(plain) or bool(pa.types.is_null(plain))


def _present(row: dict[str, Any]) -> list[tuple[str, Any]]:
    """The headers of a struct. It has all its fields in each row, so null says that there is none."""
    return [(name, value) for name, value in row.items() if value is not None]


def _pairs(row: Sequence[Any]) -> list[tuple[Any, Any]]:
    found = []
    for pair in row:
        name, value = pair.values() if isinstance(pair, dict) else pair or (None, None)
        if isinstance(name, bytes):
            name = name.decode("utf-8", "surrogateescape")
        if name is None:
            raise InvalidTimerError("headers have an entry without a name")
        found.append((name, value))
    return found


def _headers_of_text(text: str) -> list[tuple[str, Any]]:
    return headers_of(parse_object(b'{"headers":%b}' % text.encode("utf-8", "surrogateescape"))["headers"])


_READERS: dict[str, Callable[[pa.DataType, str | None], tuple[_Read | None, str]]] = {
    "due": _times,
    "at": _times,
    "delay": _spans,
    "topic": _names,
    "key": _contents,
    "value": _contents,
    "headers": _header_pairs,
    "id": _ids,
}
