"""The format of timers with an id: the record key is the id, ``timer-due`` the due second, the value a ``Future``.

With the header ``timer-topic`` the value is the payload, as in :mod:`timers.wire.future`.
A later record with the same id replaces the timer. A null value cancels it. With the header ``timer-if`` it does so
only under a condition (:mod:`timers.core.only_if`).

From feature level :data:`timers.core.levels.READABLE_LATE` on, a null value with ``timer-topic`` or ``timer-due`` is
rejected: it is a request whose sender has lost its value. Some clients write null for a value that is not set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from timers.core.operation import ABSENT
from timers.core.printable import quoted
from timers.core.timer import Decoded, Headers, Key, Origin, Row, id_bytes
from timers.v1.future_pb2 import Future
from timers.wire import checks, future, topics
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import CREATE_TIME, LOG_APPEND_TIME

MAX_ID_BYTES = 512
"""The store keeps an id for TIMERS_VERDICT_RETENTION_S. Hashes, UUIDs and most paths fit."""


_NO_HEADERS: Headers = ()
_OF_REQUESTS = frozenset((h.TIMER_TOPIC, h.TIMER_DUE))
"""Headers that only a request has. A cancel needs none of them."""

_VALUE_MISSING = (
    f"the record has no value, and its header {h.TIMER_TOPIC} or {h.TIMER_DUE} makes it a request: send the value, "
    "which may be empty, or send a cancel without these two headers"
)


def encode_headers(due_s: int) -> list[h.Header]:
    """Return the headers that a request needs besides its id and its ``Future``."""
    return [(h.TIMER_DUE, b"%d" % due_s)]


def encode_condition(condition: str | None) -> list[h.Header]:
    """Return the header of a condition: ``absent``, or the source of a version; None: no condition."""
    return [] if condition is None else [(h.TIMER_IF, condition.encode())]


def decode_condition(record: Any) -> str | None:
    """Return the condition of a record; None if it has none. If the header is repeated, the last one counts.

    Raises:
        InvalidRequestError: the condition cannot be read or cannot be checked.
    """
    headers = record.headers
    if not headers or all(name != h.TIMER_IF for name, _ in headers):
        return None
    condition = (h.last(headers, h.TIMER_IF) or b"").decode("ascii", "replace")
    if condition != ABSENT and topics.parse_source(condition) is None:
        raise InvalidRequestError(
            "condition-invalid",
            f"header {h.TIMER_IF} {quoted(condition[:300])} is not {ABSENT!r}, and not the source of a version, "
            "<topic>/<partition>/<offset>",
        )
    if condition == ABSENT and record.value is None:
        raise InvalidRequestError(
            "condition-invalid",
            f"a cancel with header {h.TIMER_IF} must name the source of the version that it cancels, not {ABSENT!r}",
        )
    if record.timestamp_type == CREATE_TIME:  # None: a record that was judged before, and is only read again
        raise InvalidRequestError(
            "condition-without-append-time",
            f"header {h.TIMER_IF} needs the broker's time: set message.timestamp.type=LogAppendTime on the topic",
        )
    return condition


def decode_id(key: bytes | None) -> str:
    """Return the id that a record key holds.

    Raises:
        InvalidRequestError: the id is missing or too long, or is not UTF-8, as verdicts in JSON require.
    """
    checks.check_id(key, MAX_ID_BYTES)
    assert key
    try:
        return key.decode()
    except UnicodeDecodeError:
        shown = quoted(key[:40])
        raise InvalidRequestError(
            "id-not-text", f"the id {shown} is not UTF-8: a verdict could not name it in JSON"
        ) from None


def decode_due(headers: Sequence[h.Header]) -> int:
    """Return the due epoch second of a record. If the header is repeated, the last one counts."""
    return checks.decode_due(h.last(headers, h.TIMER_DUE), f"header {h.TIMER_DUE}")


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Return key, value and headers of a request, rebuilt from its timer."""
    _, value, headers = future.rebuild_request(row, origin)
    return id_bytes(origin.timer_id), value, [*headers, *encode_headers(origin.due_s)]


def decode(
    records: Sequence[Any], max_request_bytes: int, *, by_headers: bool = False, needs_value: bool = False
) -> Decoded:
    """Decode records of the topic of timers with an id: a hot path, about 2.2 µs a record.

    Each due second is parsed once for a batch: most records have only this header.

    Args:
        by_headers: whether the feature level allows requests without protobuf.
        needs_value: whether it rejects a null value with a header of a request. Below it, such a record is a cancel.
    """
    decoded = Decoded()
    by_due, operations, append_s = decoded.rows, decoded.operations, decoded.append_s
    legal: set[str] = set()
    seconds: dict[bytes | None, int] = {}
    from_string = Future.FromString
    for record in records:
        key, value, headers, offset = record.key, record.value, record.headers or _NO_HEADERS, record.offset
        try:
            if value is None:
                _decode_cancel(decoded, record, headers, needs_value)
                continue
            has_due_alone = len(headers) == 1 and headers[0][0] == h.TIMER_DUE
            condition = None if has_due_alone or not headers else decode_condition(record)
            id = decode_id(key)
            own: dict[str, bytes | None] | None = None
            callback_headers: Headers | None = None
            row_key: Key
            published_again = False
            if has_due_alone and headers[0][1] in seconds:
                due_s = seconds[headers[0][1]]
            else:
                due_s = decode_due(headers)
                seconds[b"%d" % due_s] = due_s
                callback_headers = h.without_timer_headers(headers) or None
                if len(headers) - len(callback_headers or ()) > 1:
                    own = h.timer_headers(headers)
                    published_again = own.get(h.TIMER_AGAIN) is not None and due_s * 1000 <= record.timestamp
            if own is None:
                try:
                    request = from_string(value)
                except DecodeError:
                    request = future.parse(value, max_request_bytes)
                topic, row_key, payload = request.callBackTopic, request.callBackKey, request.callBack
                if topic not in legal or len(value) > max_request_bytes:
                    future.check(value, topic, max_request_bytes)
                    legal.add(topic)
            else:
                topic, row_key, payload = future.read_callback(value, own, max_request_bytes, by_headers)
        except InvalidRequestError as error:
            decoded.rejected.append(checks.rejected(record, error))
            continue
        origin = None
        if not published_again:
            origin, timestamp_s = Origin(id, due_s, 0), record.timestamp // 1000
            operations.append((key, offset, due_s, timestamp_s))
            append_s[offset] = timestamp_s if record.timestamp_type == LOG_APPEND_TIME else 0
            if condition is not None:
                decoded.conditions[offset] = condition
        row = (offset, topic, row_key, payload, callback_headers, origin)
        if due_s in by_due:
            by_due[due_s].append(row)
        else:
            by_due[due_s] = [row]
    return decoded


def _decode_cancel(decoded: Decoded, record: Any, headers: Headers, needs_value: bool) -> None:
    """Add a cancel to ``decoded``.

    Raises:
        InvalidRequestError: it is a request without its value, or its condition or its id cannot be read.
    """
    lost_its_value, condition = False, None
    if headers:  # most cancels have none
        lost_its_value = not _OF_REQUESTS.isdisjoint(name for name, _ in headers)
        if lost_its_value and needs_value:
            raise InvalidRequestError("value-missing", _VALUE_MISSING)
        condition = decode_condition(record)
    offset, timestamp_s = record.offset, record.timestamp // 1000
    decode_id(record.key)
    decoded.operations.append((record.key, offset, None, timestamp_s))
    decoded.append_s[offset] = timestamp_s if record.timestamp_type == LOG_APPEND_TIME else 0
    if condition is not None:
        decoded.conditions[offset] = condition
    if lost_its_value:
        decoded.null_requests.append(offset)
