"""The JSON Schemas of bodies and parameters. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from timers.console.figures import DO_NOT_FIRE, FIRE, METRICS, NOT_KNOWN
from timers.wire import dead_letter, topics
from timers.wire.checks import MAX_DUE_S
from timers.wire.query import COLD, FIRED, PENDING, REJECTED, REPLACED
from timers.wire.repeat import CATCH_UPS, MAX_EXCEPTED
from timers.wire.targets import MAX_TEXT_CHARACTERS

MAX_ID_CHARACTERS = 512
MAX_LIMIT = 1000
MAX_FIRED = 10_000
MAX_BULK_TIMERS = 1000


def _of(kind: str) -> Callable[..., dict[str, Any]]:
    """Returns the maker of schemas of a type: with a description, and further members."""

    def make(description: str = "", **more: Any) -> dict[str, Any]:
        return {"type": kind, **({"description": description} if description else {}), **more}

    return make


string, whole, number, boolean, _array = map(_of, ("string", "integer", "number", "boolean", "array"))
"""A text, a whole number without limits, a number, a truth value."""


def integer(low: int, high: int, description: str, **more: Any) -> dict[str, Any]:
    """The schema of a whole number."""
    return whole(description, minimum=low, maximum=high, **more)


def object_of(properties: dict[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    """The schema of an object without other members; without ``required`` it has all of them."""
    needed = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def open_object(properties: dict[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    """The schema of an object that may have other members: a later version, or a worker of another one, adds some."""
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(items: dict[str, Any], description: str = "", **more: Any) -> dict[str, Any]:
    """The schema of a list."""
    return _array(description, items=items, **more)


def map_of(values: dict[str, Any], description: str) -> dict[str, Any]:
    """The schema of an object whose names are not known before."""
    return {"type": "object", "additionalProperties": values, "description": description}


def reference(name: str) -> dict[str, Any]:
    """A reference to one of :data:`SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: dict[str, Any], description: str = "") -> dict[str, Any]:
    """The same schema, or null."""
    return {"anyOf": [schema, {"type": "null"}], **({"description": description} if description else {})}


TOPIC = string(topics.LEGAL_FORM, pattern=r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$", minLength=1, maxLength=249)
DURATION = string("a duration such as 90s, 15m, 2h or 1h30m", minLength=1, maxLength=40)
ID = string("the id of a timer", minLength=1, maxLength=MAX_ID_CHARACTERS)
SECOND = integer(0, MAX_DUE_S, "epoch second")
TIME = {"anyOf": [number(), {"type": "string"}]}
MAX_CONFIRM = 8000
"""Characters of a confirmation: it names offsets of each partition."""

DATA = {
    "anyOf": [
        {"type": "string"},
        object_of({"base64": string("bytes in base64", contentEncoding="base64")}),
    ],
    "description": 'text, or {"base64": "..."} for bytes that are not text',
}
HEADER_PAIRS = list_of(
    {"type": "array", "prefixItems": [string("name"), nullable(DATA)], "minItems": 2, "maxItems": 2},
    "names and values of headers",
)
QUEUE = string("the name of a queue", pattern=r"^[a-zA-Z0-9._-]{1,235}$", minLength=1, maxLength=235)
CODE = string("code of dead letters", enum=[*dead_letter.CODES, *sorted(dead_letter.RECEIVER_CODES)])
LETTER_NAME = string(
    "`<partition>/<offset>` of a dead letter, or `<topic>/<partition>/<offset>` of it or of its request",
    pattern=r"^([a-zA-Z0-9._-]{1,249}/)?[0-9]{1,9}/[0-9]{1,18}$",
    maxLength=300,
)

_RULE = {
    "cron": string("minute, hour, day of month, month, day of week: `0 9 * * 1-5`"),
    "zone": string("zone of the cron line: `Europe/Paris`"),
    "every": {**TIME, "description": 'interval in place of a cron line: seconds, or such as "15m"'},
    "from": {**TIME, "description": "no occurrence before this time, as `at`; with `every` it is the first one"},
    "until": {**TIME, "description": "no occurrence after this time"},
    "catch_up": string("what is sent of missed occurrences", enum=list(CATCH_UPS)),
    "spread": {**TIME, "description": "each timer is delayed by a part of this time, always the same part for one id"},
    "except": list_of(string("2026-12-24"), "local dates without an occurrence", maxItems=MAX_EXCEPTED),
}

_TIMER_FIELDS = {
    "topic": {**TOPIC, "description": f"callback topic, {topics.LEGAL_FORM}"},
    "key": nullable(DATA, "key of the callback; missing or null: none"),
    "value": {
        "anyOf": [*DATA["anyOf"], {"type": "object"}, list_of({})],
        "description": 'value of the callback: text, `{"base64": "..."}` for bytes, or another object or a list, '
        "which is sent as JSON",
    },
    "at": {
        **TIME,
        "description": "due time: RFC 3339, local (`2030-01-31T12:00:00 Europe/Berlin`), or epoch seconds",
    },
    "delay": {**TIME, "description": 'time from now: seconds, or such as "15m". Give `at` or `delay`'},
    "repeat": {
        "description": "when the timer repeats, in place of `at` and `delay`; it needs an id. A text, as in the header "
        "`timer-repeat`, or an object",
        "anyOf": [string(), object_of(_RULE, ())],
    },
    "token": string("sent in the header `callback-token`", minLength=1),
    "headers": {
        "description": 'headers of the callback: {"name": "value"}, or a list of pairs',
        "anyOf": [
            {"type": "object", "additionalProperties": nullable(DATA)},
            HEADER_PAIRS,
        ],
    },
}
HOLD = open_object(
    {
        "reason": string("pause: its callback topic is; noisy: see `TargetList`"),
        "number": whole("of the command"),
        "since": SECOND,
        "since_at": string("RFC 3339"),
    },
    ("reason", "number", "since"),
)

_PAUSE = {
    "state": string(
        "paused; going-on: the held timers are being sent; noisy: it has so many due timers that those of others would "
        "wait, so it is sent when no others are due",
        enum=["paused", "going-on", "noisy"],
    ),
    "number": nullable(whole(), "of the newest command; null: only progress has it"),
    "since_s": nullable(SECOND, "since when"),
    "until_s": nullable(SECOND, "when it ends by itself"),
    "released_by_s": nullable(SECOND, "when all that was held is to be sent"),
    "by": string("who gave the command"),
    "why": string("why"),
}

_MISSING = list_of(
    object_of({"partition": string("<topic>/<partition>"), "reason": string("why it did not answer")}, ()),
    "the partitions that the answer does not cover; empty: it covers all",
)

_OWN_CHECKS = {"x-timers-own-checks": True}
"""The client library checks such a body, with the sentences that it also has for programs and commands."""

_ACCEPTED = {"id": string(), "due": SECOND, "due_at": string("RFC 3339")}

_POINT = object_of(
    {
        "at": {**SECOND, "description": "the end of the step"},
        "s": whole("its length in seconds"),
        "counts": {
            "type": "object",
            "additionalProperties": number(),
            "description": "`fired`, `transactions`, `dead-lettered/CODE`, and `lag/WAY/N`: callbacks whose lag is at "
            "most bound N, and above the one before; names that are 0 are left out",
        },
        "pending": whole("timers that wait at its end"),
        "overdue_s": {"type": "number", "description": "longest time for which a stored timer was due"},
        "memory_bytes": whole("resident memory of the worker; 0: not known"),
    }
)

_WAY = object_of(
    {
        "timers": whole(),
        "p50_s": nullable(number()),
        "p99_s": nullable(number()),
        "buckets": list_of(
            {"type": "array", "prefixItems": [nullable(number()), whole()], "minItems": 2, "maxItems": 2},
            "upper bound in seconds, null for the last one, and timers up to it",
        ),
    }
)

_SENTENCES = list_of(string())
_WORKER = {
    "id": string(),
    "url": string("its address, if the group tells it"),
    "partitions": map_of(whole(), "topic -> partitions of it that the group has dealt to this worker"),
    "assigned": map_of(list_of(whole()), "topic -> these partitions"),
    "ready": nullable(boolean(), "null: it was not asked, or its answer cannot be read"),
    "why": nullable(string(), "why `ready` is null"),
    "reasons": {**_SENTENCES, "description": "why it is not ready"},
    "stopped": map_of(string(), "partition -> why it is stopped"),
    "pending": whole("timers that wait"),
    "tick_age_s": number("age of its last tick"),
    "red": map_of(string(), "partition -> what is wrong"),
    "machines": map_of(
        open_object(
            {
                "age_s": number("for how long this worker has had it"),
                "from": string("what its machine began with"),
                "transaction_version": nullable(whole()),
            }
        ),
        "partition -> its machine",
    ),
    "request_partitions": map_of(whole(), "request topic -> its number of partitions"),
    "firing": {**_SENTENCES, "description": "partitions that it fires"},
    "lossy": {**_SENTENCES, "description": "red partitions that fire"},
    "zoneless": {**_SENTENCES, "description": "red partitions that fire all but timers whose time zone is not known"},
    "targets": {**_SENTENCES, "description": "those of them that are red because of a callback topic"},
    "warnings": {**_SENTENCES, "description": "about the configuration of topics"},
    "notes": {**_SENTENCES, "description": "the same, of less weight"},
    **{name: nullable(number(), f"from the metric `{metric}`") for name, metric in METRICS.items()},
    "version": nullable(string()),
    "dead_letters": map_of(whole(), "code -> dead letters since its start"),
    "occurrences_missed": map_of(whole(), "reason -> occurrences that were not sent since its start"),
    "waiting": map_of(whole(), "reason -> partitions that wait"),
    "lags": map_of(_WAY, "way of firing -> its lags since its start"),
}

_PROBLEM = {
    "type": string("address of what the code means", format="uri-reference"),
    "title": string("what the code means"),
    "status": whole(),
    "code": string("for programs"),
    "urn": string("the `type` of version 0.1, kept for one version"),
}

SCHEMAS: dict[str, dict[str, Any]] = {
    "ProblemKind": object_of(_PROBLEM),
    "Problem": open_object(
        {
            **_PROBLEM,
            "detail": string("one sentence for a person"),
            "request_id": string("of the header `Request-Id` of the request, or a new one; the answer has it, too"),
        },
        (*_PROBLEM, "detail", "request_id"),
    ),
    "NewTimer": _OWN_CHECKS
    | object_of(
        {**_TIMER_FIELDS, "id": {**ID, "description": "the id that the timer gets; it may be missing"}},
        ("topic", "value"),
    ),
    "NewTimers": _OWN_CHECKS
    | object_of(
        {"timers": list_of(reference("NewTimer"), "each is a `NewTimer`", minItems=1, maxItems=MAX_BULK_TIMERS)}
    ),
    "AcceptedTimers": object_of(
        {
            "timers": list_of(
                {"anyOf": [reference("Accepted"), object_of({"code": string("for programs"), "detail": string()})]},
                "in the order of the request; `code` and `detail`: the timer was not written, or may not have been",
            ),
            "failed": whole("how many were not written, or may not have been"),
        }
    ),
    "TimerVersion": _OWN_CHECKS | object_of(_TIMER_FIELDS, ("topic", "value")),
    "TimerMove": _OWN_CHECKS | object_of({name: _TIMER_FIELDS[name] for name in ("at", "delay")}, ()),
    "Accepted": object_of(_ACCEPTED),
    "Timer": open_object(
        {
            **_ACCEPTED,
            "state": {"type": "string", "enum": [PENDING, FIRED, COLD, REPLACED, REJECTED]},
            "topic": string("callback topic"),
            "key": nullable(DATA),
            "value_bytes": whole(),
            "value": string("base64, if asked for with value=1"),
            "headers": {**HEADER_PAIRS, "description": "of the callback, if asked for with value=1"},
            "source": string("<topic>/<partition>/<offset> of the request"),
            "position": string("the record that fires, if it is another one"),
            "retry": open_object({"attempt": whole("the next one"), "first_due": SECOND}),
            "held": HOLD,
            "repeat": string("the rule of a timer that repeats"),
            "version": string("the request that has set it: a condition names it"),
            "nominal": SECOND,
            "next": SECOND,
            "next_at": string("of one whose next occurrence is far: `due` is when it is asked again"),
            "error": string("why the request was rejected"),
        },
        ("id", "source"),
    ),
    "TimerList": object_of(
        {
            "timers": list_of(reference("Timer")),
            "next": nullable(string("cursor of the next page"), "null: this is the last page"),
            "searched_to": nullable(SECOND, "due second up to which all timers were searched; null: all"),
            "complete": boolean("whether all partitions answered, up to `next`"),
            "missing": _MISSING,
        }
    ),
    "NextOccurrences": object_of(
        {
            "occurrences": list_of(
                object_of(
                    {
                        "nominal": whole("the epoch second that the rule names"),
                        "due": whole("when the callback is sent: the nominal second and the share of the spread"),
                        "due_at": string("RFC 3339"),
                        "local": string("the nominal second in the zone of the rule, in RFC 3339"),
                        "note": string("what a clock change does to this occurrence"),
                    },
                    ("nominal", "due", "due_at", "local"),
                )
            ),
            "words": list_of(string(), "how the days are chosen, and what the next clock changes do"),
            "zone_data": string("version of the console's rules of time zones"),
        }
    ),
    "FoundTimers": object_of({"id": string(), "timers": list_of(reference("Timer")), "missing": _MISSING}),
    "Verdict": object_of(
        {
            "id": string(),
            "verdict": string(
                "what happened to the former version; undecided: no worker has answered yet",
                enum=["cancelled", "replaced", "already-fired", "unknown", "set", "unchanged", "exists", "undecided"],
            ),
            "due": nullable(SECOND, "due second of the former version"),
            "version": nullable(string("source"), "source of the latest version: its ETag"),
            "held": {**HOLD, "description": "what held the former version"},
        },
        ("id", "verdict", "due"),
    ),
    "History": object_of(
        {
            "timer": nullable(
                reference("Timer"), "null: no worker knows it any more, as after a cancel; `events` say what happened"
            ),
            "events": list_of(
                open_object(
                    {
                        "at_ms": whole("epoch milliseconds"),
                        "what": string(
                            "set, cancel, rejected, the name of a verdict, held, missed, dead-letter, fired"
                        ),
                        "source": string("<topic>/<partition>/<offset> of the request"),
                        "due": nullable(SECOND),
                        "repeat": string("the rule of a timer that repeats"),
                        "verdict": boolean("whether a worker has answered this"),
                        "held": HOLD,
                        "code": string("of a dead letter"),
                        "retried_as": string("source of the new request of a dead letter"),
                        "callback": string("<topic>/<partition>/<offset> of the callback"),
                        "missed": whole("occurrences that are not sent"),
                        "first": SECOND,
                        "last": SECOND,
                        "reason": string("why they are not sent"),
                    },
                    ("at_ms", "what"),
                ),
                "in the order of time",
            ),
            "unread": list_of(
                object_of({"topic": string(), "reason": string()}), "topics that were not read wholly, and why"
            ),
        }
    ),
    "CancelFilter": object_of(
        {
            "topic": {**TOPIC, "description": "all with this callback topic"},
            "from": {**SECOND, "description": "all due at this epoch second or later"},
            "to": {**SECOND, "description": "all due before this epoch second"},
            "prefix": {**ID, "description": "all whose id begins with this text"},
            "contains": {**ID, "description": "all with this text in their id or in their key"},
            "key": string("all whose callbacks have this key", maxLength=2000),
            "confirm": string("`confirm` or `next` of the answer to the same filter", maxLength=2000),
        },
        (),
    ),
    "CancelStep": object_of(
        {
            "matching": whole("timers that would be cancelled"),
            "at_least": boolean("whether there may be more than those that were counted"),
            "left_out": whole("timers without an id, with an id that the user may not use, or waiting for a retry"),
            "sample": list_of(reference("Timer"), "the first ten"),
            "missing": _MISSING,
            "confirm": string("send it with the same filter to cancel them"),
            "verdicts": map_of(whole(), "verdict -> timers of this step"),
            "next": nullable(string("the next step"), "null: all are cancelled"),
        },
        (),
    ),
    "DeadLetter": open_object(
        {
            "code": string("why the request became a dead letter"),
            "message": string("the same as a sentence"),
            "source": string("<topic>/<partition>/<offset> of the request"),
            "position": string("<topic>/<partition>/<offset> of the dead letter"),
            "topic": nullable(string("callback topic")),
            "key": nullable(DATA, "callback key"),
            "due_s": nullable(SECOND),
            "written_at": string("RFC 3339"),
            "timestamp_ms": whole(),
            "truncated": boolean(),
            "value_bytes": nullable(whole()),
            "value_sha256": nullable(string()),
            "retried_as": nullable(string("source of the new request")),
            "retry_known": boolean(
                "false: it may have been retried. The console has not read all marks of retries yet, or no longer "
                "keeps those of this time"
            ),
            "request": {
                **object_of({"key": nullable(DATA), "value": nullable(DATA), "headers": HEADER_PAIRS}),
                "description": "if asked for with value=1",
            },
        },
        ("code", "message", "source", "position"),
    ),
    "DeadLetterList": object_of(
        {
            "dead_letters": list_of(reference("DeadLetter")),
            "next": nullable(string("cursor of the next page")),
            "missing": _MISSING,
        }
    ),
    "Retry": object_of(
        {
            "names": list_of(LETTER_NAME, "these dead letters", minItems=1, maxItems=100),
            "codes": list_of(CODE, "all with one of these codes", minItems=1, maxItems=50),
            "topic": {**TOPIC, "description": "all with callbacks to this topic"},
            "queue": {**QUEUE, "description": "all dead letters of this queue"},
            "contains": {**ID, "description": "all with this text in the key, the id or the reason"},
            "since": {**SECOND, "description": "all written since this epoch second"},
            "until": {**SECOND, "description": "all written before this epoch second"},
            "dry_run": boolean("only say what would be done"),
            "confirm": string("`confirm` of the answer before, to the same filter", maxLength=MAX_CONFIRM),
        },
        (),
    ),
    "Retried": object_of(
        {
            "requests": whole("requests that match and can be published, of those that were read"),
            "overdue": whole("those of them that fire at once"),
            "left_out": map_of(whole(), "reason -> dead letters that are not retried"),
            "published": whole("requests that were published"),
            "more": boolean("it ended early: there may be more than it says. To go on, send `confirm`"),
            "retried": list_of(
                object_of(
                    {"position": string("of the dead letter"), "retried_as": string("source of the new request")}
                ),
                "the first hundred",
            ),
            "missing": _MISSING,
            "confirm": nullable(string("send it with the same request to publish them, or to go on")),
        }
    ),
    "TargetPause": object_of(
        {
            "topic": {**TOPIC, "description": "the name of one callback topic, without a pattern"},
            "for": {**DURATION, "description": 'it ends by itself after this time, such as "1h"'},
            "over": {
                **DURATION,
                "description": 'with `for`: then send the held timers evenly over this time; else "10m"',
            },
            "why": string("the reason, which the list shows", maxLength=MAX_TEXT_CHARACTERS),
        },
        ("topic",),
    ),
    "TargetResume": object_of(
        {
            "topic": {**TOPIC, "description": "the name of one callback topic, without a pattern"},
            "over": {
                **DURATION,
                "description": 'send the held timers evenly over this time, such as "10m"; else at once',
            },
        },
        ("topic",),
    ),
    "TargetCreate": object_of({"topic": {**TOPIC, "description": "the name of a callback topic"}}, ("topic",)),
    "TargetTopic": object_of({"topic": TOPIC, "created": boolean("whether it did not exist before")}),
    "TargetCommand": object_of(
        {
            "topic": TOPIC,
            "number": whole("of the command; each machine takes it within two seconds"),
            "paused": boolean("whether its timers wait"),
            "until_s": nullable(SECOND, "when the pause ends by itself"),
            "over_s": whole("seconds over which the held timers are sent; 0: at once"),
            "replaced": nullable(
                object_of(_PAUSE),
                "the former values, as in the list; null: the topic was not paused, and nothing was held, or an "
                "earlier request with this Idempotency-Key gave the command, and its answer had them",
            ),
            "changed_since": boolean(
                "an earlier request with this Idempotency-Key gave a command, and others were given since: nothing was "
                "changed now, and the other fields are those of the newest one"
            ),
        }
    ),
    "TargetList": object_of(
        {
            "targets": list_of(
                object_of(
                    {
                        "topic": TOPIC,
                        **_PAUSE,
                        "held": nullable(whole(), "timers that are due and wait; null: not known now"),
                        "held_at_least": boolean("whether there may be more than `held`"),
                        "waits_for": list_of(string(), "partitions that have not taken the newest command"),
                        "machines": map_of(whole(), "partition -> number of the newest command that it has taken"),
                    }
                )
            ),
            "below": list_of(string(), "partitions below feature level 10, which take no commands"),
            "unreadable": map_of(string(), "callback topic -> why its record cannot be read"),
        }
    ),
    "Workers": object_of(
        {
            "state": {
                **object_of(
                    {
                        "timers": {"type": "string", "enum": [FIRE, DO_NOT_FIRE, NOT_KNOWN]},
                        "why": string("why not, or why it is not known, in a sentence; else empty"),
                    }
                ),
                "description": "whether all timers fire, as far as it is known now: each partition is fired by a "
                "worker that answered within 2 s and had a tick in this time",
            },
            "taken": string("who has the workers' group, if it is another program: it keeps them out; else empty"),
            "workers": list_of(
                open_object(_WORKER, ("id", "url", "partitions", "assigned", "ready", "why")),
                "without the other fields, if `ready` is null",
            ),
        }
    ),
    "Lateness": object_of(
        {
            "ways": map_of(_WAY, "way of firing -> its lags since the workers' starts"),
            "missing": list_of(object_of({"worker": string(), "reason": string()}), "workers that did not answer"),
        }
    ),
    "Figures": object_of(
        {
            "workers": list_of(
                object_of(
                    {
                        "id": string(),
                        "bounds_s": list_of(number(), "upper bounds of lags; the last counts have none"),
                        "points": list_of(_POINT),
                    }
                )
            ),
            "missing": list_of(
                object_of({"worker": string(), "reason": string()}), "workers that did not answer, and why"
            ),
        }
    ),
    "Queue": open_object(
        {
            "name": string(),
            "topic": string(),
            "depth": whole("messages that are not done"),
            "delayed": nullable(whole(), "timers that will bring a message; null: unknown"),
            "delayed_at_least": boolean("whether there may be more than `delayed`"),
            "oldest_age_s": nullable(number(), "age of the oldest message that is not done"),
            "processes": whole("members of its group"),
            "partitions": list_of(
                open_object(
                    {
                        "topic": string(),
                        "partition": whole(),
                        "committed": nullable(whole(), "all messages below this offset are done; null: none is"),
                        "end": whole("offset after its last message"),
                        "depth": whole("messages that are not done"),
                        "ledger_bytes": whole("length of the list of what is done above `committed`"),
                        "may_run": whole("messages that a process may have now, at most"),
                    },
                    ("topic", "partition", "committed", "end", "depth"),
                )
            ),
            "unread": list_of(string(), "<topic>/<partition> whose leader does not answer: figures are without it"),
        },
        ("name", "topic", "depth", "oldest_age_s", "processes"),
    ),
    "QueueList": object_of(
        {
            "queues": list_of(reference("Queue")),
            "missing": list_of(object_of({"queue": string(), "reason": string()}), "queues that were not read"),
        }
    ),
    "PastFirings": object_of(
        {
            "since": SECOND,
            "found": whole("firings since then, at most 10,000"),
            "fired": list_of(
                open_object(
                    {
                        "topic": string("callback topic"),
                        "partition": whole(),
                        "offset": whole(),
                        "key": nullable(DATA),
                        "timer_id": nullable(DATA),
                        "source": nullable(DATA, "<topic>/<partition>/<offset> of the request"),
                        "due_s": nullable(SECOND),
                        "lag_ms": nullable(whole()),
                        "timestamp_ms": whole("epoch milliseconds"),
                    },
                    ("topic", "partition", "offset", "timestamp_ms"),
                ),
                "the newest first",
            ),
            "left_out": list_of(
                object_of({"topic": string(), "reason": string()}), "topics of which there may be more, and why"
            ),
        }
    ),
    "Counts": object_of(
        {
            "counts": list_of(object_of({"from": SECOND, "timers": whole()})),
            "next": nullable(string("cursor to count on from")),
            "complete": boolean("whether all timers were counted"),
            "missing": _MISSING,
        }
    ),
    "Live": object_of({"live": boolean()}),
    "Ready": object_of({"ready": boolean(), "reasons": list_of(string())}),
    "Document": open_object(
        {
            "openapi": string("version of OpenAPI"),
            "info": open_object({"title": string(), "version": string()}, ("title", "version")),
            "paths": map_of({}, "path -> its operations"),
        },
        ("openapi", "info", "paths"),
    ),
}
