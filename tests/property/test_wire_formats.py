"""Every wire format is decoded to what was encoded, and no bytes stop the reading of a partition."""

import json
import math
import re
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tests.property.unicode_text import TEXT
from tests.property.wire_records import (
    DUE,
    FOREIGN_HEADERS,
    HEADERS,
    MEANT_HEADERS,
    ORIGINS,
    RECORDS,
    TOPICS,
    Record,
    numbered,
)
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED
from timers.core.operation import NO_VERSION, VERDICTS, Verdict, VerdictName
from timers.core.progress import FEATURE_LEVEL, HOLE_DUE_S, HOLE_OFFSET, History, Progress, SettingChange
from timers.core.timer import Decoded, Key, Origin, Rejected, key_bytes, origin_of
from timers.kafka.request_formats import enabled_formats
from timers.process.config.settings import Settings
from timers.wire import checks, dead_letter, future, headers, progress, topics, verdict
from timers.wire.formats import RequestFormat, RequestRecord, countdown, marker, schedule

KEY_BYTES = st.none() | st.binary()
FORMATS = {
    each.name: each
    for each in enabled_formats(
        Settings(
            id_topic="ids", countdown_topic="delay", marker_topic="markers", message_topic="m", schedule_topics=("s",)
        )
    ).values()
}
RETRY = FORMATS.pop("retry")


@given(DUE, TOPICS, TEXT, st.binary(), MEANT_HEADERS)
def test_bytes_in_bytes_out(due_s: int, topic: str, key: str, value: bytes, sent: list[headers.Header]) -> None:
    record = Record(b"%d" % due_s, future.encode(topic, key, value), sent, offset=7)
    travelling = [(name, data) for name, data in sent if not name.startswith("timer-")]
    assert future.decode([record], 10**6) == Decoded({due_s: [(7, topic, key, value, travelling or None, None)]})


@given(RECORDS)
def test_decode_never_raises_and_answers_each_record_once(records: list[Record]) -> None:
    decoded = future.decode(numbered(records), 60)
    accepted = [row[0] for rows in decoded.rows.values() for row in rows]
    rejected = [entry.offset for entry in decoded.rejected]
    assert sorted(accepted + rejected) == [record.offset for record in records]
    for rows in decoded.rows.values():
        assert rows, "a second without timers"
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    by_offset = {record.offset: record for record in records}
    for entry in decoded.rejected:
        record = by_offset[entry.offset]
        assert (entry.key, entry.value, list(entry.headers)) == (record.key, record.value, list(record.headers or ()))
        assert re.fullmatch(r"(key|value|topic)-[a-z-]+", entry.code)
        assert entry.message


@given(RECORDS, st.integers(0, 25))
def test_decode_does_not_care_how_records_are_cut(records: list[Record], cut: int) -> None:
    """The quick way through a batch and the careful way for single records must judge alike."""
    numbered(records)
    whole = future.decode(records, 60)
    parts = [future.decode(records[:cut], 60), future.decode(records[cut:], 60)]
    rows: dict[int, list[object]] = {}
    for part in parts:
        for due_s, group in part.rows.items():
            rows.setdefault(due_s, []).extend(group)
    assert rows == whole.rows
    assert parts[0].rejected + parts[1].rejected == whole.rejected


@given(RECORDS)
def test_decode_retry_never_raises_and_answers_each_record_once(records: list[Record]) -> None:
    decoded = future.decode_retry(numbered(records), 60)
    accepted = [row[0] for rows in decoded.rows.values() for row in rows]
    assert sorted(accepted + [entry.offset for entry in decoded.rejected]) == [record.offset for record in records]


@given(st.binary())
def test_a_due_second_is_1_to_11_digits_and_nothing_else(key: bytes) -> None:
    expected = int(key) if re.fullmatch(rb"[0-9]{1,11}", key) else None
    try:
        assert checks.decode_due(key) == expected
    except checks.InvalidRequestError:
        assert expected is None


@given(
    DUE,
    TOPICS,
    st.none() | TEXT | st.binary(),
    st.binary(),
    FOREIGN_HEADERS,
    ORIGINS,
)
def test_a_retry_comes_back(
    again_s: int, topic: str, key: Key, value: bytes, sent: list[headers.Header], origin: Origin
) -> None:
    payload, all_headers = future.encode_retry(topic, key, value, sent, origin)
    record = Record(b"%d" % again_s, payload, all_headers, offset=5)
    assert future.decode_retry([record], 10**6) == Decoded({again_s: [(5, topic, key, value, sent or None, origin)]})


@st.composite
def accepted(draw: st.DrawFn) -> tuple[RequestFormat, RequestRecord]:
    """A format, and a record that it accepts as a single timer, of any request format."""
    name, topic, value, key = draw(st.sampled_from(sorted(FORMATS))), draw(TOPICS), draw(st.binary()), draw(KEY_BYTES)
    sent, due = draw(FOREIGN_HEADERS), b"%d" % draw(DUE)
    at_ms = draw(st.integers(0, 4 * 10**12))
    by_headers = [*sent, *future.encode_by_headers(topic, key)]
    as_future = future.encode(topic, draw(TEXT), value)
    if name == "countdown":
        message = json.dumps(draw(JSON), ensure_ascii=draw(st.booleans()))
        text = f'{{"topic":"{topic}","message":{message},"countdown":{draw(st.integers(0, 99))}}}'
        record = RequestRecord(5, key, text.encode(), sent, at_ms)
    elif name == "schedule":
        headers_of = schedule.encode_headers(int(due), topic, key)
        record = RequestRecord(5, b"id", value, [*sent, *headers_of], at_ms)
    elif name == "marker":
        record = RequestRecord(5, key, marker.encode_start("1/17", key or b"", value, 5), [], at_ms)
    else:
        request, headers_of = draw(st.sampled_from([(value, by_headers), (as_future, sent)]))
        if draw(st.booleans()) and request is as_future:
            headers_of = [*headers_of, ("timer-key", key)]
        if name == "future-by-id":
            record = RequestRecord(5, b"id", request, [*headers_of, ("timer-due", due)], at_ms)
        else:
            record = RequestRecord(5, due, request, headers_of, at_ms)
    return FORMATS[name], record


@given(accepted())
def test_what_was_accepted_at_a_limit_is_moved_to_the_retry_topic_and_rebuilt_at_this_limit(
    given: tuple[RequestFormat, RequestRecord],
) -> None:
    """The retry topic has no limit of its own, as the limit of the request topic may be lower now."""
    request_format, record = given
    limit = len(record.value or b"")
    decoded = request_format.newest([record], limit)
    assert decoded.rejected == []
    ((due_s, (row,)),) = decoded.rows.items()
    row = schedule.callback_row(row, b"schedules") if request_format.topic_is_compacted else row
    origin = Origin(*origin_of(row, due_s, "requests/0/5"))
    value, sent = future.encode_retry(*row[1:5], origin)
    assert RETRY.own_max_request_bytes is not None
    moved = RETRY.newest([RequestRecord(9, b"7", value, sent, 0)], RETRY.own_max_request_bytes)
    assert [each[1:5] for each in moved.rows[7]] == [row[1:5]]
    key, value, sent = request_format.rebuild_request(row, origin)
    assert len(value) <= limit
    rebuilt = request_format.newest([RequestRecord(9, key, value, sent, record.timestamp)], limit)
    assert rebuilt.rejected == []
    (((again, *_),),) = [rebuilt.rows.values()]
    assert (again[1], key_bytes(again[2]) or b"", again[3]) == (row[1], key_bytes(row[2]) or b"", row[3])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.one_of(
    st.floats(0, 10**9).map(repr),
    st.decimals(0, 10**9, allow_nan=False).map(str).filter(lambda text: "E" not in text or text[0] != "."),
    st.integers(0, 10**10).map(str),
)


@given(TOPICS, JSON, NUMBERS, st.integers(0, 4 * 10**12), st.booleans(), st.none() | st.binary(), FOREIGN_HEADERS)
def test_a_countdown_is_exact_and_its_message_as_given(
    topic: str, message: object, seconds: str, at_ms: int, spaced: bool, key: bytes | None, sent: list[headers.Header]
) -> None:
    text = json.dumps(message, ensure_ascii=not spaced, indent=1 if spaced else None)
    value = f'{{"countdown":{seconds} ,"message": {text},"topic":"{topic}"}}'.encode()
    decoded = countdown.decode([RequestRecord(5, key, value, sent, at_ms)], 10**9)
    assert decoded.rejected == []
    ((due_s, (row,)),) = decoded.rows.items()
    assert due_s == math.ceil(Fraction(at_ms, 1000) + Fraction(seconds))
    as_given = message.encode() if isinstance(message, str) else text.encode()
    assert row == (5, topic, key, as_given, sent or None, None)


SETTING_NAMES = TEXT.filter(lambda name: name not in (FEATURE_LEVEL, HOLE_DUE_S, HOLE_OFFSET))
"""Hypothesis draws also the texts that it finds in the code. Not every number is a feature level or half of a hole."""


@given(
    st.builds(
        Progress,
        st.integers(0, 2**63 - 1),
        st.one_of(
            st.just(NOTHING_FIRED),
            st.tuples(st.integers(0, 2**64 - 1), st.one_of(st.just(MAX_OFFSET), st.integers(0, 2**63))),
        ),
        st.lists(
            st.builds(SettingChange, SETTING_NAMES, st.integers(0, 2**63 - 1), st.integers(-(2**70), 2**70)), max_size=4
        ).map(History),
    ),
    st.binary(min_size=16, max_size=16),
)
def test_progress_comes_back(said: Progress, topic_id: bytes) -> None:
    assert progress.decode(progress.encode(said, topic_id)) == (said, topic_id)


@given(st.none() | st.binary(), st.none() | st.binary(), HEADERS, TEXT, TEXT, TEXT)
def test_a_dead_letter_is_the_request_and_what_was_wrong(
    key: bytes | None, value: bytes | None, sent: list[headers.Header], code: str, message: str, source: str
) -> None:
    letter = dead_letter.encode(Rejected(3, code, message, key, value, sent), source, max_bytes=10**6)
    assert (letter.key, letter.value, letter.headers[:-3]) == (key, value, sent)
    assert letter.headers[-3:] == [
        ("timer-error", code.encode()),
        ("timer-error-message", message.encode()),
        ("timer-source", source.encode()),
    ]


@given(st.none() | st.binary(), st.none() | st.binary(), HEADERS, TEXT, TEXT, TEXT)
def test_a_dead_letter_is_read_as_it_was_written(
    key: bytes | None, value: bytes | None, sent: list[headers.Header], code: str, message: str, source: str
) -> None:
    letter = dead_letter.encode(Rejected(3, code, message, key, value, sent), source, max_bytes=10**6)
    assert dead_letter.decode(letter.headers) == dead_letter.DecodedDeadLetter(code, message, source, sent, None, "")


@given(TEXT, TEXT, TEXT)
def test_a_mark_comes_back(letter: str, source: str, timer_id: str) -> None:
    mark = dead_letter.Mark(letter, source, timer_id)
    assert dead_letter.decode_mark(*dead_letter.encode_mark(mark)) == mark


@given(TOPICS, st.integers(0, 10**9 - 1), st.integers(0, 10**18 - 1))
def test_a_source_comes_back(topic: str, partition: int, offset: int) -> None:
    assert topics.parse_source(topics.source(topic, partition, offset)) == (topic, partition, offset)


@given(TEXT)
def test_what_is_no_source_is_none(text: str) -> None:
    found = topics.parse_source(text)
    assert found is None or text.split("/")[0] == found[0]


@given(st.none() | st.binary(), st.none() | st.binary(max_size=3000), HEADERS, st.integers(300, 3000))
def test_a_dead_letter_fits_or_is_a_truncated(
    key: bytes | None, value: bytes | None, sent: list[headers.Header], max_bytes: int
) -> None:
    letter = dead_letter.encode(Rejected(3, "code", "message", key, value, sent), "t/0/3", max_bytes)
    assert dead_letter.size(*letter) <= max_bytes
    whole = (letter.key, letter.value, letter.headers[:-3]) == (key, value, sent)
    truncated = (letter.key, letter.value, len(letter.headers)) == (None, None, 3)
    assert whole or truncated
    if dead_letter.size(key, value, [*sent, *letter.headers[-3:]]) <= max_bytes - 16:
        assert whole, "it would have fitted"


@given(TEXT)
def test_legal_topics_are_kafkas(name: str) -> None:
    legal = 1 <= len(name) <= 249 and set(name) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
    )
    assert topics.is_legal(name) == (legal and name not in (".", ".."))


@given(
    TEXT,
    st.sampled_from(VERDICTS),
    st.none() | st.integers(0, checks.MAX_DUE_S),
    st.none() | st.integers(NO_VERSION, 10**18),
    st.none() | st.integers(0, 10**6),
)
def test_a_verdict_is_json_and_read_as_it_was_told(
    id: str, said: VerdictName, due_s: int | None, version: int | None, elsewhere: int | None
) -> None:
    told = Verdict(id.encode(), 7, said, due_s, version)
    value = verdict.encode(told, "ids/3/{}".format, elsewhere)
    source = None if version is None or version == NO_VERSION else f"ids/3/{version}"
    assert verdict.decode(value) == (id, said, due_s, source, None)
    named = {} if version is None else {"version": source}
    if elsewhere is not None:
        named["hint"] = f"Kafka's client for Java (murmur2) puts this id on partition {elsewhere}"
    assert json.loads(value) == {"id": id, "verdict": said, "due": due_s, **named}
