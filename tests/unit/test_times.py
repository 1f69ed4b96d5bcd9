"""Durations and times on the command line."""

import math

import pytest

from timers.client.request import Encoder, TimerRequest
from timers.client.times import from_now, parse_ahead, parse_due, parse_duration, parse_moment
from timers.core.printable import utc_text
from timers.errors import InvalidTimerError
from timers.wire.zones import zone_data_version


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
        ("PT15M", 900),
        ("P1W2DT3H4M5S", 788_645),
        ("P2W", 1_209_600),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-5s",
        "5 s",
        "1.5h",
        "30m1h",
        "1h1h",
        "5S",
        "5ms",
        "٣s",
        "5s\n",
        "P",
        "PT",
        "P1DT",
        "P1M",
        "P1Y",
        "PT0.5S",
        "PT1M1H",
        "-PT5S",
    ],
)
def test_other_forms_are_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(InvalidTimerError) as caught:
        parse_duration(text)
    assert f"{text!r} is not a duration" in str(caught.value)
    assert "90s, 15m, 2h, 3d, 1w" in str(caught.value)


def test_a_number_without_a_unit_is_refused_with_suggestions() -> None:
    with pytest.raises(InvalidTimerError, match=r"'90' is not a duration \(did you mean 90s\?\)"):
        parse_duration("90")


@pytest.mark.parametrize(
    ("text", "meant"), [("5min", "5m"), ("5 s", "5s"), ("2hours", "2h"), ("2hrs", "2h"), ("3 days", "3d"), ("5S", "5s")]
)
def test_a_unit_of_another_form_is_refused_with_a_suggestion(text: str, meant: str) -> None:
    with pytest.raises(InvalidTimerError, match=rf"'{text}' is not a duration \(did you mean {meant}\?\)"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5, "in 5 s"), (119, "in 119 s"), (5400, "in 1 h 30 min"), (10_295_050, "in 119 d 3 h"), (-7200, "2 h ago")],
)
def test_a_length_of_time_reads_as_days_and_hours(seconds: int, said: str) -> None:
    assert from_now(seconds) == said


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
    assert parse_moment("-2h", 1_800_000_000.9) == 1_800_000_000 - 7200  # as --from has it
    assert parse_moment("9999w", 1_800_000_000.0) == 0
    assert parse_moment("2027-01-15T08:00:00Z", 0.0) == 1_800_000_000
    for text in ("", "2x", "h2", "2 h", "yesterday"):
        with pytest.raises(InvalidTimerError, match="or give a duration, such as 90s"):
            parse_moment(text, 0.0)


def test_a_future_moment_is_a_duration_or_a_time() -> None:
    assert parse_ahead("2h", 1_800_000_000.1) == 1_800_000_001 + 7200
    assert parse_ahead("0s", 1_800_000_000.0) == 1_800_000_000
    assert parse_ahead("2027-01-15T08:00:00Z", 0.0) == 1_800_000_000
    assert parse_ahead("-2h", 1_800_000_000.9) == 1_800_000_000 - 7200
    for text in ("", "2x", "h2", "--2h", "-2", "-"):
        with pytest.raises(InvalidTimerError):
            parse_ahead(text, 0.0)


@pytest.mark.parametrize(("due_s", "text"), [(0, "1970-01-01T00:00:00Z"), (99_999_999_999, "5138-11-16T09:46:39Z")])
def test_due_seconds_are_shown_in_utc(due_s: int, text: str) -> None:
    assert utc_text(due_s) == text
    assert parse_due(text) == due_s


def test_a_second_outside_the_calendar_is_shown_as_a_number() -> None:
    first, last = -62_135_596_800, 253_402_300_799
    assert (utc_text(first), utc_text(last)) == ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
    for second in (first - 1, last + 1, 2**63, -(2**63)):
        assert utc_text(second) == str(second)
    assert [utc_text(each) for each in (math.inf, math.nan, 0.9)] == ["inf", "nan", "1970-01-01T00:00:00Z"]


@pytest.mark.parametrize(
    ("text", "utc", "note"),
    [
        ("2027-01-15T09:00:00 Europe/Berlin", "2027-01-15T08:00:00Z", None),
        ("2027-01-15 09:00 Europe/Berlin", "2027-01-15T08:00:00Z", None),
        ("2027-01-15T09:00:00.000001 Europe/Berlin", "2027-01-15T08:00:01Z", None),
        ("2027-01-15T08:00:00 UTC", "2027-01-15T08:00:00Z", None),
        ("2027-03-28T02:00:00 Europe/Berlin", "2027-03-28T01:00:00Z", "there is no 2027-03-28T02:00:00 in"),
        ("2027-03-28T02:59:59 Europe/Berlin", "2027-03-28T01:00:00Z", "there is no 2027-03-28T02:59:59 in"),
        ("2027-03-28T03:00:00 Europe/Berlin", "2027-03-28T01:00:00Z", None),
        (
            "2027-10-31T02:30:00 Europe/Berlin",
            "2027-10-31T00:30:00Z",
            "2027-10-31T02:30:00 in Europe/Berlin comes twice",
        ),
        ("2027-10-31T03:00:00 Europe/Berlin", "2027-10-31T02:00:00Z", None),
        ("2027-10-03T02:10:00 Australia/Lord_Howe", "2027-10-02T15:30:00Z", "there is no 2027-10-03T02:10:00 in"),
        ("2011-12-30T12:00:00 Pacific/Apia", "2011-12-30T10:00:00Z", "there is no 2011-12-30T12:00:00 in"),
    ],
)
def test_a_local_time_is_read_and_a_missing_or_double_one_is_said(text: str, utc: str, note: str | None) -> None:
    said: list[str] = []
    assert parse_due(text, said.append) == parse_due(utc)
    assert [sentence[: len(note or "")] for sentence in said] == ([] if note is None else [note])


def test_the_client_reads_local_times_and_logs_a_missing_one(caplog: pytest.LogCaptureFixture) -> None:
    request = TimerRequest("t", None, b"", at="2027-03-28T02:30:00 Europe/Berlin")
    assert Encoder(1000)(request)[0] == b"%d" % parse_due("2027-03-28T01:00:00Z")
    [record] = caplog.records
    assert record.getMessage().endswith("the first second after is 2027-03-28T03:00:00+02:00")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "2027-01-15T08:00:00 Europe/Nowhere",
            "no zone 'Europe/Nowhere' in the zone data {DATA}: write a region and a city, such as",
        ),
        (
            "2027-01-15T08:00:00 europe/berlin",
            "'europe/berlin' in the zone data {DATA}: did you mean Europe/Berlin?",
        ),
        (
            "2027-01-15T08:00:00 Berlin",
            "'Berlin' in the zone data {DATA}: did you mean Europe/Berlin?",
        ),
        ("2027-01-15T08:00:00 Europe", "there is no zone 'Europe' in the zone data {DATA}"),
        ("2027-02-30T08:00:00 Europe/Berlin", "day is out of range for month"),
        ("2027-01-15T25:00:00 Europe/Berlin", "hour must be in 0..23"),
        ("9999-12-31T23:59:59 America/New_York", "is not a time"),
        ("2027-01-15T08:00:00 ../zone", "is not a time: write RFC 3339"),
        ("2027-01-15T08:00:00", "or a space and a zone such as Europe/Berlin"),
    ],
)
def test_a_wrong_local_time_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidTimerError) as error:
        parse_due(text)
    assert sentence.format(DATA=zone_data_version()) in str(error.value)
