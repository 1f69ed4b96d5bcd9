"""Fuzz tests for every decoder that reads bytes of other programs, and what must hold for each input.

Each returns the outcomes of its input as words, so that a run can show that it has reached every outcome.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgpack
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from tests.fuzz.draw import Draw
from tests.fuzz.records import (
    Record,
    TimedRecord,
    countdown_bytes,
    countdown_headers,
    damaged_requests,
    digits,
    header_name,
    letter_headers,
    progress_bytes,
    records,
    request_headers,
    request_key,
    request_value,
    retry_headers,
)
from tests.harness.discarding import UsableTopics, discarding
from timers.core.keys import NOTHING_FIRED
from timers.core.progress import NamedSnapshot, Progress, SettingChange
from timers.core.snapshots import Footer, Place, Unreadable
from timers.core.timer import Decoded, Origin, Tick
from timers.errors import LogMismatch
from timers.kafka.aiokafka_internals.fetch import InPieces, RecordsWithData, UncopiedRecords
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.offline.dead_letters.letters import Letter
from timers.offline.dead_letters.retrying import decide
from timers.v1.marker_pb2 import Marker
from timers.wire import checks, dead_letter, future, headers, progress, snapshot, topics
from timers.wire.dead_letter import CODES
from timers.wire.formats import RequestRecord, countdown, future_by_id, marker, schedule

MAX_REQUEST_BYTES = 200
MAX_COUNTDOWN_BYTES = 2000


class Fuzz(NamedTuple):
    """The fuzz test of one decoder."""

    run: Callable[[Draw], set[str]]
    """Returns the outcomes of an input; raises if the decoder raises or its answer is wrong."""
    outcomes: frozenset[str]
    """All possible outcomes."""


def requests(draw: Draw) -> set[str]:
    """Records of the request topic."""
    sent = damaged_requests(draw)
    return _checked(sent, future.decode(sent, MAX_REQUEST_BYTES))


def retries(draw: Draw) -> set[str]:
    """Records of the retry topic."""
    sent = records(draw, retry_headers)
    return _checked(sent, future.decode_retry(sent, MAX_REQUEST_BYTES), by_bytes=True)


def requests_by_id(draw: Draw) -> set[str]:
    """Records of the topic of timers with an id."""

    def one(draw: Draw) -> tuple[Any, Any, Any]:
        key = (
            draw.pick([b"order-7", draw.blob(20), draw.text(20).encode() * draw.number(40)]) if draw.number(5) else None
        )
        due = [(headers.TIMER_DUE, draw.pick([b"1800000000", request_key(draw)]))] if draw.number(5) else []
        condition = [(headers.TIMER_IF, draw.pick([b"absent", b"by-id/0/7", None, draw.blob(20)]))]
        more = [*due, *(condition if draw.number(4) == 0 else [])]
        return key, request_value(draw), [*(request_headers(draw) or ()), *more] if draw.number(5) else None

    kinds = [(fields, int(draw.number(9) > 0)) for fields in draw.many(8, one)]
    sent = [TimedRecord(3 * index, *each, 1_800_000_000_123, kind) for index, (each, kind) in enumerate(kinds)]
    decoded = future_by_id.decode(sent, MAX_REQUEST_BYTES)
    assert decoded.append_s.keys() == {operation[1] for operation in decoded.operations}
    assert decoded.conditions.keys() <= decoded.append_s.keys()
    cancels = [operation for operation in decoded.operations if operation[2] is None]
    sets = {(offset, due_s): id for id, offset, due_s, _ in decoded.operations if due_s is not None}
    rows = [(due_s, row) for due_s, group in decoded.rows.items() for row in group]
    assert sets == {(row[0], due_s): row[5].timer_id.encode() for due_s, row in rows if row[5] is not None}
    at = {offset for _, offset, _, _ in cancels}
    assert all(record.value is None for record in sent if record.offset in at)
    answered = [record for record in sent if record.offset not in at]
    return _checked(answered, decoded) | ({"cancel"} if cancels else set())


def countdowns(draw: Draw) -> set[str]:
    """Records of the topic of countdowns."""

    def one(draw: Draw) -> tuple[Any, ...]:
        value: bytes | None = countdown_bytes(draw)
        kind = draw.number(15)
        value = None if kind == 0 else b" " * (MAX_COUNTDOWN_BYTES + 1) if kind == 1 else value
        key = draw.pick([b"k", b"k", None, draw.blob(20)])
        at_ms = 1_800_000_000_123 if draw.number(15) else -1
        return key, value if kind > 5 or not value else draw.damaged(value), countdown_headers(draw), at_ms

    sent = [TimedRecord(3 * index, *fields) for index, fields in enumerate(draw.many(8, one))]
    decoded = countdown.decode(sent, MAX_COUNTDOWN_BYTES)
    assert sum(decoded.callers.values()) == len(sent)
    cancels = {operation[1] for operation in decoded.operations if operation[2] is None}
    for due_s, group in decoded.rows.items():
        for row in group:
            row[3].decode()
            key, value, headers_ = countdown.rebuild_request(row, Origin("t/0/1", due_s, 1))
            again = TimedRecord(row[0], key, value, [*headers_, (headers.TIMER_AGAIN, b"%d" % due_s)], due_s * 1000)
            if not row[5]:
                assert countdown.decode([again], 10**6).rows == {due_s: [row]}
    answered = [record for record in sent if record.offset not in cancels]
    return _checked(answered, decoded) | ({"cancel"} if cancels else set())


def schedules(draw: Draw) -> set[str]:
    """Records of a topic of schedules, whose keys may be any bytes."""

    def one(draw: Draw) -> tuple[Any, Any, Any]:
        key = draw.pick([b"vid1-online", draw.blob(20), b"x" * draw.number(40_000)]) if draw.number(5) else None
        target = draw.pick([b"online-videos", draw.blob(12)])
        asked = [
            (schedule.EPOCH, request_key(draw)),
            (schedule.TARGET_TOPIC, target),
            (schedule.TARGET_KEY, draw.blob(9)),
        ]
        ended = [(headers.TIMER_FIRED_OFFSET, draw.pick([b"0", digits(draw), draw.blob(20)]))]
        sent = [*(request_headers(draw) or ()), *(asked if draw.number(5) else ()), *(ended if draw.number(1) else ())]
        return key, draw.pick([None, b"", draw.blob(300)]), sent if draw.number(5) else None

    sent = [TimedRecord(3 * index, *fields, 1_800_000_000_123) for index, fields in enumerate(draw.many(8, one))]
    outcomes = set()
    for decode in (schedule.decode, schedule.decode_rejecting_overdue):
        decoded = decode(sent, MAX_REQUEST_BYTES)
        by_offset = {record.offset: record for record in sent}
        for rows in decoded.rows.values():
            for row in rows:
                record = by_offset[row[0]]
                assert schedule.as_published(row) == (record.key, record.value, list(record.headers), record.timestamp)
        assert [op[1] for op in decoded.operations] == [record.offset for record in sent if record.key]
        rejected = {each.offset for each in decoded.rejected}
        at = {op[1] for op in decoded.operations if op[2] is None} - rejected
        assert all(by_offset[offset].value is None for offset in at)
        decoded.rows = {
            due_s: [schedule.callback_row(row, b"s") for row in rows] for due_s, rows in decoded.rows.items()
        }
        outcomes |= _checked([record for record in sent if record.offset not in at], decoded, by_bytes=True)
        outcomes |= {"cancel"} if at else set()
    return outcomes


def markers(draw: Draw) -> set[str]:
    """Records of a topic of markers."""

    def one(draw: Draw) -> tuple[Any, ...]:
        kind = draw.number(15)
        value = None if kind == 0 else b" " * (MAX_REQUEST_BYTES + 1) if kind == 1 else marker_bytes(draw)
        at_ms = 1_800_000_000_123 if draw.number(15) else -1
        return b"queue", value if kind > 5 or not value else draw.damaged(value), [], at_ms

    sent = [TimedRecord(3 * index, *fields) for index, fields in enumerate(draw.many(8, one))]
    decoded = marker.decode(sent, MAX_REQUEST_BYTES, "messages")
    rows = {row[0]: (due_s, row) for due_s, group in decoded.rows.items() for row in group}
    others = {operation[1] for operation in decoded.operations} - rows.keys()
    for id, offset, due_s, _ in decoded.operations:
        marker.encode_end(id.decode())
        if offset in rows:
            asked_s, row = rows[offset]
            assert (due_s, id.decode()) == (asked_s, row[5] and row[5].timer_id)
    for due_s, row in rows.values():
        assert row[5] is not None
        key, value, _ = marker.rebuild_request(row, row[5])
        again = TimedRecord(row[0], key, value, [], due_s * 1000)
        assert marker.decode([again], 10**6, "messages").rows == {due_s: [row]}
    answered = [record for record in sent if record.offset not in others]
    return _checked(answered, decoded) | ({"no message"} if others else set())


def marker_bytes(draw: Draw) -> bytes:
    """A marker, often with a wrong field."""
    fields: dict[str, Any] = {"type": draw.pick([0, 0, 1, 2, 2, 3]), "version": 0 if draw.number(15) else 1}
    if draw.number(15):
        place = draw.pick([0, 1, 2**31 - 1, -1]), draw.pick([0, 4711, 2**63 - 1, -1])
        fields["message_id"] = Marker.MessageId(partition=place[0], offset=place[1])
    fields["redeliver_after_ms"] = draw.pick([0, 1, 60_000, 2**64 - 1])
    return Marker(**fields, key=draw.blob(9), value=draw.blob(60)).SerializeToString()


def _checked(sent: Sequence[Record | TimedRecord], decoded: Decoded, *, by_bytes: bool = False) -> set[str]:
    """Check that each record has one answer, and that accepted ones can be stored, fired and sent to the retry topic.

    Args:
        by_bytes: ids and keys need not be text.
    """
    errors = "surrogatepass" if by_bytes else "strict"
    pack = partial(msgpack.packb, unicode_errors=errors)
    unpack = partial(msgpack.unpackb, use_list=False, unicode_errors=errors)
    rows = [(due_s, row) for due_s, group in decoded.rows.items() for row in group]
    answers = [row[0] for _, row in rows] + [rejected.offset for rejected in decoded.rejected]
    assert sorted(answers) == [record.offset for record in sent]
    by_offset = {record.offset: record for record in sent}
    for record in sent:
        assert 0 <= headers.depth(record.headers or ()) < 10**headers.MAX_DEPTH_DIGITS
    transaction = discarding(UsableTopics({}))
    transaction.begin(Tick(1))
    for rejected in decoded.rejected:
        record = by_offset[rejected.offset]
        assert rejected.code in CODES
        assert (rejected.key, rejected.value) == (record.key, record.value)
        letter = dead_letter.encode(rejected, "t/0/1", 10**6)
        opened = dead_letter.decode(letter.headers)
        assert opened is not None and opened.code == rejected.code
        transaction.reject(rejected)
    for due_s, row in rows:
        offset, topic, key, value, _, origin = row
        assert 0 <= due_s <= checks.MAX_DUE_S and topics.is_legal(topic)
        kept = list(unpack(pack(row)))
        assert kept[:4] == [offset, topic, key, value]
        transaction.send(topic, 3, [(due_s, [row])])
        transaction.retry(row, Origin(*origin) if origin else Origin("t/0/1", due_s, 0), due_s)
    transaction.commit(Progress(), ())
    return {rejected.code for rejected in decoded.rejected} | ({"accepted"} if rows else set())


def progress_records(draw: Draw) -> set[str]:
    """Progress records: they are read, or the error has a sentence for the operator."""
    kind = draw.number(3)
    value = draw.blob(60) if kind == 0 else draw.damaged(progress_bytes(draw)) if kind == 1 else progress_bytes(draw)
    try:
        decoded, topic_id = progress.decode(value)
    except LogMismatch as mismatch:
        return {sentence for sentence in _SENTENCES if sentence in str(mismatch)} or {str(mismatch)}
    assert progress.decode(progress.encode(decoded, topic_id)) == (decoded, topic_id)
    return {"read"}


_SENTENCES = frozenset(
    {"cannot be read", "no valid checksum", "has version", "is not a number", "was raised to feature level"}
)


def snapshots(draw: Draw) -> set[str]:
    """Records of a snapshot topic: a snapshot is read whole, or the error has a sentence for the operator."""
    stream = draw.many(6, lambda draw: (draw.blob(20), draw.blob(60)))
    encoder = snapshot.Encoder(stream, 8 + draw.number(40))
    values = [*encoder, _footer(draw)]
    named = NamedSnapshot(b"", 7, 0, len(values), 7, encoder.keys, 0, encoder.digest)
    sent: list[tuple[bytes | None, bytes | None]] = []
    for index, value in enumerate(values):
        kind = draw.number(30)
        others = [(snapshot.record_key(8, index), value), (draw.blob(13), draw.blob(9))] if kind == 0 else []
        key = snapshot.record_key(7, index + (kind == 1))
        sent += [*others, *[(key, draw.damaged(value) if kind == 2 else value)] * (kind != 3)]
    try:
        found = [*chain.from_iterable(snapshot.pages(sent, named))]
    except Unreadable as why:
        outcome = {sentence for sentence in _SNAPSHOT_SENTENCES if sentence in str(why)} or {str(why)}
    else:
        assert found == stream
        outcome = {"whole"}
    try:
        decoded = snapshot.decode_footer(sent[-1][1] if sent else None)
    except Unreadable as why:
        return outcome | ({sentence for sentence in _FOOTER_SENTENCES if sentence in str(why)} or {str(why)})
    assert snapshot.decode_footer(snapshot.encode_footer(decoded)) == decoded
    return outcome | {"footer"}


def _footer(draw: Draw) -> bytes:
    place = Place(draw.text(9), draw.text(9), draw.blob(16), draw.number(2**31 - 1), draw.text(9))
    changes = tuple(draw.many(3, lambda draw: SettingChange(draw.text(9), draw.number(9), draw.number(2**64))))
    key = draw.pick([NOTHING_FIRED, (draw.number(2**64 - 1), draw.number(2**64 - 1))])
    numbers = draw.number(2**63 - 1), draw.number(9)
    return snapshot.encode_footer(Footer(place, numbers[0], key, changes, draw.blob(32), *numbers, draw.blob(32)))


_SNAPSHOT_SENTENCES = frozenset(
    {"is missing", "begins with", "so it is damaged", "that are no entry", "not the digest of"}
)
_FOOTER_SENTENCES = frozenset({"no footer", "footer is damaged"})


def dead_letters(draw: Draw) -> set[str]:
    """Records of the dead letter topic, as the command line reads them."""
    key, value = (request_key(draw), request_value(draw)) if draw.number(7) else (None, None)
    sent = letter_headers(draw) if draw.number(7) else request_headers(draw) or []
    opened = dead_letter.decode(sent)
    row, origin = (7, "t", "k", b"v", None, None), Origin("t/0/7", 1, 0)
    for request_format in (kind.request_format for kind in REQUEST_FORMATS):
        request_format.is_request_of(RequestRecord(7, key, value, sent, 1), row, origin)
    if opened is None:
        return {"no dead letter"}
    assert len(opened.headers) == len(sent) - 3
    at_ms = draw.number(2**63 - 1) - draw.number(2**63 - 1)
    request_format = draw.pick([kind.request_format for kind in REQUEST_FORMATS])
    letter = Letter("dead", 0, 1, at_ms, RequestRecord(1, key, value, opened.headers, at_ms), opened, request_format)
    mark = dead_letter.decode_mark(draw.blob(9), draw.blob(9), opened.headers) if draw.number(1) else None
    for line in (*letter.cells(mark), *letter.text(mark)):
        assert not CONTROL.search(line), "a control character could change the terminal"
    assert json.loads(json.dumps(letter.fields(mark, with_request=True)))["source"] == opened.source
    decide(letter, letter.request, mark, MAX_REQUEST_BYTES, bool(draw.number(1)))
    return {"truncated" if letter.is_truncated else "whole"}


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _as_java(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that are not UTF-8 as Java's ``String`` does: also all bytes of a surrogate by one U+FFFD."""
    assert isinstance(error, UnicodeDecodeError)
    data, end = error.object, error.end
    if data[error.start] == 0xED and 0xA0 <= data[error.start + 1 : error.start + 2].ljust(1)[0] <= 0xBF:
        end = error.start + (3 if 0x80 <= data[error.start + 2 : error.start + 3].ljust(1)[0] <= 0xBF else 2)
    return "\ufffd", end


codecs.register_error("as-java", _as_java)


def record_batches(draw: Draw) -> set[str]:
    """Record batches of any producer: all records are read in order; header names are decoded as Java does."""
    data = b""
    want: list[tuple[Any, ...]] = []
    broken = False
    for _ in range(1 + draw.number(2)):
        builder = _DefaultRecordBatchBuilderPy(2, draw.number(4), bool(draw.number(1)), 7, 0, 0, 1 << 20)
        first = len(want)
        for index in range(1 + draw.number(4)):
            key, value = draw.pick([None, draw.blob(20)]), draw.pick([None, draw.blob(60)])
            named = draw.many(3, lambda draw: (draw.blob(8), draw.pick([None, draw.blob(8)])))
            builder.append(index, 1_800_000_000_000, key, value, [(header_name(name), data) for name, data in named])
            shown = [(name.decode(errors="as-java"), data) for name, data in named]
            broken = broken or any("\ufffd" in name for name, _ in shown)
            want.append((key, value, shown))
        built = bytearray(builder.build())
        built[0:8] = first.to_bytes(8, "big")
        data += bytes(built)
    reader = UncopiedRecords(
        TopicPartition("t", 0), RecordsWithData(data), [], 0, InPieces(), None, True, READ_COMMITTED
    )
    records: list[Any] = []
    while not reader.finished:
        records += reader.piece()
    found = [Record(record.offset, record.key, record.value, list(record.headers)) for record in records]
    assert found == [Record(offset, *one) for offset, one in enumerate(want)]
    _checked(found, future.decode(found, MAX_REQUEST_BYTES))
    return {"broken names" if broken else "sound names"}


_CODES = {code for code in CODES if code.startswith(("key-", "value-"))} - {"value-not-json", "value-not-a-marker"}
_CODES |= {"topic-missing", "topic-invalid"}

_ID_CODES = (_CODES - {"key-missing"}) | {"id-missing", "id-too-long", "id-not-text", "due-missing"}
_CONDITION_CODES = {"condition-invalid", "condition-without-append-time"}

_COUNTDOWN_CODES = (
    {"value-missing", "value-too-large", "value-not-json", "topic-missing", "topic-invalid"}
    | {"field-missing", "field-repeated", "field-invalid", "countdown-invalid", "time-missing"}
    | {"id-missing", "id-too-long", "id-not-text", "id-not-key"}
    | {"key-not-a-number", "key-negative", "key-in-milliseconds"}  # of timer-again
)
_MARKER_CODES = {"value-missing", "value-too-large", "value-not-a-marker", "marker-invalid", "time-missing"}
_SCHEDULE_CODES = (_ID_CODES - {"id-not-text", "value-missing", "value-not-a-future"}) | {"overdue"}

FUZZES = {
    "requests": Fuzz(requests, frozenset(_CODES | {"accepted"})),
    "retries": Fuzz(retries, frozenset(_CODES | {"accepted", "retry-headers-missing"})),
    "requests-by-id": Fuzz(requests_by_id, frozenset(_ID_CODES | _CONDITION_CODES | {"accepted", "cancel"})),
    "countdowns": Fuzz(countdowns, frozenset(_COUNTDOWN_CODES | {"accepted", "cancel"})),
    "schedules": Fuzz(schedules, frozenset(_SCHEDULE_CODES | {"accepted", "cancel"})),
    "markers": Fuzz(markers, frozenset(_MARKER_CODES | {"accepted", "no message"})),
    "progress": Fuzz(progress_records, _SENTENCES | {"read"}),
    "snapshots": Fuzz(snapshots, _SNAPSHOT_SENTENCES | _FOOTER_SENTENCES | {"whole", "footer"}),
    "dead-letters": Fuzz(dead_letters, frozenset({"no dead letter", "truncated", "whole"})),
    "record-batches": Fuzz(record_batches, frozenset({"broken names", "sound names"})),
}
