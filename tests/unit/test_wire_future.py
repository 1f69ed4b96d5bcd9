"""The native request format: accepted requests, and the error code and sentence of the others."""

from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.levels import REPEATS_LEVEL
from timers.core.timer import Origin
from timers.kafka.request_formats import NATIVE
from timers.v1.future_pb2 import Future
from timers.wire import future

GOOD = future.encode("orders", "k", b"v")


def record(key: bytes | None, value: bytes | None = GOOD, headers: Any = (), offset: int = 0) -> Any:
    return SimpleNamespace(offset=offset, key=key, value=value, headers=headers)


def rejection(key: bytes | None, value: bytes | None = GOOD, max_request_bytes: int = 1000) -> tuple[str, str]:
    decoded = future.decode([record(key, value)], max_request_bytes)
    assert decoded.rows == {}
    [rejected] = decoded.rejected
    assert (rejected.key, rejected.value) == (key, value)
    return rejected.code, rejected.message


@pytest.mark.parametrize(
    ("key", "due_s"),
    [(b"0", 0), (b"7", 7), (b"007", 7), (b"1700000000", 1_700_000_000), (b"99999999999", 99_999_999_999)],
)
def test_a_key_of_1_to_11_digits_is_a_due_second(key: bytes, due_s: int) -> None:
    assert future.decode([record(key)], 1000).rows == {due_s: [(0, "orders", "k", b"v", None, None)]}


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (None, "key-missing"),
        (b"", "key-not-a-number"),
        (b"soon", "key-not-a-number"),
        ("１２".encode(), "key-not-a-number"),
        ("²".encode(), "key-not-a-number"),
        (b"+5", "key-not-a-number"),
        (b" 5", "key-not-a-number"),
        (b"5\n", "key-not-a-number"),
        (b"5_0", "key-not-a-number"),
        (b"5.0", "key-not-a-number"),
        (b"0x5", "key-not-a-number"),
        (b"5\x00", "key-not-a-number"),
        (b"\xff\xfe", "key-not-a-number"),
        (b"1" * 15, "key-not-a-number"),
        (b"9" * 100_000, "key-not-a-number"),
        (b"-5", "key-negative"),
        (b"-1700000000000", "key-negative"),
        (b"--5", "key-not-a-number"),
        (b"-", "key-not-a-number"),
        (b"1" * 12, "key-in-milliseconds"),
        (b"1700000000000", "key-in-milliseconds"),
        (b"9" * 14, "key-in-milliseconds"),
    ],
)
def test_other_keys_are_refused(key: bytes | None, code: str) -> None:
    found, message = rejection(key)
    assert found == code
    assert len(message) < 200, "a sentence, not the whole key"


def test_milliseconds_are_refused_with_the_seconds_rounded_up() -> None:
    assert rejection(b"1700000000000")[1].endswith("in seconds it is 1700000000")
    assert rejection(b"1700000000001")[1].endswith("in seconds it is 1700000001")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "value-missing"),
        (b"\xff\xff", "value-not-a-future"),
        (b'{"callBackTopic": "orders"}', "value-not-a-future"),
        (b"\x0a\x02\xff\xff", "value-not-a-future"),  # a topic that is not UTF-8
        (future.encode("orders", "k", bytes(1000)), "value-too-large"),
        (b"", "topic-missing"),
        (future.encode("", "k", b"v"), "topic-missing"),
        (future.encode("no topic", "k", b"v"), "topic-invalid"),
        (future.encode(".", "k", b"v"), "topic-invalid"),
        (future.encode("..", "k", b"v"), "topic-invalid"),
        (future.encode("x" * 250, "k", b"v"), "topic-invalid"),
        (future.encode("topic\n", "k", b"v"), "topic-invalid"),
    ],
)
def test_values_that_are_no_request_are_refused(value: bytes | None, code: str) -> None:
    assert rejection(b"5", value)[0] == code


def test_a_payload_without_a_topic_is_told_which_header_is_missing() -> None:
    assert "no header timer-topic" in rejection(b"5", b"unpaid")[1]


def test_a_value_of_exactly_the_limit_is_accepted() -> None:
    value = future.encode("orders", "k", bytes(50))
    assert future.decode([record(b"5", value)], len(value)).rejected == []
    code, message = rejection(b"5", value, len(value) - 1)
    assert code == "value-too-large"
    assert f"TIMERS_MAX_REQUEST_BYTES={len(value) - 1}" in message


def test_later_records_of_one_second_and_topic_are_checked_too() -> None:
    """The second record of a due second and topic is decoded by a faster path."""
    records = [
        record(b"5", GOOD, offset=0),
        record(b"5", future.encode("orders", "k", bytes(1000)), offset=1),
        record(b"5", future.encode("no topic", "", b""), offset=2),
        record(b"5", b"\xff", offset=3),
        record(b"5", None, offset=4),
        record(b"5", GOOD, offset=5),
    ]
    decoded = future.decode(records, 1000)
    assert [row[0] for row in decoded.rows[5]] == [0, 5]
    assert [(entry.offset, entry.code) for entry in decoded.rejected] == [
        (1, "value-too-large"),
        (2, "topic-invalid"),
        (3, "value-not-a-future"),
        (4, "value-missing"),
    ]


def test_leading_zeros_of_a_due_second_are_ignored() -> None:
    records = [record(b"7", offset=0), record(b"07", offset=1), record(b"7", offset=2), record(b"007", offset=3)]
    assert [row[0] for row in future.decode(records, 1000).rows[7]] == [0, 1, 2, 3]


def test_headers_keep_their_order_without_those_of_the_engine() -> None:
    sent = [("a", b"1"), ("timer-id", b"forged"), ("a", None), ("timer-", b""), ("Timer-x", b"\xff"), ("", b"")]
    [row] = future.decode([record(b"5", headers=sent)], 1000).rows[5]
    assert row[4] == [("a", b"1"), ("a", None), ("Timer-x", b"\xff"), ("", b"")]


SCHEMA_IDS = [("__key_schema_id", b"\1k"), ("__value_schema_id", b"\1v")]
"""As a serializer of a registry adds them."""


@pytest.mark.parametrize("other", [[], [("timer-key", None)]])
def test_schema_ids_of_a_future_do_not_reach_its_callback(other: Any) -> None:
    """A deserializer would read the payload by the schema of the Future. Below the level, stores have these headers."""
    sent = [record(b"5", headers=[*SCHEMA_IDS, ("a", b"1"), *other])]
    for level, kept in ((REPEATS_LEVEL - 1, [*SCHEMA_IDS, ("a", b"1")]), (REPEATS_LEVEL, [("a", b"1")])):
        [row] = NATIVE.decoder(level, rejects_overdue=False)(sent, 1000).rows[5]
        assert row[4] == kept
    [row] = NATIVE.newest([record(b"5", headers=[*SCHEMA_IDS, *other])], 1000).rows[5]
    assert row[4] is None


def test_schema_ids_of_a_payload_reach_its_callback_also_from_a_request_that_is_written_anew() -> None:
    sent = record(b"5", b"payload", [*SCHEMA_IDS, ("timer-topic", b"orders"), ("timer-key", b"k")])
    [row] = NATIVE.newest([sent], 1000).rows[5]
    assert row[1:5] == ("orders", b"k", b"payload", SCHEMA_IDS)
    for key in (b"k", None, "k"):
        changed = (*row[:2], key, *row[3:])
        again = record(*NATIVE.rebuild_request(changed, Origin("x/0/0", 5, 0)))
        [found] = NATIVE.newest([again], 1000).rows[5]
        assert found[1:5] == ("orders", b"k" if key == "k" else key, b"payload", SCHEMA_IDS)


@pytest.mark.parametrize("headers", [None, (), [("timer-due", b"1")]])
def test_absent_headers_are_none(headers: Any) -> None:
    [row] = future.decode([record(b"5", headers=headers)], 1000).rows[5]
    assert row[4] is None


def test_absent_fields_are_empty() -> None:
    [row] = future.decode([record(b"5", Future(callBackTopic="t").SerializeToString())], 1000).rows[5]
    assert row[1:4] == ("t", "", b"")


def test_unknown_fields_are_ignored() -> None:
    later = GOOD + b"\x92\x3f\x03abc"  # field 1010, length-delimited
    assert future.decode([record(b"5", later)], 1000).rows[5][0][1] == "orders"


# ---- the retry topic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("timer-id", b"t/0/1"), ("timer-due", b"5")],
        [("timer-id", b"t/0/1"), ("timer-due", b"5"), ("timer-attempt", b"many")],
        [("timer-id", b"t/0/1"), ("timer-due", b"5"), ("timer-attempt", b"-5")],
        [("timer-id", b"t/0/1"), ("timer-due", b"5"), ("timer-attempt", b"1" * 10)],
        [("timer-id", None), ("timer-due", b"5"), ("timer-attempt", b"1")],
        [("timer-id", b"\xff"), ("timer-due", b"5"), ("timer-attempt", b"1")],
        [("timer-id", b"id"), ("timer-due", b"5"), ("timer-attempt", b"1"), ("timer-source", b"t/0")],
    ],
)
def test_a_retry_without_the_engines_headers_is_refused(headers: Any) -> None:
    decoded = future.decode_retry([record(b"5", GOOD, headers)], 1000)
    assert decoded.rows == {}
    assert [entry.code for entry in decoded.rejected] == ["retry-headers-missing"]


def test_a_retry_keeps_its_origin() -> None:
    value, headers = future.encode_retry("orders", "k", b"v", [("a", None)], Origin("timer-request/3/9", 5, 2))
    [row] = future.decode_retry([record(b"60", value, headers)], 1000).rows[60]
    assert row == (0, "orders", "k", b"v", [("a", None)], Origin("timer-request/3/9", 5, 2))
