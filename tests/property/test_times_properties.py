"""Durations and times: what is written by the rules is read by them, and nothing else gets past with a traceback."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tests.property.unicode_text import TEXT
from timers.client.times import parse_due, parse_duration
from timers.core.printable import utc_text
from timers.errors import InvalidTimerError

UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


@given(st.dictionaries(st.sampled_from("wdhms"), st.integers(0, 9999), min_size=1))
def test_a_duration_is_the_sum_of_its_parts(parts: dict[str, int]) -> None:
    text = "".join(f"{parts[unit]}{unit}" for unit in UNITS_S if unit in parts)
    assert parse_duration(text) == sum(count * UNITS_S[unit] for unit, count in parts.items())


@given(st.integers(0, 99_999_999_999))
def test_a_due_second_is_read_as_it_is_shown(due_s: int) -> None:
    assert parse_due(utc_text(due_s)) == parse_due(str(due_s)) == due_s


@given(TEXT | st.text("0123456789wdhmsTZ:+-. "))
def test_anything_else_is_one_sentence(text: str) -> None:
    for parse in (parse_duration, parse_due):
        with contextlib.suppress(InvalidTimerError):
            assert parse(text) >= 0
