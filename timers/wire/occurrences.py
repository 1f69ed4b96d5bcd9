# cython: language_level=3, boundscheck=False, wraparound=False
"""Writes and reads the records of occurrences of timers that repeat: compiled to machine code where there is a C
compiler (``docs/adr/0027``).

It decides nothing. An occurrence is plain if its last headers are those that nearly all have, in the order in which the
engine writes them, and each can be read. Without protobuf, topic and key of the callback are before them; only what
says that none follows may be behind them. The complete reader gets all other records, and says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from timers.core.ports import Follower, NextOccurrence
from timers.core.timer import Decoded, Follows, Origin, id_bytes
from timers.v1.future_pb2 import Future
from timers.wire import future
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.topics import offset_in

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""

LAST_HEADERS = (h.TIMER_NOMINAL, h.TIMER_LAST)
"""Names of the last header of a plain occurrence,"""
LEAST_HEADERS = 5
"""which has so many at least."""

MAX_DIGITS = 18
"""The complete reader gets longer numbers."""

_new_origin, _new_follows = partial(tuple.__new__, Origin), partial(tuple.__new__, Follows)
"""The constructors take three times as long."""


def read_occurrences(records: Iterator[Any], decoded: Decoded, max_request_bytes: int, shared: Any) -> Any:
    """Add the next records to ``decoded`` up to the first one that is no plain occurrence.

    Args:
        records: in ascending offset.
        max_request_bytes: a larger value is not plain.
        shared: what occurrences of a batch share (``Shared`` of the request format), so that it is checked once.

    Returns:
        The record that is none; None if all were.
    """
    limit: cython.Py_ssize_t = max_request_bytes
    id_limit: cython.Py_ssize_t = shared.max_id_bytes
    at: cython.Py_ssize_t
    topic_at: cython.Py_ssize_t
    is_last: cython.bint
    name: str
    prefix: str = h.PREFIX
    due_name: str = h.TIMER_DUE
    repeat_name: str = h.TIMER_REPEAT
    follows_name: str = h.TIMER_FOLLOWS
    version_name: str = h.TIMER_VERSION
    nominal_name: str = h.TIMER_NOMINAL
    last_name: str = h.TIMER_LAST
    topic_name: str = h.TIMER_TOPIC
    key_name: str = h.TIMER_KEY
    due: bytes | None
    rule: bytes | None
    nominal: bytes | None
    follows: bytes | None
    version: bytes | None
    digits: bytes
    place: bytes = b""
    headers: list[Any]
    by_due: dict[Any, Any] = decoded.rows
    operations: list[Any] = decoded.operations
    append_s: dict[Any, Any] = decoded.append_s
    all_follows: dict[Any, Any] = decoded.follows
    dues: dict[Any, Any] = shared.dues
    targets: dict[Any, Any] = shared.targets
    new_origin, new_follows, append_time = _new_origin, _new_follows, shared.append_time
    asked_due: bytes | None = None
    asked_rule: bytes | None = None
    asked_nominal: bytes | None = None
    due_s = known_s = rows = None
    for record in records:
        found = record.headers
        if not found or len(found) < LEAST_HEADERS:
            return record
        headers = found if type(found) is list else [*found]
        at = len(headers) - 1
        name, nominal = headers[at]
        is_last = name == last_name
        if is_last:
            at -= 1
            name, nominal = headers[at]
        if name != nominal_name or at < 4:
            return record
        name, version = headers[at - 1]
        if name != version_name:
            return record
        name, follows = headers[at - 2]
        if name != follows_name:
            return record
        name, rule = headers[at - 3]
        if name != repeat_name:
            return record
        name, due = headers[at - 4]
        value, id = record.value, record.key
        if name != due_name or type(value) is not bytes or len(value) > limit:
            return record
        if type(id) is not bytes or not 0 < len(id) <= id_limit:
            return record
        if follows is None or version is None or not follows.isdigit() or len(follows) > MAX_DIGITS:
            return record
        topic_at = at - 5
        key = target = None
        if topic_at >= 0:
            name, target = headers[topic_at]
            if name == key_name:
                key = target
                topic_at -= 1
                if topic_at < 0:
                    return record
                name, target = headers[topic_at]
                if name != topic_name:
                    return record
            if name != topic_name:
                topic_at = -1
        is_future = topic_at < 0
        kept = headers[: at - 4 if is_future else topic_at]
        for header in kept:
            name = header[0]
            if name.startswith(prefix):
                return record
        try:
            if is_future:
                request = Future.FromString(value)
                target, key, value = request.callBackTopic, request.callBackKey, request.callBack
                kept = kept and h.without_schema_ids(kept)
            topic = targets.get(target) or shared.target(target)
            if due_s is None or due != asked_due or nominal != asked_nominal or rule != asked_rule:
                asked_due, asked_rule, asked_nominal = due, rule, nominal
                due_s = dues.get((due, rule, nominal))
            exact_s = shared.due_s(due, rule, nominal, id) if due_s is None else due_s
            text = id.decode("utf-8")
        except (DecodeError, InvalidRequestError, UnicodeDecodeError):
            return record
        if exact_s is None:
            return record
        digits = version[len(place) :] if place and version.startswith(place) else b""
        defined = int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else None
        if defined is None:
            defined = offset_in(version, shared.places)
            if defined is None:
                return record
            place = version[: version.rindex(b"/") + 1]
        offset, timestamp_s = record.offset, record.timestamp // 1000
        kept = [headers[at - 3], headers[at - 1], headers[at], *([headers[at + 1]] if is_last else ()), *kept]
        if rows is None or exact_s != known_s:
            known_s, rows = exact_s, by_due.setdefault(exact_s, [])
        rows.append((offset, topic, key, value, kept, new_origin((text, exact_s, 0, None))))
        all_follows[offset] = new_follows((int(follows), defined, is_last))
        operations.append((id, offset, exact_s, timestamp_s))
        append_s[offset] = timestamp_s if record.timestamp_type == append_time else 0
    return None


def encode_occurrences(
    followers: Iterable[Follower], source: Callable[[int], str]
) -> Iterator[tuple[bytes, bytes, list[h.Header]]]:
    """Yield key, value and headers of the records of occurrences: who writes each one at once needs the memory of one,
    which is in the processor's cache. Headers that are alike in many that follow one another are the same objects.

    Args:
        source: returns the source of a record of the partition from its offset.
    """
    known = known_topic = None
    begin: list[Any] = []
    end: list[Any] = []
    to_topic: list[Any] = []
    target: list[Any]
    follows_name, version_name = h.TIMER_FOLLOWS, h.TIMER_VERSION
    for (offset, topic, key, value, callback_headers, origin), version, following in followers:
        assert origin is not None
        if following is not known:  # mostly, many that follow one another share it
            known, (begin, end) = following, _headers_of(following)
        target = []
        if isinstance(key, str):
            value = future.encode(topic, key, value)
        elif key is not None:
            target = future.encode_by_headers(topic, key)
        else:
            if topic != known_topic:
                known_topic, to_topic = topic, future.encode_by_headers(topic, None)
            target = to_topic
        version = source(offset).encode() if version is None else version
        own = (follows_name, b"%d" % offset), (version_name, version)
        yield id_bytes(origin[0]), value, [*(callback_headers or ()), *target, *begin, *own, *end]


def _headers_of(following: NextOccurrence) -> tuple[list[h.Header], list[h.Header]]:
    """Return the headers of an occurrence before and after those that say which record it follows."""
    due_s, nominal_s, decided_s, owed_s, rule, is_last, _ = following
    numbers = {h.TIMER_NOMINAL: nominal_s, h.TIMER_OWED: owed_s}
    if nominal_s is None:
        numbers = {h.TIMER_WAYPOINT: decided_s}
    end: list[h.Header] = [(name, b"%d" % number) for name, number in numbers.items() if number is not None]
    if is_last:
        end.append((h.TIMER_LAST, b"1"))
    return [(h.TIMER_DUE, b"%d" % due_s), (h.TIMER_REPEAT, rule)], end
