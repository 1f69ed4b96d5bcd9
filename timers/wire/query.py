"""Questions to a worker's web port, and what it answers, in JSON: ``docs/finding-timers.md``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from timers.core.listing import START, Position
from timers.core.timer import Origin, Row, id_bytes
from timers.wire import topics
from timers.wire.printable import json_value

LIST_PATH = "/timers"
FIND_PATH = "/timer"
"""With ``?id=``: in a path, ids such as ``..`` would be taken for something else on the way."""

FORWARDED = "Timers-Forwarded"
"""Header of a question that one worker asks another: answered for its own partitions alone, so it ends there."""

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100

PENDING = "pending"
"""It waits, and will fire as things stand."""
FIRED = "fired"
"""Its second is over: it fired, became a dead letter, or its callback failed and is tried again."""
COLD = "cold"
"""It is due further ahead than the horizon, and waits in the cold tier."""
REPLACED = "replaced"
"""A record of a timer with an id, whose id has a later version or was cancelled."""
REJECTED = "rejected"
"""Its request could not be read, and became a dead letter on arrival."""

Timer: TypeAlias = dict[str, Any]
"""What is said of a timer."""


class InvalidQueryError(ValueError):
    """A parameter is wrong; the sentence says how it should be."""


class Query(NamedTuple):
    """What to list."""

    topic: str | None = None
    """Callback topic; None: any."""
    from_s: int = 0
    """First due second."""
    to_s: int | None = None
    """Due second to end before."""
    limit: int = DEFAULT_LIMIT
    after: Position = START
    """Where the page before ended."""
    with_values: bool = False

    @property
    def start(self) -> Position:
        """Nothing at or before this is wanted."""
        return max(self.after, (self.from_s, *START[1:]))


def format_due(due_s: int) -> str:
    """RFC 3339 in UTC, as far as Python's calendar goes (the year 9999; due seconds end in 5138)."""
    return datetime.fromtimestamp(due_s, UTC).isoformat()[:-6] + "Z"  # 0.5 us; strftime takes 2


def partition_name(topic: str, partition: int) -> str:
    """How a partition is named in an answer."""
    return f"{topic}/{partition}"


def describe(row: Row, due_s: int, topic: str, partition: int, *, moved: bool, with_value: bool) -> Timer:
    """What is said of a timer that waits.

    Args:
        row: as it is stored.
        due_s: when it fires.
        topic: that it stands on.
        partition: of that topic.
        moved: that is the retry topic.
        with_value: also the callback's value, as base64.
    """
    offset, callback_topic, key, value = row[:4]
    origin = None if row[5] is None else Origin(*row[5])
    position = topics.source(topic, partition, offset)
    source = position if origin is None else origin.source or (origin.timer_id if moved else position)
    timer: Timer = {
        "id": position if origin is None else id_bytes(origin.timer_id).decode(errors="replace"),
        "due": due_s,
        "due_at": format_due(due_s),
        "topic": callback_topic,
        "key": json_value(key) if isinstance(key, bytes) else key,
        "value_bytes": len(value),
        "source": source,
    }
    if source != position:
        timer["position"] = position
    if moved and origin is not None:
        timer["retry"] = {"attempt": origin.attempt, "first_due": origin.due_s}
    if with_value:
        timer["value"] = base64.b64encode(value).decode()
    return timer


def key_shown(timer: Timer) -> bytes:
    """The key of a timer for a person to see: nothing if it has none."""
    key = timer["key"]
    if isinstance(key, dict):
        return base64.b64decode(key["base64"])
    return (key or "").encode(errors="backslashreplace")


def position_of(timer: Timer) -> Position:
    """Where a listed timer stands.

    Raises:
        ValueError, KeyError, TypeError: it is none of ours.
    """
    where = topics.parse_source(timer["position" if "position" in timer else "source"])
    if where is None:
        raise ValueError("no position")
    return int(timer["due"]), *where


def cursor(position: Position) -> str:
    """A position as text. Inverse: :func:`parse_cursor`."""
    due_s, *where = position
    return f"{due_s}/{'/'.join(map(str, where))}"


def parse_cursor(text: str) -> Position:
    """The position behind a cursor.

    Raises:
        InvalidQueryError: it is none.
    """
    due_s, _, source = text.partition("/")
    where = topics.parse_source(source)
    if where is None or not re.fullmatch(r"[0-9]{1,11}", due_s, re.ASCII):
        raise InvalidQueryError(f"cursor={text!r} is not one that an answer gave as `next`")
    return int(due_s), *where


def parse_query(parameters: Mapping[str, str]) -> Query:
    """What a question's parameters ask for.

    Raises:
        InvalidQueryError: one of them is wrong.
    """
    _check_names(parameters, ("topic", "from", "to", "limit", "cursor", "value"))
    topic = parameters.get("topic")
    if topic is not None and not topics.is_legal(topic):
        raise InvalidQueryError(f"topic={topic!r} is not {topics.LEGAL_FORM}")
    limit = _number(parameters, "limit", 4) if "limit" in parameters else DEFAULT_LIMIT
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidQueryError(f"limit={limit} is not between 1 and {MAX_LIMIT}: ask for more by `cursor`")
    return Query(
        topic,
        _number(parameters, "from", 11) if "from" in parameters else 0,
        _number(parameters, "to", 11) if "to" in parameters else None,
        limit,
        parse_cursor(parameters["cursor"]) if "cursor" in parameters else START,
        _flag(parameters, "value"),
    )


def parse_find(parameters: Mapping[str, str]) -> tuple[str, bool]:
    """The id that is asked for, and whether with its value.

    Raises:
        InvalidQueryError: a parameter is wrong.
    """
    _check_names(parameters, ("id", "value"))
    id = parameters.get("id", "")
    if not id:
        raise InvalidQueryError("id is missing: ask for /timer?id=ID, percent-encoded")
    return id, _flag(parameters, "value")


def parameters_of(query: Query) -> dict[str, str]:
    """Inverse of :func:`parse_query`."""
    asked = {"limit": str(query.limit), "from": str(query.from_s), "value": str(int(query.with_values))}
    if query.topic is not None:
        asked["topic"] = query.topic
    if query.to_s is not None:
        asked["to"] = str(query.to_s)
    if query.after != START:
        asked["cursor"] = cursor(query.after)
    return asked


def _check_names(parameters: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in parameters:
        if name not in known:
            raise InvalidQueryError(f"{name!r} is not a parameter: there are {', '.join(known)}")


def _number(parameters: Mapping[str, str], name: str, digits: int) -> int:
    text = parameters[name]
    if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text, re.ASCII):
        what = "an epoch second, such as 1896091200" if digits > 4 else f"a number from 1 to {MAX_LIMIT}"
        raise InvalidQueryError(f"{name}={text!r} is not {what}")
    return int(text)


def _flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidQueryError(f"{name}={text!r} is not 0 or 1")
    return text == "1"
