"""Checks the arguments of a timer and encodes them as the record of a request.

Pure, except for the clock to which delays are added. Both clients and the command line use :class:`Encoder`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from timers.client.times import LEAST_AT_S, At, due_second
from timers.core.operation import ABSENT
from timers.core.printable import is_utf8, quoted
from timers.errors import InvalidTimerError, TimersError, TimerTooLargeError
from timers.v1.future_pb2 import Future
from timers.wire import headers as names
from timers.wire import topics
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import future_by_id
from timers.wire.future import encode_by_headers
from timers.wire.headers import Header
from timers.wire.repeat import MAX_REPEATING_HEADER_BYTES, MAX_REPEATING_VALUE_BYTES, Repeat

BytesLike: TypeAlias = bytes | bytearray | memoryview
HeadersLike: TypeAlias = Mapping[str, BytesLike | str | None] | Iterable[tuple[str, BytesLike | str | None]] | None
"""Record headers from callers; None for none. Pairs keep their order and may repeat a name; a mapping cannot."""


class TimerRequest(NamedTuple):
    """One timer to schedule: the arguments of :meth:`timers.client.TimersClient.schedule`, in their order.

    A named tuple: bulk callers make millions of them.

    ``Future.callBackKey`` is text: any other key goes in the header ``timer-key``.
    """

    topic: str
    key: str | BytesLike | None
    value: str | BytesLike
    at: At | None = None
    delay: timedelta | float | None = None
    headers: HeadersLike = ()
    token: str | None = None
    id: str | None = None
    repeat: Repeat | None = None

    def first_due(self, now_s: int) -> int:
        """When the timer is due, whose ``at`` is an epoch second; or first due, if it is set now and repeats."""
        due_s = self.at if self.repeat is None else self.repeat.first_due(now_s, id_key(self.id or ""))
        assert isinstance(due_s, int)  # it was checked before
        return due_s


Record: TypeAlias = tuple[bytes, bytes, list[Header] | None]
"""Key, value and headers of a request's Kafka record."""


class Encoder:
    """Makes the record that asks for a timer. One for each thread.

    It runs for every timer of ``schedule_many``, so it must be fast. It reuses a protobuf message, keeps topic and due
    second for the next request, and looks for the cause of an error only after the error. 0.9 µs a timer, half of it in
    protobuf.

    Args:
        max_request_bytes: largest record value that the worker accepts (``TIMERS_MAX_REQUEST_BYTES``).
        own_topics: topics of the engine. A timer that repeats must not send to them: each of its callbacks would be
            another request.
        context: returns the headers of the current trace context.
    """

    __slots__ = ("_context", "_due_s", "_future", "_max_request_bytes", "_own_topics", "_record_key", "_topic")

    def __init__(
        self,
        max_request_bytes: int,
        own_topics: Collection[str] = (),
        context: Callable[[], Sequence[Header]] = tuple,
    ) -> None:
        self._context = context
        self._max_request_bytes = max_request_bytes
        self._own_topics = own_topics
        self._future = Future()
        self._topic: object = object()  # not equal to any topic
        self._due_s = -1
        self._record_key = b""

    def __call__(self, request: TimerRequest, context: Sequence[Header] | None = None) -> Record:
        """The record of one request.

        Args:
            context: headers of a trace context; None takes those of the current one.

        Raises:
            InvalidTimerError: with one sentence that says which part is wrong and what it should be.
        """
        try:
            topic, key, value, at, delay, headers, token, id, repeat = request
            if repeat is not None:
                return self.definition(request, int(time.time()))
            due_s = at if type(at) is int and at == self._due_s and delay is None else due_second(at, delay)
            if due_s != self._due_s:
                self._record_key = b"%d" % due_s
                self._due_s = due_s
            future = self._future
            if topic != self._topic:
                if not isinstance(topic, str) or not topics.is_legal(topic):
                    raise InvalidTimerError(f"callback topic {quoted(topic):.100} is not {topics.LEGAL_FORM}")
                future.callBackTopic = topic
                self._topic = topic
            extra_headers: list[Header] = []
            try:
                future.callBackKey = key  # type: ignore[assignment]  # protobuf takes UTF-8 bytes for a string
            except (TypeError, ValueError):
                if isinstance(key, bytearray | memoryview):
                    return self(TimerRequest(*request)._replace(key=bytes(key)), context)
                if key is not None and not isinstance(key, bytes):
                    raise
                future.callBackKey = ""
                extra_headers = [(names.TIMER_KEY, key)]
            future.callBack = value if type(value) is bytes else _bytes(value)
            payload = future.SerializeToString()
            if len(payload) > self._max_request_bytes:
                raise TimerTooLargeError(
                    f"this timer makes a request of {len(payload)} bytes, and the limit is "
                    f"TIMERS_MAX_REQUEST_BYTES={self._max_request_bytes}: raise it for workers and clients, or send a "
                    "reference instead of the data"
                )
            if context is None:
                context = self._context()
            if not headers and not extra_headers and token is None and id is None and not context:
                return self._record_key, payload, None
            sent = [*_headers(headers, token), *extra_headers]
            if context:
                sent = names.with_context(sent, context)
            if names.has_schema_ids(sent):  # of key and payload of the callback: those of a Future do not arrive
                payload = future.callBack
                sent += encode_by_headers(topic, None if extra_headers else future.callBackKey)
            if id is None:
                return self._record_key, payload, sent
            return id_key(id), payload, [*sent, *future_by_id.encode_headers(due_s)]
        except InvalidTimerError:
            raise
        except Exception as error:  # objects of callers convert and compare themselves, as those of numpy and pandas do
            raise InvalidTimerError(_what_is_wrong(request)) from error

    def definition(self, request: TimerRequest, now_s: int) -> Record:
        """The record of a timer that repeats, requested at ``now_s``. It has no due second.

        Raises:
            InvalidTimerError: as for other requests; or its rule never comes again, or it has no id.
        """
        request = TimerRequest(*request)  # a plain tuple serves, too
        repeat = request.repeat
        if not isinstance(repeat, Repeat):
            raise InvalidTimerError(
                f"repeat={quoted(repeat):.100} is no Repeat: make one with Repeat.cron(...) or Repeat.every(...)"
            )
        if request.at is not None or request.delay is not None:
            raise InvalidTimerError("a timer that repeats has neither at nor delay: its rule may have from_=...")
        if request.id is None:
            raise InvalidTimerError("a timer that repeats needs an id, by which it is cancelled: give id=...")
        if request.topic in self._own_topics:
            raise InvalidTimerError(
                f"callback topic {quoted(request.topic)} is one of the engine: a timer that repeats makes no requests"
            )
        repeat.check(now_s)
        key, payload, headers = self(request._replace(repeat=None, at=LEAST_AT_S), ())
        sent = [*(headers or ())[:-1], (names.TIMER_REPEAT, repeat.to_header())]
        header_bytes = sum(len(name.encode()) + len(value or b"") for name, value in sent)
        if len(payload) > MAX_REPEATING_VALUE_BYTES or header_bytes > MAX_REPEATING_HEADER_BYTES:
            raise TimerTooLargeError(
                f"this timer makes a request of {len(payload)} bytes and {header_bytes} of headers, and one that "
                f"repeats may have {MAX_REPEATING_VALUE_BYTES} and {MAX_REPEATING_HEADER_BYTES}, because each "
                "occurrence is written to the log: send a reference instead of the data"
            )
        return key, payload, names.with_span_apart(sent, self._context(), MAX_REPEATING_HEADER_BYTES)


def wrong_request(index: int, error: TimersError) -> str:
    """What ``schedule_many`` says about a wrong request, if those before it are scheduled."""
    before = f"the {index} before it are scheduled" if index else "nothing is scheduled"
    return f"request {index}: {error} ({before})"


def id_key(id: str) -> bytes:
    """The record key of a timer with an id.

    Raises:
        InvalidTimerError: it is no str, is empty or too long, or cannot be part of a verdict.
    """
    if not isinstance(id, str):
        raise InvalidTimerError(f"id {quoted(id):.100} is of type {type(id).__name__}: give a str")
    try:
        key = id.encode(errors="surrogateescape")
        future_by_id.decode_id(key)
    except UnicodeEncodeError:
        raise InvalidTimerError(f"the id {quoted(id):.100} has characters that UTF-8 cannot carry") from None
    except InvalidRequestError as error:
        raise InvalidTimerError(str(error)) from None
    return key


def condition_headers(condition: str | None) -> list[Header]:
    """The header of a condition: ``absent``, or the source of a version; None for none.

    Raises:
        InvalidTimerError: it is neither; a worker would answer with a dead letter, and no verdict would come.
    """
    is_text = isinstance(condition, str)
    if condition is not None and not (is_text and (condition == ABSENT or topics.parse_source(condition))):
        raise InvalidTimerError(
            f"if_source={quoted(condition):.100} is not the source of a version, <topic>/<partition>/<offset>: "
            "`version` of a verdict, or what `timers get` shows"
        )
    return future_by_id.encode_condition(condition)


def answered_headers(request: TimerRequest, condition: str | None) -> list[Header]:
    """The headers of a request that gets a verdict in any case: its condition, or the wish for a verdict. A request for
    a timer that repeats always gets one.

    Raises:
        InvalidTimerError: as :func:`condition_headers`.
    """
    asks = condition is None and request.repeat is None
    return [(names.TIMER_VERDICT, b"wanted")] if asks else condition_headers(condition)


def _bytes(value: str | BytesLike) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def _what_is_wrong(request: object) -> str:
    """Why no record can be made of a request."""
    if not isinstance(request, tuple) or len(request) != len(TimerRequest._fields):
        return f"the request is of type {type(request).__name__}: give a TimerRequest"
    topic, key, value, at, delay, headers, *_ = request
    if not isinstance(topic, str):
        return f"callback topic {quoted(topic):.100} is not {topics.LEGAL_FORM}"
    try:
        due_second(at, delay)
        sent_headers(headers)
    except InvalidTimerError as error:
        return str(error)
    if key is not None and not isinstance(key, str | BytesLike):
        return f"callback key is of type {type(key).__name__}: give str, bytes, or None for none"
    if not isinstance(value, str | BytesLike):
        return f"callback value is of type {type(value).__name__}: give bytes or str (b'' for none)"
    if isinstance(key, str) and not is_utf8(key):
        return f"callback key {quoted(key):.100} has characters that UTF-8 cannot carry: give bytes"
    if isinstance(value, str) and not is_utf8(value):
        return f"callback value {quoted(value):.100} has characters that UTF-8 cannot carry: give bytes"
    return f"callback key {quoted(key):.50} or value {quoted(value):.50} cannot be read as bytes"


def sent_headers(headers: HeadersLike) -> list[Header]:
    """Headers as librdkafka takes them, in order, with values as bytes.

    Raises:
        InvalidTimerError: a name or a value cannot be sent. A name that is not UTF-8 would end the process in
            librdkafka.
    """
    try:
        pairs = [] if headers is None else list(headers.items() if isinstance(headers, Mapping) else headers)
    except Exception as error:
        raise InvalidTimerError(
            f"headers are of type {type(headers).__name__}: give a mapping or (name, value) pairs"
        ) from error
    return [_header(pair) for pair in pairs]


def _header(pair: object) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidTimerError(f"header {quoted(pair):.100} is not a (name, value) pair")
    name, value = pair
    if not isinstance(name, str) or not is_utf8(name) or "\0" in name:  # librdkafka cuts a name at its first NUL
        shown = quoted(name) if isinstance(name, str) else repr(name)  # quoted bytes would look like a str
        raise InvalidTimerError(f"header name {shown:.100} is not a str without NUL that UTF-8 can carry")
    if value is not None and not isinstance(value, str | BytesLike):
        raise InvalidTimerError(
            f"header {quoted(name):.100} has a value of type {type(value).__name__}: give bytes, str or None"
        )
    if isinstance(value, str) and not is_utf8(value):
        raise InvalidTimerError(f"header {quoted(name):.100} has characters that UTF-8 cannot carry: give bytes")
    return name, None if value is None else _bytes(value)


def _headers(headers: HeadersLike, token: str | None) -> list[Header]:
    """Checked headers and the token's header, which replaces a token among the given headers."""
    checked: list[Header] = []
    for name, value in sent_headers(headers):
        if name.startswith(names.PREFIX):
            raise InvalidTimerError(
                f"header {quoted(name):.100} is reserved: {names.PREFIX}* belongs to the engine; rename it, or leave "
                "it out if it was copied from a callback"
            )
        if token is None or name != names.TOKEN:
            checked.append((name, value))
    if token is not None:
        if not isinstance(token, str) or not token or not is_utf8(token):
            raise InvalidTimerError(
                f"token {quoted(token):.100} is not a non-empty str: make one with tokens.new_token()"
            )
        checked.append((names.TOKEN, token.encode()))
    return checked
