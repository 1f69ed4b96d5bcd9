"""Requests of the contract and their outcomes.

All cases share one run of an engine: it runs, it is down for some seconds while others tick, and it starts again. A due
second counts from the start of the phase in which its request is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from timers.wire import future
from timers.wire.headers import Header

EVERY_BYTE = bytes(range(256))
UNKNOWN_FIELD = b"\x7a\x01x"
"""A field that ``Future`` does not have. Dead letters keep it; it has no other effect."""

TARGET, NARROW, SHAKY = "target", "narrow", "shaky"
"""Stand for callback topics of the engine. The second one takes small messages only, the last one takes none until the
engine is down."""
NARROW_BYTES = 2000


class Phase(Enum):
    """When a request is sent."""

    UP = "while the engine runs"
    AWAY = "while the engine is down"
    BACK = "after its restart"


@dataclass(frozen=True)
class Callback:
    """The timer fires."""

    key: bytes = b"k"
    value: bytes = b"v"
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class Letter:
    """The request becomes a dead letter."""

    code: str
    said: str
    """A part of its sentence."""


@dataclass(frozen=True)
class Case:
    """One request."""

    key: Callable[[int], bytes | None]
    """Returns the record key, from the start of the phase."""
    value: Callable[[Callable[[str], str]], bytes | None]
    """Returns the record value, from a function that replaces names by topics."""
    becomes: Callback | Letter
    due_s: int | None = None
    """Due second, from the start of the phase."""
    headers: tuple[Header, ...] = ()
    phase: Phase = Phase.UP
    epoch: bool = False
    """``due_s`` is an epoch second."""


def _in(seconds: int) -> Callable[[int], bytes]:
    return lambda start_s: b"%d" % (start_s + seconds)


def _to(topic: str, key: str = "k", value: bytes = b"v", more: bytes = b"") -> Callable[[Callable[[str], str]], bytes]:
    return lambda name: future.encode(name(topic), key, value) + more


def _raw(data: bytes | None) -> Callable[[object], bytes | None]:
    return lambda _: data


def _timer(due_s: int, phase: Phase = Phase.UP, key: str = "k", value: bytes = b"v", **more: object) -> Case:
    return Case(
        _in(due_s),
        _to(TARGET, key, value),
        Callback(key.encode(), value),
        due_s,
        phase=phase,
        **more,  # type: ignore[arg-type]
    )


def _bad(code: str, said: str, key: object = None, value: object = None) -> Case:
    return Case(key or _in(3), value or _to(TARGET), Letter(code, said), headers=FORGED)  # type: ignore[arg-type]


KEPT: tuple[Header, ...] = (
    *(("b", b"1"), ("a", None), ("b", b"2"), ("b", b"1")),
    *(("", b"\x00\xff"), ("é", EVERY_BYTE), ("a", b"")),
)
SCHEMA_IDS: tuple[Header, ...] = (("__key_schema_id", b"\x01"), ("__value_schema_id", None))
FORGED: tuple[Header, ...] = (
    ("trace", b"1"),
    ("timer-id", b"mine"),
    ("trace", None),
    ("timer-due", b"0"),
    ("x", b"\xff"),
)
NOT_FORGED = tuple(header for header in FORGED if not header[0].startswith("timer-"))

CASES = {
    # ---- time
    "due in a moment": _timer(2),
    "due in a few seconds": _timer(3),
    "due now": _timer(0),
    "late by a second": _timer(-1),
    "late by a day": _timer(-86_400),
    "due in the first day of the epoch": Case(_raw(b"7"), _to(TARGET), Callback(), 7, epoch=True),
    "due at the epoch": Case(_raw(b"0"), _to(TARGET), Callback(), 0, epoch=True),
    "leading zeros": Case(lambda start_s: b"0%d" % (start_s + 3), _to(TARGET), Callback(), 3),
    # ---- the engine is down for some seconds
    "due while away": _timer(7),
    "due after the absence": _timer(16),
    "sent and due while away": _timer(1, Phase.AWAY),
    "sent while away, already late": _timer(-30, Phase.AWAY),
    "sent while away, due after": _timer(11, Phase.AWAY),
    "sent after the absence": _timer(2, Phase.BACK),
    "sent after the absence for before it": _timer(-60, Phase.BACK),
    "sent after the absence for within it": _timer(-4, Phase.BACK),
    # ---- bytes
    "empty key and value": _timer(1, key="", value=b""),
    "a Future with a topic only": Case(_in(1), _to(TARGET, "", b""), Callback(b"", b""), 1),
    "every byte": _timer(2, key="ключ \x00", value=EVERY_BYTE),
    "a large callback": _timer(2, key="k" * 5000, value=EVERY_BYTE * 2000),
    "an unknown field": Case(_in(1), _to(TARGET, more=UNKNOWN_FIELD), Callback(), 1),
    "headers keep order, repeats, nulls and bytes": Case(_in(2), _to(TARGET), Callback(headers=KEPT), 2, headers=KEPT),
    "headers of the engine are replaced": Case(_in(2), _to(TARGET), Callback(headers=NOT_FORGED), 2, headers=FORGED),
    "headers of the engine among others": Case(
        *(_in(2), _to(TARGET), Callback(headers=KEPT), 2),
        headers=(KEPT[0], FORGED[1], *KEPT[1:3], FORGED[3], *KEPT[3:], ("timer-anything", b"x")),
    ),
    "schema ids of a Future": Case(_in(2), _to(TARGET), Callback(headers=KEPT), 2, headers=(*SCHEMA_IDS, *KEPT)),
    "only headers of the engine": Case(_in(2), _to(TARGET), Callback(), 2, headers=(("timer-fired", None),)),
    # ---- bad input
    "no key": _bad("key-missing", "no key", _raw(None)),
    "a word as key": _bad("key-not-a-number", "'tomorrow'", _raw(b"tomorrow")),
    "an empty key": _bad("key-not-a-number", "not an epoch second", _raw(b"")),
    "a number that only Python's int accepts": _bad("key-not-a-number", "11 ASCII digits", lambda s: b" 1_%d" % s),
    "a negative key": _bad("key-negative", "negative", _raw(b"-1")),
    "milliseconds": _bad("key-in-milliseconds", "in seconds it is", lambda s: b"%d001" % s),
    "a condition without an id": Case(
        _in(3), _to(TARGET), Letter("condition-without-id", "TIMERS_ID_TOPIC"), headers=(("timer-if", b"absent"),)
    ),
    "no value": _bad("value-missing", "no value", None, _raw(None)),
    "no Future": _bad("value-not-a-future", "not a Future", None, _raw(b"\xff\x00not protobuf")),
    "a huge value": _bad("value-too-large", "1000000", None, _to(TARGET, "", bytes(10**6))),
    "no topic": _bad("topic-missing", "callBackTopic is empty", None, _raw(future.encode("", "k", b"v"))),
    "an illegal topic": _bad("topic-invalid", "'no spaces'", None, _raw(future.encode("no spaces", "k", b"v"))),
    "an unknown topic": _bad("topic-unknown", "'no-such-topic' does not exist", None, _to("no-such-topic")),
    "an unknown topic, written unusually": _bad(
        "topic-unknown",
        "'no-such-topic' does not exist",
        lambda start_s: b"0%d" % (start_s + 1),
        _to("no-such-topic", more=UNKNOWN_FIELD),
    ),
    "kafka's own topic": _bad("topic-denied", "internal", None, _to("__consumer_offsets")),
    "the progress of another app as a target": _bad("topic-denied", "internal", None, _to("other-progress")),
    "the dead letters as a target": _bad("topic-denied", "internal", None, _to("dead-letter")),
    "the requests as a target": _bad("topic-denied", "internal", None, _to("request")),
}

ON_A_BROKER = {
    "a callback too large for its topic": _bad(
        "message-too-large",
        f"more than the {NARROW_BYTES} that fit",
        lambda start_s: b"0%d" % (start_s + 1),
        _to(NARROW, "k", bytes(NARROW_BYTES), UNKNOWN_FIELD),
    ),
}
"""Cases about message sizes, which the simulated broker does not check."""

UP_S = 5
"""Seconds that the engine runs before it is down."""
AWAY_S = 4
"""Seconds that it is down, with its stop and its start somewhat more."""
