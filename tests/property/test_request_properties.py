"""Properties of requests: never early, less than a second late, and bytes come out as they went in."""

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tests.property.unicode_text import texts
from timers.client.request import Encoder, TimerRequest
from timers.client.times import due_second
from timers.v1.future_pb2 import Future
from timers.wire.checks import MAX_DUE_S

FIRST_AT_S = 10**9
"""Smaller numbers are refused: they are taken for delays."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(datetime(1970, 1, 2), datetime(5137, 1, 1), timezones=offsets)  # noqa: DTZ001
SHORT = texts(50)
NAMES = SHORT.filter(lambda name: not name.startswith("timer-") and "\0" not in name)
header_lists = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=50)), max_size=8)


@given(instants)
def test_a_datetime_is_never_early_and_less_than_a_second_late(at: datetime) -> None:
    assert timedelta(0) <= EPOCH + timedelta(seconds=due_second(at, None)) - at < timedelta(seconds=1)


@given(st.floats(FIRST_AT_S, MAX_DUE_S))
def test_a_number_is_never_early_and_less_than_a_second_late(at: float) -> None:
    assert 0 <= due_second(at, None) - Fraction(at) < 1


@given(st.integers(0, 10**20), st.timedeltas(timedelta(0), timedelta(days=10_000)) | st.floats(0, 1e9))
def test_a_delay_is_never_early_and_less_than_a_second_late(now_ns: int, delay: timedelta | float) -> None:
    exact_s = Fraction(delay // timedelta(microseconds=1), 10**6) if isinstance(delay, timedelta) else Fraction(delay)
    late_s = due_second(None, delay, now_ns=now_ns % (10**9 * 10**10)) - Fraction(now_ns % 10**19, 10**9) - exact_s
    assert -Fraction(1, 10**6) < late_s < 1 + Fraction(1, 10**6)  # a float's own rounding at nanoseconds


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b.c", "d_e-f"]),
            SHORT,
            st.binary(max_size=300),
            st.integers(FIRST_AT_S, MAX_DUE_S),
            header_lists,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_goes_in_comes_out_whatever_went_before(
    requests: list[tuple[str, str, bytes, int, list[tuple[str, bytes | None]]]],
) -> None:
    encoder = Encoder(1_000_000)
    for topic, key, value, at, headers in requests:
        record_key, payload, travelling = encoder(TimerRequest(topic, key, value, at=at, headers=headers))
        future = Future.FromString(payload)
        assert int(record_key) == at
        assert (future.callBackTopic, future.callBackKey, future.callBack) == (topic, key, value)
        assert (travelling or []) == headers
