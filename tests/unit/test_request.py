"""Encoding of requests, and the errors for wrong ones."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from timers.client.request import Encoder, TimerRequest
from timers.client.times import due_second
from timers.errors import InvalidTimerError
from timers.v1.future_pb2 import Future
from timers.wire.checks import MAX_DUE_S
from timers.wire.headers import Header

NOW_NS = 1_700_000_000_000_000_000
DUE_S = 1_800_000_000


def encode(**changes: Any) -> tuple[bytes, bytes, list[Header] | None]:
    fields: dict[str, Any] = {"topic": "orders", "key": "o-1", "value": b"expired", "at": DUE_S, **changes}
    return Encoder(1_000_000)(TimerRequest(**fields))


def error_of(**changes: Any) -> str:
    with pytest.raises(InvalidTimerError) as caught:
        encode(**changes)
    return str(caught.value)


# --- the record ------------------------------------------------------------------------------------------------------


def test_a_request_is_encoded_as_due_second_future_and_headers() -> None:
    key, value, headers = encode(headers=[("trace", b"\x00\xff"), ("trace", None), ("note", "ünï")])
    assert key == b"1800000000"
    assert Future.FromString(value) == Future(callBackTopic="orders", callBackKey="o-1", callBack=b"expired")
    assert headers == [("trace", b"\x00\xff"), ("trace", None), ("note", "ünï".encode())]


def test_a_request_without_headers_has_none() -> None:
    assert encode()[2] is None


def test_text_is_sent_as_utf8_and_a_key_may_be_bytes() -> None:
    _, value, _ = encode(key="schlüssel".encode(), value="wért")
    future = Future.FromString(value)
    assert (future.callBackKey, future.callBack) == ("schlüssel", "wért".encode())


def test_key_and_value_may_be_empty() -> None:
    assert Future.FromString(encode(key="", value=b"")[1]) == Future(callBackTopic="orders")


def test_headers_may_be_a_mapping() -> None:
    assert encode(headers={"a": "1", "b": None})[2] == [("a", b"1"), ("b", None)]


def test_a_token_is_sent_in_its_header_and_replaces_a_copied_one() -> None:
    copied = [("callback-token", b"old"), ("a", b"1")]
    assert encode(headers=copied, token="new")[2] == [("a", b"1"), ("callback-token", b"new")]
    assert encode(headers=copied)[2] == copied


def test_an_encoder_keeps_nothing_of_the_previous_request() -> None:
    encoder = Encoder(1_000_000)
    encoder(TimerRequest("orders", "o-1", b"x" * 100, at=DUE_S, headers={"a": "b"}))
    with pytest.raises(InvalidTimerError):
        encoder(TimerRequest("orders", "o-1", None, at=DUE_S + 1))  # type: ignore[arg-type]
    key, value, headers = encoder(TimerRequest("others", "", b"", at=DUE_S + 2))
    assert (key, Future.FromString(value), headers) == (b"1800000002", Future(callBackTopic="others"), None)


# --- due times --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "due_s"),
    [
        (DUE_S, DUE_S),
        (1_000_000_000, 1_000_000_000),
        (MAX_DUE_S, MAX_DUE_S),
        (1_000_000_001.000001, 1_000_000_002),
        (1_000_000_001.0, 1_000_000_001),
        (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), 5),
        (datetime(2027, 1, 15, 8, 0, tzinfo=UTC), DUE_S),
        (datetime(2027, 1, 15, 8, 0, 0, 1, tzinfo=UTC), DUE_S + 1),
        (datetime(2027, 1, 15, 10, 0, tzinfo=timezone(timedelta(hours=2))), DUE_S),
    ],
)
def test_absolute_times_are_rounded_up(at: datetime | float, due_s: int) -> None:
    assert due_second(at, None) == due_s


@pytest.mark.parametrize(
    ("delay", "due_s"),
    [
        (0, 1_700_000_000),
        (90, 1_700_000_090),
        (0.5, 1_700_000_001),
        (timedelta(minutes=15), 1_700_000_900),
        (timedelta(microseconds=1), 1_700_000_001),
    ],
)
def test_delays_are_rounded_up(delay: timedelta | float, due_s: int) -> None:
    assert due_second(None, delay, now_ns=NOW_NS) == due_s


@pytest.mark.parametrize("number", [np.int64, np.int32, np.float64, Decimal, Fraction])
def test_numbers_of_any_type_are_times(number: Callable[[Any], Any]) -> None:
    due_s = due_second(number(1_700_000_000), None)
    assert (due_s, type(due_s)) == (1_700_000_000, int)
    due_s = due_second(None, number(90), now_ns=NOW_NS)
    assert (due_s, type(due_s)) == (1_700_000_090, int)
    tenth: Any = Decimal("0.1")
    assert due_second(None, tenth, now_ns=NOW_NS) == 1_700_000_001


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_of_any_type_are_sent(kind: Callable[[bytes], Any]) -> None:
    sent = [(key, b"\xff\0", [("a", b"\xfe")]) for key in (b"k", b"\xfd")]
    given = [(kind(key), kind(value), [("a", kind(headers[0][1]))]) for key, value, headers in sent]
    encoder = Encoder(1000)
    for first, second in zip(sent, given, strict=True):
        (key, value, headers), (same_key, same_value, same_headers) = first, second
        assert encoder(TimerRequest("t", key, value, DUE_S, headers=headers)) == encoder(
            TimerRequest("t", same_key, same_value, DUE_S, headers=same_headers)
        )


def test_a_delay_counts_from_a_fraction_of_a_second() -> None:
    assert due_second(None, 1, now_ns=NOW_NS + 1) == 1_700_000_002


@pytest.mark.parametrize(
    ("at", "unit", "suggested"),
    [
        (1_735_689_600_123, "milliseconds", 1_735_689_601),
        (1_735_689_600_000_000, "microseconds", 1_735_689_600),
        (1_735_689_600_000_000_001, "nanoseconds", 1_735_689_601),
        (1_735_689_600_123.5, "milliseconds", 1_735_689_601),
    ],
)
def test_finer_units_are_refused_with_the_corrected_number(at: float, unit: str, suggested: int) -> None:
    with pytest.raises(InvalidTimerError, match=rf"looks like {unit}.*did you mean {suggested}\?"):
        due_second(at, None)


@pytest.mark.parametrize(
    ("at", "delay", "expected_text"),
    [
        (None, None, "no due time: give at=... (when) or delay=... (how long from now)"),
        (5, 5, "two due times, at=5 and delay=5"),
        (-1, None, "at=-1 is before 1970"),
        (900, None, "at=900 is an epoch second before the year 2002: did you mean delay=900, seconds from now?"),
        (0, None, "did you mean delay=0"),
        (Decimal("12.5"), None, "did you mean delay=Decimal('12.5')"),
        (10**21, None, "after the year 5138"),
        (float("nan"), None, "at=nan is not a due time"),
        (float("inf"), None, "at=inf is not a due time"),
        (True, None, "at=True is not a due time"),
        ("soon", None, "'soon' is not a time"),
        (datetime(2027, 1, 15), None, "names no time zone"),  # noqa: DTZ001
        (datetime(9999, 1, 1, tzinfo=UTC), None, "after the year 5138"),
        (datetime(1969, 12, 31, tzinfo=UTC), None, "before 1970"),
        (None, -1, "delay=-1 is negative"),
        (None, timedelta(seconds=-1), "is negative"),
        (None, float("nan"), "delay=nan is not a time span"),
        (None, "5s", "delay='5s' is not a time span"),
        (None, 1e11, "after the year 5138"),
        (None, 1e300, "delay=1e+300 is after the year 5138"),
        (None, 10**400, "is after the year 5138"),
        (None, Decimal("Infinity"), "is not a time span"),
        (1 + 2j, None, "is not a due time"),
        (Decimal("NaN"), None, "is not a due time"),
    ],
)
def test_wrong_due_times_are_refused_with_a_sentence(at: Any, delay: Any, expected_text: str) -> None:
    with pytest.raises(InvalidTimerError) as caught:
        due_second(at, delay, now_ns=NOW_NS)
    assert expected_text in str(caught.value)


# --- the other parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "ä", "a" * 250, None, 7])
def test_illegal_topics_are_refused(topic: Any) -> None:
    assert "is not a legal topic name" in error_of(topic=topic)


def test_a_key_with_a_lone_surrogate_is_refused() -> None:
    assert "has characters that UTF-8 cannot carry: give bytes" in error_of(key="\ud800")


def test_an_id_with_a_lone_surrogate_is_refused() -> None:
    assert "the id '\\ud800' has characters that UTF-8 cannot carry" in error_of(id="\ud800")


@pytest.mark.parametrize("name", ["topic", "key", "value", "id", "token", "at", "headers"])
def test_a_sentence_repeats_only_the_begin_of_a_long_value(name: str) -> None:
    wrong = "\ud800" + "x" * 1_000_000
    assert len(error_of(**{name: [(wrong, b"")] if name == "headers" else wrong})) < 400


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        ({"key": 5}, "callback key is of type int"),
        ({"value": None}, "callback value is of type NoneType: give bytes or str (b'' for none)"),
        ({"value": 5}, "callback value is of type int"),
        ({"value": "\ud800"}, "UTF-8 cannot carry"),
        ({"headers": [("timer-id", b"x")]}, "timer-* belongs to the engine"),
        ({"headers": [("a\0b", b"")]}, "is not a str without NUL"),
        ({"headers": [("a", 5)]}, "has a value of type int"),
        ({"headers": [("a", "\ud800")]}, "UTF-8 cannot carry"),
        ({"headers": [(b"a", b"b")]}, "header name b'a' is not a str"),
        ({"headers": ["ab", "c"]}, "is not a (name, value) pair"),
        ({"token": ""}, "token '' is not a non-empty str"),
    ],
)
def test_wrong_parts_are_refused_with_a_sentence(changes: dict[str, Any], expected_text: str) -> None:
    assert expected_text in error_of(**changes)


def test_a_too_large_request_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidTimerError, match=r"of 101\d bytes, and the limit is TIMERS_MAX_REQUEST_BYTES=1000"):
        Encoder(1000)(TimerRequest("orders", "k", b"x" * 1000, at=DUE_S))
