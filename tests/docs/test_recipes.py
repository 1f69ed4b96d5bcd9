"""docs/recipes.md: the program of "Run a job every day", with simulated timers."""

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.docs.markdown import ALL_BLOCKS
from timers.testing import Fired, SimTimers

BERLIN = ZoneInfo("Europe/Berlin")


def program(at: str) -> dict[str, Any]:
    """Names of the recipe's program, for another time of the day."""
    (text,) = (each.text for each in ALL_BLOCKS if each.language == "python" and '"daily-report"' in each.text)
    assert text.count("06:00") == 1
    names: dict[str, Any] = {"__name__": "daily"}
    exec(text.replace("06:00", at), names)
    return names


def receive(timers: SimTimers, names: dict[str, Any], copies: int) -> list[Fired]:
    """Give each new callback to the receiver, and those that it makes. A loop without an end becomes an error."""
    received = []
    while timers.fired:
        callback = timers.fired.pop(0)
        received.append(callback)
        assert len(received) < 50, "the receiver sets timers that fire at once"
        for _ in range(copies):
            names["report"](timers, callback)
    return received


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("change", [date(2027, 3, 28), date(2027, 10, 31)])
@pytest.mark.parametrize("at", ["06:00", "00:30", "02:30"])
def test_a_daily_job_runs_once_a_day(at: str, change: date, copies: int) -> None:
    """Also in the nights in which clocks change, and if each callback comes twice and the program starts each hour."""
    names = program(at)
    first = change - timedelta(days=3)
    begin = datetime(first.year, first.month, first.day, 12, tzinfo=BERLIN)
    timers = SimTimers(begin.timestamp())
    ran: list[datetime] = []
    for hour in range(7 * 24):
        if hour == 0 or copies > 1:
            names["set_next"](timers, datetime.fromtimestamp(timers.clock.now_ms / 1000, BERLIN).date())
        timers.advance(3600)
        ran += [datetime.fromtimestamp(each.due_s, BERLIN) for each in receive(timers, names, copies)]
    days = [first + timedelta(days=day) for day in range(1, 8)]
    assert [each.date() for each in ran] == days
    local = [f"{each:%H:%M}" for each in ran]
    assert local == ["03:00" if at == "02:30" and day == date(2027, 3, 28) else at for day in days]


def test_a_callback_that_comes_again_after_the_next_one_sets_nothing() -> None:
    names = program("06:00")
    timers = SimTimers(datetime(2027, 3, 1, 12, tzinfo=BERLIN).timestamp())
    names["set_next"](timers, date(2027, 3, 1))
    timers.advance(timedelta(days=1))
    [first] = receive(timers, names, 1)
    timers.advance(timedelta(days=1))
    [second] = receive(timers, names, 1)
    names["report"](timers, first)
    assert (second.value, timers.fired, timers.pending) == (b"2027-03-03", [], 1)


def test_missed_days_run_one_after_the_other() -> None:
    names = program("06:00")
    timers = SimTimers(datetime(2027, 3, 1, 12, tzinfo=BERLIN).timestamp())
    names["set_next"](timers, date(2027, 3, 1))
    timers.advance(timedelta(days=4))
    received = receive(timers, names, 1)
    assert [each.value for each in received] == [b"2027-03-02", b"2027-03-03", b"2027-03-04", b"2027-03-05"]
    assert timers.pending == 1
