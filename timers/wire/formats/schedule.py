"""The format of kafka-message-scheduler: a schedule is a record whose key is its id, with ``scheduler-*`` headers.

::

    key       schedule id                    any bytes; the same id again takes the place of the schedule before
    value     payload                        goes out as it is; null (a tombstone) cancels
    headers   scheduler-epoch                due epoch second, in digits
              scheduler-target-topic         where the payload goes
              scheduler-target-key           with which key; null or not there: none

The topic is its users' own and mostly compacted, so it keeps one version of each id. What has fired is ended by a
tombstone of ours, which names the version that it is about. Of several headers of one name the first counts, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from timers.core.operation import ANY_VERSION
from timers.core.timer import Decoded, Headers, Origin, Row, id_bytes, id_text, key_bytes
from timers.wire import headers as h
from timers.wire.future import InvalidRequestError, decode_due, rejected
from timers.wire.topics import is_legal

PREFIX = "scheduler-"
"""Their name space: such headers of a schedule do not travel, nor do ours."""

EPOCH = "scheduler-epoch"
TARGET_TOPIC = "scheduler-target-topic"
TARGET_KEY = "scheduler-target-key"

_PLAIN = (EPOCH, TARGET_TOPIC, TARGET_KEY)
"""The headers of most schedules, by the client library."""

TIMESTAMP = "scheduler-timestamp"
"""On a fired message: the schedule's own timestamp in epoch seconds."""
KEY = "scheduler-key"
"""On a fired message: the id."""
TOPIC = "scheduler-topic"
"""On a fired message: where the schedule stands."""

MAX_ID_BYTES = 32 * 1024
"""An id travels in a header and in a tombstone's key; our topics allow 64 KiB for these."""

OVERDUE = "overdue"
"""Code of a schedule that was due before it was written, where such are rejected."""


_MS_DIGITS = 13
"""Of epoch milliseconds from 2001 to 2286."""


class Schedule(NamedTuple):
    """A record of the topic as it was published."""

    key: bytes
    value: bytes
    headers: list[h.Header]
    timestamp_ms: int


def encode_headers(due_s: int, topic: str, key: bytes | None) -> list[h.Header]:
    """What a schedule needs besides its id and payload; in the order of their client library."""
    return [(EPOCH, b"%d" % due_s), (TARGET_TOPIC, topic.encode()), (TARGET_KEY, key)]


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Read records; see :func:`_decode`."""
    return _decode(records, max_request_bytes, reject_overdue=False)


def decode_rejecting_overdue(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Read records where what was due before it was written is rejected."""
    return _decode(records, max_request_bytes, reject_overdue=True)


def _decode(records: Sequence[Any], max_request_bytes: int, *, reject_overdue: bool) -> Decoded:
    """A hot path, about 2 us a record.

    A record that cannot be read ends the history of its id: in a compacted log it erases the good version before it.

    Args:
        records: with ``offset``, ``key``, ``value``, ``headers``, ``timestamp``, in ascending offset.
        max_request_bytes: largest value accepted.
        reject_overdue: reject what is due before the record's own timestamp.
    """
    decoded = Decoded()
    by_due, operations = decoded.rows, decoded.operations
    seconds: dict[bytes | None, int] = {}
    topics: dict[bytes | None, str] = {}
    plain: set[bytes | None] = set()
    new_origin = partial(tuple.__new__, Origin)  # its own constructor takes three times as long
    stamp_ms, stamp = -1, ((h.TIMER_TIMESTAMP, b"-1"),)
    for record in records:
        key, value, offset = record.key, record.value, record.offset
        headers: Headers = record.headers or ()
        try:
            if not key:
                raise InvalidRequestError("id-missing", "the record has no key: the key is the schedule's id")
            if len(key) > MAX_ID_BYTES:
                raise InvalidRequestError("id-too-long", f"the id has {len(key)} bytes, more than {MAX_ID_BYTES}")
            if value is None:
                operations.append((key, offset, None, fired_version(headers, offset) if headers else ANY_VERSION))
                continue
            is_plain = len(headers) == 3 and (headers[0][0], headers[1][0], headers[2][0]) == _PLAIN
            if is_plain:
                (_, epoch), (_, target), (_, target_key) = headers
            else:
                given = dict(reversed(headers))
                epoch, target, target_key = given.get(EPOCH), given.get(TARGET_TOPIC), given.get(TARGET_KEY)
            due_s = seconds.get(epoch)
            if due_s is None:
                due_s = seconds[epoch] = _decode_epoch(epoch)
                if epoch == b"%d" % due_s:
                    plain.add(epoch)
            topic = topics.get(target)
            if topic is None:
                topic = topics[target] = _decode_topic(target)
            if len(value) > max_request_bytes:
                raise InvalidRequestError(
                    "value-too-large",
                    f"the value has {len(value)} bytes, more than TIMERS_MAX_REQUEST_BYTES={max_request_bytes}",
                )
            timestamp_ms = record.timestamp
            if reject_overdue and due_s < timestamp_ms // 1000:
                raise InvalidRequestError(
                    "overdue",
                    f"it is due at {due_s}, before it was written ({timestamp_ms // 1000}), and "
                    "TIMERS_SCHEDULE_OVERDUE=reject",
                )
        except InvalidRequestError as error:
            decoded.rejected.append(rejected(record, error))
            if key:
                operations.append((key, offset, None, ANY_VERSION))
            continue
        # The version may have to be appended again as it was: with its timestamp, and with all headers, unless the row
        # says what stood in them.
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


def _decode_epoch(epoch: bytes | None) -> int:
    if epoch is None:
        raise InvalidRequestError(
            "due-missing", f"the record has no header {EPOCH}: it says the due epoch second, in digits"
        )
    return decode_due(epoch, f"header {EPOCH}")


def _decode_topic(topic: bytes | None) -> str:
    if not topic:
        raise InvalidRequestError(
            "topic-missing", f"the record has no header {TARGET_TOPIC}: it names the topic to send the payload to"
        )
    name = topic.decode(errors="replace")
    if not is_legal(name):
        raise InvalidRequestError(
            "topic-invalid",
            f"header {TARGET_TOPIC}: {name[:60]!r} is not a legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -",
        )
    return name


def fired(row: Row, topic: bytes) -> Row:
    """A waiting schedule as it goes out: the hot path of firing.

    Args:
        row: as it was stored.
        topic: name of the one that it stands in.
    """
    offset, target, key, value, kept, origin = row
    assert kept is not None and origin is not None
    stamp = kept[0][1] or b"0"
    seconds = stamp[:-3] if len(stamp) == _MS_DIGITS else b"%d" % (int(stamp) // 1000)
    headers: list[h.Header] = [(TIMESTAMP, seconds), (KEY, id_bytes(origin[0])), (TOPIC, topic)]
    if len(kept) > 1:
        headers[:0] = [header for header in kept if not header[0].startswith((h.PREFIX, PREFIX))]
    return offset, target, key, value, headers, origin


def published(row: Row) -> Schedule:
    """A waiting schedule as it was published."""
    _, topic, key, value, kept, origin = row
    assert kept is not None and origin is not None
    headers = list(kept[1:]) or encode_headers(origin[1], topic, key_bytes(key))
    return Schedule(id_bytes(origin[0]), value, headers, int(kept[0][1] or b"0"))


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Key, value and headers of a schedule from what went out of it, where its record is gone."""
    _, topic, key, value, headers, _ = row
    travelled = [header for header in headers or () if not header[0].startswith(PREFIX)]
    asked = encode_headers(origin.due_s, topic, key_bytes(key))
    return id_bytes(origin.timer_id), value, [*travelled, *asked]


# ---- tombstones of ours ---------------------------------------------------------------------------------------------


def tombstones(rows: Sequence[Row]) -> list[tuple[bytes, list[h.Header]]]:
    """Key and headers of the tombstones that end waiting schedules."""
    return [(id_bytes(row[5][0]), [(h.TIMER_FIRED_OFFSET, b"%d" % row[0])]) for row in rows if row[5] is not None]


def tombstone_headers(offset: int) -> list[h.Header]:
    """Headers of the tombstone that ends the version at ``offset``. Inverse: :func:`fired_version`."""
    return [(h.TIMER_FIRED_OFFSET, b"%d" % offset)]


def fired_version(headers: Sequence[h.Header], offset: int) -> int:
    """Offset of the version that a tombstone at ``offset`` names; :data:`ANY_VERSION` for a customer's."""
    for name, value in headers:
        if name == h.TIMER_FIRED_OFFSET and value is not None and value.isdigit() and len(value) <= 18:
            version = int(value)
            return version if version < offset else ANY_VERSION
    return ANY_VERSION
