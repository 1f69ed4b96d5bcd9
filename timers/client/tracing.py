"""Traces across the wait: who asked for a callback, and how late it came.

The client puts the current context of OpenTelemetry into the headers of a request, as its propagator writes it:
``traceparent``, ``tracestate`` and ``baggage``. The callback has them too. :func:`callback_span` opens a span for what
the receiver does with it. This span is the root of a new trace, and has a *link* to the context in the headers: as a
child it would make a trace as long as the wait, which samplers that look at whole traces have given up by then.

This needs ``opentelemetry-api``, and only in programs that use it: nothing here imports it before the program has done
so. An error of OpenTelemetry never reaches the caller: a timer is worth more than its trace.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any

from timers.client.request import sent_headers
from timers.client.tokens import given_headers
from timers.process.config.settings import of_environment
from timers.wire import headers as h
from timers.wire import topics
from timers.wire.headers import Header

_log = logging.getLogger("timers.client")

_given: ContextVar[Sequence[Header]] = ContextVar("timers_trace", default=())

_MOST_CHARACTERS = 300
"""Of an attribute: any sender of a record chooses its headers."""

_MOST_BYTES = 8192
"""Of a header: https://www.w3.org/TR/baggage/#limits."""

_MOST_DIGITS = 14
"""Of a time in an attribute. A collector refuses all spans of a batch in which a number has more than 63 bits."""


@cache
def _is_on() -> bool:
    return bool(of_environment("tracing"))


def current() -> Sequence[Header]:
    """The headers of the current context: of the program's OpenTelemetry, or else what :func:`given` gave.

    Empty if there is no context, or ``TIMERS_TRACING`` is 0. Takes 0.3 µs without a context.
    """
    if not _is_on():
        return ()
    context = _context()
    return (_injected(context) if context else ()) or _given.get()


class Current:
    """:func:`current` for many timers: each context is written once."""

    __slots__ = ("_context", "_headers")

    def __init__(self) -> None:
        self._context: object = None
        self._headers: Sequence[Header] = ()

    def __call__(self) -> Sequence[Header]:
        context = _context()
        if context is not self._context or not context:
            self._context, self._headers = context, current()
        return self._headers


@contextmanager
def given(headers: Sequence[Header]) -> Iterator[None]:
    """Inside the block, timers get these headers, if the program has no context of OpenTelemetry: what another process
    said in an HTTP request, in its environment, or in a row of a database."""
    token = _given.set(headers)
    try:
        yield
    finally:
        _given.reset(token)


_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(-[!-~]{{1,200}})?")
"""https://www.w3.org/TR/trace-context/#traceparent-header. A later version may have more behind it."""

_PRINTABLE = re.compile(r"[\t -~]{1,512}")
"""So much of ``tracestate`` W3C asks to pass on. A small request for a thousand timers must not make a large batch."""


def said(parts: Mapping[str, str]) -> list[Header]:
    """The headers for :func:`given` in what another process said, such as the headers of an HTTP request.

    Args:
        parts: any names and values, without line ends. What is not as W3C defines it, or longer than 512 characters, is
            left out.
    """
    is_traced = _TRACEPARENT.fullmatch(parts.get(h.TRACEPARENT, "")) is not None
    names = (h.TRACEPARENT, h.TRACESTATE, h.BAGGAGE) if is_traced else (h.BAGGAGE,)
    return [(name, parts[name].encode()) for name in names if _PRINTABLE.fullmatch(parts.get(name, ""))]


def _context() -> Any:
    """The current context; None or empty if there is none."""
    get_current = getattr(sys.modules.get("opentelemetry.context"), "get_current", None)
    return None if get_current is None else get_current()


def _injected(context: Any) -> Sequence[Header]:
    """What the propagator of the program writes for a context. What no receiver would read is left out, and what would
    change the timer."""
    carrier: dict[str, str] = {}
    with _quietly("a timer has no trace context"):
        from opentelemetry import propagate

        propagate.inject(carrier, context)
        headers = sent_headers(carrier)
        return tuple(
            (name, value)
            for name, value in headers
            if value and len(value) <= _MOST_BYTES and not name.startswith(h.PREFIX)
        )
    return ()


@contextmanager
def _quietly(effect: str) -> Iterator[None]:
    """Log an error of OpenTelemetry, and of what it calls; raise none. The first one of an effect is a warning: it may
    come with each timer."""
    try:
        yield
    except Exception as error:
        level = logging.DEBUG if effect in _warned else logging.WARNING
        _warned.add(effect)
        _log.log(level, "%s, because OpenTelemetry failed: %r", effect, error)


_warned: set[str] = set()


@contextmanager
def callback_span(message: Any, *, group: str = "") -> Iterator[Any]:
    """Open a span around what a receiver does with a callback, as the current one::

        with callback_span(message, group="billing"):
            expire_order(message.key())

    It is the root of a new trace, and links to the context in which the timer was set, or the message was sent again;
    ``baggage`` of that context is there again. ``docs/tracing.md`` lists its attributes. An exception is recorded, and
    raised. It serves coroutines too.

    Args:
        message: the message of a consumer: confluent-kafka's ``Message``, aiokafka's ``ConsumerRecord``, Faust's event,
            or one of a queue.
        group: name of the consumer group, for an attribute.

    Yields:
        The span; None in a program that has not imported ``opentelemetry.trace``, or with ``TIMERS_TRACING=0``.
    """
    opened = None
    if "opentelemetry.trace" in sys.modules and _is_on():
        with _quietly("a callback has no span"):
            opened = _opened(message, group)
    if opened is None:
        yield None
        return
    span, close = opened
    try:
        yield span
    except BaseException as error:
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            fail(span, error)
        raise
    finally:
        with _quietly("a span is lost"):
            close()


def fail(span: Any, error: BaseException) -> None:
    """Say in a span of :func:`callback_span` that an exception was raised. It raises nothing of the exception."""
    if span is None:
        return
    with suppress(BaseException):
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR))
        span.record_exception(error)


def _opened(message: Any, group: str) -> tuple[Any, Callable[[], None]]:
    """A new span, which is current, and a function that ends it."""
    from opentelemetry import baggage, context, propagate, trace

    message = getattr(message, "message", message)  # of Faust's event
    given = (given_headers(message) if hasattr(message, "headers") else None) or ()
    pairs = given.items() if isinstance(given, Mapping) else given
    headers = [(name, value) for name, value in pairs if isinstance(value, bytes)]
    found = propagate.extract(_carrier(headers, propagate.get_global_textmap().fields), context.Context())
    asked = trace.get_current_span(found).get_span_context()
    # Baggage of the loop that receives is that of another request.
    around = context.Context({**baggage.clear(context.get_current()), **found})
    topic, attributes = _attributes(message, headers, group)
    span = trace.get_tracer("timers", _version()).start_span(
        f"process {topic}" if topic else "process",
        trace.set_span_in_context(trace.INVALID_SPAN, around),  # no child of what is current here
        trace.SpanKind.CONSUMER,
        attributes,
        [trace.Link(asked)] if asked.is_valid else [],
    )
    token = context.attach(trace.set_span_in_context(span, around))

    def close() -> None:
        context.detach(token)
        span.end()

    return span, close


@cache
def _version() -> str:
    from timers import __version__  # it is read from a file, in a millisecond

    return __version__


def _carrier(headers: Sequence[tuple[str, bytes]], fields: Collection[str]) -> dict[str, str]:
    """What the propagator reads of headers; of a name that repeats, the last one. A sender may write anything there,
    and propagators log what they cannot read."""
    read = {name: value for name, value in headers if name in fields and name not in h.TRACE_HEADERS}
    read |= {name: value for name, value in h.newest_context(headers) if value is not None}
    return {name: value.decode(errors="replace") for name, value in read.items() if len(value) <= _MOST_BYTES}


def _attributes(message: Any, headers: Sequence[tuple[str, bytes]], group: str) -> tuple[str, dict[str, Any]]:
    """The topic of a message, and the attributes of its span. What is not known is left out."""
    place = _part(message, "topic"), _part(message, "partition"), _part(message, "offset")
    if place[0] is None and (source := topics.parse_source(str(_part(message, "source")))):
        place = source
    topic, partition, offset = place
    found: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": None if partition is None else str(partition),
        "messaging.kafka.offset": offset,
        "messaging.kafka.message.key": _text(_part(message, "key")),
        "messaging.consumer.group.name": group or _part(message, "group"),
        **_of_timer(dict(headers), _part(message, "attempt")),
    }
    return topic or "", {name: value for name, value in found.items() if isinstance(value, str | int)}


def _part(message: Any, name: str) -> Any:
    """A part of a message, which is an attribute or a method; None if it has none of this name."""
    value = getattr(message, name, None)
    return value() if callable(value) else value


def _of_timer(headers: dict[str, bytes], attempt: Any) -> dict[str, Any]:
    """What the headers of a callback say of its timer."""
    due_s, nominal_s, fired_ms = (_time(headers.get(name)) for name in (h.TIMER_DUE, h.TIMER_NOMINAL, h.TIMER_FIRED))
    retries = _time(headers.get(h.ATTEMPT)) or 0
    attempt = attempt if isinstance(attempt, int) else retries + 1
    way = "timer" if due_s is not None else "message"
    return {
        "timers.id": _text(headers.get(h.TIMER_ID)),
        "timers.due_s": due_s,
        "timers.nominal_s": nominal_s,
        "timers.fired_ms": fired_ms,
        "timers.lag_ms": None if due_s is None or fired_ms is None else fired_ms - due_s * 1000,
        "timers.way": "retry" if attempt > 1 else "repeat" if nominal_s is not None else way,
        "timers.attempt": attempt,
    }


def _time(digits: bytes | None) -> int | None:
    return h.number(digits) if digits is not None and len(digits) <= _MOST_DIGITS else None


def _text(value: object) -> str | None:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return None if text is None else str(text)[:_MOST_CHARACTERS]
