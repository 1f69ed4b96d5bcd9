"""Encodes and decodes native requests, and records of the retry topic.

::

    key       due epoch second, in digits
    value     ``Future``: topic, key and payload of the callback

or, without protobuf::

    value     payload of the callback, as it is
    headers   timer-topic                    topic of the callback
              timer-key                      key of the callback; null or missing: no key
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from timers.core.repeating import CALLBACK_HEADERS
from timers.core.timer import Decoded, Key, Origin, Rejected, Row, RowsByDue, id_bytes, id_text
from timers.v1.future_pb2 import Future
from timers.wire import headers as h
from timers.wire import topics
from timers.wire.checks import MOST_REQUEST_BYTES, InvalidRequestError, check_size, check_topic, decode_due, rejected
from timers.wire.plain_requests import IS_COMPILED, read_plain


def encode(topic: str, key: str, value: bytes) -> bytes:
    """Return the value of a request record. Inverse: :func:`decode`."""
    return Future(callBackTopic=topic, callBackKey=key, callBack=value).SerializeToString()


def decode(records: Sequence[Any], max_request_bytes: int, *, drops_schema_ids: bool = False) -> Decoded:
    """Decode records of the request topic: the hot path of acceptance.

    It takes about 0.8 µs a record, most of it in protobuf, and 0.2 µs a plain one where :func:`read_plain` is compiled.
    A row is the only object made for a record. The raw key finds the rows of its second, so that a due second is parsed
    once for each batch. A record with a condition, which needs an id, is rejected.

    Args:
        drops_schema_ids: whether callbacks of a ``Future`` are without :data:`timers.wire.headers.SCHEMA_IDS`.
    """
    by_due: RowsByDue = {}
    by_key: dict[bytes | None, list[Row]] = {}  # several keys may share a list: "7" and "007" name one second
    rejections: list[Rejected] = []
    legal: set[str] = set()
    legal_bytes: dict[bytes, str] = {}
    from_string, rows_of = Future.FromString, by_key.get

    def begin(key: bytes | None) -> list[Row] | None:
        try:
            rows = by_key[key] = by_due.setdefault(decode_due(key), [])
        except InvalidRequestError:
            return None
        return rows

    def read(records: Iterable[Any]) -> None:
        for record in records:
            value, headers = record.value, record.headers
            try:
                if headers and len(kept := h.without_timer_headers(headers)) < len(headers):
                    own = h.timer_headers(headers)
                    if h.TIMER_IF in own:
                        raise InvalidRequestError("condition-without-id", _CONDITION_WITHOUT_ID)
                    topic, key, payload = read_callback(value, own, max_request_bytes)
                    headers = callback_headers(kept, own, drops_schema_ids)
                else:
                    try:
                        future = from_string(value)
                    except (TypeError, DecodeError):
                        parse(value, max_request_bytes)  # raises the error that says what is wrong
                        raise
                    topic, key, payload = future.callBackTopic, future.callBackKey, future.callBack
                    if topic not in legal or len(value) > max_request_bytes:
                        check(value, topic, max_request_bytes)
                        legal.add(topic)
                        legal_bytes[topic.encode()] = topic
                    if headers and drops_schema_ids:
                        headers = h.without_schema_ids(headers)
                rows = rows_of(record.key)
                if rows is None:
                    rows = by_key[record.key] = by_due.setdefault(decode_due(record.key), [])
            except InvalidRequestError as error:
                rejections.append(rejected(record, error))
                continue
            rows.append((record.offset, topic, key, payload, headers or None, None))

    if IS_COMPILED:
        read_plain(records, max_request_bytes, by_key, legal_bytes, read, begin)
    else:
        read(records)
    if rejections:  # a second may have none but rejected records
        by_due = {due_s: rows for due_s, rows in by_due.items() if rows}
    return Decoded(by_due, rejections)


def read_callback(
    value: bytes | None, own: Mapping[str, bytes | None], max_request_bytes: int
) -> tuple[str, Key, bytes]:
    """Return topic, key and payload of a callback: from a ``Future``, or from headers of a request without protobuf.

    Args:
        own: its headers with the prefix ``timer-``.
    """
    if h.TIMER_TOPIC in own:
        if value is None:
            raise InvalidRequestError("value-missing", "the record has no value: it is the payload, and may be empty")
        check_size(value, max_request_bytes)
        topic = (own[h.TIMER_TOPIC] or b"").decode(errors="replace")
        check_topic(topic, f"header {h.TIMER_TOPIC}")
        return topic, own.get(h.TIMER_KEY), value
    future = parse(value, max_request_bytes)
    return future.callBackTopic, own.get(h.TIMER_KEY, future.callBackKey), future.callBack


def callback_headers(kept: list[h.Header], own: Mapping[str, bytes | None], drops_schema_ids: bool) -> list[h.Header]:
    """Return the headers that go to a callback.

    Args:
        kept: headers of the request without the engine's.
        own: the engine's. With the topic among them, the schemas are those of key and payload of the callback.
        drops_schema_ids: as for :func:`decode`.
    """
    return h.without_schema_ids(kept) if drops_schema_ids and h.TIMER_TOPIC not in own else kept


MAX_ATTEMPT_DIGITS = 9

_CONDITION_WITHOUT_ID = (
    f"header {h.TIMER_IF} is a condition on a timer with an id: publish it to TIMERS_ID_TOPIC, with the id as key"
)


def callback_topic(request: bytes) -> str:
    """Return the callback topic of a request's value; empty if it has none or is no request."""
    try:
        return str(Future.FromString(request).callBackTopic)
    except DecodeError:
        return ""


class RequestSummary(NamedTuple):
    """What a record asks for, as far as it can be read. A part that cannot be read is None."""

    due_s: int | None
    topic: str | None
    key: bytes | None


def summarize_request(
    request_key: bytes | None, request: bytes | None, headers: Sequence[h.Header] | None = None
) -> RequestSummary:
    """Return what a record asks for, as far as it can be read. With a header for the topic, its value is a payload."""
    due_s = None
    with contextlib.suppress(InvalidRequestError):
        due_s = decode_due(request_key)
    own = h.timer_headers(headers or ())
    if h.TIMER_TOPIC in own:
        return RequestSummary(due_s, (own[h.TIMER_TOPIC] or b"").decode(errors="replace"), own.get(h.TIMER_KEY))
    with contextlib.suppress(DecodeError):
        if request is not None:
            future = Future.FromString(request)
            return RequestSummary(due_s, future.callBackTopic, future.callBackKey.encode())
    return RequestSummary(due_s, None, None)


def parse(value: bytes | None, max_request_bytes: int) -> Future:
    """Return the ``Future`` of a record."""
    if value is None:
        raise InvalidRequestError("value-missing", "the record has no value: a Future is expected")
    check_size(value, max_request_bytes)
    try:
        future = Future.FromString(value)
    except DecodeError:
        raise InvalidRequestError(
            "value-not-a-future",
            f"the value of {len(value)} bytes is not a Future message (timers/v1/future.proto), and the record has no "
            f"header {h.TIMER_TOPIC}, which would make it a request without protobuf",
        ) from None
    check_topic(future.callBackTopic, "callBackTopic")
    return future


def check(value: bytes, topic: str, max_request_bytes: int) -> None:
    """Check size and callback topic of a ``Future``."""
    check_size(value, max_request_bytes)
    check_topic(topic, "callBackTopic")


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Return key, value and headers of a request, rebuilt from its timer.

    Its value is no longer than that of the request, so that the same limit accepts it: only a ``Future`` has a key that
    is text, and of any other request the payload alone may have been judged.
    """
    _, topic, key, value, headers, _ = row
    if isinstance(key, str) and not (headers and h.has_schema_ids(headers)):
        request, own_headers = encode(topic, key, value), list[h.Header]()
    else:
        request, own_headers = value, encode_by_headers(topic, key)
    return b"%d" % origin.due_s, request, [*(headers or ()), *own_headers]


def encode_by_headers(topic: str, key: Key) -> list[h.Header]:
    """Return the headers that make a payload a request without protobuf."""
    content = key.encode() if isinstance(key, str) else key
    return [(h.TIMER_TOPIC, topic.encode()), *([] if content is None else [(h.TIMER_KEY, content)])]


def _encode_with_key(topic: str, key: Key, value: bytes) -> tuple[bytes, list[h.Header]]:
    """Return the value of a request, and the header that holds its key if the key is not text."""
    if isinstance(key, str):
        return encode(topic, key, value), []
    return encode(topic, "", value), [(h.TIMER_KEY, key)]


# ---- the retry topic ------------------------------------------------------------------------------------------------


MOST_RETRY_BYTES = MOST_REQUEST_BYTES + 1024
"""Largest value of a record of the retry topic. Its timer was accepted before, with the limit that its topic had then.
Its value has also the name of the callback topic, which may have been in a header of the request."""


def encode_retry(
    topic: str, key: Key, value: bytes, headers: Sequence[h.Header] | None, origin: Origin
) -> tuple[bytes, list[h.Header]]:
    """Return value and headers of a record on the retry topic. Inverse: :func:`decode_retry`."""
    own_headers: list[h.Header] = [
        (h.TIMER_ID, id_bytes(origin.timer_id)),
        (h.TIMER_DUE, str(origin.due_s).encode()),
        (h.TIMER_ATTEMPT, str(origin.attempt).encode()),
    ]
    if origin.source is not None:
        own_headers.append((h.TIMER_SOURCE, origin.source.encode()))
    request, key_headers = _encode_with_key(topic, key, value)
    return request, [*(headers or ()), *own_headers, *key_headers]


def decode_retry(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Decode records of the retry topic. Only the engine writes there, so ``timer-*`` headers are trusted."""
    decoded = Decoded()
    for record in records:
        named = h.timer_headers(record.headers or ())
        own = {name: value for name, value in named.items() if value is not None}
        try:
            future = parse(record.value, max_request_bytes)
            due_s = decode_due(record.key)
            id, source = id_text(own[h.TIMER_ID]), own[h.TIMER_SOURCE].decode() if h.TIMER_SOURCE in own else None
            if topics.parse_source(id if source is None else source) is None:
                raise ValueError
            first_due_s, attempt = decode_due(own[h.TIMER_DUE]), own[h.TIMER_ATTEMPT]
            if not (attempt.isdigit() and len(attempt) <= MAX_ATTEMPT_DIGITS):
                raise ValueError
            origin = Origin(id, first_due_s, int(attempt), source)
        except InvalidRequestError as error:
            decoded.rejected.append(rejected(record, error))
            continue
        except (KeyError, ValueError):
            unreadable = InvalidRequestError("retry-headers-missing", "this app did not write this retry record")
            decoded.rejected.append(rejected(record, unreadable))
            continue
        row: Row = (
            record.offset,
            future.callBackTopic,
            named.get(h.TIMER_KEY, future.callBackKey),
            future.callBack,
            [each for each in record.headers if each[0] in CALLBACK_HEADERS or not each[0].startswith(h.PREFIX)]
            or None,
            origin,
        )
        decoded.rows.setdefault(due_s, []).append(row)
    return decoded
