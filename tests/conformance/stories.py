"""Stories of the contract: some records of one timer, of any request format, and all that comes of them.

They share the life of :mod:`tests.conformance.cases`. The name of a story is the id of its timer, and the key of its
callback.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.conformance.cases import SHAKY, TARGET, Phase
from timers.core.operation import ABSENT, ALREADY_FIRED, CANCELLED, EXISTS, REPLACED, SET, UNKNOWN
from timers.wire import future
from timers.wire.formats import future_by_id, marker, schedule
from timers.wire.headers import TIMER_VERDICT, Header

NATIVE, BY_ID, COUNTDOWN, SCHEDULE, MARKER = "request", "by-id", "countdown", "schedule", "marker"
"""Stand for request topics of the engine."""

MESSAGES = "messages"
"""Stands for the topic to which markers return messages."""

NO_VALUE = "value-missing"

HORIZON_S = 25
"""A timer goes cold that is due later than this after its request."""

COLD_S = 27
"""Due second of cold timers: the last of the other ones are due then, too."""


class Moment:
    """When and where a record is written.

    Attributes:
        id: name of the story.
        start_s: start of the phase.
        sources: sources of the records of this story in earlier phases.
    """

    def __init__(self, id: str, number: int, start_s: int, topic: Callable[[str], str], sources: Sequence[str]) -> None:
        self.id, self.number, self.start_s, self.topic, self.sources = id, number, start_s, topic, sources


@dataclass(frozen=True)
class Written:
    """A record of a story."""

    format: str
    make: Callable[[Moment], tuple[bytes | None, bytes | None, Sequence[Header]]]
    """Returns key, value and headers."""
    phase: Phase = Phase.UP


@dataclass(frozen=True)
class Story:
    """The records of one timer, and what comes of them."""

    records: Sequence[Written]
    fires: bytes | None = None
    """Value of its callback; None: nothing fires."""
    due_s: int | None = None
    """Due second of what fires, from the start of a phase; None: it depends on the record's time."""
    phase: Phase = Phase.UP
    verdicts: Sequence[str] = ()
    letters: Sequence[str] = ()
    """Codes of its dead letters."""
    target: str = TARGET
    is_cold: bool = False
    """Whether a record of it goes cold. Its copy comes back twice, when the engine has started again."""


def _set(
    due_s: int,
    value: bytes = b"v",
    phase: Phase = Phase.UP,
    condition: str | int | None = None,
    *,
    asks: bool = False,
) -> Written:
    def make(at: Moment) -> tuple[bytes, bytes, Sequence[Header]]:
        named = at.sources[condition] if isinstance(condition, int) else condition
        headers = [*future_by_id.encode_headers(at.start_s + due_s), *future_by_id.encode_condition(named)]
        headers += [(TIMER_VERDICT, b"wanted")] if asks else []
        return at.id.encode(), future.encode(at.topic(TARGET), at.id, value), headers

    return Written(BY_ID, make, phase)


def _cancel(phase: Phase = Phase.UP) -> Written:
    return Written(BY_ID, lambda at: (at.id.encode(), None, ()), phase)


def _valueless(*headers: Header) -> Written:
    """A request whose client has lost its value."""
    return Written(BY_ID, lambda at: (at.id.encode(), None, headers))


def _native(due_s: int, target: str = TARGET) -> Written:
    return Written(
        NATIVE, lambda at: (b"%d" % (at.start_s + due_s), future.encode(at.topic(target), at.id, b"v"), [("a", b"1")])
    )


def _countdown(countdown: float, message: str = "v", phase: Phase = Phase.UP, *, has_id: bool = True) -> Written:
    def make(at: Moment) -> tuple[bytes, bytes, Sequence[Header]]:
        id = {"id": at.id} if has_id else {}
        fields = {"topic": at.topic(TARGET), "message": message, "countdown": countdown, **id}
        return at.id.encode(), json.dumps(fields).encode(), ()

    return Written(COUNTDOWN, make, phase)


def _cancel_countdown(phase: Phase = Phase.UP) -> Written:
    return Written(
        COUNTDOWN, lambda at: (at.id.encode(), json.dumps({"id": at.id, "cancel": True}).encode(), ()), phase
    )


def _schedule(due_s: int, value: bytes | None = b"v", phase: Phase = Phase.UP) -> Written:
    def make(at: Moment) -> tuple[bytes, bytes | None, Sequence[Header]]:
        headers = schedule.encode_headers(at.start_s + due_s, at.topic(TARGET), at.id.encode())
        return at.id.encode(), value, () if value is None else headers

    return Written(SCHEDULE, make, phase)


def _place(at: Moment) -> str:
    return f"1/{at.number}"


def _start(after_ms: int) -> Written:
    return Written(
        MARKER, lambda at: (b"queue", marker.encode_start(_place(at), at.id.encode(), b"message", after_ms), ())
    )


def _keep_alive(after_ms: int) -> Written:
    return Written(MARKER, lambda at: (b"queue", marker.encode_keep_alive(_place(at), after_ms), ()))


_END = Written(MARKER, lambda at: (b"queue", marker.encode_end(_place(at)), ()))

STORIES = {
    # ---- timers with an id
    "id set": Story([_set(3)], b"v", 3),
    "id replaced": Story([_set(20, b"old"), _set(3, b"new")], b"new", 3, verdicts=[REPLACED]),
    "id cancelled": Story([_set(4), _cancel()], verdicts=[CANCELLED]),
    "id set again after a cancel": Story(
        [_set(4, b"old"), _cancel(), _set(3, b"new")], b"new", 3, verdicts=[CANCELLED]
    ),
    "id cancelled while away": Story([_set(24), _cancel(Phase.AWAY)], verdicts=[CANCELLED]),
    "id replaced while away": Story([_set(24, b"old"), _set(1, b"new", Phase.AWAY)], b"new", 1, Phase.AWAY, [REPLACED]),
    "id that has fired": Story([_set(1), _cancel(Phase.BACK)], b"v", 1, verdicts=[ALREADY_FIRED]),
    "id not known": Story([_cancel()], verdicts=[UNKNOWN]),
    "id set, with a verdict": Story([_set(3, asks=True)], b"v", 3, verdicts=[UNKNOWN]),
    "id replaced, with a verdict": Story(
        [_set(20, b"old"), _set(3, b"new", asks=True)], b"new", 3, verdicts=[REPLACED]
    ),
    "id set again after a cancel, with a verdict": Story(
        [_set(4, b"old"), _cancel(), _set(3, b"new", asks=True)], b"new", 3, verdicts=[CANCELLED, UNKNOWN]
    ),
    "id set if absent": Story([_set(3, condition=ABSENT)], b"v", 3, verdicts=[SET]),
    "id not set if absent": Story([_set(4), _set(3, b"new", condition=ABSENT)], b"v", 4, verdicts=[EXISTS]),
    "id set if unchanged": Story(
        [_set(24), _set(2, b"new", Phase.AWAY, condition=0)], b"new", 2, Phase.AWAY, [REPLACED]
    ),
    "id of a request without a value": Story([_set(4), _valueless(("timer-due", b"9"))], b"v", 4, letters=[NO_VALUE]),
    "id of a request without a value that asks for a verdict": Story(
        [_set(4), _valueless(("timer-due", b"9"), (TIMER_VERDICT, b"wanted"))], b"v", 4, letters=[NO_VALUE]
    ),
    "id of a request without a value and protobuf": Story(
        [_set(4), _valueless(("timer-topic", None), ("a", b"1"))], b"v", 4, letters=[NO_VALUE]
    ),
    # ---- countdowns
    "countdown": Story([_countdown(1.5, has_id=False)], b"v"),
    "countdown replaced": Story([_countdown(20, "old"), _countdown(2, "new")], b"new", verdicts=[REPLACED]),
    "countdown cancelled": Story([_countdown(3), _cancel_countdown()], verdicts=[CANCELLED]),
    "countdown after the absence": Story([_countdown(1, phase=Phase.BACK)], b"v"),
    # ---- schedules
    "schedule": Story([_schedule(3)], b"v", 3),
    "schedule replaced": Story([_schedule(20, b"old"), _schedule(3, b"new")], b"new", 3),
    "schedule deleted": Story([_schedule(20), _schedule(0, None)]),
    "schedule deleted while away": Story([_schedule(24), _schedule(0, None, Phase.AWAY)]),
    "schedule of the past": Story([_schedule(-60, b"v", Phase.BACK)], b"v", -60, Phase.BACK),
    # ---- markers
    "message without an end": Story([_start(2000)], b"message", target=MESSAGES),
    "message with an end": Story([_start(2000), _END]),
    "message kept alive": Story([_start(1500), _keep_alive(4000)], b"message", target=MESSAGES),
    # ---- cold tier
    "cold": Story([_native(COLD_S)], b"v", COLD_S, is_cold=True),
    "cold with an id": Story([_set(COLD_S)], b"v", COLD_S, is_cold=True),
    "cold and cancelled": Story([_set(COLD_S), _cancel(Phase.AWAY)], verdicts=[CANCELLED], is_cold=True),
}

ON_A_BROKER = {"target that takes nothing at first": Story([_native(2, SHAKY)], b"v", 2, target=SHAKY)}
"""Stories about targets that fail, which those of the simulated broker do not."""
