"""The countdown format: JSON with the number of seconds to wait, as in delay services on Redis.

::

    {"topic": "T", "message": "<message body>", "countdown": 120}

The due second is the record's timestamp plus the countdown, rounded up. The callback gets the record's key. The field
``id`` gives the timer an id, which must also be the record key; then ``{"id": "order-17", "cancel": true}`` cancels the
timer. Other fields are ignored.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from timers.core.printable import quoted
from timers.core.timer import Decoded, Headers, Origin, Row, key_bytes
from timers.wire import checks
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.formats.future_by_id import MAX_ID_BYTES

CALLER = "CALLER_SERVICE"
"""The header with the name of the calling service, for metrics. It is sent with the callback like other headers."""

NO_CALLER = "none"
MAX_CALLER_CHARACTERS = 100

ACCEPTED, CANCEL, REJECTED = "accepted", "cancel", "rejected"

MAX_DEPTH = 100
"""Limit of nested arrays and objects. The parser's own limit depends on the depth of Python's stack at that moment, but
a replay must give the same result as the first reading [I4]."""

MAX_NUMBER_CHARACTERS = 1000
"""Limit for a countdown. The exact decimal form of a double has up to 767 digits."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?")
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class _Number(str):
    """A JSON number as it is written. A float would lose digits, and a very long integer would be slow to parse."""

    __slots__ = ()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _Object(list[tuple[str, Any]]):
    """A JSON object as a list of its fields in order, with repeated ones."""


_JSON = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_refuse, object_pairs_hook=_Object)


class CountdownRequest(NamedTuple):
    """What a message asks for."""

    id: str | None
    topic: str
    """Empty if the message cancels a timer."""
    message: bytes
    countdown_ms: int | None
    """Rounded up; None if the message cancels the timer with this id."""


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Decode records of the countdown topic: about 6 µs a record, most of it in the JSON parser."""
    decoded = Decoded()
    for record in records:
        headers = record.headers or ()
        try:
            outcome = _decode_record(decoded, record, headers, max_request_bytes)
        except InvalidRequestError as error:
            decoded.rejected.append(checks.rejected(record, error))
            outcome = REJECTED
        label = _caller(headers), outcome
        decoded.callers[label] += 1
    return decoded


def encode(topic: str, message: str, countdown: float = 0) -> bytes:
    """Return a message that asks for a timer, without a byte that is not needed. Inverse: :func:`parse`."""
    fields = {"topic": topic, "message": message, "countdown": countdown}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Return key, value and headers of a request, rebuilt from its timer. It has no id, and is due at once unless the
    caller adds ``timer-again``.

    Its value is no longer than that of the request, so that the same limit accepts it: a message that was no string is
    none again, because quotes make it longer.
    """
    _, topic, key, message, headers, _ = row
    value = b'{"topic":"%b","message":%b,"countdown":0}' % (topic.encode(), message)
    with contextlib.suppress(InvalidRequestError):
        if parse(value, len(value)).message == message:
            return key_bytes(key), value, [*(headers or ())]
    return key_bytes(key), encode(topic, message.decode()), [*(headers or ())]


def _decode_record(decoded: Decoded, record: Any, headers: Headers, max_request_bytes: int) -> str:
    """Add what a record asks for to ``decoded``, and return the outcome for the metrics."""
    id, topic, message, countdown_ms = parse(record.value, max_request_bytes)
    if id is not None and record.key != id.encode():
        shown = "no key" if record.key is None else f"the key {quoted(record.key[:40])}"
        raise InvalidRequestError(
            "id-not-key", f"the id is {quoted(id):.60} and the record has {shown}: an id must also be the record key"
        )
    if countdown_ms is None:
        decoded.operations.append((record.key, record.offset, None, record.timestamp // 1000))
        return CANCEL
    due_s = _former_due_s(headers, record.timestamp)
    republished = due_s is not None
    if due_s is None:
        due_s = checks.due_after(record.timestamp, countdown_ms, "the countdown", "countdown-invalid", "seconds")
    origin = None
    if id is not None and not republished:
        origin = Origin(id, due_s, 0)
        decoded.operations.append((record.key, record.offset, due_s, record.timestamp // 1000))
    row = (record.offset, topic, record.key, message, h.without_timer_headers(headers) or None, origin)
    decoded.rows.setdefault(due_s, []).append(row)
    return ACCEPTED


def _caller(headers: Headers) -> str:
    name = h.last(headers, CALLER)
    return name.decode(errors="replace")[:MAX_CALLER_CHARACTERS] if name else NO_CALLER


def _former_due_s(headers: Headers, timestamp_ms: int) -> int | None:
    """Return the former due second of a message that is published again; None for any other message."""
    digits = h.last(headers, h.TIMER_AGAIN)
    due_s = None if digits is None else checks.decode_due(digits, f"header {h.TIMER_AGAIN}")
    return due_s if due_s is not None and due_s * 1000 <= timestamp_ms else None


def parse(value: bytes | None, max_request_bytes: int) -> CountdownRequest:
    """Return what a record's value asks for.

    Raises:
        InvalidRequestError: the value cannot be read, or a field is missing or wrong.
    """
    if value is None:
        raise InvalidRequestError("value-missing", "the record has no value: JSON is expected")
    checks.check_size(value, max_request_bytes)
    text, fields = _parse_object(value)
    id = _read_id(fields.get("id"))
    if _read_flag(fields.get("cancel")):
        if id is None:
            raise InvalidRequestError("id-missing", "only a timer with an id can be cancelled: the field id is missing")
        return CountdownRequest(id, "", b"", None)
    for name in ("topic", "message", "countdown"):
        if name not in fields:
            raise InvalidRequestError("field-missing", f"the field {name} is missing")
    topic, message, countdown = fields["topic"], fields["message"], fields["countdown"]
    if _is_text(message):
        payload = _encode_field(message, "field-invalid", "message")
    else:
        payload = _source_text(text, "message").encode()
    return CountdownRequest(id, _read_topic(topic), payload, _countdown_ms(countdown))


def _parse_object(value: bytes) -> tuple[str, dict[str, Any]]:
    try:
        text = value.decode()
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(text)
        pairs = _JSON.decode(text)
        if not isinstance(pairs, _Object):
            raise ValueError(f"it is {_describe(pairs)}")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, at character {error.pos}"
    except ValueError as error:
        reason = str(error)
    else:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise InvalidRequestError("field-repeated", f"the field {quoted(repeated):.60} is there twice")
        return text, fields
    raise InvalidRequestError("value-not-json", f"the value of {len(value)} bytes is not a JSON object: {reason}")


def _check_depth(text: str) -> None:
    depth = 0
    for found in _STRUCTURE.finditer(text):
        if text[found.start()] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} nested arrays and objects")
        elif text[found.start()] in "]}":
            depth -= 1


def _source_text(text: str, field: str) -> str:
    """Return the text of a field's value, character for character. ``text`` must be a valid JSON object."""
    at = _skip_space(text, _skip_space(text, 0) + 1)
    while True:
        name, at = _JSON.raw_decode(text, at)
        start = _skip_space(text, _skip_space(text, at) + 1)
        _, end = _JSON.raw_decode(text, start)
        if name == field:
            return text[start:end]
        at = _skip_space(text, _skip_space(text, end) + 1)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "the pattern also matches an empty text"
    return found.end()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number)


def _describe(value: Any) -> str:
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return f"{value:.60}" if isinstance(value, _Number) else f"{json.dumps(value):.60}"


def _read_id(value: Any) -> str | None:
    if value is None:
        return None
    if not _is_text(value):
        raise InvalidRequestError("id-not-text", f"the field id is {_describe(value)}: a string is expected")
    if not value:
        raise InvalidRequestError("id-missing", "the field id is empty: leave it out, or give the timer an id")
    checks.check_id(_encode_field(value, "id-not-text", "id"), MAX_ID_BYTES)
    return str(value)


def _read_flag(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError("field-invalid", f"the field cancel is {_describe(value)}: true or false is expected")
    return bool(value)


def _read_topic(value: Any) -> str:
    if not _is_text(value):
        raise InvalidRequestError("field-invalid", f"the field topic is {_describe(value)}: a string is expected")
    checks.check_topic(value, "the field topic")
    return str(value)


def _encode_field(text: str, code: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        reason = f"the field {name} has {half} at character {error.start}: half a surrogate pair, which is not UTF-8"
        raise InvalidRequestError(code, reason) from None


def _countdown_ms(value: Any) -> int:
    """Return a countdown in milliseconds, rounded up, computed with integers only.

    The timestamp that it is added to is in whole milliseconds, so rounding here does not change the due second.
    """
    if not isinstance(value, _Number):
        reason = f"the countdown is {_describe(value)}: a number of seconds is expected"
        raise InvalidRequestError("countdown-invalid", reason)
    found = _NUMBER.fullmatch(value) if len(value) <= MAX_NUMBER_CHARACTERS else None
    if found is None:
        raise InvalidRequestError(
            "countdown-invalid", f"the countdown {value:.60} is not a number of seconds that can be computed"
        )
    fraction, exponent = found[3] or "", int(found[4] or 0)
    digits, places = int(found[2] + fraction), len(fraction) - exponent - 3  # digits / 10**places are milliseconds
    milliseconds: int = -(-digits // 10**places) if places > 0 else digits * 10**-places
    if found[1] and milliseconds:
        raise InvalidRequestError("countdown-invalid", f"the countdown {value:.60} is negative: 0 sends at once")
    return milliseconds
