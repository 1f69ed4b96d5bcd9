"""The request format for kafka-message-scheduler, by its authors' examples and by its source: what goes in and what
comes out.

The quotations are from the article that describes it ("Kafka message scheduler", design and technical implementation).
"""

from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.timer import Origin, Row, id_bytes
from timers.kafka.request_formats import enabled_formats
from timers.process.config.settings import Settings
from timers.wire import future
from timers.wire.dead_letter import OVERDUE
from timers.wire.formats import RequestRecord, schedule

SENT = [
    ("scheduler-epoch", b"1893456000"),
    ("scheduler-target-topic", b"online-videos"),
    ("scheduler-target-key", b"vid1"),
    ("customer-header", b"dummy"),
]


def record(
    key: bytes | None = b"vid1-online",
    value: bytes | None = b'"video 1"',
    headers: Any = SENT,
    offset: int = 7,
    timestamp: int = 1607918336_000,
) -> Any:
    return SimpleNamespace(offset=offset, key=key, value=value, headers=headers, timestamp=timestamp)


def row_of(sent: Any) -> tuple[int, Row]:
    decoded = schedule.decode([sent], 1000)
    ((due_s, [row]),) = decoded.rows.items()
    assert decoded.operations == [(sent.key, sent.offset, due_s, 0)]
    return due_s, row


def test_a_schedule_is_just_a_kafka_message_with_specific_headers_and_a_payload() -> None:
    """ "Let's take a look at the message produced for the previously described schedule message." """
    due_s, row = row_of(record())
    assert due_s == 1893456000
    _, topic, key, value, headers, origin = schedule.callback_row(row, b"schedules")
    assert (topic, key, value) == ("online-videos", b"vid1", b'"video 1"')
    assert headers == [
        ("customer-header", b"dummy"),
        ("scheduler-timestamp", b"1607918336"),
        ("scheduler-key", b"vid1-online"),
        ("scheduler-topic", b"schedules"),
    ]
    assert origin == Origin("vid1-online", 1893456000, 0)


def test_for_deleting_a_schedule_you_produce_a_tombstone() -> None:
    """ "...which is a message with a nil payload." """
    decoded = schedule.decode([record(value=None, headers=None), record(value=None, offset=8)], 1000)
    assert decoded.operations == [(b"vid1-online", 7, None, 0), (b"vid1-online", 8, None, 0)]
    assert not decoded.rows and not decoded.rejected


def test_an_empty_value_is_no_tombstone() -> None:
    assert row_of(record(value=b""))[1][3] == b""


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", "ключ".encode(), b"\xed\xa0\x80", bytes(range(256))])
def test_ids_and_target_keys_may_be_any_bytes(data: bytes) -> None:
    sent = [*SENT[:2], ("scheduler-target-key", data), SENT[3]]
    _, row = row_of(record(key=data or b"x", headers=sent))
    _, _, key, _, headers, origin = schedule.callback_row(row, b"schedules")
    assert key == data
    assert ("scheduler-key", data or b"x") in (headers or ())
    assert origin is not None and id_bytes(origin.timer_id) == (data or b"x")


@pytest.mark.parametrize("headers", [SENT[:2], [*SENT[:2], ("scheduler-target-key", None)]])
def test_without_a_target_key_the_message_has_none(headers: Any) -> None:
    """As in kafka-message-scheduler, a missing or null header becomes a null key."""
    _, row = row_of(record(headers=headers))
    assert row[2] is None


def test_headers_of_users_keep_their_order_and_those_of_engine_and_scheduler_are_dropped() -> None:
    headers = [
        ("b", None),
        *SENT,
        ("a", b"\xff"),
        ("timer-id", b"forged"),
        ("scheduler-anything", b"x"),
        ("b", b"2"),
    ]
    _, row = row_of(record(headers=headers))
    headers_sent = schedule.callback_row(row, b"s")[4]
    assert headers_sent is not None
    assert headers_sent[:-3] == [("b", None), ("customer-header", b"dummy"), ("a", b"\xff"), ("b", b"2")]
    assert [name for name, _ in headers_sent[-3:]] == ["scheduler-timestamp", "scheduler-key", "scheduler-topic"]


def test_the_first_of_several_headers_counts() -> None:
    """As ``getHeaderValue`` of kafka-message-scheduler does."""
    due_s, row = row_of(record(headers=[*SENT, *schedule.encode_headers(5, "elsewhere", b"other")]))
    assert (due_s, row[1], row[2]) == (1893456000, "online-videos", b"vid1")


@pytest.mark.parametrize(
    "headers",
    [
        [("timer-x", b"1"), *SENT, ("z", None)],
        SENT[:3],
        [*SENT[:2], ("scheduler-target-key", None)],
        SENT[2::-1],
        [("scheduler-epoch", b"01893456000"), *SENT[1:3]],
    ],
)
def test_a_pending_schedule_can_be_republished_unchanged(headers: Any) -> None:
    _, row = row_of(record(key=b"\xff", headers=headers, timestamp=1607918336_789))
    assert schedule.as_published(row) == (b"\xff", b'"video 1"', headers, 1607918336_789)
    again = record(*schedule.as_published(row)[:3], timestamp=1607918336_789)
    assert row_of(again)[1] == row


def test_a_compacted_schedule_is_rebuilt_from_its_row() -> None:
    _, row = row_of(record())
    gone = schedule.callback_row(row, b"schedules")
    assert gone[5] is not None
    key, value, headers = schedule.rebuild_request(gone, gone[5])
    assert (key, value, sorted(headers)) == (b"vid1-online", b'"video 1"', sorted(SENT))


def test_the_retry_topic_keeps_a_schedule_unchanged() -> None:
    for key in (b"vid1", b"\xff", None):
        headers = [*SENT[:2], ("scheduler-target-key", key), SENT[3]]
        _, row = row_of(record(key=b"\xfe", headers=headers))
        _, topic, text, value, all_headers, origin = schedule.callback_row(row, b"schedules")
        assert origin is not None
        moved = origin._replace(attempt=1, source="schedules/0/7")
        request, retry_headers = future.encode_retry(topic, text, value, all_headers, moved)
        back = future.decode_retry([record(b"99", request, retry_headers, offset=3)], 1000).rows[99]
        assert back == [(3, topic, text, value, all_headers, moved)]
        request_format = enabled_formats(Settings(schedule_topics=("schedules",)))["schedules"]
        assert request_format.is_request_of(RequestRecord(7, b"\xfe", b'"video 1"', headers, 0), back[0], moved)
        assert not request_format.is_request_of(RequestRecord(7, b"other", b'"video 1"', headers, 0), back[0], moved)


WRONG = {
    "id-missing": [record(key=None), record(key=b"")],
    "id-too-long": [record(key=b"x" * (32 * 1024 + 1))],
    "due-missing": [
        record(headers=SENT[1:]),
        record(headers=None),
        record(headers=[("scheduler-epoch", None), *SENT[1:]]),
    ],
    "key-not-a-number": [record(headers=[("scheduler-epoch", b"soon"), *SENT[1:]])],
    "key-negative": [record(headers=[("scheduler-epoch", b"-1"), *SENT[1:]])],
    "key-in-milliseconds": [record(headers=[("scheduler-epoch", b"1893456000000"), *SENT[1:]])],
    "topic-missing": [record(headers=SENT[:1]), record(headers=[*SENT[:1], ("scheduler-target-topic", b"")])],
    "topic-invalid": [record(headers=[*SENT[:1], ("scheduler-target-topic", b"a topic")])],
    "value-too-large": [record(value=b"x" * 1001)],
}


@pytest.mark.parametrize("code", WRONG)
def test_an_unreadable_record_is_rejected_and_ends_its_id(code: str) -> None:
    """Compaction may remove the valid version before it."""
    for sent in WRONG[code]:
        decoded = schedule.decode([sent], 1000)
        assert not decoded.rows
        [rejected] = decoded.rejected
        assert (rejected.code, rejected.key, rejected.value) == (code, sent.key, sent.value)
        assert list(rejected.headers) == list(sent.headers or ())
        assert decoded.operations == ([(sent.key, 7, None, 0)] if sent.key else [])


def test_a_schedule_is_overdue_by_the_timestamp_of_its_record() -> None:
    for timestamp, overdue in ((1893456000_000, False), (1893456000_999, False), (1893456001_000, True)):
        sent = record(timestamp=timestamp)
        assert len(schedule.decode([sent], 1000).rows) == 1
        decoded = schedule.decode_rejecting_overdue([sent], 1000)
        assert [entry.code for entry in decoded.rejected] == ([OVERDUE] if overdue else [])
        assert decoded.operations[0][2] == (None if overdue else 1893456000)


@pytest.mark.parametrize(
    ("value", "versions"),
    [
        (b"6", {7: 6}),
        (b"0", {7: 0}),
        (b"7", {}),
        (b"-1", {}),
        (b"", {}),
        (None, {}),
        (b"9" * 19, {}),
        (b"six", {}),
    ],
)
def test_a_tombstone_of_the_engine_names_an_earlier_version(value: bytes | None, versions: dict[int, int]) -> None:
    sent = record(value=None, headers=[*SENT, ("timer-fired-offset", value)])
    decoded = schedule.decode([sent], 1000)
    assert (decoded.operations, decoded.fired_versions) == ([(b"vid1-online", 7, None, 0)], versions)
    assert schedule.tombstone_headers(6) == [("timer-fired-offset", b"6")]
