"""The seconds of repeating timers, compared with brute force (:mod:`tests.harness.cron_reference`)."""

import random
from datetime import UTC, date, datetime, timedelta

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.cron_reference import seconds_of
from timers.wire.checks import MAX_DUE_S
from timers.wire.cron import DAY_S, EPOCH_DAY, MAX_COUNTED_DAYS, CronError, Rule, newest_seconds, next_second, parse
from timers.wire.repeat import Repeat
from timers.wire.zones import zone, zone_names

CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2027-03-14"),
    ("America/New_York", "2027-11-07"),
    ("America/Vancouver", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),  # half an hour
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Africa/Cairo", "2026-04-24"),  # from 00:00 to 01:00
    ("Africa/Cairo", "2026-10-29"),  # from 00:00 back to 23:00 of the day before
    ("Asia/Beirut", "2027-03-28"),
    ("America/Havana", "2027-03-14"),
    ("America/Havana", "2026-11-01"),
    ("America/Nuuk", "2027-03-27"),  # from 23:00 to 00:00 of the next day
    ("America/Nuuk", "2026-10-24"),
    ("Pacific/Apia", "2011-12-30"),  # the day does not exist
    ("America/St_Johns", "2010-11-07"),  # from 00:01 back to 23:01 of the day before
    ("Africa/Casablanca", "2027-02-07"),
    ("Atlantic/Azores", "2026-03-29"),  # at 00:00 of a UTC day
    ("Asia/Kathmandu", "2026-06-01"),
    ("UTC", "2028-02-28"),
]
"""Zones, and local dates at which their clocks change, or do not."""

LINES = [
    "0 9 * * *",
    "0 0 * * *",
    "0 * * * *",
    "* * * * *",
    "*/15 3 * * *",
    "*/15 * * * *",
    "30 2 * * *",
    "30 0 * * *",
    "30 23 * * *",
    "0,30 0-3,23 * * *",
    "0,30 0-3,23 */2 * 1-7",
    "10 */2 * * *",
    "15 1-23/2 * * *",
    "59 23 L * *",
    "0 1 29-31 * *",
    "0 0 30 12 *",
    "45 1 1 * MON",
    "*/20 1,2 * * SUN",
    "0 3 LW,15 * 5L",
    "0 2 * * SUN#1,SUN#4,7#5",
    "7 0-23 * * 0L",
]

DAYS = 9


def span(day: str) -> tuple[int, int]:
    """The UTC days around a date."""
    start = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC) - timedelta(days=DAYS // 2)
    return int(start.timestamp()), int(start.timestamp()) + DAYS * DAY_S


def ours(rule: Rule, from_s: int, end_s: int) -> list[int]:
    found, after_s = [], from_s - 1
    while (second := next_second(rule, after_s, MAX_DUE_S)) is not None and second < end_s:
        found.append(second)
        after_s = second
    return found


@pytest.mark.parametrize(("name", "day"), CHANGES, ids=lambda value: value.replace("/", "-"))
def test_the_seconds_of_a_line_are_those_of_brute_force(name: str, day: str) -> None:
    from_s, end_s = span(day)
    for line in LINES:
        expected = seconds_of(line, zone(name), from_s, end_s)
        rule = Rule(line, name)
        assert ours(rule, from_s, end_s) == expected, line
        assert newest_seconds(rule, from_s - 1, end_s - 1, 10**6) == (expected, len(expected)), line
        assert newest_seconds(rule, from_s + 7_000, end_s - 90_001, 3) == (
            ([s for s in expected if from_s + 7_000 < s <= end_s - 90_001])[-3:],
            sum(from_s + 7_000 < s <= end_s - 90_001 for s in expected),
        ), line


def field(least: int, most: int, *words: str) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    ranges = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    plain = st.one_of(st.just("*"), number.map(str), ranges)
    # cronsim reads 5-5/2 as 5/2, which is 5 and all that follows.
    before_step = plain.filter(lambda term: "-" not in term or len({*term.split("-")}) == 2)
    steps = st.tuples(before_step, st.integers(1, most)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    term = st.one_of(plain, steps, st.sampled_from(words)) if words else st.one_of(plain, steps)
    return st.lists(term, min_size=1, max_size=3).map(",".join)


def names_a_day(line: str) -> bool:
    """Whether cronsim matches a date in 28 years, in which the days of week of all dates come again."""
    try:
        fields = CronSim(line, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    first = date(2026, 1, 1).toordinal()
    days = map(date.fromordinal, range(first, first + 28 * 366))
    return any(day.month in fields.months and fields.match_day(day) for day in days)


LINE = st.tuples(
    field(0, 59),
    field(0, 23),
    field(1, 31, "L", "LW"),
    st.one_of(st.just("*"), field(1, 12, "JAN", "MAR", "APR-OCT")),
    field(0, 7, "MON", "sun", "MON-FRI", "5L", "0L", "SAT#2", "7#5"),
).map(" ".join)


@given(LINE, st.sampled_from(CHANGES), st.frozensets(st.integers(0, DAYS - 1), max_size=3))
def test_any_line_fires_as_brute_force_does(line: str, change: tuple[str, str], offsets: frozenset[int]) -> None:
    """With local dates that are left out, too."""
    name, day = change
    from_s, end_s = span(day)
    first = from_s // DAY_S
    excepted = frozenset(date.fromordinal(first + each + EPOCH_DAY) for each in offsets)
    try:
        parse(line)
    except CronError as error:
        assert "names no day" in str(error)
        assert not names_a_day(line)
        return
    expected = seconds_of(line, zone(name), from_s, end_s, excepted)
    rule = Rule(line, name, tuple(sorted(first + each for each in offsets)))
    assert ours(rule, from_s, end_s) == expected


@given(LINE, st.sampled_from(CHANGES), st.integers(0, DAYS * DAY_S), st.integers(0, DAYS * DAY_S))
@example("30 2 * * *", ("Europe/Berlin", "2026-10-25"), 4 * DAY_S + 4_500, 4 * DAY_S + 4_501)
@example("*/15 3 * * *", ("Australia/Lord_Howe", "2026-04-05"), 4 * DAY_S - 30_000, 4 * DAY_S - 29_000)
def test_the_next_second_follows_line_and_moment(line: str, change: tuple[str, str], first: int, second: int) -> None:
    """It is above the moment, also in the second pass of a local hour, and the same from each moment before it."""
    name, day = change
    x, y = sorted((span(day)[0] + first, span(day)[0] + second))
    try:
        rule = Rule(parse(line).line, name)
    except CronError:
        return
    following = next_second(rule, x, MAX_DUE_S)
    if following is None:
        assert next_second(rule, y, MAX_DUE_S) is None
        return
    assert following > x
    if y < following:
        assert next_second(rule, y, MAX_DUE_S) == following


@given(
    st.integers(1, 3 * DAY_S),
    st.integers(0, 2 * DAY_S),
    st.integers(0, 4 * DAY_S),
    st.integers(0, 4 * DAY_S),
    st.frozensets(st.integers(0, 4), max_size=3),
    st.integers(0, 5),
)
def test_an_interval_is_counted_in_elapsed_seconds(
    every_s: int, from_s: int, low_s: int, length_s: int, excepted: frozenset[int], most: int
) -> None:
    dates = [date.fromordinal(day + EPOCH_DAY) for day in excepted]
    repeat = Repeat.every(every_s, from_=from_s, except_=dates, until=from_s + 3 * DAY_S)
    seconds = [second for second in range(from_s, from_s + 3 * DAY_S + 1, every_s) if second // DAY_S not in excepted]
    within = [second for second in seconds if low_s < second <= low_s + length_s]
    assert repeat.newest(low_s, low_s + length_s, most) == (within[len(within) - min(most, len(within)) :], len(within))
    assert repeat.next_nominal(low_s) == next((second for second in seconds if second > low_s), None)


OCCURRENCES, MOST_OF_A_TIMER = 1_000_000, 2_000


@pytest.mark.long
def test_a_million_occurrences_in_a_hundred_zones() -> None:
    """In three years, each timer from a moment of its own; and the same if another one stands for missed ones."""
    chosen = random.Random(7)
    named = sorted({name for name, _ in CHANGES})
    names = named + chosen.sample(sorted(zone_names() - set(named)), 100)
    from_s = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())
    end_s = from_s + 3 * 366 * DAY_S
    total = rounds = 0
    while total < OCCURRENCES:
        for name in names:
            for _ in range(3):
                line = " ".join(map(chosen.choice, FREQUENT))
                expected = seconds_of(line, zone(name), from_s, end_s)
                first = chosen.randrange(len(expected) or 1)
                expected = expected[first : first + MOST_OF_A_TIMER]
                if not expected:
                    continue
                rule = Rule(line, name)
                assert ours(rule, expected[0], expected[-1] + 1) == expected, (line, name)
                low_s, high_s = sorted(chosen.randrange(expected[0], expected[-1] + 1) for _ in range(2))
                low_s = max(low_s, high_s - MAX_COUNTED_DAYS * DAY_S)
                missed = [second for second in expected if low_s < second <= high_s]
                assert newest_seconds(rule, low_s, high_s, 100) == (missed[-100:], len(missed)), (line, name)
                total += len(expected)
        rounds += 1
    print(f"{total:,} occurrences in {len(names)} zones, {rounds} rounds")


FREQUENT = (
    ["0", "*/15", "30", "*", "5,35", "*/7", "0-59/20", "59"],
    ["*", "*/2", "0", "2", "3", "0-3", "1,23", "9-17", "*/6", "22-23", "0,12"],
    ["*", "*", "*", "1-28/3", "L", "LW", "*/2", "1,15"],
    ["*", "*", "*", "3,4,10,11", "*/2"],
    ["*", "*", "*", "MON-FRI", "0", "5L", "SUN#1,0L", "6,7"],
)
"""Fields that :func:`test_a_million_occurrences_in_a_hundred_zones` takes."""
