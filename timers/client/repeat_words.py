"""Says in words what the rule of a repeating timer does: which days it names, and what clock changes do to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from timers.core.printable import utc_text
from timers.wire.cron import DAY_S, local_times, parse
from timers.wire.repeat import GAP_DAYS, Repeat
from timers.wire.zones import change_of_offset, offset_s, zone

MAX_TIMES = 3
"""Times of day that a sentence names."""


class Upcoming(NamedTuple):
    """An occurrence that comes."""

    nominal_s: int
    due_s: int
    """With the share of the spread."""
    local: str
    """The nominal second in the zone of the rule, or in UTC."""
    note: str
    """What a clock change does to it; empty: nothing."""

    @property
    def shown(self) -> str:
        """The local time as text, with its day of week."""
        return f"{datetime.fromisoformat(self.local):%a} {self.local}"

    def fields(self) -> dict[str, object]:
        """The occurrence as JSON."""
        note = {"note": self.note} if self.note else {}
        due_at = utc_text(self.due_s)
        return {"nominal": self.nominal_s, "due": self.due_s, "due_at": due_at, "local": self.local, **note}


class _Change(NamedTuple):
    """A change of clocks."""

    at_s: int
    before: int
    """The offset from UTC before it, in seconds."""
    after: int

    @property
    def is_forward(self) -> bool:
        return self.after > self.before

    @property
    def span(self) -> tuple[int, int]:
        """The local times that do not exist, or that come twice, as seconds since 1970."""
        first, end = sorted((self.at_s + self.before, self.at_s + self.after))
        return first, end


def upcoming(repeat: Repeat, after_s: int, most: int, id: bytes | None = None) -> list[Upcoming]:
    """Return the next occurrences above a second.

    Args:
        id: of the timer, whose share of the spread is added; None: it is not known.

    Raises:
        UnknownZone: the zone is not known here.
    """
    share_s = 0 if id is None else repeat.share_s(id)
    found: list[Upcoming] = []
    nominal_s = repeat.next_nominal(after_s)
    while nominal_s is not None and len(found) < most:
        local = datetime.fromtimestamp(nominal_s, UTC if repeat.zone is None else zone(repeat.zone))
        found.append(Upcoming(nominal_s, nominal_s + share_s, local.isoformat(), "".join(_notes(repeat, nominal_s))))
        nominal_s = repeat.next_nominal(nominal_s)
    return found


def sentences(repeat: Repeat, from_s: int) -> list[str]:
    """Return how the days of a rule are chosen, and what the next clock changes after ``from_s`` do to it."""
    if repeat.cron_line is None or repeat.zone is None:
        return []
    days = _days(repeat.cron_line)
    said = [f"days: {days}"] if days else []
    changes = _changes(repeat.zone, from_s)
    if not changes:
        return [*said, f"clocks: {repeat.zone} does not change them in the next {GAP_DAYS} days"]
    return [*said, *(f"clocks: {_what_happens(repeat, change)}" for change in changes[:2])]


def _days(line: str) -> str:
    _, _, month_day, _, weekday = line.split()
    if month_day == weekday == "*":
        return ""
    if month_day == "*":
        return f"day of week {weekday} alone decides, because day of month is *"
    if weekday == "*":
        return f"day of month {month_day} alone decides, because day of week is *"
    if parse(line).needs_both_days:
        return f"day of month {month_day} and day of week {weekday} must both match, because one begins with *"
    return (
        f"day of month {month_day} or day of week {weekday}: one is enough, as in each cron. Only if one of the fields "
        "begins with * must both match"
    )


def _changes(name: str, from_s: int) -> list[_Change]:
    found = []
    for start_s in range(from_s, from_s + GAP_DAYS * DAY_S, DAY_S):
        before, after = offset_s(name, start_s), offset_s(name, start_s + DAY_S)
        if before != after:
            found.append(_Change(change_of_offset(name, start_s, start_s + DAY_S), before, after))
    return found


def _what_happens(repeat: Repeat, change: _Change) -> str:
    assert repeat.cron_line is not None
    first, end = change.span
    from_s, to_s = (change.at_s + offset for offset in (change.before, change.after))
    way = "forward" if change.is_forward else "back"
    when = f"set {way} on {_day(from_s)} from {_time(from_s)} to {_day_if_other(to_s, from_s)}{_time(to_s)}"
    times = local_times(repeat.cron_line, first, end)
    follows_elapsed_time = parse(repeat.cron_line).follows_elapsed_time
    if not times:
        what = "falls into this gap" if change.is_forward else "falls into the time that comes twice"
        return f"{when}: no occurrence {what}"
    if change.is_forward:
        stands = "nothing fires" if follows_elapsed_time else f"one occurrence, at {_time(to_s)}, stands"
        return f"{when}, which skips {_listed(times)}: {stands} for what is skipped"
    how = "both times, because minute or hour begins with *" if follows_elapsed_time else "the first time only"
    return f"{when}, which repeats {_listed(times)}: what is repeated fires {how}"


def _notes(repeat: Repeat, nominal_s: int) -> Iterator[str]:
    """What a clock change does to one occurrence."""
    if repeat.cron_line is None or repeat.zone is None:
        return
    before, after = (offset_s(repeat.zone, second) for second in (nominal_s - 1, nominal_s))
    if not parse(repeat.cron_line).follows_elapsed_time:
        skipped = local_times(repeat.cron_line, nominal_s + before, nominal_s + after)
        if skipped:
            yield f"in place of {_listed(skipped)}, which clocks skip"
    local = datetime.fromtimestamp(nominal_s, zone(repeat.zone))
    if local.fold:
        yield "the second time of this local time"
    elif local.replace(fold=1).utcoffset() != local.utcoffset():
        yield "the first time of this local time, which comes twice"


def _listed(times: Sequence[int]) -> str:
    shown = ", ".join(_time(time_s) for time_s in times[:MAX_TIMES])
    return shown if len(times) <= MAX_TIMES else f"{shown} and {len(times) - MAX_TIMES} more"


def _day(local_s: int) -> str:
    return datetime.fromtimestamp(local_s, UTC).strftime("%a %Y-%m-%d")


def _day_if_other(local_s: int, first_s: int) -> str:
    return "" if local_s // DAY_S == first_s // DAY_S else f"{_day(local_s)} "


def _time(local_s: int) -> str:
    return datetime.fromtimestamp(local_s, UTC).strftime("%H:%M")
