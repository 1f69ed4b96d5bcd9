"""The format of kafka-message-scheduler: a schedule is a record whose key is its id, with ``scheduler-*`` headers.

::

    key       schedule id                    any bytes; a later record with the same id replaces the schedule
    value     payload                        sent unchanged; null (a tombstone) cancels the schedule
    headers   scheduler-epoch                due epoch second, in digits
              scheduler-target-topic         topic of the callback
              scheduler-target-key           key of the callback; null or missing: no key

The topic belongs to its users and is usually compacted, so it keeps one version of each id. The engine ends a fired
schedule with a tombstone, which names the fired version. If a header is repeated, the first one counts, as in
kafka-message-scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from timers.core.timer import Decoded, Headers, Origin, Row, id_bytes, id_text, key_bytes
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError, check_id, check_size, check_topic, decode_due, rejected

HEADER_PREFIX = "scheduler-"
"""Prefix of the headers of kafka-message-scheduler. They are not sent with the callback, like ``timer-*``."""

EPOCH = "scheduler-epoch"
TARGET_TOPIC = "scheduler-target-topic"
TARGET_KEY = "scheduler-target-key"

_PLAIN = (EPOCH, TARGET_TOPIC, TARGET_KEY)
"""The headers of most schedules: those that the client library writes."""

TIMESTAMP = "scheduler-timestamp"
"""On a callback: the timestamp of the schedule's record, in epoch seconds."""
KEY = "scheduler-key"
"""On a callback: the id."""
TOPIC = "scheduler-topic"
"""On a callback: the topic of the schedule."""

MAX_ID_BYTES = 32 * 1024
"""An id is sent in a header and in a tombstone's key. The engine's topics allow 64 KiB for these."""

_MS_DIGITS = 13
"""Number of digits of epoch milliseconds from 2001 to 2286."""


class Schedule(NamedTuple):
    """A schedule as it was published."""

    key: bytes
    value: bytes
    headers: list[h.Header]
    timestamp_ms: int


def encode_headers(due_s: int, topic: str, key: bytes | None) -> list[h.Header]:
    """Return the headers that a schedule needs, in the order of the client library of kafka-message-scheduler."""
    return [(EPOCH, b"%d" % due_s), (TARGET_TOPIC, topic.encode()), (TARGET_KEY, key)]


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    return _decode(records, max_request_bytes, reject_overdue=False)


def decode_rejecting_overdue(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Decode records, and reject a schedule that was due before its record was written."""
    return _decode(records, max_request_bytes, reject_overdue=True)


def _decode(records: Sequence[Any], max_request_bytes: int, *, reject_overdue: bool) -> Decoded:
    """Decode records of a schedule topic: a hot path, about 2 µs a record.

    A record that cannot be read also ends the schedule with its id, because compaction removes the older, good version.
    """
    decoded = Decoded()
    by_due, operations = decoded.rows, decoded.operations
    seconds: dict[bytes | None, int] = {}
    topics: dict[bytes | None, str] = {}
    plain: set[bytes | None] = set()
    new_origin = partial(tuple.__new__, Origin)  # the constructor of Origin takes three times as long
    stamp_ms, stamp = -1, ((h.TIMER_TIMESTAMP, b"-1"),)
    for record in records:
        key, value, offset = record.key, record.value, record.offset
        headers: Headers = record.headers or ()
        try:
            if not key or len(key) > MAX_ID_BYTES:
                check_id(key, MAX_ID_BYTES)
            if value is None:
                operations.append((key, offset, None, 0))
                if headers and (version := fired_version(headers, offset)) is not None:
                    decoded.fired_versions[offset] = version
                continue
            is_plain = len(headers) == 3 and (headers[0][0], headers[1][0], headers[2][0]) == _PLAIN
            if is_plain:
                (_, epoch), (_, target), (_, target_key) = headers
            else:
                by_name = dict(reversed(headers))
                epoch, target, target_key = by_name.get(EPOCH), by_name.get(TARGET_TOPIC), by_name.get(TARGET_KEY)
            due_s = seconds.get(epoch)
            if due_s is None:
                due_s = seconds[epoch] = decode_due(epoch, f"header {EPOCH}")
                if epoch == b"%d" % due_s:
                    plain.add(epoch)
            topic = topics.get(target)
            if topic is None:
                topic = topics[target] = _decode_topic(target)
            if len(value) > max_request_bytes:
                check_size(value, max_request_bytes)
            timestamp_ms = record.timestamp
            if reject_overdue and due_s < timestamp_ms // 1000:
                raise InvalidRequestError(
                    "overdue",
                    f"it is due at {due_s}, before its record was written ({timestamp_ms // 1000}), and "
                    "TIMERS_SCHEDULE_OVERDUE=reject",
                )
        except InvalidRequestError as error:
            decoded.rejected.append(rejected(record, error))
            if key:
                operations.append((key, offset, None, 0))
            continue
        # `as_published` rebuilds the record, with timestamp and headers. Plain headers can be computed from the row, so
        # the row keeps only other headers.
        if timestamp_ms != stamp_ms:
            stamp_ms, stamp = timestamp_ms, ((h.TIMER_TIMESTAMP, b"%d" % timestamp_ms),)
        kept = stamp if is_plain and epoch in plain else (*stamp, *headers)
        row = (offset, topic, target_key, value, kept, new_origin((id_text(key), due_s, 0, None)))
        operations.append((key, offset, due_s, 0))
        if due_s in by_due:
            by_due[due_s].append(row)
        else:
            by_due[due_s] = [row]
    return decoded


def _decode_topic(topic: bytes | None) -> str:
    name = (topic or b"").decode(errors="replace")
    check_topic(name, f"header {TARGET_TOPIC}")
    return name


def callback_row(row: Row, topic: bytes) -> Row:
    """Return the row of a schedule's callback: the hot path of firing."""
    offset, target, key, value, kept, origin = row
    assert kept is not None and origin is not None
    stamp = kept[0][1] or b"0"
    seconds = stamp[:-3] if len(stamp) == _MS_DIGITS else b"%d" % (int(stamp) // 1000)
    headers: list[h.Header] = [(TIMESTAMP, seconds), (KEY, id_bytes(origin[0])), (TOPIC, topic)]
    if len(kept) > 1:
        headers[:0] = [header for header in kept if not header[0].startswith((h.PREFIX, HEADER_PREFIX))]
    return offset, target, key, value, headers, origin


def as_published(row: Row) -> Schedule:
    """Return a pending schedule as it was published."""
    _, topic, key, value, kept, origin = row
    assert kept is not None and origin is not None
    headers = list(kept[1:]) or encode_headers(origin[1], topic, key_bytes(key))
    return Schedule(id_bytes(origin[0]), value, headers, int(kept[0][1] or b"0"))


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Return key, value and headers of a schedule, rebuilt from its callback."""
    _, topic, key, value, headers, _ = row
    callback_headers = [header for header in headers or () if not header[0].startswith(HEADER_PREFIX)]
    schedule_headers = encode_headers(origin.due_s, topic, key_bytes(key))
    return id_bytes(origin.timer_id), value, [*callback_headers, *schedule_headers]


# ---- tombstones of the engine ---------------------------------------------------------------------------------------


def tombstones(rows: Sequence[Row]) -> list[tuple[bytes, list[h.Header]]]:
    """Return key and headers of the tombstones that end these schedules."""
    return [(id_bytes(row[5][0]), tombstone_headers(row[0])) for row in rows if row[5] is not None]


def tombstone_headers(offset: int) -> list[h.Header]:
    """Return headers of the tombstone that ends the version at ``offset``. Inverse: :func:`fired_version`."""
    return [(h.TIMER_FIRED_OFFSET, b"%d" % offset)]


def fired_version(headers: Sequence[h.Header], offset: int) -> int | None:
    """Return the offset of the version that a tombstone names; None for a tombstone of a user."""
    for name, value in headers:
        if name == h.TIMER_FIRED_OFFSET and value is not None and value.isdigit() and len(value) <= 18:
            version = int(value)
            return version if version < offset else None
    return None
