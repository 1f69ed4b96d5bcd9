"""The table of all routes: method, path, role, parameters, body and answers. Pure.

The router, the check of roles, the OpenAPI document and ``docs/http-api.md`` are made from it. A path has no variable
part: an id may hold any characters, and proxies change a path that holds such as ``..``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from timers.console import problems
from timers.console import schemas as s
from timers.wire import headers as h

JSON, EVENT_STREAM = "application/json", "text/event-stream"

PUBLIC, READER, OPERATOR = "", "reader", "operator"
"""Roles. An operator may do what a reader may; a public route needs no login."""


@dataclass(frozen=True)
class Parameter:
    """A query parameter."""

    name: str
    schema: dict[str, Any]
    why: str = ""
    required: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", self.why or self.schema["description"])


@dataclass(frozen=True)
class Answer:
    """A possible answer.

    Attributes:
        schema: one of :data:`timers.console.schemas.SCHEMAS`; empty: no JSON.
        headers: name -> meaning.
    """

    status: int
    why: str
    schema: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    content: str = JSON

    @property
    def is_problem(self) -> bool:
        """Whether it is an error."""
        return self.content == problems.PROBLEM_CONTENT_TYPE


@dataclass(frozen=True)
class Route:
    """One route.

    Attributes:
        name: of the handler and of the operation in the OpenAPI document.
        body: schema of the request's body; empty: it has none.
        example: a body.
        problems: codes of the errors that only some routes have.
        headers: conditions that its handler knows; a change with another one is refused.
        is_foreign: whether it is a page, or a path of another system. Its handler reads its parameters, and no document
            has it.
    """

    path: str
    name: str
    summary: str = ""
    answers: tuple[Answer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    method: str = "GET"
    role: str = READER
    body: str = ""
    example: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    headers: tuple[Parameter, ...] = ()
    is_foreign: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes something: then it needs the switch, the role and a record in the log of changes."""
        return self.role == OPERATOR


_ID = Parameter("id", s.ID, "the id of a timer, or `<topic>/<partition>/<offset>` of its request", required=True)
_OWN_ID = Parameter("id", s.ID, "the id that the timer's sender gave it", required=True)
_VALUE = Parameter("value", s.boolean("1: with the values of callbacks, in base64", default=False))
_WAIT = Parameter(
    "wait",
    {"type": "number", "minimum": 0, "maximum": 30, "default": 5, "description": "longest wait for the verdict, in s"},
)
_TAG = "the ETag of the version"
_IF_MATCH = Parameter(
    "If-Match", s.string("an ETag, in quotes", maxLength=300), "only if this ETag is that of the latest version"
)
_IF_NONE_MATCH = Parameter("If-None-Match", s.string("`*`", enum=["*"]), "only if there is no timer with this id")
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    s.string("1 to 255 printable ASCII characters", pattern="^[ -~]{1,255}$", minLength=1, maxLength=255),
    "set one timer, also if the request is sent again",
)
_COMMAND_KEY = Parameter(
    "Idempotency-Key", _IDEMPOTENCY_KEY.schema, "give one command, also if the request is sent again soon"
)
TRACE_PARAMETERS = tuple(
    Parameter(name, s.string(f"as https://www.w3.org/TR/{where}/ defines it"), "header of the callback")
    for name, where in ((h.TRACEPARENT, "trace-context"), (h.TRACESTATE, "trace-context"), (h.BAGGAGE, "baggage"))
)

SETS_TIMERS = frozenset(("NewTimer", "NewTimers", "TimerVersion", "TimerMove"))
"""Bodies that set timers."""

_TOPIC = Parameter("topic", s.TOPIC, "only timers with this callback topic")
_FROM = Parameter("from", s.SECOND, "first due second")
_TO = Parameter("to", s.SECOND, "due second before which the list ends")
_PREFIX = Parameter("prefix", s.ID, "only timers whose id begins with this text")
_CONTAINS = Parameter("contains", s.ID, "only timers with this text in their id or in their key")
_KEY = Parameter("key", s.string("a key", maxLength=2000), "only timers whose callbacks have this key")
_CURSOR = Parameter("cursor", s.string("`next` of the page before", maxLength=2000))
_LIMIT = Parameter("limit", s.integer(1, s.MAX_LIMIT, "largest number of items in a page", default=100))

_RULE = tuple(
    Parameter(name, s.string(what, maxLength=1000), what)
    for name, what in {
        "cron": "minute, hour, day of month, month, day of week",
        "zone": "zone of the cron line",
        "every": "interval in place of a cron line, such as `15m`",
        "from": "no occurrence before this time; with `every` it is the first one",
        "until": "no occurrence after this time",
        "spread": "such as `10m`: each timer is delayed by a part of this time",
        "except": "local dates without an occurrence, with commas between them",
    }.items()
)
_SHARE_ID = Parameter("id", s.ID, "the timer whose share of `spread` is shown")
_COUNT = Parameter("count", s.integer(1, s.MAX_LIMIT, "how many occurrences", default=10))

_PUBLISH = ("unknown", "brokers-unreachable", "publish-refused", "ids-off", "topic-forbidden", "id-forbidden")
_INVALID = (
    *("due-invalid", "topic-missing", "topic-invalid", "value-missing", "value-too-large", "field-invalid"),
    *("id-missing", "id-too-long", "id-not-text"),
)
_CONDITION = ("exists", "changed")
_ASK = ("worker-unreachable", "brokers-unreachable", "queries-off", "busy")
_TARGET = (
    *("unknown", "brokers-unreachable", "publish-refused", "busy"),
    *("topic-forbidden", "target-refused", "idempotency-key-reused"),
)
_READ = ("brokers-unreachable", "access-refused", "busy")
_UNDECIDED = Answer(202, "the request is written, and no worker has answered yet (verdict undecided)", "Verdict")

ROUTES: tuple[Route, ...] = (
    Route(
        "/v1/timers",
        "setTimer",
        "Set a timer. If there is a timer with this id, it is replaced.",
        (
            Answer(200, "the timer of this Idempotency-Key was changed or cancelled since (verdict exists)", "Verdict"),
            Answer(
                201,
                "all in-sync replicas have the request",
                "Accepted",
                {"Location": "where to find the timer", "ETag": f"{_TAG}, if the request had a condition"},
            ),
            _UNDECIDED,
        ),
        (_WAIT,),
        method="POST",
        role=OPERATOR,
        body="NewTimer",
        example={"topic": "timeouts", "key": "order-17", "value": "unpaid", "delay": "15m"},
        problems=(*_PUBLISH, *_INVALID, *_CONDITION, "busy", "idempotency-key-reused", "request-deleted"),
        headers=(_IDEMPOTENCY_KEY, _IF_NONE_MATCH),
    ),
    Route(
        "/v1/timers/batch",
        "setTimers",
        "Set up to 1,000 timers. All are checked before the first is written: one that is wrong is named with its "
        "place, and nothing is written. To send a batch again after an error, give each timer an id. "
        "A batch counts as one request of the user's rate, and its body may be as large as that of one timer.",
        (Answer(201, "each timer, or why it was not written", "AcceptedTimers"),),
        method="POST",
        role=OPERATOR,
        body="NewTimers",
        example={"timers": [{"topic": "timeouts", "key": "order-17", "value": {"order": 17}, "delay": "15m"}]},
        problems=(*_PUBLISH, *_INVALID, "busy"),
    ),
    Route(
        "/v1/timers",
        "listTimers",
        "List pending timers in the order in which they fire. A page may be empty and still have a `next`: a first "
        "page of at most 100 timers without values ends 0.1 s after its query reached the worker, any other page after "
        "two seconds of reading.",
        (Answer(200, "a page", "TimerList"),),
        (_TOPIC, _FROM, _TO, _PREFIX, _CONTAINS, _KEY, _LIMIT, _CURSOR, _VALUE),
        problems=(*_ASK, "cursor-invalid", "values-hidden", "topic-forbidden"),
    ),
    Route(
        "/v1/next",
        "nextOccurrences",
        "Show when a repeating timer with this rule would fire next, and what clock changes do to it. Nothing is set.",
        (Answer(200, "the next occurrences, in the order of time", "NextOccurrences"),),
        (*_RULE, _SHARE_ID, _COUNT),
        problems=("field-invalid",),
    ),
    Route(
        "/v1/timer",
        "getTimer",
        "Find one timer. If two topics, or two partitions of a topic, have a timer with this id, the answer has both.",
        (Answer(200, "the timer", "FoundTimers", {"ETag": "source of its request, if there is one timer"}),),
        (_ID, _VALUE),
        problems=(*_ASK, "not-found", "values-hidden"),
    ),
    Route(
        "/v1/timer/history",
        "getHistory",
        "Show what happened to a timer, also if it was cancelled: its requests, verdicts, dead letters and callback, "
        "if the topics still have them. Each topic is read for at most three seconds.",
        (Answer(200, "the events in the order of time, and which topics were not read", "History"),),
        (_ID,),
        problems=(*_ASK, "not-found"),
    ),
    Route(
        "/v1/timer",
        "putTimer",
        "Set or replace the timer with this id, and wait for the verdict on the former version.",
        (
            Answer(
                200,
                "it was pending, and is replaced, or unchanged: it already repeats in this way",
                "Verdict",
                {"ETag": _TAG},
            ),
            Answer(
                201,
                "a new timer is set: there was none (verdict unknown or set), or it had fired (already-fired)",
                "Verdict",
                {"ETag": _TAG},
            ),
            _UNDECIDED,
        ),
        (_OWN_ID, _WAIT),
        method="PUT",
        role=OPERATOR,
        body="TimerVersion",
        example={"topic": "timeouts", "key": "order-17", "value": "unpaid", "delay": "30m"},
        problems=(*_PUBLISH, *_INVALID, *_CONDITION, "already-fired"),
        headers=(_IF_MATCH, _IF_NONE_MATCH),
    ),
    Route(
        "/v1/timer",
        "moveTimer",
        "Change the due time of the timer with this id. Its other fields stay as they are. A timer that repeats is "
        "changed by PUT. If another request changes the timer at the same moment, this one changes nothing (problem "
        "`changed`).",
        (
            Answer(200, "it was pending, and has the new due time", "Verdict", {"ETag": _TAG}),
            Answer(
                201,
                "it had fired, and is set again (verdict already-fired): only if the partition lists 1,000 late "
                "changes already",
                "Verdict",
            ),
            _UNDECIDED,
        ),
        (_OWN_ID, _WAIT),
        method="PATCH",
        role=OPERATOR,
        body="TimerMove",
        example={"delay": "30m"},
        problems=(*_ASK, *_PUBLISH, *_INVALID, "not-found", "already-fired", "changed", "request-deleted"),
        headers=(_IF_MATCH,),
    ),
    Route(
        "/v1/timer",
        "cancelTimer",
        "Cancel the timer with this id, and wait for the verdict.",
        (
            Answer(200, "it was pending, and never fires", "Verdict"),
            _UNDECIDED,
        ),
        (_OWN_ID, _WAIT),
        method="DELETE",
        role=OPERATOR,
        problems=(*_PUBLISH, "not-found", "already-fired", "changed", "id-missing", "id-too-long", "id-not-text"),
        headers=(_IF_MATCH,),
    ),
    Route(
        "/v1/timers/cancel",
        "cancelTimers",
        "Cancel all timers with an id that match. The first answer says how many there are, and has a `confirm`. The "
        "request with this `confirm` cancels for five seconds. Its answer has a `next`: send it as the next `confirm`.",
        (Answer(200, "what would be cancelled, or the verdicts of this step", "CancelStep"),),
        method="POST",
        role=OPERATOR,
        body="CancelFilter",
        example={"topic": "timeouts", "prefix": "tenant-x/"},
        problems=(*_ASK, *_PUBLISH, "cursor-invalid"),
    ),
    Route(
        "/v1/pending",
        "pending",
        "Count pending timers by second, minute, hour or day. The first page counts for a tenth of a second, the "
        "others for two seconds. Two pages may have numbers of the same group: add them.",
        (Answer(200, "the counts", "Counts"),),
        (
            Parameter("by", s.string("size of a group", enum=["second", "minute", "hour", "day"], default="minute")),
            *(_TOPIC, _FROM, _TO, _CURSOR),
        ),
        problems=(*_ASK, "cursor-invalid", "topic-forbidden"),
    ),
    Route(
        "/v1/dead-letters",
        "listDeadLetters",
        "List dead letters, the newest first. A page may be empty and still have a `next`.",
        (Answer(200, "a page", "DeadLetterList"),),
        (
            Parameter("code", s.list_of(s.CODE, maxItems=50), "only with this code; may be repeated"),
            Parameter("topic", s.TOPIC, "only with callbacks to this topic"),
            Parameter("queue", s.QUEUE, "only dead letters of this queue"),
            Parameter("since", s.SECOND, "written since this epoch second"),
            Parameter("until", s.SECOND, "written before this epoch second"),
            *(Parameter("contains", s.ID, "only with this text in the key, the id or the reason"), _LIMIT, _CURSOR),
        ),
        problems=(*_READ, "not-found", "cursor-invalid", "topic-forbidden"),
    ),
    Route(
        "/v1/dead-letter",
        "getDeadLetter",
        "Show one dead letter.",
        (Answer(200, "the dead letter", "DeadLetter"),),
        (Parameter("name", s.LETTER_NAME, required=True), _VALUE),
        problems=(*_READ, "not-found", "values-hidden"),
    ),
    Route(
        "/v1/dead-letters/retry",
        "retryDeadLetters",
        "Publish the requests of dead letters again. With `names`, this is done at once. With a filter, the first "
        "answer says how many match, and has a `confirm`; the same request with this `confirm` publishes them.",
        (Answer(200, "what was done, or would be", "Retried"),),
        method="POST",
        role=OPERATOR,
        body="Retry",
        example={"codes": ["topic-unknown"], "topic": "orders"},
        problems=(*_READ, "not-found", "conflict", "unknown", "topic-forbidden", "cursor-invalid"),
    ),
    Route(
        "/v1/targets",
        "listTargets",
        "List the callback topics that are paused, or still have timers that were held. What is held is counted for at "
        "most two seconds.",
        (Answer(200, "these callback topics", "TargetList"),),
        problems=(*_READ, "target-refused"),
    ),
    Route(
        "/v1/targets/pause",
        "pauseTarget",
        "Let the timers of a callback topic wait. It answers when the brokers have the command; the workers take it "
        "within two seconds. If the topic is paused, this changes the end and the reason of its pause.",
        (Answer(200, "the command", "TargetCommand"),),
        method="POST",
        role=OPERATOR,
        body="TargetPause",
        example={"topic": "timeouts", "for": "1h", "why": "provider down"},
        problems=_TARGET,
        headers=(_COMMAND_KEY,),
    ),
    Route(
        "/v1/targets/resume",
        "resumeTarget",
        "Let the timers of a paused callback topic go on: what comes due fires, and the held timers are sent, at "
        "once or evenly over a time.",
        (Answer(200, "the command", "TargetCommand"),),
        method="POST",
        role=OPERATOR,
        body="TargetResume",
        example={"topic": "timeouts", "over": "10m"},
        problems=_TARGET,
        headers=(_COMMAND_KEY,),
    ),
    Route(
        "/v1/targets/create",
        "createTarget",
        "Create a callback topic with `TIMERS_PARTITIONS` partitions, as `timers topics create` does, if timers may "
        "fire there. One that exists stays as it is.",
        (Answer(200, "it exists already", "TargetTopic"), Answer(201, "it is created", "TargetTopic")),
        method="POST",
        role=OPERATOR,
        body="TargetCreate",
        example={"topic": "timeouts"},
        problems=("brokers-unreachable", "access-refused", "busy", "topic-forbidden", "target-refused"),
    ),
    Route(
        "/v1/events",
        "events",
        "Send the firings of these topics as server-sent events. With `Last-Event-ID`, the stream goes on after this "
        "event without a gap. If a client is too slow, or records were deleted before it came back, the event "
        "`dropped` has the number of those that it misses. "
        "With `per_s`, the event `skipped` has the number and the longest lag of the firings that were not sent.",
        (Answer(200, "events: began, fired, skipped, dropped, ended", "Text", content=EVENT_STREAM),),
        (
            Parameter("topic", s.list_of(s.TOPIC, maxItems=10), "a callback topic; up to 10 times", required=True),
            Parameter("per_s", s.integer(1, s.MAX_LIMIT, "send at most this number of firings in a second")),
            Parameter("after", s.string("as Last-Event-ID", maxLength=8000), "the same as the header Last-Event-ID"),
        ),
        problems=(*_READ, "not-found", "topic-forbidden", "cursor-invalid"),
    ),
    Route(
        "/v1/workers",
        "workers",
        "The workers of the app: partitions, readiness, pending timers, lags, and figures of their metrics.",
        (Answer(200, "the workers", "Workers"),),
        problems=_READ,
    ),
    Route(
        "/v1/lateness",
        "lateness",
        "How late timers fired, since the workers started.",
        (Answer(200, "number, p50, p99 and histogram for each way of firing", "Lateness"),),
        problems=_READ,
    ),
    Route(
        "/v1/figures",
        "figures",
        "What workers counted in the last 24 hours, step by step: each 5 s for an hour, and each minute before. Steps "
        "of several workers may be added up. `missing` names the workers that did not answer.",
        (Answer(200, "the steps of each worker, the oldest first", "Figures"),),
        parameters=(Parameter("since", s.SECOND, "steps that end after this epoch second"),),
        problems=_READ,
    ),
    Route(
        "/v1/queues",
        "listQueues",
        "List queues (consumer groups `queue.NAME`) with the messages that are not done. `missing` names the queues "
        "that were not read within eight seconds.",
        (Answer(200, "the queues, and those that were not read", "QueueList"),),
        problems=_READ,
    ),
    Route(
        "/v1/queue",
        "getQueue",
        "The state of one queue, with its partitions and its delayed messages.",
        (Answer(200, "the queue", "Queue"),),
        (
            Parameter("name", s.QUEUE, "the name of the queue", required=True),
            Parameter("topic", s.TOPIC, "its topic, if the group has several"),
        ),
        problems=(*_READ, "not-found", "topic-forbidden"),
    ),
    Route(
        "/v1/fired",
        "listFired",
        "What has fired in the last time, on one callback topic or all that the user may see: the newest first, and no "
        "values. It reads up to 20,000 records for at most ten seconds, the newest first, and says what it left out.",
        (Answer(200, "the newest firings, and what was left out", "PastFirings"),),
        (
            Parameter("topic", s.TOPIC, "only this callback topic"),
            Parameter("since", s.SECOND, "epoch second of the first record; without it: an hour ago"),
            Parameter("limit", s.integer(1, s.MAX_FIRED, "largest number of firings", default=100)),
        ),
        problems=(*_READ, "not-found", "topic-forbidden"),
    ),
    Route("/v1/health/live", "live", "Whether the console answers.", (Answer(200, "alive", "Live"),), role=PUBLIC),
    Route(
        "/v1/health/ready",
        "ready",
        "Whether a broker answers the console. If no worker does, `reasons` says so, and timers can still be set.",
        (Answer(200, "it can", "Ready"), Answer(HTTPStatus.SERVICE_UNAVAILABLE, "it cannot", "Ready")),
        role=PUBLIC,
    ),
    Route(
        problems.PATH,
        "problem",
        "What a type of problem is: the address in the `type` of each problem.",
        (Answer(200, "what all problems with this code have in common", "ProblemKind"),),
        parameters=(Parameter("code", s.string("a code", maxLength=100), "the code of a problem", required=True),),
        problems=("not-found",),
        role=PUBLIC,
    ),
    Route(
        "/v1/openapi.json", "openApi", "This API as OpenAPI 3.1.", (Answer(200, "the API", "Document"),), role=PUBLIC
    ),
    Route(
        "/metrics", "metrics", "Metrics for Prometheus.", (Answer(200, "the metrics", "Text", content="text/plain"),)
    ),
)

BY_NAME = {route.name: route for route in ROUTES}
