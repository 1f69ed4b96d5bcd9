"""Conditions of timers with an id, and of requests that can have none."""

from typing import Any

import pytest

from timers.core.levels import REPEATS_LEVEL
from timers.core.timer import Origin
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.machines.store import layout
from timers.wire import future
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.headers import TIMER_AGAIN, TIMER_DUE, TIMER_IF, TIMER_TOPIC, TIMER_VERDICT

VALUE = future.encode("orders", "k", b"v")
APPEND_MS = 1_800_000_000_999


def record(offset: int, *headers: tuple[str, bytes | None], value: bytes | None = VALUE, **fields: Any) -> Any:
    due = [] if value is None else [(TIMER_DUE, b"1900000000")]
    return RequestRecord(offset, b"id", value, [*due, *headers], APPEND_MS, **{"timestamp_type": 1, **fields})


def decode(*records: Any) -> Any:
    return future_by_id.decode(records, 1000)


def test_conditions_and_append_seconds_are_read() -> None:
    decoded = decode(
        record(1),
        record(2, (TIMER_IF, b"absent")),
        record(3, (TIMER_IF, b"ids/0/2"), value=None),
        record(4, (TIMER_IF, b"?"), (TIMER_IF, b"ids/0/2")),
    )
    assert decoded.conditions == {2: "absent", 3: "ids/0/2", 4: "ids/0/2"}
    assert decoded.append_s == dict.fromkeys((1, 2, 3, 4), APPEND_MS // 1000)
    assert [row[4] for row in decoded.rows[1_900_000_000]] == [None, None, None], "callbacks do not have the header"


def test_a_wish_for_a_verdict_is_read_from_requests_of_both_kinds_and_does_not_reach_the_callback() -> None:
    """A cancel has a verdict anyhow, and one that is published again has no id any more."""
    again = [(TIMER_DUE, b"1700000000"), (TIMER_AGAIN, b"1700000000"), (TIMER_VERDICT, b"wanted")]
    decoded = decode(
        record(1),
        record(2, (TIMER_VERDICT, b"wanted")),
        record(3, (TIMER_VERDICT, None), (TIMER_TOPIC, b"orders")),
        record(4, (TIMER_VERDICT, b"wanted"), value=None),
        record(5, *again),
    )
    assert decoded.asked == {2, 3} and not decoded.rejected
    assert [row[4] for row in decoded.rows[1_900_000_000]] == [None, None, None]


def test_schema_ids_of_a_future_do_not_reach_its_callback() -> None:
    """Nor those of a timer that repeats; those of a payload do."""
    (by_id,) = (each.request_format for each in REQUEST_FORMATS if each.request_format.has_conditions)
    ids: list[tuple[str, bytes | None]] = [("__value_schema_id", b"1"), ("__key_schema_id", b"2")]
    topic: tuple[str, bytes | None] = ("timer-topic", b"orders")
    sent = [record(1, *ids, ("a", b"1")), record(2, *ids), record(3, *ids, topic)]
    rows = by_id.newest(sent, 1000).rows[1_900_000_000]
    assert [row[4] for row in rows] == [[("a", b"1")], None, ids]
    rows = by_id.decoder(REPEATS_LEVEL - 1, rejects_overdue=False)(sent, 1000).rows[1_900_000_000]
    assert [row[4] for row in rows] == [[*ids, ("a", b"1")], ids, ids]
    rule: tuple[str, bytes | None] = ("timer-repeat", b"every=60")
    for more, kept in (([], None), ([topic], ids)):
        repeating = RequestRecord(4, b"id", VALUE, [*ids, *more, rule], APPEND_MS, timestamp_type=1)
        definition = by_id.newest([repeating], 1000).definitions[4]
        assert definition.row[4] == kept


@pytest.mark.parametrize(
    ("condition", "value", "said"),
    [
        (b"Absent", VALUE, "is not 'absent', and not the source of a version"),
        (b"", VALUE, "is not 'absent'"),
        (None, VALUE, "is not 'absent'"),
        (b"ids/0", VALUE, "<topic>/<partition>/<offset>"),
        (b"ids/0/-1", None, "<topic>/<partition>/<offset>"),
        (b"\xff" * 400, VALUE, "is not 'absent'"),
        (b"absent", None, "a cancel with header timer-if must name the source"),
    ],
)
def test_a_condition_that_cannot_be_read_is_a_dead_letter(condition: bytes | None, value: Any, said: str) -> None:
    decoded = decode(record(6, value=b"?"), record(7, (TIMER_IF, condition), value=value), record(8))
    assert [each.code for each in decoded.rejected] == ["value-not-a-future", "condition-invalid"]
    assert said in decoded.rejected[1].message and len(decoded.rejected[1].message) < 1000
    assert (list(decoded.append_s), decoded.conditions) == ([8], {})
    assert [row[0] for row in decoded.rows[1_900_000_000]] == [8]


def test_a_condition_needs_the_brokers_time() -> None:
    decoded = decode(record(7, (TIMER_IF, b"absent"), timestamp_type=0), record(8, timestamp_type=0))
    assert [(each.offset, each.code) for each in decoded.rejected] == [(7, "condition-without-append-time")]
    assert decoded.append_s == {8: 0}


def test_a_request_with_a_condition_is_read_again_without_its_kind_of_time() -> None:
    sent = record(7, (TIMER_IF, b"absent"), timestamp_type=None)
    row = (7, "orders", "k", b"v", None, None)
    (by_id,) = (each.request_format for each in REQUEST_FORMATS if each.request_format.has_conditions)
    assert by_id.is_request_of(sent, row, Origin("id", 1_900_000_000, 0, "ids/0/7"))


def test_a_request_that_is_published_again_has_no_condition() -> None:
    over = [(TIMER_DUE, b"1700000000"), (TIMER_AGAIN, b"1700000000"), (TIMER_IF, b"absent")]
    decoded = decode(record(7, *over))
    assert (decoded.operations, decoded.append_s, decoded.conditions) == ([], {}, {})
    assert len(decoded.rows[1_700_000_000]) == 1


def test_a_timer_without_an_id_can_have_no_condition() -> None:
    sent = [
        RequestRecord(1, b"1900000000", VALUE, [("a", b"1"), (TIMER_IF, b"absent")], APPEND_MS),
        RequestRecord(2, b"1900000001", VALUE, [("timer-id", b"1")], APPEND_MS),
        RequestRecord(3, b"1900000000", VALUE, None, APPEND_MS),
    ]
    refused = future.decode(sent, 1000)
    assert {due_s: [row[0] for row in rows] for due_s, rows in refused.rows.items()} == {
        1_900_000_000: [3],
        1_900_000_001: [2],
    }
    [rejected] = refused.rejected
    assert (rejected.offset, rejected.code) == (1, "condition-without-id")
    assert future.decode(sent[:1], 1000).rows == {}


def test_only_timers_with_an_id_of_their_own_format_have_conditions() -> None:
    assert [each.request_format.name for each in REQUEST_FORMATS if each.request_format.has_conditions] == [
        "future-by-id"
    ]


@pytest.mark.parametrize(
    "entry",
    [
        (7, 8, 9),
        (-1, 8, 9),
        (7, 8, -1),
        (7, 8, 9, 0),
        (7, 2**62, 9, 2**62 - 1),
        (7, 8, 9, b"", b""),
        (7, 8, 9, b"key", b"value"),
        (2**40, 0, 0),
    ],
)
def test_entries_of_an_index_are_read_as_they_were_written(entry: Any) -> None:
    assert layout.unpack_entry(layout.pack_entry(entry)) == entry
