"""Reads timers from JSON, for ``timers schedule --from-file`` and the HTTP API. Pure, except for the file.

One object a line. Bytes that are not text are ``{"base64": "..."}``, as ``timers watch -o json`` shows them::

    {"topic": "orders", "key": "order-17", "value": "expired", "delay": "15m"}
    {"topic": "orders", "value": {"base64": "/wA="}, "at": "2030-01-31T12:00:00Z", "id": "order-18",
     "token": "t", "headers": {"trace": "abc"}}        (in the file this is one line)

Each line has ``at`` (RFC 3339 or epoch seconds) or ``delay`` (``15m`` or seconds). ``key`` may be missing or null: then
the callback has no key. ``headers`` may also be a list of pairs, for names that repeat.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from timers.client.request import TimerRequest, due_second
from timers.client.times import parse_due, parse_duration
from timers.errors import InvalidTimerError
from timers.wire.printable import quoted

_FIELDS = ("topic", "key", "value", "at", "delay", "id", "token", "headers")
_SHOWN = 100
"""Characters of a wrong name that an error repeats."""

_EXAMPLE = '{"topic": "orders", "key": "order-17", "value": "expired", "delay": "15m"}'


def numbered(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line  # the mark that some editors write
        if text.strip():
            yield number, text


def parse_line(line: bytes, topic: str | None, now_ns: int) -> TimerRequest:
    """The timer of one line. Its due time is an epoch second.

    Args:
        topic: callback topic of a line that names none.
        now_ns: epoch nanoseconds from which a delay counts.

    Raises:
        InvalidTimerError: the line is no timer; the sentence says what is expected.
    """
    fields = parse_object(line)
    return parse_fields({"topic": topic, **fields} if topic is not None else fields, now_ns)


def parse_object(text: bytes) -> dict[str, Any]:
    """The fields of one JSON object.

    Raises:
        InvalidTimerError: the text is something else, or has a field twice.
    """
    try:
        fields = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise InvalidTimerError(f"this is no JSON object (byte {error.start} is not UTF-8): write {_EXAMPLE}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidTimerError(f"this is no JSON object ({error}): write {_EXAMPLE}") from None
    if not isinstance(fields, dict):
        raise InvalidTimerError(f"this is no JSON object, but {_kind(fields)}: write {_EXAMPLE}")
    return fields


def parse_fields(fields: Mapping[str, Any], now_ns: int) -> TimerRequest:
    """The timer with these fields. Its due time is an epoch second.

    Raises:
        InvalidTimerError: they are no timer; the sentence says what is expected.
    """
    check_names(fields)
    return request_of(fields, due_of(fields, now_ns))


def check_names(fields: Mapping[str, Any]) -> None:
    """Check that timers have all these fields.

    Raises:
        InvalidTimerError: there is no such field.
    """
    for name in (unknown[:_SHOWN] for unknown in fields.keys() - set(_FIELDS)):
        nearest = difflib.get_close_matches(name, _FIELDS, n=1)
        meant = f"did you mean {nearest[0]!r}?" if nearest else f"the fields are {', '.join(_FIELDS)}"
        raise InvalidTimerError(f"there is no field {quoted(name)}: {meant}")


def due_of(fields: Mapping[str, Any], now_ns: int) -> int:
    """The due second that the fields name.

    Raises:
        InvalidTimerError: there is none, or there are two, or it is wrong.
    """
    return due_second(_at(fields.get("at")), _delay(fields.get("delay")), now_ns=now_ns)


def request_of(fields: Mapping[str, Any], due_s: int) -> TimerRequest:
    """The timer with these fields, due then.

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
        data_of("value", fields["value"]) or b"",
        due_s,
        None,
        _headers(fields.get("headers")),
        fields.get("token"),
        fields.get("id"),
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _at(value: Any) -> Any:
    return parse_due(value) if isinstance(value, str) else value


def _delay(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


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


def _headers(value: Any) -> list[tuple[str, str | bytes | None]]:
    pairs = list(value.items()) if isinstance(value, dict) else [] if value is None else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidTimerError('headers is not {"name": "value"} or a list of pairs [["name", "value"]]')
    return [(name, data_of(f"header {quoted(str(name)[:_SHOWN])}", data)) for name, data in pairs]


def _kind(value: Any) -> str:
    kinds = {str: "a text", bool: "true or false", dict: "an object", list: "a list", type(None): "null"}
    return kinds.get(type(value), "a number")
