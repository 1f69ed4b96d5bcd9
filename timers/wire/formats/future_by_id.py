"""The format of timers with an id: the record key is the id, ``timer-due`` the due second, the value a ``Future``.

With the header ``timer-topic`` the value is the payload, as in :mod:`timers.wire.future`.
A later record with the same id replaces the timer. A null value cancels it. With the header ``timer-if`` it does so
only under a condition (:mod:`timers.core.only_if`). With ``timer-verdict`` each request
that is accepted gets a verdict.

From feature level :data:`timers.core.levels.REPEATS_LEVEL` on, a request with ``timer-repeat`` and without
``timer-due`` sets a timer that repeats (:mod:`timers.core.repeating`), and one with ``timer-follows`` is an occurrence
of it, which the engine has appended.

A null value with ``timer-topic`` or ``timer-due`` is rejected: it is a request whose sender has lost its value. Some
clients write null for a value that is not set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any

from google.protobuf.message import DecodeError

from timers.core.levels import RAISED_TO_LEVEL, REPEATS_LEVEL
from timers.core.operation import ABSENT
from timers.core.ports import Follower, NextOccurrence
from timers.core.printable import quoted
from timers.core.repeating import SEARCH_AHEAD_S, ZoneUnknown, is_occurrence, occurrence_of, occurrence_row
from timers.core.timer import Decoded, Definition, Follows, Headers, Key, Origin, Row, id_bytes
from timers.v1.future_pb2 import Future
from timers.wire import checks, future, topics
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import CREATE_TIME, LOG_APPEND_TIME
from timers.wire.occurrences import LAST_HEADERS, LEAST_HEADERS, encode_occurrences, read_occurrences
from timers.wire.repeat import MAX_REPEATING_HEADER_BYTES, MAX_REPEATING_VALUE_BYTES, Repeat, RepeatError

MAX_ID_BYTES = 512
"""The store keeps an id for TIMERS_VERDICT_RETENTION_S. Hashes, UUIDs and most paths fit."""


_NO_HEADERS: Headers = ()
_OF_REQUESTS = frozenset((h.TIMER_TOPIC, h.TIMER_DUE))
"""Headers that only a request has. A cancel needs none of them."""

_VALUE_MISSING = (
    f"the record has no value, and its header {h.TIMER_TOPIC} or {h.TIMER_DUE} makes it a request: send the value, "
    "which may be empty, or send a cancel without these two headers"
)

_LEVEL_TOO_LOW = (
    f"header {h.TIMER_REPEAT} makes it a timer that repeats, which its partition reads from level {REPEATS_LEVEL} on: "
    f"`timers levels --raise {RAISED_TO_LEVEL}` allows it, then retry this dead letter"
)


def encode_headers(due_s: int) -> list[h.Header]:
    """Return the headers that a request needs besides its id and its ``Future``."""
    return [(h.TIMER_DUE, b"%d" % due_s)]


def encode_condition(condition: str | None) -> list[h.Header]:
    """Return the header of a condition: ``absent``, or the source of a version; None: no condition."""
    return [] if condition is None else [(h.TIMER_IF, condition.encode())]


def decode_condition(record: Any) -> str | None:
    """Return the condition of a record; None if it has none. If the header is repeated, the last one counts.

    Raises:
        InvalidRequestError: the condition cannot be read or cannot be checked.
    """
    headers = record.headers
    if not headers or all(name != h.TIMER_IF for name, _ in headers):
        return None
    condition = (h.last(headers, h.TIMER_IF) or b"").decode("ascii", "replace")
    if condition != ABSENT and topics.parse_source(condition) is None:
        raise InvalidRequestError(
            "condition-invalid",
            f"header {h.TIMER_IF} {quoted(condition[:300])} is not {ABSENT!r}, and not the source of a version, "
            "<topic>/<partition>/<offset>",
        )
    if condition == ABSENT and record.value is None:
        raise InvalidRequestError(
            "condition-invalid",
            f"a cancel with header {h.TIMER_IF} must name the source of the version that it cancels, not {ABSENT!r}",
        )
    if record.timestamp_type == CREATE_TIME:  # None: a record that was judged before, and is only read again
        raise InvalidRequestError(
            "condition-without-append-time",
            f"header {h.TIMER_IF} needs the broker's time: set message.timestamp.type=LogAppendTime on the topic",
        )
    return condition


def decode_id(key: bytes | None) -> str:
    """Return the id that a record key holds.

    Raises:
        InvalidRequestError: the id is missing or too long, or is not UTF-8, as verdicts in JSON require.
    """
    checks.check_id(key, MAX_ID_BYTES)
    assert key
    try:
        return key.decode()
    except UnicodeDecodeError:
        shown = quoted(key[:40])
        raise InvalidRequestError(
            "id-not-text", f"the id {shown} is not UTF-8: a verdict could not name it in JSON"
        ) from None


def decode_due(headers: Sequence[h.Header]) -> int:
    """Return the due epoch second of a record. If the header is repeated, the last one counts."""
    return checks.decode_due(h.last(headers, h.TIMER_DUE), f"header {h.TIMER_DUE}")


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Return key, value and headers of a request, rebuilt from its timer."""
    if is_occurrence(row):  # an occurrence that has not fired: the timer begins again with it
        rule, _, nominal_s, decided_s, *_, callback = occurrence_of(row)
        _, value, headers = future.rebuild_request(callback, origin)
        decided_s = decided_s if nominal_s is None else nominal_s - 1
        headers += [(h.TIMER_REPEAT, rule), (h.TIMER_WAYPOINT, b"%d" % decided_s)]
        return id_bytes(origin.timer_id), value, headers
    _, value, headers = future.rebuild_request(row, origin)
    return id_bytes(origin.timer_id), value, [*headers, *encode_headers(origin.due_s)]


def decode(
    records: Sequence[Any],
    max_request_bytes: int,
    *,
    repeats: bool = False,
) -> Decoded:
    """Decode records of the topic of timers with an id: a hot path, about 2.2 µs a record.

    Each due second is parsed once for a batch: most records have only this header.

    Args:
        repeats: whether the feature level allows timers that repeat, and callbacks of a ``Future`` are without the
            headers of a schema registry.
    """
    decoded = Decoded()
    by_due, operations, append_s = decoded.rows, decoded.operations, decoded.append_s
    legal: set[str] = set()
    seconds: dict[bytes | None, int] = {}
    from_string = Future.FromString
    shared, left = Shared(), iter(records)
    for each in left:
        record, headers = each, each.headers or _NO_HEADERS
        if len(headers) >= LEAST_HEADERS and headers[-1][0] in LAST_HEADERS and repeats:
            record = read_occurrences(chain((each,), left), decoded, max_request_bytes, shared)
            if record is None:
                break
            headers = record.headers or _NO_HEADERS
        key, value, offset = record.key, record.value, record.offset
        try:
            if value is None:
                _decode_cancel(decoded, record, headers, repeats)
                continue
            has_due_alone = len(headers) == 1 and headers[0][0] == h.TIMER_DUE
            own = None if has_due_alone or not headers else h.timer_headers(headers)
            if own and h.TIMER_REPEAT in own and _decode_repeating(decoded, record, own, max_request_bytes, repeats):
                continue
            condition = decode_condition(record) if own and h.TIMER_IF in own else None
            id = decode_id(key)
            callback_headers: Headers | None = None
            row_key: Key
            published_again = False
            if has_due_alone and headers[0][1] in seconds:
                due_s = seconds[headers[0][1]]
            else:
                due_s = decode_due(headers)
                seconds[b"%d" % due_s] = due_s
                if own:
                    published_again = own.get(h.TIMER_AGAIN) is not None and due_s * 1000 <= record.timestamp
                    callback_headers = _callback_headers(headers, own, repeats=repeats, again=published_again)
            if own is None or len(own) == 1:
                try:
                    request = from_string(value)
                except DecodeError:
                    request = future.parse(value, max_request_bytes)
                topic, row_key, payload = request.callBackTopic, request.callBackKey, request.callBack
                if topic not in legal or len(value) > max_request_bytes:
                    future.check(value, topic, max_request_bytes)
                    legal.add(topic)
            else:
                topic, row_key, payload = future.read_callback(value, own, max_request_bytes)
        except InvalidRequestError as error:
            decoded.rejected.append(checks.rejected(record, error))
            continue
        origin = None
        if not published_again:
            origin, timestamp_s = Origin(id, due_s, 0), record.timestamp // 1000
            operations.append((key, offset, due_s, timestamp_s))
            append_s[offset] = timestamp_s if record.timestamp_type == LOG_APPEND_TIME else 0
            if own:
                _note_answered(decoded, offset, condition, own)
        row = (offset, topic, row_key, payload, callback_headers, origin)
        by_due.setdefault(due_s, []).append(row)
    return decoded


def _note_answered(decoded: Decoded, offset: int, condition: str | None, own: Mapping[str, bytes | None]) -> None:
    """Note what makes sure that a request gets a verdict: its condition, or that it asks for one."""
    if condition is not None:
        decoded.conditions[offset] = condition
    if h.TIMER_VERDICT in own:
        decoded.asked.add(offset)


def _callback_headers(
    headers: Headers, own: Mapping[str, bytes | None], *, repeats: bool, again: bool
) -> Headers | None:
    """Return the headers of the callback of a single timer. Of one that is published again, they say which occurrence
    of a timer that repeats it is."""
    found = future.callback_headers(h.without_timer_headers(headers), own, repeats)
    if again and repeats and h.TIMER_VERSION in own and h.TIMER_NOMINAL in own:
        found = [*found, *((name, own[name]) for name in (h.TIMER_VERSION, h.TIMER_NOMINAL))]
    return found or None


def _decode_cancel(decoded: Decoded, record: Any, headers: Headers, repeats: bool) -> None:
    """Add a cancel to ``decoded``.

    Raises:
        InvalidRequestError: it is a request without its value, or its condition or its id cannot be read.
    """
    condition = None
    if headers:  # most cancels have none
        names = {name for name, _ in headers}
        if not _OF_REQUESTS.isdisjoint(names) or (repeats and h.TIMER_REPEAT in names):
            raise InvalidRequestError("value-missing", _VALUE_MISSING)
        condition = decode_condition(record)
    offset, timestamp_s = record.offset, record.timestamp // 1000
    decode_id(record.key)
    decoded.operations.append((record.key, offset, None, timestamp_s))
    decoded.append_s[offset] = timestamp_s if record.timestamp_type == LOG_APPEND_TIME else 0
    if condition is not None:
        decoded.conditions[offset] = condition


# ---- timers that repeat ---------------------------------------------------------------------------------------------


class Shared:
    """What the plain occurrences of a batch share, so that it is checked once.

    Attributes:
        dues: (due second, rule, nominal second) in headers -> the due second.
        targets: callback topics in headers or a ``Future``, and as text.
        places: as in :func:`timers.wire.topics.offset_in`.
    """

    max_id_bytes = MAX_ID_BYTES
    append_time = LOG_APPEND_TIME

    def __init__(self) -> None:
        self.dues: dict[tuple[bytes | None, bytes | None, bytes | None], int] = {}
        self.targets: dict[bytes | str | None, str] = {}
        self.places: set[bytes] = set()

    def due_s(self, due: bytes | None, rule: bytes | None, nominal: bytes | None, id: bytes) -> int | None:
        """Return the due second of an occurrence; None if it is not plain.

        Raises:
            InvalidRequestError: a part of it cannot be read.
        """
        repeat, due_s = repeat_of(rule or b""), checks.decode_due(due)
        if due_s - checks.decode_due(nominal) != repeat.share_s(id):
            return None
        if repeat.every_s is not None and repeat.from_s is None:
            return None
        if not repeat.spread_s:  # else the share is that of one id
            self.dues[due, rule, nominal] = due_s
        return due_s

    def target(self, topic: bytes | str | None) -> str:
        """Return a callback topic as text.

        Raises:
            InvalidRequestError: no topic has this name.
        """
        text = topic if isinstance(topic, str) else (topic or b"").decode(errors="replace")
        checks.check_topic(text, "")
        self.targets[topic] = text
        return text


def _decode_repeating(
    decoded: Decoded, record: Any, own: Mapping[str, bytes | None], max_request_bytes: int, repeats: bool
) -> bool:
    """Add a definition or an occurrence of a timer that repeats to ``decoded``.

    Args:
        own: headers of the record with the prefix ``timer-``.
        repeats: whether the feature level allows it.

    Returns:
        False: it is neither. A copy of an occurrence that is published again is a single timer.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    has_due = h.TIMER_DUE in own
    if h.TIMER_AGAIN in own and has_due and decode_due(record.headers) * 1000 <= record.timestamp:
        return False
    if not repeats:
        if has_due:  # such a record was read so before this level was known
            return False
        raise InvalidRequestError("level-too-low", _LEVEL_TOO_LOW)
    offset, timestamp_s = record.offset, record.timestamp // 1000
    rule = own[h.TIMER_REPEAT] or b""
    id, repeat = decode_id(record.key), repeat_of(rule)
    condition = decode_condition(record) if h.TIMER_IF in own else None
    is_definition = h.TIMER_FOLLOWS not in own
    # What was accepted as a definition is accepted as an occurrence too: the limit may be lower now.
    most = max_request_bytes if is_definition else max(max_request_bytes, MAX_REPEATING_VALUE_BYTES)
    topic, key, payload = future.read_callback(record.value, own, most)
    due_s = timestamp_s if is_definition else checks.decode_due(own.get(h.TIMER_DUE), f"header {h.TIMER_DUE}")
    others = h.without_timer_headers(record.headers) if len(own) < len(record.headers) else []
    if is_definition:
        others = h.with_context(others, h.traced(record.headers))
    callback_headers = future.callback_headers(others, own, drops_schema_ids=True) or None
    callback: Row = (offset, topic, key, payload, callback_headers, Origin(id, due_s, 0))
    if is_definition:
        _check_definition(record, own, repeat)
        if repeat.every_s is not None and repeat.from_s is None:
            rule = repeat.with_from(timestamp_s).to_header()
        decided_s = _decided_s(own, timestamp_s)
        decoded.definitions[offset] = Definition(callback, rule, timestamp_s, _digest(record), decided_s)
        if condition is not None:
            decoded.conditions[offset] = condition
    else:
        decoded.follows[offset] = _follows(own, repeat, due_s, record.key)
        decoded.rows.setdefault(due_s, []).append(occurrence_row(callback, own))
    decoded.operations.append((record.key, offset, due_s, timestamp_s))
    decoded.append_s[offset] = timestamp_s if record.timestamp_type == LOG_APPEND_TIME else 0
    return True


def _decided_s(own: Mapping[str, bytes | None], append_s: int) -> int:
    """Return up to which nominal second nothing of a definition is sent. One that was moved here says up to where the
    other app has decided."""
    told = h.number(own.get(h.TIMER_WAYPOINT))
    return append_s if told is None else min(max(told, append_s - SEARCH_AHEAD_S), append_s)


def _check_definition(record: Any, own: Mapping[str, bytes | None], repeat: Repeat) -> None:
    """Check what only a definition must keep to."""
    if h.TIMER_DUE in own:
        raise InvalidRequestError(
            "repeat-invalid",
            f"a timer that repeats has no header {h.TIMER_DUE}: its rule may have 'from=<epoch second>'",
        )
    sizes = (len(name) + len(value or b"") for name, value in record.headers)
    if len(record.value) > MAX_REPEATING_VALUE_BYTES or sum(sizes) > MAX_REPEATING_HEADER_BYTES:
        raise InvalidRequestError(
            "value-too-large",
            f"a timer that repeats has at most {MAX_REPEATING_VALUE_BYTES} bytes of value and "
            f"{MAX_REPEATING_HEADER_BYTES} of headers, because each firing writes it to the log again: send a "
            "reference to the data",
        )
    if record.timestamp_type == CREATE_TIME:  # None: a record that was judged before, and is only read again
        raise InvalidRequestError(
            "repeat-without-append-time",
            f"header {h.TIMER_REPEAT} needs the broker's time: set message.timestamp.type=LogAppendTime on the topic",
        )
    if repeat.until_s is not None and repeat.until_s <= record.timestamp // 1000:
        raise InvalidRequestError(
            "repeat-over", f"its last second, {repeat.until_s}, was over when it was appended: it would never fire"
        )


def _follows(own: Mapping[str, bytes | None], repeat: Repeat, due_s: int, id: bytes) -> Follows:
    """Return the place of an occurrence in its chain. Only the engine writes them, but any client can."""
    nominal_s, decided_s, _ = (
        None if name not in own else checks.decode_due(own[name], f"header {name}")
        for name in (h.TIMER_NOMINAL, h.TIMER_WAYPOINT, h.TIMER_OWED)
    )
    follows = h.number(own[h.TIMER_FOLLOWS])
    version = topics.parse_source((own.get(h.TIMER_VERSION) or b"").decode("ascii", "replace"))
    is_whole = follows is not None and version is not None and (nominal_s is None) != (decided_s is None)
    if is_whole and nominal_s is not None:
        is_whole = due_s - nominal_s == repeat.share_s(id)
    elif is_whole:
        is_whole = decided_s is not None and decided_s <= due_s
    if not is_whole or (repeat.every_s is not None and repeat.from_s is None):
        raise InvalidRequestError(
            "repeat-invalid",
            f"header {h.TIMER_FOLLOWS} makes it an occurrence of a timer that repeats, as the engine appends them, and "
            "the other headers are not as the engine writes them: a request for such a timer has no such header",
        )
    assert follows is not None
    assert version is not None
    return Follows(follows, version[2], h.TIMER_LAST in own)


def repeat_of(rule: bytes) -> Repeat:
    """Return the rule in the text of a header.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    try:
        return Repeat.of_header(rule)
    except RepeatError as error:
        raise InvalidRequestError("repeat-invalid", f"header {h.TIMER_REPEAT}: {error}") from None


def rule_of(rule: bytes) -> Repeat:
    """Return the rule in the text of an accepted record.

    Raises:
        ZoneUnknown: this version cannot read what another one has accepted.
    """
    try:
        return Repeat.of_header(rule)
    except RepeatError as error:
        raise ZoneUnknown(str(error)) from None


_ASKED = frozenset((h.TIMER_TOPIC, h.TIMER_KEY, h.TIMER_REPEAT))
"""Headers of a definition with the engine's prefix that say what it asks for."""


def _digest(record: Any) -> bytes:
    """Return what says whether two definitions of an id ask for the same."""
    digest = sha256()
    for name, value in (("", record.value), *record.headers):
        if name in _ASKED or not name.startswith(h.PREFIX):
            data, content = name.encode(errors="surrogatepass"), value or b""
            digest.update(b"%d %d %d " % (len(data), len(content), value is None) + data + content)
    return digest.digest()[:8]


_OF_OCCURRENCES = frozenset(
    (h.TIMER_DUE, h.TIMER_FOLLOWS, h.TIMER_VERSION, h.TIMER_NOMINAL, h.TIMER_OWED, h.TIMER_WAYPOINT, h.TIMER_LAST)
)


def definition_of(key: bytes, value: bytes, headers: list[h.Header]) -> tuple[bytes, bytes, list[h.Header]]:
    """Return the request that sets the timer of an occurrence again, from the record of the occurrence."""
    kept = (header for header in headers if header[0] not in _OF_OCCURRENCES)
    return key, value, [(h.TIMER_TRACE + name if name in h.SPAN_HEADERS else name, content) for name, content in kept]


def of_callback(headers: Sequence[h.Header], due_s: int) -> list[h.Header]:
    """Return the headers of a record that ask for its callback again; if it is an occurrence, for the one that was due
    at this second: it may have sent that of a later one."""
    own = h.timer_headers(headers)
    former_s, nominal_s = h.number(own.get(h.TIMER_DUE)), h.number(own.get(h.TIMER_NOMINAL))
    if h.TIMER_FOLLOWS not in own or former_s is None or nominal_s is None:
        return [*headers]
    changed = {h.TIMER_DUE: b"%d" % due_s, h.TIMER_NOMINAL: b"%d" % (nominal_s + due_s - former_s)}
    return [(name, changed.get(name, value)) for name, value in headers]


def rebuild_occurrence(row: Row, due_s: int) -> tuple[bytes, bytes, list[h.Header]]:
    """Return key, value and headers of the record of an occurrence, rebuilt from its row. Which record it follows is
    not known any more: it names the definition."""
    rule, version, nominal_s, decided_s, owed_s, is_last, callback = occurrence_of(row)
    place = topics.parse_source(version.decode("ascii", "replace"))
    callback = (0 if place is None else place[2], *callback[1:])
    following = NextOccurrence(due_s, nominal_s, decided_s, owed_s, rule, is_last)
    (record,) = encode_occurrences([Follower(callback, version, following)], lambda offset: "")
    return record
