"""The messages of a delay service on a Redis sorted set: JSON that says how many seconds to wait.

::

    {"topic": "T", "message": "<message body>", "countdown": 120}

The due second is the record's time plus the countdown, rounded up; the record key is the callback's. With a field
``id``, which is then the record key too, the timer has an id: ``{"id": "order-17", "cancel": true}`` takes it back.
Other fields are not looked at.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from timers.core.timer import Decoded, Headers, Origin, Row, key_bytes
from timers.wire import future
from timers.wire import headers as h
from timers.wire.formats.future_by_id import MAX_ID_BYTES
from timers.wire.future import MAX_DUE_S, InvalidRequestError
from timers.wire.topics import is_legal

CALLER = "CALLER_SERVICE"
"""The header that says who asks: for metrics. It travels like any other."""

NO_CALLER = "none"
MAX_CALLER_CHARACTERS = 100

ACCEPTED, CANCEL, REJECTED = "accepted", "cancel", "rejected"
OUTCOMES = (ACCEPTED, CANCEL, REJECTED)

MAX_DEPTH = 100
"""Of nested arrays and objects. A bound of ours: the parser's own depends on how deep Python's stack is just then, and
a replay must decide as the first reading did."""

MAX_NUMBER_CHARACTERS = 1000
"""Of a countdown. The exact decimals of a double have up to 767 digits."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?")
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class _Number(str):
    """A JSON number as it is written: floats would drift, and integers of any length would take their time."""

    __slots__ = ()


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Object(list[tuple[str, Any]]):
    """A JSON object: its fields in their order, also those that stand there twice."""


_JSON = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_constant, object_pairs_hook=_Object)


class Asked(NamedTuple):
    """What a message asks for."""

    id: str | None
    topic: str
    """Empty in a cancel."""
    message: bytes
    countdown_ms: int | None
    """Rounded up; None: cancel the timer of this id."""


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Read records of the countdown topic; about 6 us a record, most of it JSON.

    Args:
        records: with ``offset``, ``key``, ``value``, ``headers``, ``timestamp``, in ascending offset.
        max_request_bytes: largest value accepted.
    """
    decoded = Decoded()
    for record in records:
        headers = record.headers or ()
        try:
            outcome = _take(decoded, record, headers, max_request_bytes)
        except InvalidRequestError as error:
            decoded.rejected.append(future.rejected(record, error))
            outcome = REJECTED
        label = _caller(headers), outcome
        decoded.callers[label] = decoded.callers.get(label, 0) + 1
    return decoded


def encode(topic: str, message: str, countdown: float = 0) -> bytes:
    """A message that asks for a timer. Inverse: :func:`parse`."""
    return json.dumps({"topic": topic, "message": message, "countdown": countdown}, ensure_ascii=False).encode()


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """The record of a request, written again as far as a timer knows it: without its id, and due at once unless
    ``timer-again`` says when."""
    _, topic, key, message, headers, _ = row
    return key_bytes(key), encode(topic, message.decode()), [*(headers or ())]


def _take(decoded: Decoded, record: Any, headers: Headers, max_request_bytes: int) -> str:
    id, topic, message, countdown_ms = parse(record.value, max_request_bytes)
    if id is not None and record.key != id.encode():
        shown = "no key" if record.key is None else f"the key {repr(record.key[:40])[1:]}"
        raise InvalidRequestError(
            "id-not-key", f"the id is {id!r:.60} and the record has {shown}: an id must also be the record key"
        )
    if countdown_ms is None:
        decoded.operations.append((record.key, record.offset, None, 0))
        return CANCEL
    due_s = _again_s(headers, record.timestamp)
    again = due_s is not None
    if due_s is None:
        due_s = _due_s(record.timestamp, countdown_ms)
    origin = None
    if id is not None and not again:
        origin = Origin(id, due_s, 0)
        decoded.operations.append((record.key, record.offset, due_s, record.timestamp // 1000))
    row = (record.offset, topic, record.key, message, h.without_timer_headers(headers) or None, origin)
    decoded.rows.setdefault(due_s, []).append(row)
    return ACCEPTED


def _caller(headers: Headers) -> str:
    name = next((value for name, value in reversed(headers) if name == CALLER), None)
    return name.decode(errors="replace")[:MAX_CALLER_CHARACTERS] if name else NO_CALLER


def _again_s(headers: Headers, timestamp_ms: int) -> int | None:
    """The due second of a message that is published again; None if it is not."""
    said = h.republished_due(headers)
    due_s = None if said is None else future.decode_due(said, f"header {h.TIMER_AGAIN}")
    return due_s if due_s is not None and due_s * 1000 <= timestamp_ms else None


def _due_s(timestamp_ms: int, countdown_ms: int) -> int:
    if timestamp_ms < 0:
        raise InvalidRequestError(
            "time-missing", "the record has no time to count down from: give its topic LogAppendTime"
        )
    due_s = -(-(timestamp_ms + countdown_ms) // 1000)
    if due_s > MAX_DUE_S:
        raise InvalidRequestError("countdown-invalid", "the countdown ends after the year 5138: it is in seconds")
    return due_s


def parse(value: bytes | None, max_request_bytes: int) -> Asked:
    """What a record's value asks for.

    Raises:
        InvalidRequestError: it cannot be read, or asks for what nobody can do.
    """
    if value is None:
        raise InvalidRequestError("value-missing", "the record has no value: JSON is expected")
    if len(value) > max_request_bytes:
        raise InvalidRequestError(
            "value-too-large",
            f"the value has {len(value)} bytes, more than TIMERS_MAX_REQUEST_BYTES={max_request_bytes}",
        )
    text, fields = _fields(value)
    id = _id(fields.get("id"))
    if _flag(fields.get("cancel")):
        if id is None:
            raise InvalidRequestError("id-missing", "only a timer with an id can be cancelled: the field id is missing")
        return Asked(id, "", b"", None)
    for name in ("topic", "message", "countdown"):
        if name not in fields:
            raise InvalidRequestError("field-missing", f"the field {name} is missing")
    topic, message, countdown = fields["topic"], fields["message"], fields["countdown"]
    if _is_text(message):
        as_given = _encoded(message, "field-invalid", "message")
    else:
        as_given = _as_it_stands(text, "message").encode()
    return Asked(id, _topic(topic), as_given, _countdown_ms(countdown))


def _fields(value: bytes) -> tuple[str, dict[str, Any]]:
    """A JSON object as text, and its fields."""
    try:
        text = value.decode()
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(text)
        pairs = _JSON.decode(text)
        if not isinstance(pairs, _Object):
            raise ValueError(f"it is {_shown(pairs)}")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, at character {error.pos}"
    except ValueError as error:
        reason = str(error)
    else:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise InvalidRequestError("field-repeated", f"the field {twice!r:.60} stands there twice")
        return text, fields
    raise InvalidRequestError("value-not-json", f"the value of {len(value)} bytes is not a JSON object: {reason}")


def _check_depth(text: str) -> None:
    depth = 0
    for found in _STRUCTURE.finditer(text):
        if text[found.start()] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} arrays and objects, one in the other")
        elif text[found.start()] in "]}":
            depth -= 1


def _as_it_stands(text: str, wanted: str) -> str:
    """What is written for a field of a JSON object, character for character. The object is known to be sound."""
    at = _skip(text, _skip(text, 0) + 1)
    while True:
        name, at = _JSON.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _JSON.raw_decode(text, start)
        if name == wanted:
            return text[start:end]
        at = _skip(text, _skip(text, end) + 1)


def _skip(text: str, at: int) -> int:
    """Where the space at a character ends."""
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number)


def _shown(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return f"{value:.60}" if isinstance(value, _Number) else f"{json.dumps(value):.60}"


def _id(value: Any) -> str | None:
    if value is None:
        return None
    if not _is_text(value):
        raise InvalidRequestError("id-not-text", f"the field id is {_shown(value)}: a string is expected")
    if not value:
        raise InvalidRequestError("id-missing", "the field id is empty: leave it out, or give the timer an id")
    size = len(_encoded(value, "id-not-text", "id"))
    if size > MAX_ID_BYTES:
        raise InvalidRequestError("id-too-long", f"the id has {size} bytes, more than {MAX_ID_BYTES}")
    named: str = value
    return named


def _flag(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError("field-invalid", f"the field cancel is {_shown(value)}: true or false is expected")
    return bool(value)


def _topic(value: Any) -> str:
    if not _is_text(value):
        raise InvalidRequestError("field-invalid", f"the field topic is {_shown(value)}: a string is expected")
    if not value:
        raise InvalidRequestError(
            "topic-missing", "the field topic is empty: it names the topic to send the message to"
        )
    if not is_legal(value):
        raise InvalidRequestError(
            "topic-invalid", f"the topic {value!r:.60} is not a legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -"
        )
    named: str = value
    return named


def _encoded(text: str, code: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        reason = f"the field {name} has {half} at character {error.start}: half a character, which UTF-8 cannot carry"
        raise InvalidRequestError(code, reason) from None


def _countdown_ms(value: Any) -> int:
    """Milliseconds of a countdown, rounded up, by whole numbers alone.

    What it is added to is in whole milliseconds too, so rounding here loses nothing: the sum rounds up to the same
    second.
    """
    if not isinstance(value, _Number):
        reason = f"the countdown is {_shown(value)}: a number of seconds is expected"
        raise InvalidRequestError("countdown-invalid", reason)
    found = _NUMBER.fullmatch(value) if len(value) <= MAX_NUMBER_CHARACTERS else None
    if found is None:
        raise InvalidRequestError("countdown-invalid", f"the countdown {value:.60} is beyond any number of seconds")
    fraction, exponent = found[3] or "", int(found[4] or 0)
    digits, places = int(found[2] + fraction), len(fraction) - exponent - 3  # digits / 10**places are milliseconds
    milliseconds: int = -(-digits // 10**places) if places > 0 else digits * 10**-places
    if found[1] and milliseconds:
        raise InvalidRequestError("countdown-invalid", f"the countdown {value:.60} is negative: 0 sends at once")
    return milliseconds
