"""The seconds of a cron line by brute force: each minute of a span is turned into local time and looked at.

Fields are parsed and dates are matched by cronsim; nothing here is of ``timers.wire.cron``. cronsim's own ``next`` is
not used: where clocks change it is no function of line and moment.
"""

from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
from cronsim import CronSim

DAY = 1_440
_EPOCH = date(1970, 1, 1).toordinal()


@lru_cache(64)
def local_minutes(zone: ZoneInfo, from_s: int, end_s: int) -> np.ndarray:
    """The local time of each minute in [from, end), in minutes since 1970. The zone is asked at the ends of each hour,
    and for each minute of an hour in which its offset changes."""
    hours = [_offset_minutes(zone, second) for second in range(from_s, end_s + 3600, 3600)]
    offsets = np.repeat(np.array(hours[:-1]), 60)
    for hour, (first, last) in enumerate(pairwise(hours)):
        if first != last:
            for minute in range(hour * 60, hour * 60 + 60):
                offsets[minute] = _offset_minutes(zone, from_s + minute * 60)
    local: np.ndarray = np.arange(from_s // 60, from_s // 60 + len(offsets)) + offsets
    return local


def seconds_of(
    line: str, zone: ZoneInfo, from_s: int, end_s: int, excepted: frozenset[date] = frozenset()
) -> list[int]:
    """The seconds of a line in [from, end), which are whole hours."""
    fields = CronSim(line, datetime(2026, 1, 1, tzinfo=UTC))
    local = local_minutes(zone, from_s, end_s)
    first_day = int(local.min()) // DAY - 1
    days = [date.fromordinal(day + _EPOCH) for day in range(first_day, int(local.max()) // DAY + 2)]
    is_day = np.array([day.month in fields.months and fields.match_day(day) for day in days])
    is_time = np.zeros(DAY, bool)
    is_time[[hour * 60 + minute for hour in fields.hours for minute in fields.minutes]] = True

    def matches(minutes: np.ndarray) -> np.ndarray:
        found: np.ndarray = is_time[minutes % DAY] & is_day[minutes // DAY - first_day]
        return found

    fires = matches(local)
    if not any(field.startswith("*") for field in line.split()[:2]):
        fires[1:] &= local[1:] > np.maximum.accumulate(local)[:-1]  # the second pass
        for after in np.flatnonzero(np.diff(local) > 1) + 1:
            fires[after] |= matches(np.arange(local[after - 1] + 1, local[after])).any()
    fires &= ~np.isin(local // DAY - first_day, [place for place, day in enumerate(days) if day in excepted])
    return [int(second) for second in from_s + np.flatnonzero(fires) * 60]


def _offset_minutes(zone: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60
