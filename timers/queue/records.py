"""What a queue writes to Kafka: the headers of messages, the timers of retries, and dead letters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple, Protocol

from timers.client.request import Encoder, HeadersLike, TimerRequest, sent_headers
from timers.core.progress import Cuts
from timers.core.timer import Rejected
from timers.errors import InvalidTimerError
from timers.kafka.records import headers_of
from timers.queue.signing import ERROR, OWN, Identity, Signing
from timers.wire import dead_letter, topics
from timers.wire import headers as h
from timers.wire.headers import Header
from timers.wire.printable import quoted

_MAX_ERROR_CHARACTERS = 1000
_AT_ONCE_S = 10**9
_MAX_SECONDS = 10**9

_RECORD_BYTES = 500
_HEADER_BYTES = 200
"""Memory of a message and of a header without their contents, about."""


class Later(NamedTuple):
    """A timer that returns a message, counted from the brokers' time in the transaction that holds its request."""

    after_ms: int
    value: bytes
    headers: list[tuple[str, bytes | str | None]]
    source: str


class Guarding(NamedTuple):
    """A timer with an id that returns a message, counted as :class:`Later`."""

    id: str
    after_ms: int
    value: bytes
    headers: list[tuple[str, bytes | str | None]]
    source: str


class Letter(NamedTuple):
    """A dead letter. Its key is a due second, which the transaction sets; None if the letter is truncated."""

    has_key: bool
    value: bytes | None
    headers: list[Header]
    source: str


class Output(NamedTuple):
    """A record of the handler, which is visible to committed readers when its message is done, and not before."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | str | None]]
    source: str


class Delivered(Protocol):
    """What this module reads of a delivered message."""

    @property
    def attempt(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def sent_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[Header]: ...


def identity(message: Any, signing: Signing | None, cuts: Cuts = ()) -> Identity:
    """Return what a record of the queue's topic is, or with ``signing`` one of its returns topic.

    After a cut of the log, its source carries the number of the cut: other messages had the offsets before.

    Only on the returns topic do the headers count, and only if the queue has signed them: a program that copies headers
    to a new message of the queue's topic copies these too.
    """
    own = topics.source(message.topic(), message.partition(), message.offset(), cuts)
    made = Identity(own, message.timestamp()[1], 1)
    if signing is None:
        return made
    return signing.identity(made, message.key(), message.value(), headers_of(message))


def user_headers(headers: Sequence[Header], *, returned: bool) -> list[Header]:
    """Return the headers of a message without those that its return added."""
    if not returned:
        return list(headers)
    return [header for header in h.without_timer_headers(headers) if header[0] not in OWN]


def seconds(name: str, given: object) -> float:
    """Return a number of seconds that a caller gave.

    Raises:
        InvalidTimerError: it is no number, negative, or far too large.
    """
    try:
        checked = float(given) if isinstance(given, Real | Decimal) and not isinstance(given, bool) else math.nan
    except (ArithmeticError, ValueError):
        checked = math.nan
    if not 0 <= checked <= _MAX_SECONDS:
        raise InvalidTimerError(f"{name}={quoted(given)} is not a number of seconds from 0 to {_MAX_SECONDS}")
    return checked


def later(message: Delivered, signing: Signing, after_s: float, error: str, max_request_bytes: int) -> Later:
    """Return the timer of a message's next delivery.

    Raises:
        InvalidTimerError: the message is too large for a request.
    """
    more = [(ERROR, error[:_MAX_ERROR_CHARACTERS].encode(errors="replace"))] if error else []
    _, value, headers = Encoder(max_request_bytes)(_return(message, signing, message.attempt, more))
    return Later(math.ceil(after_s * 1000), value, headers or [], message.source)


def guarding(message: Delivered, signing: Signing, after_s: float, id: str, max_request_bytes: int) -> Guarding:
    """Return the timer that returns a message at the end of its lease.

    Raises:
        InvalidTimerError: the message is too large for a request.
    """
    why = "the partition moved, and then the lease ended"
    timer = later(message, signing, max(0.0, after_s), why, max_request_bytes)
    return Guarding(id, *timer)


def _return(message: Delivered, signing: Signing, attempt: int, more: Sequence[Header] = ()) -> TimerRequest:
    """The request of a timer that returns a message."""
    kept = [each for each in h.without_timer_headers(message.headers) if each[0] not in OWN]
    own = signing.sign(message.source, message.sent_ms, attempt, message.key, message.value)
    value = message.value or b""
    return TimerRequest(signing.returns_topic, message.key, value, at=_AT_ONCE_S, headers=[*kept, *more, *own])


def letter(message: Delivered, signing: Signing, code: str, reason: str, max_request_bytes: int) -> Letter:
    """Return the dead letter of a message. It contains a request that returns the message to this queue only, as its
    first attempt."""
    key, value, headers = Encoder(2**31)(_return(message, signing, 0))
    all_headers = [(name, data) for name, data in headers or () if not isinstance(data, str)]
    sentence = reason[:_MAX_ERROR_CHARACTERS].encode(errors="replace").decode()
    rejected = Rejected(0, code, sentence, key, value, all_headers)
    encoded = dead_letter.encode(rejected, message.source, max_request_bytes + dead_letter.OVERHEAD_BYTES)
    return Letter(encoded.key is not None, encoded.value, encoded.headers, message.source)


def truncated_letter(record: Later | Letter | Output, reason: str) -> Letter:
    """Return a truncated dead letter in place of a record that the brokers refuse."""
    errors = dead_letter.decode(record.headers) if isinstance(record, Letter) else None
    code = dead_letter.REJECTED if errors is None else errors.code
    encoded = dead_letter.encode(Rejected(0, code, reason, None, None, []), record.source, 0)
    return Letter(False, None, encoded.headers, record.source)


def output(message: Delivered, topic: str, key: Any, value: Any, headers: HeadersLike = ()) -> Output:
    """Return a record to be written when ``message`` is done.

    Raises:
        InvalidTimerError: the topic is not legal, or key, value or headers cannot be sent.
    """
    if not isinstance(topic, str) or not topics.is_legal(topic):
        raise InvalidTimerError(f"output topic {quoted(topic)} is not {topics.LEGAL_FORM}")
    sent = [None if each is None else as_bytes(each) for each in (key, value)]
    return Output(topic, sent[0], sent[1], sent_headers(headers), message.source)


def as_bytes(data: object) -> bytes:
    """Return bytes as they are, and text in UTF-8.

    Raises:
        InvalidTimerError: it is neither, or text that UTF-8 cannot carry.
    """
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError:
            raise InvalidTimerError(f"{quoted(data):.80} has characters that UTF-8 cannot carry: give bytes") from None
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidTimerError(
            f"{quoted(data):.80} is of type {type(data).__name__}: give bytes or str, or None for null"
        )
    return bytes(data)


def due_key(append_ms: int, after_ms: int) -> bytes:
    """Return the record key of a request that is due ``after_ms`` after an append time, rounded up to whole seconds."""
    return b"%d" % -(-(append_ms + after_ms) // 1000)


def size_of(record: Any) -> int:
    """Return the bytes of a record that is kept: key, value and headers, and what Python adds to each of them."""
    key, headers = record.key(), headers_of(record)
    size: int = _RECORD_BYTES + len(record) + (len(key) if key else 0)
    if headers:
        size += sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)
    return size
