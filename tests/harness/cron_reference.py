"""The seconds of a cron line by brute force: each minute of a span is turned into local time and looked at.

Fields are parsed and dates are matched by cronsim; nothing here is of ``timers.wire.cron``. cronsim's own ``next`` is
not used: where clocks change it is no function of line and moment.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

MINUTE = timedelta(minutes=1)


class Minute(NamedTuple):
    """A minute of UTC."""

    second: int
    local: datetime
    """Its local time, without a zone."""
    is_second_pass: bool
    skipped: tuple[datetime, ...]
    """Local minutes that do not exist, just before it."""


@cache
def minutes(zone: ZoneInfo, from_s: int, end_s: int) -> list[Minute]:
    """The minutes in [from, end), which are whole minutes."""
    found = []
    before = _local(zone, from_s - 60)
    for second in range(from_s, end_s, 60):
        local = _local(zone, second)
        naive, was = local.replace(tzinfo=None, fold=0), before.replace(tzinfo=None, fold=0)
        skipped = []
        while (was := was + MINUTE) < naive:
            skipped.append(was)
        found.append(Minute(second, naive, bool(local.fold), tuple(skipped)))
        before = local
    return found


def seconds_of(
    line: str, zone: ZoneInfo, from_s: int, end_s: int, excepted: frozenset[date] = frozenset()
) -> list[int]:
    """The seconds of a line in [from, end), which are whole minutes."""
    fields = CronSim(line, datetime(2026, 1, 1, tzinfo=UTC))
    names_local_times = not any(field.startswith("*") for field in line.split()[:2])
    day_matches: dict[date, bool] = {}

    def matches(local: datetime) -> bool:
        if local.minute not in fields.minutes or local.hour not in fields.hours:
            return False
        day = local.date()
        if day not in day_matches:
            day_matches[day] = day.month in fields.months and fields.match_day(day)
        return day_matches[day]

    found = []
    for second, local, is_second_pass, skipped in minutes(zone, from_s, end_s):
        fires = matches(local)
        if names_local_times:
            fires = (fires and not is_second_pass) or any(map(matches, skipped))
        if fires and local.date() not in excepted:
            found.append(second)
    return found


def _local(zone: ZoneInfo, second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC).astimezone(zone)
