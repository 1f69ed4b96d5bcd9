"""The record headers that the engine writes or reads. Names are wire format: they change only with a version."""

from collections.abc import Sequence
from typing import TypeAlias

from timers.core import repeating

Header: TypeAlias = tuple[str, bytes | None]
"""One record header. Kafka allows repeated names, keeps the order, and allows null values."""

PREFIX = "timer-"
"""Prefix of the engine's headers. Such headers of a request are dropped: a receiver may have copied them from a
callback, so they are not trusted."""

TIMER_ID = "timer-id"
"""On a callback: the id of the timer, or ``<topic>/<partition>/<offset>`` of its request if it has none."""

TIMER_DUE = "timer-due"
"""On a callback, on a request for a timer with an id, and on a cold request: the due epoch second, in ASCII digits."""

TIMER_FIRED = "timer-fired"
"""On a callback: epoch milliseconds of the tick that fired it, in ASCII digits."""

TIMER_ATTEMPT = "timer-attempt"
"""On the retry topic only: how many attempts to send have failed, in ASCII digits."""

TIMER_TOPIC = repeating.TARGET
"""On a request without protobuf: the callback topic. The value of such a record is the payload, as it is."""

TIMER_KEY = "timer-key"
"""On a request: the callback's key if it is null or not text, because a ``Future`` cannot hold such a key, or if the
request is one without protobuf."""

TIMER_AGAIN = "timer-again"
"""On a request that is published again after its timer failed: its former due epoch second, in ASCII digits. The timer
then has no id, even if the record has one, because a newer timer may have this id now. The header has no effect if
that second is after the timestamp of the record."""

TIMER_IF = "timer-if"
"""On a request or a cancel of a timer with an id: its condition. ``absent``, or the source of the version that it was
made for (:mod:`timers.core.only_if`)."""

TIMER_VERDICT = "timer-verdict"
"""On a request with an id, with any value: it gets a verdict also if there is no timer with its id."""

TIMER_REPEAT = repeating.REPEAT
"""On a request with an id: when its timer repeats (:mod:`timers.wire.repeat`). Such a request has no due second."""

TIMER_FOLLOWS = "timer-follows"
"""On an occurrence of a timer that repeats: offset of the record of the same id that it follows, in ASCII digits. It
counts only if that is the latest one."""

TIMER_VERSION = repeating.VERSION
"""On an occurrence of a timer that repeats, on its callback, and on a record about missed ones: source of the request
that says how it repeats."""

TIMER_NOMINAL = repeating.NOMINAL
"""On an occurrence of a timer that repeats and on its callback: the epoch second that its rule names, without its share
of the spread, in ASCII digits."""

TIMER_WAYPOINT = repeating.WAYPOINT
"""On an occurrence that sends nothing: up to this nominal second all was sent or missed, in ASCII digits."""

TIMER_OWED = repeating.OWED
"""On an occurrence: it is sent, and those after it up to this nominal second, however late they are; ASCII digits."""

TIMER_LAST = repeating.LAST
"""On the last occurrence of a timer that repeats: ``1``."""

TIMER_NEXT = repeating.NEXT
"""On the callback of a timer that repeats: nominal second of the next one, as far as it is known, in ASCII digits."""

TIMER_REQUEST_HASH = "timer-request-hash"
"""On a request that the HTTP API got with an ``Idempotency-Key``: hashes of the key and of the body."""

TIMER_ROW = "timer-row"
"""On a request that a relay of an outbox has sent: the id of its row, by which the next relay finds it."""

TIMER_ERROR = "timer-error"
"""On a dead letter: the error code."""

TIMER_ERROR_MESSAGE = "timer-error-message"
"""On a dead letter: one sentence for a person."""

TIMER_VALUE_BYTES = "timer-value-bytes"
"""On a dead letter with only the first bytes of its request's value: the length of the whole value."""

TIMER_VALUE_SHA256 = "timer-value-sha256"
"""On such a dead letter: the SHA-256 of the whole value, in hexadecimal."""

TIMER_SOURCE = "timer-source"
"""On a dead letter, a verdict and a cold request: ``<topic>/<partition>/<offset>`` of the request. On a callback: the
same, for a timer with an id, because an id may be used again. On the retry topic: also for a timer that was cold."""

TIMER_MOVED = "timer-moved"
"""On a verdict, with the value ``1``: the partition of its id had no leader a short time ago, so verdicts on the same
id may be on two partitions, and a reader may get them in another order."""

TIMER_PROMOTED = "timer-promoted"
"""On a promoted copy of a cold request: ``<topic>/<partition>/<offset>`` of the request. It counts only with its seal,
and only if these two are the last headers."""

TIMER_APPENDED = "timer-appended"
"""On a cold request: epoch milliseconds of its append time, in ASCII digits."""

TIMER_SEAL = "timer-seal"
"""On a cold request and on its copy: proves that the machine of its partition sent it to the cold tier unchanged."""

TIMER_TIMESTAMP = "timer-timestamp"
"""In the store only, before the headers of a schedule: the timestamp of its record in epoch milliseconds."""

TIMER_FIRED_OFFSET = "timer-fired-offset"
"""On a tombstone of the engine in a schedule topic: offset of the version that has fired, in ASCII digits."""

DEPTH = "callback-depth"
"""On a request that a timer sent and that sets another timer: how many timers set each other before it, one after
the other, in ASCII digits. The name does not begin with `timer-`, because the header must reach the next request. A
producer may set it too: then the limit comes earlier."""

MAX_DEPTH_DIGITS = 9

SET = "timers-set"
"""Name of the set of timers of a file (``timers apply``). It does not begin with ``timer-``, so callbacks have it."""

TOKEN = "callback-token"
"""A cancellation token that the client adds to a request and the receiver reads. The name does not begin with `timer-`,
because such headers do not reach the receiver."""


ATTEMPT = "retry-attempt"
"""On a message that its receiver has sent again (``retry_later``, queues): number of the retry, in ASCII digits. The
first attempt has no such header. The name does not begin with ``timer-``, because workers remove such headers."""

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
BAGGAGE = "baggage"
TRACE_HEADERS = frozenset((TRACEPARENT, TRACESTATE, BAGGAGE))
"""Headers of W3C that name the context of a trace. Callbacks have them; the client writes them."""

SPAN_HEADERS = frozenset((TRACEPARENT, TRACESTATE))
"""What belongs together: the state is that of the trace."""

TIMER_TRACE = "timer-trace-"
"""On a request for a timer that repeats: before ``traceparent`` and ``tracestate``, which its callbacks have. They do
not say what the timer is: a request that differs in nothing else is ``unchanged``. There is no baggage, because it
would stay for years, and what is ``unchanged`` cannot remove it."""

SCHEMA_IDS = frozenset(("__key_schema_id", "__value_schema_id"))
"""Headers in which serializers of a schema registry say how they wrote key and value of the record."""


def identity(id: bytes, source: bytes) -> list[Header]:
    """Return the headers of a callback that identify its timer; ``timer-source`` only if the id is not the source."""
    return [(TIMER_ID, id)] if id == source else [(TIMER_SOURCE, source), (TIMER_ID, id)]


def firing(due_s: int, fired_ms: bytes) -> list[Header]:
    """Return the last headers of a callback: the due second, and the time of the tick in epoch milliseconds."""
    return [(TIMER_DUE, b"%d" % due_s), (TIMER_FIRED, fired_ms)]


def last(headers: Sequence[Header], name: str) -> bytes | None:
    """Return the value of the last header of this name; None if there is none."""
    return next((value for found, value in reversed(headers) if found == name), None)


def number(digits: bytes | None) -> int | None:
    """Return the number in ASCII digits, of at most 19; None if it is none."""
    return int(digits) if digits is not None and digits.isdigit() and len(digits) <= 19 else None


def depth(headers: Sequence[Header]) -> int:
    """Return how many timers set each other before this request, from the header; 0 without a valid header."""
    text = last(headers, DEPTH)
    return int(text) if text is not None and text.isdigit() and len(text) <= MAX_DEPTH_DIGITS else 0


HEX_PREFIX = "\\x"
"""Prefix of an id that is shown as hex digits."""


def id_shown(id: bytes) -> str:
    """Return a timer's id as text: the id itself, or ``\\x`` and hex digits if it is not UTF-8.

    Two ids never have the same text: an id that begins with ``\\x`` is also shown as hex digits.
    """
    try:
        text = id.decode()
    except UnicodeDecodeError:
        return HEX_PREFIX + id.hex()
    return HEX_PREFIX + id.hex() if text.startswith(HEX_PREFIX) else text


def timer_headers(headers: Sequence[Header]) -> dict[str, bytes | None]:
    """Return the headers of the engine by name. If one is repeated, the last one counts."""
    return {name: value for name, value in headers if name.startswith(PREFIX)}


def without_timer_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers that go from a request to its callback, in order, with repeated names and null values."""
    return [header for header in headers if not header[0].startswith(PREFIX)]


def without_schema_ids(headers: Sequence[Header]) -> list[Header]:
    """Return the headers that go to the callback of a ``Future`` from :data:`timers.core.levels.REPEATS_LEVEL` on.

    Its schema, and that of the record's key, are not those of the callback.
    """
    return [header for header in headers if header[0] not in SCHEMA_IDS]


def has_schema_ids(headers: Sequence[Header]) -> bool:
    """Return whether headers name schemas of a registry."""
    return any(name in SCHEMA_IDS for name, _ in headers)


class OneContext(list[tuple[str, str | bytes | None]]):
    """Headers of a record that is given to a producer, to which it adds no second trace context.

    A producer that OpenTelemetry instruments appends a context of its own, each time it is called for the record. The
    one that is there says more: it is that of the code that has asked for the record.
    """

    def append(self, header: tuple[str, str | bytes | None]) -> None:
        name = header[0].lower()
        there = {found.lower().removeprefix(TIMER_TRACE) for found, _ in self}
        if name not in there and not (name in SPAN_HEADERS and there & SPAN_HEADERS):
            super().append(header)


def with_context(headers: Sequence[Header], context: Sequence[Header]) -> list[Header]:
    """Return headers with those of a trace context, unless they name one of their own. Baggage is for itself."""
    given = {name.lower() for name, _ in headers}
    if given & {*SPAN_HEADERS, *(name for name, _ in context if name != BAGGAGE)}:
        given |= {name for name, _ in context if name != BAGGAGE}
    return [*headers, *(header for header in context if header[0] not in given)]


def newest_context(headers: Sequence[Header]) -> list[Header]:
    """Return the newest trace context of W3C among headers, with names in lower case.

    A producer adds its context behind those that are there: ``traceparent`` and then ``tracestate``, or the other way
    round. State counts if it can be of this ``traceparent`` only: other state would be a lie about the trace.
    """
    named = [(name.lower(), value) for name, value in headers]
    parents = [place for place, (name, _) in enumerate(named) if name == TRACEPARENT]
    found: list[Header] = []
    if parents:
        found.append(named[parents[-1]])
        behind = [header for header in named[parents[-1] + 1 :] if header[0] == TRACESTATE]
        if len(parents) == 1:
            behind = [header for header in named if header[0] == TRACESTATE]
        found += behind[-1:]
    return found + [header for header in named if header[0] == BAGGAGE][-1:]


def renewed(headers: Sequence[Header], context: Sequence[Header] = ()) -> list[Header]:
    """Return the headers of a message that is sent again, with one trace context: the given one, or its newest one.

    Producers that write a trace context add it to the headers that are there, and readers take the first one: without
    this, a message that was retried twice has three of them, and its receiver finds the oldest.
    """
    fresh = {name for name, _ in context}
    if fresh - {BAGGAGE}:
        fresh |= SPAN_HEADERS
    kept = [header for header in headers if header[0].lower() not in TRACE_HEADERS | fresh]
    return [*kept, *(header for header in newest_context(headers) if header[0] not in fresh), *context]


def with_span_apart(headers: Sequence[Header], context: Sequence[Header], most_bytes: int) -> list[Header]:
    """Return the headers of a request for a timer that repeats, with what :data:`TIMER_TRACE` says of a trace context:
    their own one, or else the given one. What has no room in ``most_bytes`` of all names and values is left out."""
    others = [header for header in headers if header[0].lower() not in SPAN_HEADERS]
    room = most_bytes - sum(len(name.encode()) + len(value or b"") for name, value in others)
    for name, value in newest_context(headers if len(others) < len(headers) else context):
        size = len(TIMER_TRACE + name) + len(value or b"")
        if name in SPAN_HEADERS and size <= room:
            room -= size
            others.append((TIMER_TRACE + name, value))
    return others


def traced(headers: Sequence[Header]) -> list[Header]:
    """Return the trace context in the headers of a request for a timer that repeats, as its callbacks have it."""
    names = {TIMER_TRACE + name: name for name in SPAN_HEADERS}
    return [(names[name], value) for name, value in headers if name in names]
