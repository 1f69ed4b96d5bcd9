"""The line and the JSON with which callbacks are shown."""

from dataclasses import replace

import pytest

from timers.offline.fired import CallbackRecord

HEADERS: list[tuple[str, bytes | None]] = [
    ("trace", b"\xff"),
    ("timer-id", b"timer-request/2/17"),
    ("timer-due", b"1800000000"),
    ("timer-fired", b"1800000000004"),
]


def arrival(
    key: bytes | None = b"o-1", value: bytes | None = b"expired", headers: list[tuple[str, bytes | None]] = HEADERS
) -> CallbackRecord:
    return CallbackRecord("orders", 3, 42, 1_800_000_000_012, key, value, headers)


def test_a_fired_timer_is_one_line() -> None:
    assert arrival().line() == "fired topic=orders key=o-1 due=1800000000 lag_ms=12"


def test_a_record_without_timer_headers_is_shown_as_such() -> None:
    expected = "record topic=orders key=o-1 partition=3 offset=42 timestamp_ms=1800000000012"
    assert arrival(headers=[]).line() == expected
    assert arrival(headers=[("timer-due", b"soon")]).line() == expected
    assert arrival(headers=[("timer-due", None)]).line() == expected


def test_the_last_of_several_headers_counts() -> None:
    assert arrival(headers=[("timer-due", b"1"), *HEADERS]).due_s == 1_800_000_000


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"", ""),
        (None, "null"),
        ("schlüssel 7".encode(), "schlüssel 7"),
        (b"a\nb\x1b[2J", "a\\nb\\x1b[2J"),
        ("a\u2028b\x9b".encode(), "a\\u2028b\\x9b"),
        (b"\xff\x00", "\\xff\\x00"),
    ],
)
def test_control_characters_of_a_key_are_escaped(key: bytes | None, shown: str) -> None:
    assert arrival(key=key).line() == f"fired topic=orders key={shown} due=1800000000 lag_ms=12"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"expired", "expired"),
        (b"", ""),
        (None, "null"),
        (b"a\n\x1b[2J", "a\\n\\x1b[2J"),
        (b"x" * 200, "x" * 200),
        (b"x" * 1_000_000, "x" * 200 + " ... (1,000,000 bytes)"),
        (("é" * 100_000).encode(), "é" * 100 + " ... (200,000 bytes)"),
    ],
)
def test_a_long_line_has_time_and_value(value: bytes | None, shown: str) -> None:
    record = arrival(value=value)
    assert record.long_line() == f"{record.line()} at=2027-01-15T08:00:00.012Z value={shown}"


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [(-1, "1969-12-31T23:59:59.999Z"), (253402300800000, "after-9999"), (2**63 - 1, "after-9999")],
)
def test_any_timestamp_of_a_record_is_shown(timestamp_ms: int, shown: str) -> None:
    record = replace(arrival(), timestamp_ms=timestamp_ms)
    assert f" at={shown} value=" in record.long_line()


def test_json_has_all_fields() -> None:
    assert arrival(value=b"\xff\x00").fields() == {
        "topic": "orders",
        "key": "o-1",
        "due_s": 1_800_000_000,
        "lag_ms": 12,
        "timer_id": "timer-request/2/17",
        "source": "timer-request/2/17",
        "value": {"base64": "/wA="},
        "headers": [
            ["trace", {"base64": "/w=="}],
            ["timer-id", "timer-request/2/17"],
            ["timer-due", "1800000000"],
            ["timer-fired", "1800000000004"],
        ],
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_800_000_000_012,
    }


def test_json_of_a_bare_record_has_nulls() -> None:
    shown = arrival(key=None, value=None, headers=[]).fields()
    assert [shown[name] for name in ("key", "value", "due_s", "lag_ms", "timer_id")] == [None] * 5
