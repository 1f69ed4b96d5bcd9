"""The native request format: a record of the request topic to a timer.

A request is judged here only by what stands in the record [I4]: a replay after months must decide
as the first reading did. What can change in the world, such as whether the topic exists, is judged when it fires.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from timers.core.timer import Decoded, Key, Origin, Rejected, Row, RowsByDue, id_bytes, id_text
from timers.v1.future_pb2 import Future
from timers.wire import headers as h
from timers.wire.topics import is_legal

MAX_DUE_DIGITS = 11
"""``[0-9]{1,11}``: up to the year 5138 in seconds, and too short for the milliseconds of any date after 1973."""

MAX_DUE_S = 10**MAX_DUE_DIGITS - 1


class InvalidRequestError(ValueError):
    """A request that cannot be read. ``code`` is machine-readable, the message one sentence for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def encode(topic: str, key: str, value: bytes) -> bytes:
    """Value of a request record. Inverse: :func:`decode`."""
    return Future(callBackTopic=topic, callBackKey=key, callBack=value).SerializeToString()


def decode_due(key: bytes | None, what: str = "key") -> int:
    """Due epoch second from a record key: a full match of ``[0-9]{1,11}``.

    Args:
        key: what stands there.
        what: where it stands, for the sentence of an error.

    Raises:
        InvalidRequestError: with one of the codes ``key-*``.
    """
    if key is None:
        raise InvalidRequestError("key-missing", "the record has no key: the key says the due epoch second, in digits")
    if key.isdigit() and len(key) <= MAX_DUE_DIGITS:  # on bytes, isdigit knows ASCII digits only
        return int(key)
    shown = repr(key[:40])[1:]
    if key.isdigit() and len(key) <= MAX_DUE_DIGITS + 3:
        seconds = -(-int(key) // 1000)
        raise InvalidRequestError(
            "key-in-milliseconds", f"{what} {shown} is in milliseconds: in seconds it is {seconds}"
        )
    if key[:1] == b"-" and key[1:].isdigit():
        raise InvalidRequestError("key-negative", f"{what} {shown} is negative: a due epoch second has 1 to 11 digits")
    raise InvalidRequestError("key-not-a-number", f"{what} {shown} is not an epoch second: 1 to 11 ASCII digits")


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Read records of the request topic: the hot path of acceptance.

    Costs about 0.8 us a record, most of it protobuf. No object is made but the row; rows are gathered by raw key, so
    that a due second is parsed once a batch.

    Args:
        records: with ``offset``, ``key``, ``value``, ``headers``, in ascending offset.
        max_request_bytes: largest value accepted.
    """
    by_key: dict[bytes, list[Row]] = {}
    bad: list[Rejected] = []
    legal: set[str] = set()
    from_string = Future.FromString
    for record in records:
        value = record.value
        try:
            future = from_string(value)
            topic = future.callBackTopic
            rows = by_key[record.key]
            if topic not in legal or len(value) > max_request_bytes:
                check(value, topic, max_request_bytes)
                legal.add(topic)
        except (KeyError, TypeError, DecodeError):
            # The first record of its second, or one that cannot be read: the slow way tells which.
            try:
                future = parse(value, max_request_bytes)
                topic = future.callBackTopic
                decode_due(record.key)
            except InvalidRequestError as error:
                bad.append(rejected(record, error))
                continue
            legal.add(topic)
            rows = by_key.setdefault(record.key, [])
        except InvalidRequestError as error:
            bad.append(rejected(record, error))
            continue
        headers = record.headers
        key: Key = future.callBackKey
        if headers:
            key = h.callback_key(headers, key)
            headers = h.without_timer_headers(headers)
        rows.append((record.offset, topic, key, future.callBack, headers or None, None))
    return Decoded(_by_due(by_key), bad)


def topic_asked_for(request: bytes) -> str:
    """Callback topic of a request's value; empty if it says none, or is no request."""
    try:
        return str(Future.FromString(request).callBackTopic)
    except DecodeError:
        return ""


class RequestSummary(NamedTuple):
    """What a request asks for, as far as it can be read."""

    due_s: int | None
    topic: str | None
    key: str | None


def summarize_request(request_key: bytes | None, request: bytes | None) -> RequestSummary:
    """Read what can be read of any record, for a person to see."""
    due_s = None
    with contextlib.suppress(InvalidRequestError):
        due_s = decode_due(request_key)
    if request is None:
        return RequestSummary(due_s, None, None)
    try:
        future = Future.FromString(request)
    except DecodeError:
        return RequestSummary(due_s, None, None)
    return RequestSummary(due_s, future.callBackTopic, future.callBackKey)


def _by_due(by_key: dict[bytes, list[Row]]) -> RowsByDue:
    rows_by_due: RowsByDue = {}
    for key, rows in by_key.items():
        due_s = int(key)
        if due_s in rows_by_due:  # "7" and "007" are the same second
            rows_by_due[due_s] = sorted(rows_by_due[due_s] + rows)
        else:
            rows_by_due[due_s] = rows
    return rows_by_due


def parse(value: bytes | None, max_request_bytes: int) -> Future:
    """The ``Future`` of a record.

    Raises:
        InvalidRequestError: there is none, or it asks for what nobody can do.
    """
    if value is None:
        raise InvalidRequestError("value-missing", "the record has no value: a Future is expected")
    try:
        future = Future.FromString(value)
    except DecodeError:
        raise InvalidRequestError(
            "value-not-a-future", f"the value of {len(value)} bytes is not a Future message (timers/v1/future.proto)"
        ) from None
    check(value, future.callBackTopic, max_request_bytes)
    return future


def check(value: bytes, topic: str, max_request_bytes: int) -> None:
    """Judge a ``Future`` by what stands in it.

    Raises:
        InvalidRequestError: it is too large, or its callback topic is not a name of one.
    """
    if len(value) > max_request_bytes:
        raise InvalidRequestError(
            "value-too-large",
            f"the value has {len(value)} bytes, more than TIMERS_MAX_REQUEST_BYTES={max_request_bytes}",
        )
    if not topic:
        raise InvalidRequestError("topic-missing", "callBackTopic is empty: it names the topic to send the callback to")
    if not is_legal(topic):
        raise InvalidRequestError(
            "topic-invalid", f"callBackTopic {topic[:60]!r} is not a legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -"
        )


def rejected(record: Any, error: InvalidRequestError) -> Rejected:
    """What becomes of a record that cannot be read."""
    return Rejected(record.offset, error.code, str(error), record.key, record.value, tuple(record.headers or ()))


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """The record of a request, written again as far as a timer knows it."""
    _, topic, key, value, headers, _ = row
    request, more = _encode_any(topic, key, value)
    return b"%d" % origin.due_s, request, [*(headers or ()), *more]


def _encode_any(topic: str, key: Key, value: bytes) -> tuple[bytes, list[h.Header]]:
    """Value of a request, and the header that it takes if its key is no text."""
    if isinstance(key, str):
        return encode(topic, key, value), []
    return encode(topic, "", value), [(h.TIMER_KEY, key)]


# ---- the retry topic ------------------------------------------------------------------------------------------------


def encode_retry(
    topic: str, key: Key, value: bytes, headers: Sequence[h.Header] | None, origin: Origin
) -> tuple[bytes, list[h.Header]]:
    """Value and headers of a record on the retry topic. Inverse: :func:`decode_retry`."""
    ours: list[h.Header] = [
        (h.TIMER_ID, id_bytes(origin.timer_id)),
        (h.TIMER_DUE, str(origin.due_s).encode()),
        (h.TIMER_ATTEMPT, str(origin.attempt).encode()),
    ]
    if origin.source is not None:
        ours.append((h.TIMER_SOURCE, origin.source.encode()))
    request, more = _encode_any(topic, key, value)
    return request, [*(headers or ()), *ours, *more]


def decode_retry(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Read records of the retry topic. Only our own transactions write there, so ``timer-*`` headers are believed."""
    decoded = Decoded()
    for record in records:
        ours = {name: value for name, value in record.headers or () if name.startswith(h.PREFIX) and value is not None}
        try:
            future = parse(record.value, max_request_bytes)
            due_s = decode_due(record.key)
            source = ours[h.TIMER_SOURCE].decode() if h.TIMER_SOURCE in ours else None
            attempt = int(ours[h.TIMER_ATTEMPT][:9])
            origin = Origin(id_text(ours[h.TIMER_ID]), decode_due(ours[h.TIMER_DUE]), attempt, source)
        except InvalidRequestError as error:
            decoded.rejected.append(rejected(record, error))
            continue
        except (KeyError, ValueError):
            broken = InvalidRequestError(
                "retry-headers-missing", "a record on the retry topic that this app never wrote"
            )
            decoded.rejected.append(rejected(record, broken))
            continue
        row: Row = (
            record.offset,
            future.callBackTopic,
            h.callback_key(record.headers, future.callBackKey),
            future.callBack,
            h.without_timer_headers(record.headers) or None,
            origin,
        )
        decoded.rows.setdefault(due_s, []).append(row)
    return decoded
