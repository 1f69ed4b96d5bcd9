"""The seconds that a cron line of five fields names in a time zone.

Fields, names, steps and the words ``L``, ``LW`` and ``#`` are those of cronsim, which reads them as Debian's cron does;
tests compare both. The line is parsed here, because a definition is accepted or refused by its record alone: the
version of a library must not decide it [I4].

**Which seconds.** If neither minute nor hour begins with ``*``, the line names local times. One that clocks skip fires
at the first second after the gap, once, also if others fall on it; one that comes twice fires in its first pass. Any
other line follows elapsed time: it fires at each second with a local time that it names: in both passes, in no gap.

Both are functions of line, zone and UTC day. A day is computed once and kept (:func:`_day_of`): a UTC day, because
local days may overlap where clocks go back over midnight.
"""

from __future__ import annotations

import calendar
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from timers.core.printable import quoted
from timers.wire.zones import change_of_offset, offset_s

MAX_LINE_BYTES = 200

EXAMPLE = "0 9 * * 1-5"
"""A line for error messages: each working day at 9:00."""

DAY_S = 86_400

EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

MAX_COUNTED_DAYS = 400
"""So far back missed seconds are counted."""

_WEEKS = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28
"""The same day of week in each week."""

_LENGTHS = {1: (31, 31), 2: (28, 29), 3: (31, 31), 4: (30, 30), 5: (31, 31), 6: (30, 30)}
_LENGTHS |= {7: (31, 31), 8: (31, 31), 9: (30, 30), 10: (31, 31), 11: (30, 30), 12: (31, 31)}
"""Month -> its number of days, in years of 365 and of 366 days."""

_MAX_DAYS_AHEAD = 100 * 366
"""A line that names no second for so long names none. Two Mondays that are 29 February are up to 40 years apart."""

_LINES, _DAYS, _LISTS = 4_096, 16_384, 1_024
"""Sizes of the caches. A list of seconds has up to 1,440 numbers of 4 bytes, and days without a change of clocks share
it; so 16,384 days are a few MB."""

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class CronError(ValueError):
    """A line that is no cron line of five fields. The message names the wrong part, and one that is right."""


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    example: str
    names: tuple[str, ...] = ()
    first: int = 0
    """The number of the first name."""

    def number(self, text: str) -> int:
        """The number that a term names. Raises ValueError for another text."""
        if text in self.names:
            return self.names.index(text) + self.first
        if re.fullmatch("[0-9]{1,4}", text, re.ASCII) and self.least <= int(text) <= self.most:
            return int(text)
        raise ValueError

    def numbers(self, term: str) -> set[int]:
        """The numbers of one term: ``*``, ``5``, ``1-5``, ``*/15``, ``10/20``, ``1-5/2``. Raises ValueError."""
        body, slash, step_text = term.partition("/")
        if slash and not (re.fullmatch("[0-9]{1,4}", step_text, re.ASCII) and int(step_text)):
            raise ValueError
        first, dash, last = body.partition("-")
        if body == "*":
            numbers = range(self.least, self.most + 1)
        elif dash:
            numbers = range(self.number(first), self.number(last) + 1)
            if not numbers:
                raise ValueError
        else:
            numbers = range(self.number(body), (self.most if slash else self.number(body)) + 1)
        return set(numbers[:: int(step_text) if slash else 1])


_MINUTE = _Field("minute", 0, 59, "*/15")
_HOUR = _Field("hour", 0, 23, "9-17")
_MONTH_DAY = _Field("day of month", 1, 31, "1,15 or L, the last day, or LW, the last working day")
_MONTH = _Field("month", 1, 12, "1-6 or JAN,JUL", _MONTHS, 1)
_WEEKDAY = _Field("day of week", 0, 7, "MON-FRI or 5L, the last Friday, or MON#1, the first Monday", _WEEKDAYS)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron line, parsed."""

    line: str
    follows_elapsed_time: bool
    """Whether minute or hour begins with ``*``."""
    needs_both_days: bool
    """Whether day of month and day of week must both match: one of them begins with ``*``. Else one is enough."""
    times: tuple[int, ...]
    """Seconds of a local day, ascending."""
    months: frozenset[int]
    month_days: int
    """Bit 1 is the first day."""
    is_last_day: bool
    is_last_working_day: bool
    weekdays: frozenset[int]
    """0 is Monday."""
    nth_weekdays: frozenset[tuple[int, int]]
    """(day of week, which one in the month); -1: the last one."""

    def matches(self, day: int) -> bool:
        """Whether the line names the local date ``day``, in days since 1970-01-01."""
        local = date.fromordinal(day + EPOCH_DAY)
        if local.month not in self.months:
            return False
        first_weekday = (local.weekday() - local.day + 1) % 7
        return bool(_days_of_month(self.line, first_weekday, _length(local.year, local.month)) >> local.day & 1)

    def days_of_month(self, first_weekday: int, length: int) -> int:
        """The days of a month of this form that the line names: bit 1 is the first day.

        Args:
            first_weekday: of its first day; 0 is Monday.
        """
        whole = (2 << length) - 2
        by_number = self.month_days & whole
        if self.is_last_day:
            by_number |= 1 << length
        if self.is_last_working_day:
            by_number |= 1 << length - max((first_weekday + length - 1) % 7 - 4, 0)
        by_weekday = 0
        for weekday in self.weekdays:
            by_weekday |= _WEEKS << (weekday - first_weekday) % 7 + 1 & whole
        for weekday, place in self.nth_weekdays:
            first = (weekday - first_weekday) % 7 + 1
            day = first + 7 * (place - 1 if place > 0 else (length - first) // 7)
            by_weekday |= 1 << day & whole
        return by_number & by_weekday if self.needs_both_days else by_number | by_weekday


@lru_cache(_LINES)
def parse(line: str) -> Cron:
    """Parse a cron line of five fields: minute, hour, day of month, month, day of week.

    Raises:
        CronError: it is none.
    """
    if len(line.encode("utf-8", "surrogatepass")) > MAX_LINE_BYTES:
        raise CronError(f"the cron line has more than {MAX_LINE_BYTES} bytes: write shorter fields, such as 1-5")
    shown = quoted(line)
    fields = line.upper().split()
    if line.strip().lower() in _NICKNAMES:
        raise CronError(f"cron line {shown} has no five fields: write {_NICKNAMES[line.strip().lower()]!r}")
    if len(fields) == 6:
        raise CronError(
            f"cron line {shown} has six fields: there is none for seconds or years "
            f"(try {' '.join(line.split()[1:])!r}, or `every` for intervals in seconds)"
        )
    if len(fields) != 5:
        raise CronError(
            f"cron line {shown} has {len(fields)} fields, not five: minute, hour, day of month, month, day of week "
            f"(try {EXAMPLE!r}: each working day at 9:00)"
        )
    minutes, hours, month_days, months, weekdays = (
        _terms(field, text, shown)
        for field, text in zip((_MINUTE, _HOUR, _MONTH_DAY, _MONTH, _WEEKDAY), fields, strict=True)
    )
    cron = Cron(
        line,
        fields[0].startswith("*") or fields[1].startswith("*"),
        fields[2].startswith("*") or fields[4].startswith("*"),
        tuple(sorted(hour * 3600 + minute * 60 for hour in hours.numbers for minute in minutes.numbers)),
        frozenset(months.numbers),
        sum(1 << day for day in month_days.numbers),
        "L" in month_days.words,
        "LW" in month_days.words,
        frozenset((weekday - 1) % 7 for weekday in weekdays.numbers),
        frozenset(((weekday - 1) % 7, place) for weekday, place in weekdays.places),
    )
    lengths = sorted({length for month in months.numbers for length in _LENGTHS[month]}, reverse=True)
    if not any(cron.days_of_month(first, length) for length in lengths for first in range(7)):
        raise CronError(
            f"cron line {shown} names no day: none of its months has such a day of month and day of week "
            "(try L for the last day of a month)"
        )
    return cron


class _Terms(NamedTuple):
    """What a field names."""

    numbers: set[int]
    words: set[str]
    places: set[tuple[int, int]]


def _terms(field: _Field, text: str, line: str) -> _Terms:
    """The terms of a field, which commas separate."""
    found = _Terms(set(), set(), set())
    for term in text.split(","):
        try:
            if field is _MONTH_DAY and term in ("L", "LW"):
                found.words.add(term)
            elif field is _WEEKDAY and re.fullmatch("[0-7]L", term, re.ASCII):
                found.places.add((int(term[0]), -1))
            elif field is _WEEKDAY and re.fullmatch("[^#]+#[1-5]", term, re.ASCII):
                found.places.add((field.number(term[:-2]), int(term[-1])))
            else:
                found.numbers.update(field.numbers(term))
        except ValueError:
            raise CronError(f"cron line {line}: {_why_wrong(field, term)} (try {field.example})") from None
    return found


def _why_wrong(field: _Field, term: str) -> str:
    shown = f"{field.name} {quoted(term)}"
    first, dash, last = term.partition("/")[0].partition("-")
    if "?" in term:
        return f"{shown} has a ?, which only Quartz knows: write *"
    if field is _MONTH_DAY and re.fullmatch("[0-9]+W", term, re.ASCII):
        return f"{shown}: W, the nearest working day, is not supported"
    if field is _WEEKDAY and re.fullmatch("[A-Z]{3}L", term) and term[:3] in field.names:
        return f"{shown}: write {field.names.index(term[:3])}L"
    if dash:
        try:
            if field.number(first) > field.number(last):
                sunday = ": the number of Sunday at the end of a range is 7" if last == "SUN" else ""
                return f"{shown} runs backwards{sunday}"
        except ValueError:
            pass
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    return f"{shown} is not *, a number from {field.least} to {field.most}{names}, a range, a step or a list"


# ---- the seconds of a UTC day --------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What decides the seconds: a line that :func:`parse` takes, a zone, and local dates that are left out."""

    line: str
    zone: str
    excepted: tuple[int, ...] = ()
    """Local dates, in days since 1970-01-01."""


def next_second(rule: Rule, after_s: int, limit_s: int) -> int | None:
    """Return the first second of the rule in (after, limit]; None if there is none, or none in the next 100 years.

    Raises:
        UnknownZone: as :func:`timers.wire.zones.zone`.
    """
    day, rest_s = divmod(after_s, DAY_S)
    seconds = _day_of(rule, day)
    place = bisect_right(seconds, rest_s)
    if place < len(seconds):
        return day * DAY_S + seconds[place]
    for later in _days_from(rule, day + 1, limit_s // DAY_S):
        if seconds := _day_of(rule, later):
            return later * DAY_S + seconds[0]
    return None


def newest_seconds(rule: Rule, after_s: int, through_s: int, most: int) -> tuple[list[int], int]:
    """Return the newest ``most`` seconds of the rule in (after, through], ascending, and how many there are in it.

    The cost is that of a look-up a day. The seconds of a day are in no list of their own.

    Args:
        after_s: at most :data:`MAX_COUNTED_DAYS` before ``through_s`` are looked at.

    Raises:
        UnknownZone: as :func:`timers.wire.zones.zone`.
    """
    newest: list[int] = []
    count = 0
    after_s = max(after_s, through_s - MAX_COUNTED_DAYS * DAY_S)
    for day in range(through_s // DAY_S, after_s // DAY_S - 1, -1) if through_s > after_s else ():
        if _first_match(rule.line, day - 1, day + 1) is None:
            continue
        seconds, start_s = _day_of(rule, day), day * DAY_S
        first, end = bisect_right(seconds, after_s - start_s), bisect_right(seconds, through_s - start_s)
        count += end - first
        wanted = seconds[max(first, end - (most - len(newest))) : end]
        newest.extend(start_s + second for second in reversed(wanted))
    newest.reverse()
    return newest, count


def least_gap(rule: Rule, from_s: int, days: int) -> int:
    """Return the least number of seconds between two seconds of the rule in so many days; all of them if there is none.

    Raises:
        UnknownZone: as :func:`timers.wire.zones.zone`.
    """
    least_s = days * DAY_S
    last_s = None
    seen: dict[int, array[int]] = {}  # days without a change of clocks share a list
    for day in range(from_s // DAY_S, from_s // DAY_S + days):
        seconds = _day_of(rule, day)
        if not seconds:
            continue
        if last_s is not None:
            least_s = min(least_s, day * DAY_S + seconds[0] - last_s)
        if id(seconds) not in seen:
            seen[id(seconds)] = seconds
            least_s = min([least_s, *(after - before for before, after in pairwise(seconds))])
        last_s = day * DAY_S + seconds[-1]
    return least_s


def local_times(line: str, from_s: int, end_s: int) -> list[int]:
    """Return the local times in [from, end) that a line names, in seconds since 1970 as if they were of UTC."""
    cron = parse(line)
    return _within(cron, from_s, end_s, 0, cron.matches)


def _days_from(rule: Rule, day: int, last_day: int) -> Iterator[int]:
    """The UTC days in [day, last day] that may have seconds of the rule."""
    last_day = min(last_day, day + _MAX_DAYS_AHEAD)
    while day <= last_day:
        match = _first_match(rule.line, day - 1, last_day + 1)  # a UTC day has parts of up to three local dates
        if match is None:
            return
        day = max(day, match - 1)
        yield day
        day += 1


@lru_cache(_DAYS)
def _first_match(line: str, day: int, last_day: int) -> int | None:
    """The first local date in [day, last day] that a line names."""
    local = date.fromordinal(day + EPOCH_DAY)
    year, month, day_of_month = local.year, local.month, local.day
    months, first_day = parse(line).months, day - day_of_month  # the day before the first of the month
    while first_day < last_day:
        length = _length(year, month)
        if month in months:
            days = _days_of_month(line, (first_day + EPOCH_DAY) % 7, length) >> day_of_month << day_of_month
            if days:
                found = first_day + (days & -days).bit_length() - 1
                return found if found <= last_day else None
        first_day, day_of_month = first_day + length, 1
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return None


@lru_cache(_DAYS)
def _days_of_month(line: str, first_weekday: int, length: int) -> int:
    """As :meth:`Cron.days_of_month`; there are 28 forms of months."""
    return parse(line).days_of_month(first_weekday, length)


def _length(year: int, month: int) -> int:
    """The number of days of a month."""
    return _LENGTHS[month][month == 2 and calendar.isleap(year)]


@lru_cache(_DAYS)
def _day_of(rule: Rule, day: int) -> array[int]:
    """The seconds of a UTC day, which is in days since 1970-01-01, from its start on. Ascending."""
    start_s, end_s = day * DAY_S, (day + 1) * DAY_S
    cron = parse(rule.line)
    # One second earlier, so that a change at the first second of a day is one of this day.
    before, first, last = (offset_s(rule.zone, each - 1) for each in (start_s - DAY_S, start_s, end_s))

    def counts(local_day: int) -> bool:
        return cron.matches(local_day) and local_day not in rule.excepted

    names_local_times = not cron.follows_elapsed_time
    begin_s = start_s + first  # as a local time
    if names_local_times and before > first:  # the second pass may be under way
        begin_s = max(begin_s, change_of_offset(rule.zone, start_s - DAY_S - 1, start_s - 1) + before)
    if first == last:
        if begin_s == start_s + first:
            local_day = begin_s // DAY_S
            return _plain(rule.line, first, counts(local_day), counts(local_day + 1))
        found = _within(cron, begin_s, end_s + first, first, counts)
    else:
        change_s = change_of_offset(rule.zone, start_s - 1, end_s - 1)
        found = _within(cron, begin_s, change_s + first, first, counts)
        begin_s = change_s + max(first, last) if names_local_times else change_s + last
        after = _within(cron, begin_s, end_s + last, last, counts)
        if names_local_times and after[:1] != [change_s] and (change_s + last) // DAY_S not in rule.excepted:
            skipped = local_times(rule.line, change_s + first, change_s + last)
            found.extend([change_s] if skipped else ())
        found.extend(after)
    return array("i", (second - start_s for second in found))


@lru_cache(_LISTS)
def _plain(line: str, offset: int, first: bool, second: bool) -> array[int]:
    """The seconds of a UTC day without a change of clocks, by whether its two local dates count."""
    if not (first or second):
        return array("i")
    local_day = offset // DAY_S
    found = _within(parse(line), offset, offset + DAY_S, offset, lambda day: first if day == local_day else second)
    return array("i", found)


def _within(cron: Cron, from_s: int, end_s: int, offset: int, counts: Callable[[int], bool]) -> list[int]:
    """The UTC seconds of the local times in [from, end) whose local dates count."""
    found: list[int] = []
    for day in range(from_s // DAY_S, -(-end_s // DAY_S)) if from_s < end_s else ():
        if counts(day):
            times, start_s = cron.times, day * DAY_S
            within = times[bisect_left(times, from_s - start_s) : bisect_left(times, end_s - start_s)]
            found.extend([start_s + time_s - offset for time_s in within])
    return found
