"""The countdown format, with an example for each rule."""

import json
from typing import Any

import pytest

from timers.core.timer import Decoded, Origin, Row
from timers.wire import future, query
from timers.wire.formats import RequestFormat, RequestRecord, countdown

AT_MS = 1_893_456_000_250
"""Append time of the records in these tests."""

CALLER = [("CALLER_SERVICE", b"S")]


def decode(value: bytes | str | None, key: bytes | None = None, headers: Any = CALLER, at_ms: int = AT_MS) -> Decoded:
    raw = value.encode() if isinstance(value, str) else value
    return countdown.decode([RequestRecord(7, key, raw, headers, at_ms)], 1_000_000)


def row(value: bytes | str, **more: Any) -> tuple[int, Row]:
    """(due second, row) of an accepted message."""
    decoded = decode(value, **more)
    assert decoded.rejected == []
    ((due_s, (one,)),) = decoded.rows.items()
    return due_s, one


def code(value: bytes | str | None, **more: Any) -> str:
    decoded = decode(value, **more)
    assert not decoded.rows and not decoded.operations
    (rejected,) = decoded.rejected
    assert rejected.message
    return rejected.code


def message(text: str) -> str:
    return f'{{"topic": "T", "message": {text}, "countdown": 1}}'


def countdown_message(text: str) -> str:
    return f'{{"topic": "T", "message": "m", "countdown": {text}}}'


def test_an_example_message() -> None:
    sent = b'{\n    "topic": "T",\n    "message": "<message body>",\n    "countdown": 120\n}'
    assert row(sent) == (1_893_456_121, (7, "T", None, b"<message body>", CALLER, None))
    assert row(sent, at_ms=AT_MS - 250)[0] == 1_893_456_120, "to the second"


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ('"plain"', b"plain"),
        ('""', b""),
        (r'"caf\u00e9 \ud83d\ude00 \"quoted\" \n"', 'café 😀 "quoted" \n'.encode()),
        (
            '{"b": 1.10,  "a": 12345678901234567890123, "a": [ ]}',
            b'{"b": 1.10,  "a": 12345678901234567890123, "a": [ ]}',
        ),
        ("1.10", b"1.10"),
        ("1" * 5000, b"1" * 5000),
        ("null", b"null"),
        ("true", b"true"),
        ('[1e400, -0, "é"]', '[1e400, -0, "é"]'.encode()),
        ("[" * 99 + "]" * 99, b"[" * 99 + b"]" * 99),
        ('"' + "[{" * 500 + '"', b"[{" * 500),
        ('{"x": "' + r"\"[{" * 300 + '"}', b'{"x": "' + rb"\"[{" * 300 + b'"}'),
    ],
)
def test_a_string_is_sent_as_text_and_other_json_unchanged(text: str, sent: bytes) -> None:
    assert row(message(text))[1][3] == sent


@pytest.mark.parametrize(
    ("text", "at_ms", "due_s"),
    [
        ("0", 5_000, 5),
        ("0", 5_001, 6),
        ("-0.0", 5_000, 5),
        ("0.001", 5_000, 6),
        ("0.749", 5_250, 6),
        ("0.75", 5_250, 6),
        ("0.7500000000000000000000000000000000000000001", 5_250, 7),
        ("1e3", 5_000, 1_005),
        ("1.5E+1", 5_000, 20),
        ("15e-1", 5_000, 7),
        ("1e-9999", 5_000, 6),
        ("0e9999", 5_000, 5),
        ("0.1", 4_900, 5),
        ("2.675", 325, 3),
        ("99999999999", 0, 99_999_999_999),
    ],
)
def test_countdowns_add_up_exactly(text: str, at_ms: int, due_s: int) -> None:
    assert row(countdown_message(text), at_ms=at_ms)[0] == due_s


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, "value-missing"),
        (b"", "value-not-json"),
        ("no json", "value-not-json"),
        ("[]", "value-not-json"),
        ('"text"', "value-not-json"),
        ("{", "value-not-json"),
        ('{"topic": "T",}', "value-not-json"),
        ('{"topic" "T"}', "value-not-json"),
        ('{"topic": "T"} {}', "value-not-json"),
        ("{topic: 1}", "value-not-json"),
        ("\ufeff" + countdown_message("1"), "value-not-json"),
        (b'{"topic": "\xff"}', "value-not-json"),
        (message('"a\nb"'), "value-not-json"),
        (message("[" * 100 + "]" * 100), "value-not-json"),
        (message("[" * 100_000), "value-not-json"),
        (countdown_message("NaN"), "value-not-json"),
        (countdown_message("-Infinity"), "value-not-json"),
        (countdown_message("01"), "value-not-json"),
        (countdown_message("1" * 1_000_000), "value-too-large"),
        ("{}", "field-missing"),
        ('{"message": "m", "countdown": 1}', "field-missing"),
        ('{"topic": "T", "countdown": 1}', "field-missing"),
        ('{"topic": "T", "message": "m"}', "field-missing"),
        ('{"Topic": "T", "message": "m", "countdown": 1}', "field-missing"),
        ('{"topic": "T", "topic": "T", "message": "m", "countdown": 1}', "field-repeated"),
        ('{"topic": 5, "message": "m", "countdown": 1}', "field-invalid"),
        ('{"topic": null, "message": "m", "countdown": 1}', "field-invalid"),
        (message(r'"\ud83d"'), "field-invalid"),
        ('{"topic": "", "message": "m", "countdown": 1}', "topic-missing"),
        ('{"topic": "a b", "message": "m", "countdown": 1}', "topic-invalid"),
        ('{"topic": "..", "message": "m", "countdown": 1}', "topic-invalid"),
        (countdown_message("-1"), "countdown-invalid"),
        (countdown_message("-1e-9"), "countdown-invalid"),
        (countdown_message("true"), "countdown-invalid"),
        (countdown_message("null"), "countdown-invalid"),
        (countdown_message('"120"'), "countdown-invalid"),
        (countdown_message("[]"), "countdown-invalid"),
        (countdown_message("1e12"), "countdown-invalid"),
        (countdown_message("1e9999"), "countdown-invalid"),
        (countdown_message("1e99999999999"), "countdown-invalid"),
        (countdown_message("1" * 2000), "countdown-invalid"),
        ('{"cancel": true}', "id-missing"),
        ('{"id": "", "cancel": true}', "id-missing"),
        ('{"id": 17, "cancel": true}', "id-not-text"),
        (r'{"id": "\udc00", "cancel": true}', "id-not-text"),
        (json.dumps({"id": "x" * 513, "cancel": True}), "id-too-long"),
        ('{"id": "other", "cancel": true}', "id-not-key"),
        ('{"id": "k", "cancel": 1}', "field-invalid"),
        ('{"id": "k", "cancel": "true"}', "field-invalid"),
    ],
)
def test_unreadable_messages_have_an_error_code(value: bytes | str | None, wanted: str) -> None:
    assert code(value, key=b"k") == wanted


def test_a_record_without_a_time_is_refused() -> None:
    assert code(countdown_message("1"), at_ms=-1) == "time-missing"


def test_the_id_must_equal_the_record_key() -> None:
    timed = '{"id": "order-17", "topic": "T", "message": "m", "countdown": 2, "more": [1]}'
    origin = Origin("order-17", 1_893_456_003, 0)
    decoded = decode(timed, b"order-17")
    assert decoded.rows == {1_893_456_003: [(7, "T", b"order-17", b"m", CALLER, origin)]}
    assert decoded.operations == [(b"order-17", 7, 1_893_456_003, AT_MS // 1000)]
    assert decode('{"id": "order-17", "cancel": true}', b"order-17").operations == [
        (b"order-17", 7, None, AT_MS // 1000)
    ]
    assert code(timed, key=None) == code(timed, key=b"order-18") == "id-not-key"
    without = '{"id": null, "cancel": false, "topic": "T", "message": "m", "countdown": 2}'
    assert row(without, key=b"\xff")[1] == (7, "T", b"\xff", b"m", CALLER, None)


def test_headers_are_kept_except_those_of_the_engine() -> None:
    headers = [("a", None), ("timer-id", b"x"), ("CALLER_SERVICE", b"S"), ("a", b"2")]
    assert row(countdown_message("1"), headers=headers)[1][4] == [("a", None), ("CALLER_SERVICE", b"S"), ("a", b"2")]
    assert row(countdown_message("1"), headers=None)[1][4] is None


def test_records_are_counted_by_caller() -> None:
    records = [
        RequestRecord(1, None, countdown_message("1").encode(), CALLER, AT_MS),
        RequestRecord(
            2, None, countdown_message("1").encode(), [("CALLER_SERVICE", b"old"), ("CALLER_SERVICE", b"new")], AT_MS
        ),
        RequestRecord(3, None, countdown_message("1").encode(), [], AT_MS),
        RequestRecord(4, None, b"{}", CALLER, AT_MS),
        RequestRecord(5, b"k", b'{"id": "k", "cancel": true}', [("CALLER_SERVICE", b"\xff" * 200)], AT_MS),
    ]
    assert countdown.decode(records, 1000).callers == {
        ("S", "accepted"): 1,
        ("new", "accepted"): 1,
        ("none", "accepted"): 1,
        ("S", "rejected"): 1,
        ("\ufffd" * 100, "cancel"): 1,
    }


def test_a_republished_message_keeps_its_due_second_and_does_not_replace_its_id() -> None:
    timed = '{"id": "order-17", "topic": "T", "message": "m", "countdown": 2}'
    again = [*CALLER, ("timer-again", b"1800000000")]
    decoded = decode(timed, b"order-17", again)
    assert decoded.rows == {1_800_000_000: [(7, "T", b"order-17", b"m", CALLER, None)]}
    assert decoded.operations == []
    ahead = decode(timed, b"order-17", [("timer-again", b"1893456001")])
    assert list(ahead.rows) == [1_893_456_003] and len(ahead.operations) == 1, "it cannot have failed yet"
    assert code(timed, key=b"order-17", headers=[("timer-again", b"soon")]) == "key-not-a-number"


def test_a_compacted_request_is_rebuilt_from_its_row() -> None:
    due_s, timer = row(message('{"b": "é\\n", "a": 1.10}'), key=b"\xff\x00")
    key, value, headers = countdown.rebuild_request(timer, Origin("t/0/7", due_s, 1))
    headers.append(("timer-again", b"%d" % due_s))
    assert row(value, key=key, headers=headers, at_ms=AT_MS + 60_000) == (due_s, timer)


def test_a_request_is_recognized_by_its_due_second() -> None:
    request_format = RequestFormat("countdown", countdown.decode, countdown.rebuild_request)
    sent = RequestRecord(7, None, countdown_message("1").encode(), CALLER, AT_MS)
    due_s, timer = row(countdown_message("1"))
    origin = Origin("t/0/7", due_s, 1)
    assert request_format.is_request_of(sent, timer, origin)
    assert not request_format.is_request_of(sent._replace(timestamp=AT_MS + 60_000), timer, origin)
    assert not request_format.is_request_of(sent._replace(value=message('"n"').encode()), timer, origin)


def test_keys_of_any_kind_survive_the_retry_topic() -> None:
    for key in (None, b"", b"\xff\x00", "text"):
        value, headers = future.encode_retry("T", key, b"m", None, Origin("t/0/7", 5, 1))
        (timer,) = future.decode_retry([RequestRecord(9, b"60", value, headers, 0)], 1000).rows[60]
        assert (timer[2], timer[4]) == (key, None)


@pytest.mark.parametrize(
    ("key", "json_key", "shown"),
    [(None, None, b""), (b"text", "text", b"text"), ("text", "text", b"text"), (b"\xff", {"base64": "/w=="}, b"\xff")],
)
def test_keys_of_any_kind_are_listed(key: Any, json_key: Any, shown: bytes) -> None:
    timer = query.describe((7, "T", key, b"m", None, None), 5, "t", 0, moved=False, with_value=False)
    assert json.loads(json.dumps(timer))["key"] == json_key
    assert query.callback_key_bytes(timer) == shown
