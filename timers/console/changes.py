"""Reads the log of changes that were made by the HTTP API. It blocks: threads call it."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import Message

from timers.console.history import MAX_READING_S
from timers.console.threads import check
from timers.core.printable import decode_json, utc_text
from timers.kafka import connection, records
from timers.kafka.clients import span_reader
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings

MAX_CHANGES = 200
"""Changes that are returned at once."""

SEARCHED_CHANGES = 20_000
"""Entries of the log that are looked at at once for those of one timer or user."""

_CHANGES_AT_ONCE = 200
_MAX_TEXT = 300
_NOT_TOLD = frozenset({"confirm", "wait", "dry_run"})
"""Parameters that say nothing to a reader."""
_MOMENTS = frozenset({"at", "due", "from", "to", "since", "until"})

_LAST_MS = 253_402_300_800_000
"""The end of the year 9999."""


class Change(NamedTuple):
    """An entry of the log of changes: who asked for what. It is written before the change is made, or refused."""

    at_ms: int
    user: str
    address: str
    operation: str
    """The name of a route."""
    about: str
    """What it names: an id, a topic, or a filter."""
    ids: int
    """How many timers it names."""
    only_counts: bool
    """Whether it asked what a cancel or a retry would match, and for no change."""


class Changes(NamedTuple):
    """Changes, the newest first."""

    found: list[Change]
    looked_at: int
    """Entries that were looked at."""
    older: list[int] | None
    """Where older entries end in each partition; None: there are no older ones."""


def read_changes(settings: Settings, id: str, user: str, ends: Sequence[int] | None) -> Changes:
    """The newest changes that name a timer and that a user made. Blocks.

    Args:
        id: of the timer; empty: all changes.
        user: empty: of all users.
        ends: ``older`` of what was read before; None: begin with the newest.

    Raises:
        TimersError: the topic cannot be read.
    """
    reports, topic = connection.ErrorReports(settings), settings.console_log_topic
    offsets = TopicOffsets(settings, connection.CALL_TIMEOUT_S)
    starts, whole = (each.get(topic, {}) for each in (offsets.starts([topic]), offsets.ends([topic])))
    given = dict(enumerate(ends or ()))
    first = {each: max(starts[each], min(end, given.get(each, end))) for each, end in whole.items() if each in starts}
    found: dict[int, list[tuple[int, Change]]] = {partition: [] for partition in first}
    looked_at, give_up_s = 0, monotonic() + MAX_READING_S
    with closing(span_reader(settings, reports)) as consumer, reports.explained(f"topic {topic!r} cannot be read"):
        while any(first[each] > starts[each] for each in first) and looked_at < SEARCHED_CHANGES:
            if monotonic() > give_up_s or sum(map(len, found.values())) >= MAX_CHANGES:
                break
            for partition, upto in first.items():
                first[partition] = max(starts[partition], upto - _CHANGES_AT_ONCE)
                looked_at += upto - first[partition]
                span = records.read(consumer, topic, partition, first[partition], upto, timeout_s=MAX_READING_S)
                found[partition] += _newest_first(span, id, user)
    return _page(found, first, starts, looked_at)


def _newest_first(span: Iterator[Message], id: str, user: str) -> list[tuple[int, Change]]:
    """The changes of records, and their offsets."""
    read = []
    for message in span:
        check()  # an entry may be long
        if (change := change_of(message.value(), id, user)) is not None:
            read.append((message.offset() or 0, change))
    return read[::-1]


def _page(
    found: Mapping[int, list[tuple[int, Change]]], first: Mapping[int, int], starts: Mapping[int, int], looked_at: int
) -> Changes:
    """The newest of what was found, those of a partition in the order of its log, and where the rest ends."""
    of_partitions = ([(partition, *each) for each in of] for partition, of in found.items())
    merged = list(heapq.merge(*of_partitions, key=lambda each: -each[2].at_ms))
    rest = dict(first)
    for partition, offset, _ in reversed(merged[MAX_CHANGES:]):
        rest[partition] = offset + 1
    ends = [rest.get(partition, 0) for partition in range(max(rest, default=-1) + 1)]
    has_older = any(end > starts[partition] for partition, end in rest.items())
    return Changes([change for *_, change in merged[:MAX_CHANGES]], looked_at, ends if has_older else None)


def change_of(value: bytes | None, id: str, user: str) -> Change | None:
    """The change in a record; None if it is none, or does not concern this timer and this user."""
    try:
        entry = decode_json(value or b"")
        body, parameters, operation = entry["body"], entry["parameters"], str(entry["operation"])[:_MAX_TEXT]
        listed = body.get("timers", {}).get("listed", ())
        ids = [each for each in (parameters.get("id"), body.get("id")) if each] + list(entry.get("ids", ()))
        ids += [each["id"] for each in listed if "id" in each]
        if (id and id not in ids) or (user and entry["user"] != user):
            return None
        at_ms = int(entry["at_ms"])
        if not 0 <= at_ms < _LAST_MS:
            return None
        about = " ".join(_told({**parameters, **body}))[:_MAX_TEXT]
        by, address = (str(entry[name])[:_MAX_TEXT] for name in ("user", "address"))
        only_counts = bool(body.get("dry_run")) or (
            (operation == "cancelTimers" or (operation == "retryDeadLetters" and "names" not in body))
            and "confirm" not in body
        )
        return Change(at_ms, by, address, operation, about, len(ids) or len(listed), only_counts)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None  # any program with Write there may have written it


def _told(given: Mapping[str, Any]) -> Iterator[str]:
    """What a request has named, without what is recorded by its hash only."""
    for name, value in given.items():
        if name in _NOT_TOLD or value is None or (isinstance(value, dict) and "json_sha256" in value):
            continue
        if name in _MOMENTS and type(value) is int and 0 <= value < _LAST_MS // 1000:
            value = utc_text(value)
        yield f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
