"""Durations and times on the command line."""

from __future__ import annotations

import pytest

from timers.client.times import parse_ahead, parse_due, parse_duration, parse_moment
from timers.errors import InvalidTimerError
from timers.wire.query import format_due


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("3d", 259_200),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("1w2d3h4m5s", 788_645),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5s", "5 s", "1.5h", "30m1h", "1h1h", "5S", "5ms", "٣s", "5s\n"])
def test_other_forms_are_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(InvalidTimerError) as caught:
        parse_duration(text)
    assert f"{text!r} is not a duration" in str(caught.value)
    assert "90s, 15m, 2h, 3d, 1w" in str(caught.value)


def test_a_number_without_a_unit_is_refused_with_suggestions() -> None:
    with pytest.raises(InvalidTimerError, match=r"'90' is not a duration \(did you mean 90s\?\)"):
        parse_duration("90")


def test_a_duration_past_all_due_seconds_is_refused() -> None:
    with pytest.raises(InvalidTimerError, match="ends after the year 5138"):
        parse_duration("99999999999w")


@pytest.mark.parametrize(
    ("text", "due_s"),
    [
        ("0", 0),
        ("1800000000", 1_800_000_000),
        ("2027-01-15T08:00:00Z", 1_800_000_000),
        ("2027-01-15t08:00:00z", 1_800_000_000),
        ("2027-01-15 08:00:00Z", 1_800_000_000),
        ("2027-01-15T10:00:00+02:00", 1_800_000_000),
        ("2027-01-15T08:00:00.000Z", 1_800_000_000),
        ("2027-01-15T08:00:00.001Z", 1_800_000_001),
        ("2027-01-15T08:00:00.0000000001Z", 1_800_000_001),
    ],
)
def test_absolute_times(text: str, due_s: int) -> None:
    assert parse_due(text) == due_s


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "is not a time: write RFC 3339"),
        ("tomorrow", "is not a time: write RFC 3339"),
        ("-5", "is not a time: write RFC 3339"),
        ("2027-01-1٥T08:00:00Z", "is not a time: write RFC 3339"),
        ("٣", "is not a time: write RFC 3339"),
        ("2027-01-15", "is not a time: write RFC 3339"),
        ("2027-01-15T08:00:00", "names no offset"),
        ("2027-02-30T08:00:00Z", "is not a time: day is out of range"),
        ("2027-01-15T08:00:60Z", "is not a time: second must be in 0..59"),
        ("1735689600123", "milliseconds, and due times are epoch seconds; did you mean 1735689601?"),
        ("9" * 25, "after the year 5138"),
    ],
)
def test_wrong_absolute_times_are_refused_with_a_sentence(text: str, expected_text: str) -> None:
    with pytest.raises(InvalidTimerError) as caught:
        parse_due(text)
    assert expected_text in str(caught.value)


def test_a_past_moment_is_a_duration_or_a_time() -> None:
    assert parse_moment("2h", 1_800_000_000.9) == 1_800_000_000 - 7200
    assert parse_moment("1d1h", 1_800_000_000.0) == 1_800_000_000 - 90_000
    assert parse_moment("9999w", 1_800_000_000.0) == 0
    assert parse_moment("2027-01-15T08:00:00Z", 0.0) == 1_800_000_000
    for text in ("", "2x", "h2", "2 h"):
        with pytest.raises(InvalidTimerError):
            parse_moment(text, 0.0)


def test_a_future_moment_is_a_duration_or_a_time() -> None:
    assert parse_ahead("2h", 1_800_000_000.1) == 1_800_000_001 + 7200
    assert parse_ahead("0s", 1_800_000_000.0) == 1_800_000_000
    assert parse_ahead("2027-01-15T08:00:00Z", 0.0) == 1_800_000_000
    for text in ("", "2x", "h2", "-2h"):
        with pytest.raises(InvalidTimerError):
            parse_ahead(text, 0.0)


@pytest.mark.parametrize(("due_s", "text"), [(0, "1970-01-01T00:00:00Z"), (99_999_999_999, "5138-11-16T09:46:39Z")])
def test_due_seconds_are_shown_in_utc(due_s: int, text: str) -> None:
    assert format_due(due_s) == text
    assert parse_due(text) == due_s
