"""Queries to a worker's web port and their JSON answers; see ``docs/finding-timers.md``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

from timers.core.fired import Hold
from timers.core.listing import LIST_START, Position
from timers.core.printable import json_value, quoted, utc_text
from timers.core.repeating import Occurrence, is_occurrence, occurrence_of
from timers.core.timer import Origin, Row, TopicPartition, id_bytes
from timers.wire import topics
from timers.wire.repeat import Repeat, RepeatError
from timers.wire.verdict import shown_hold
from timers.wire.zones import UnknownZone

LIST_PATH = "/timers"
COUNT_PATH = "/timers/counts"
SNAPSHOT_PATH = "/snapshots/take"

FIND_PATH = "/timer"
"""The id is the parameter ``id``, because proxies change a path that holds an id such as ``..``."""

COUNTING_TIMEOUT_S = 2.0
"""How long the held timers of all callback topics are counted for one list."""

FORWARDED = "Timers-Forwarded"
"""Header of a query that one worker forwards to another, which then answers for its own partitions only."""

FORWARDED_QUICK = "quick"
"""Value of this header if the query is for a first page: its later reads and counts name the place where they go on."""

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100

MAX_GROUP_S = 86_400

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""A worker's answer is shorter: 8 MiB of values and one value of each partition, as JSON. A longer one comes from
another server."""

PENDING = "pending"
"""The timer waits for its due second."""
FIRED = "fired"
"""The due second is over: the timer fired, became a dead letter, or waits for a retry."""
COLD = "cold"
"""The timer is due further ahead than the horizon, and waits in the cold tier."""
REPLACED = "replaced"
"""A later record of the same id replaced or cancelled this request."""
REJECTED = "rejected"
"""The request could not be read and became a dead letter on arrival."""

Timer: TypeAlias = dict[str, Any]
"""A timer in an answer: field name -> value."""


class InvalidQueryError(ValueError):
    """A parameter of a query is wrong. The message says what is expected."""


class Query(NamedTuple):
    """Which timers a listing shows or a count counts, and where its page begins."""

    topic: str | None = None
    """Callback topic; None: any."""
    from_s: int = 0
    """First due second."""
    to_s: int | None = None
    """Due second before which the listing ends; None: no end."""
    limit: int = DEFAULT_LIMIT
    after: Position = LIST_START
    """Position of the last timer of the page before."""
    with_values: bool = False
    prefix: str = ""
    """The id begins with this text."""
    key: str | None = None
    """Key of the callback; None: any."""
    set: str = ""
    """Name of the set that it belongs to (:data:`timers.wire.headers.SET`); empty: any."""
    contains: str = ""
    """This text stands in the id, or in the key of the callback."""
    by_s: int = 0
    """Of a count: seconds of one group; 0: a listing. Partitions are counted one after the other: that of ``after``
    from there on, those before it not at all."""
    partition: TopicPartition | None = None
    """Of a count: only this one; None: all."""
    is_part_of_quick: bool = False
    """Whether another worker asks for its first page. Not a parameter: :data:`FORWARDED_QUICK` says it."""

    @property
    def start(self) -> Position:
        """The listing begins after this position."""
        return max(self.after, (self.from_s, *LIST_START[1:]))

    @property
    def is_quick(self) -> bool:
        """Whether it is for a short first page, for which someone waits. One with values may be large."""
        is_first = self.after == LIST_START and self.limit <= DEFAULT_LIMIT and not self.with_values
        return is_first or self.is_part_of_quick


class HeldCounter:
    """Counts the timers of a callback topic that are due and have not fired: they are held.

    Attributes:
        asked: parameters of the next question on :data:`COUNT_PATH`.
        goes_on: whether it has to be asked.
    """

    def __init__(self, topic: str, now_s: int) -> None:
        self.asked = {"topic": topic, "to": str(now_s + 1), "by": str(MAX_GROUP_S)}
        self.goes_on = True
        self._timers: int | None = None
        self._lacks = False

    def add(self, answer: dict[str, Any]) -> None:
        self._timers = (self._timers or 0) + sum(each["timers"] for each in answer["timers"])
        self.goes_on = answer["next"] is not None
        self._lacks |= bool(answer["missing"])
        if self.goes_on:
            self.asked["cursor"] = answer["next"]

    @property
    def shown(self) -> dict[str, Any]:
        """The number, for JSON; None: not known."""
        at_least = self._timers is not None and (self.goes_on or self._lacks)
        return {"held": self._timers, "held_at_least": at_least}


def shown_id(row: Row, position: str) -> str:
    """Return the id of a timer as answers have it: that of its sender, or else the source of its request."""
    return position if row[5] is None else id_bytes(row[5][0]).decode(errors="replace")


def describe(
    row: Row, due_s: int, topic: str, partition: int, hold: Hold | None = None, *, moved: bool, with_value: bool
) -> Timer:
    """Return the answer for a pending timer; ``hold``: what holds it, if it is due."""
    occurrence = occurrence_of(row) if is_occurrence(row) else None
    row = row if occurrence is None else occurrence.row
    offset, callback_topic, key, value = row[:4]
    origin = None if row[5] is None else Origin(*row[5])
    position = topics.source(topic, partition, offset)
    source = position if origin is None else origin.source or (origin.timer_id if moved else position)
    timer: Timer = {
        "id": shown_id(row, position),
        "due": due_s,
        "due_at": utc_text(due_s),
        "topic": callback_topic,
        "key": json_value(key) if isinstance(key, bytes) else key,
        "value_bytes": len(value),
        "source": source,
    }
    if source != position:
        timer["position"] = position
    if moved and origin is not None:
        timer["retry"] = {"attempt": origin.attempt, "first_due": origin.due_s}
    if hold is not None:
        timer["held"] = {**shown_hold(hold.reason, hold.number, hold.since_s), "since_at": utc_text(hold.since_s)}
    if occurrence is not None:
        timer |= _repeating(occurrence, row)
    if with_value:
        timer["value"] = base64.b64encode(value).decode()
        timer["headers"] = [[name, json_value(data)] for name, data in row[4] or ()]
    return timer


def _repeating(occurrence: Occurrence, row: Row) -> Timer:
    """Return what an answer says of a timer that repeats. A waypoint says when its next occurrence is due."""
    rule, version = (text.decode(errors="replace") for text in (occurrence.rule, occurrence.version))
    found: Timer = {"repeat": rule, "version": version}
    if occurrence.nominal_s is not None:
        return {**found, "nominal": occurrence.nominal_s}
    with suppress(RepeatError, UnknownZone):
        repeat = Repeat.of_header(occurrence.rule)
        nominal_s = repeat.next_nominal(occurrence.decided_s)
        if nominal_s is not None and row[5] is not None:
            due_s = nominal_s + repeat.share_s(id_bytes(row[5][0]))
            found |= {"nominal": nominal_s, "next": due_s, "next_at": utc_text(due_s)}
    return found


def callback_key_bytes(timer: Timer) -> bytes:
    """Return the callback key of an answer as bytes; empty if there is none."""
    key = timer["key"]
    if isinstance(key, dict):
        return base64.b64decode(key["base64"])
    return (key or "").encode(errors="backslashreplace")


def version_of(timer: Timer) -> str:
    """Return the source that a condition on a timer names: that of its request, which a timer that repeats outlives."""
    return str(timer.get("version", timer["source"]))


def condition_of(timer: Timer) -> str | None:
    """Return the condition of a cancel of a listed timer: its version, so that no newer one is cancelled; None: it is
    held, and from its due second on a cancel with a condition is too late, one without counts."""
    return None if "held" in timer else version_of(timer)


def position_of(timer: Timer) -> Position:
    """Return the position of a listed timer.

    Raises:
        ValueError, KeyError, TypeError: the answer is not one that :func:`describe` makes.
    """
    place = topics.parse_source(timer["position" if "position" in timer else "source"])
    if place is None:
        raise ValueError("no position")
    return int(timer["due"]), *place


def cursor(position: Position) -> str:
    """Return a position as text. Inverse: :func:`parse_cursor`."""
    due_s, *place = position
    return f"{due_s}/{'/'.join(map(str, place))}"


def parse_cursor(text: str) -> Position:
    """Return the position that a cursor names."""
    due_s, _, source = text.partition("/")
    place = topics.parse_source(source)
    if place is None or not re.fullmatch(r"[0-9]{1,11}", due_s, re.ASCII):
        raise InvalidQueryError(f"cursor={quoted(text)} is not a cursor from the `next` of an answer")
    return int(due_s), *place


def given_in(raw_path: str) -> list[tuple[str, str]]:
    """Return the parameters of a path as a request has it, percent-encoded.

    Bytes that are not UTF-8 are as ``surrogateescape`` decodes them. A server's library would put U+FFFD in their
    place, which makes another id of an id.
    """
    return parse_qsl(raw_path.partition("?")[2], keep_blank_values=True, errors="surrogateescape")


def parse_query(parameters: Mapping[str, str]) -> Query:
    """Return the query for a listing. Inverse: :func:`parameters_of`."""
    _check_names(parameters, (*_SELECTION, "limit", "value", *_TEXTS))
    texts: dict[str, Any] = {name: parameters[name] for name in _TEXTS if name in parameters}
    for name, text in texts.items():
        if re.search("[\ud800-\udfff]", text):
            raise InvalidQueryError(f"{name}={quoted(text)} is not UTF-8, percent-encoded")
    limit = _parse_number(parameters, "limit", 4) if "limit" in parameters else DEFAULT_LIMIT
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidQueryError(f"limit={limit} is not between 1 and {MAX_LIMIT}: ask for more by `cursor`")
    with_values = _parse_flag(parameters, "value")
    return _selection(parameters)._replace(limit=limit, with_values=with_values, **texts)


def parse_count_query(parameters: Mapping[str, str]) -> Query:
    """Return the query for counts. Inverse: :func:`parameters_of`."""
    _check_names(parameters, (*_SELECTION, "by", "partition"))
    by_s = _parse_number(parameters, "by", 5) if "by" in parameters else 0
    if not 1 <= by_s <= MAX_GROUP_S:
        raise InvalidQueryError(f"by={parameters.get('by')!r} is not a number of seconds from 1 to {MAX_GROUP_S}")
    place = topics.parse_source(f"{parameters['partition']}/0") if "partition" in parameters else None
    if "partition" in parameters and place is None:
        raise InvalidQueryError(f"partition={quoted(parameters['partition'])} is not of the form <topic>/<partition>")
    return _selection(parameters)._replace(by_s=by_s, partition=place and place[:2])


_SELECTION = ("topic", "from", "to", "cursor")
_TEXTS = ("prefix", "contains", "key", "set")


def _selection(parameters: Mapping[str, str]) -> Query:
    topic = parameters.get("topic")
    if topic is not None and not topics.is_legal(topic):
        raise InvalidQueryError(f"topic={quoted(topic)} is not {topics.LEGAL_FORM}")
    return Query(
        topic,
        _parse_number(parameters, "from", 11) if "from" in parameters else 0,
        _parse_number(parameters, "to", 11) if "to" in parameters else None,
        after=parse_cursor(parameters["cursor"]) if "cursor" in parameters else LIST_START,
    )


def parse_find(parameters: Mapping[str, str]) -> tuple[str, bool]:
    """Return the id of a query, and whether to show the value."""
    _check_names(parameters, ("id", "value"))
    id = parameters.get("id", "")
    if not id:
        raise InvalidQueryError("id is missing: ask for /timer?id=ID, percent-encoded")
    return id, _parse_flag(parameters, "value")


def parameters_of(query: Query) -> dict[str, str]:
    given = {
        "from": str(query.from_s),
        "topic": query.topic,
        "to": None if query.to_s is None else str(query.to_s),
        "cursor": cursor(query.after) if query.after != LIST_START else None,
    }
    if query.by_s:
        place = query.partition
        given |= {"by": str(query.by_s), "partition": place and topics.partition_name(*place)}
    else:
        given |= {"limit": str(query.limit), "value": str(int(query.with_values))}
        given |= {
            "prefix": query.prefix or None,
            "contains": query.contains or None,
            "key": query.key,
            "set": query.set or None,
        }
    return {name: text for name, text in given.items() if text is not None}


def _check_names(parameters: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in parameters:
        if name not in known:
            raise InvalidQueryError(f"{quoted(name)} is not a parameter: there are {', '.join(known)}")


def _parse_number(parameters: Mapping[str, str], name: str, digits: int) -> int:
    text = parameters[name]
    if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text, re.ASCII):
        expected = "an epoch second, such as 1896091200" if digits > 4 else f"a number from 1 to {MAX_LIMIT}"
        raise InvalidQueryError(f"{name}={quoted(text)} is not {expected}")
    return int(text)


def _parse_flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidQueryError(f"{name}={quoted(text)} is not 0 or 1")
    return text == "1"
