"""The seconds of the rule of a repeating timer, by brute force: every UTC minute is looked at in its time zone.

Nothing of :mod:`timers.wire.repeat` and :mod:`timers.wire.cron` is used, so that a simulated run finds their errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from timers.wire.zones import zone as zone_of

DAY_S = 86_400

MOST_DAYS = 800
"""So many days a next second is looked for."""

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@dataclass(frozen=True)
class SimRule:
    """What the header of a definition says."""

    line: str | None
    every_s: int
    zone: str
    from_s: int
    until_s: int
    catch_up: str
    spread_s: int
    excepted: frozenset[str]

    @classmethod
    def of(cls, text: str, append_s: int) -> SimRule:
        """Read a header; ``append_s``: the second of its record, from which an interval without ``from`` counts."""
        parts = dict(part.strip().split("=", 1) for part in text.split(";"))
        return cls(
            parts.get("cron"),
            int(parts.get("every", "0")),
            parts.get("zone", ""),
            int(parts.get("from", append_s if "every" in parts else 0)),
            int(parts.get("until", 10**12)),
            parts.get("catch-up", "latest"),
            int(parts.get("spread", "0")),
            frozenset(parts["except"].split(",")) if "except" in parts else frozenset(),
        )

    def share_s(self, id: bytes) -> int:
        """Returns how much later than its nominal second an occurrence of an id is due."""
        return int.from_bytes(sha256(id).digest()[:8], "big") % self.spread_s if self.spread_s else 0

    def after(self, second: int) -> Iterator[int]:
        """Yields the nominal seconds after a second, ascending."""
        for each in self._all_after(max(second, self.from_s - 1)):
            if each > self.until_s:
                return
            yield each

    def next(self, second: int) -> int | None:
        """Returns the first nominal second after a second; None: there is none."""
        return next(self.after(second), None)

    def _all_after(self, second: int) -> Iterator[int]:
        if self.line is None:
            each = self.from_s
            if each <= second:
                each += (second - each + self.every_s) // self.every_s * self.every_s
            while True:
                if not self.excepted or f"{datetime.fromtimestamp(each, UTC):%Y-%m-%d}" not in self.excepted:
                    yield each
                each += self.every_s
        for day in range(second // DAY_S, second // DAY_S + MOST_DAYS):
            for each in seconds_of_day(self.line, self.zone, day, self.excepted):
                if each > second:
                    yield each


class _Line(NamedTuple):
    """The numbers that each field of a cron line names."""

    fields: tuple[frozenset[int], ...]
    names_times: bool
    """Whether it names local times: neither its minute nor its hour begins with a star."""

    def matches(self, local: datetime) -> bool:
        values = local.minute, local.hour, local.day, local.month, (local.weekday() + 1) % 7
        return all(value in field for value, field in zip(values, self.fields, strict=True))


@lru_cache
def _line_of(line: str) -> _Line:
    texts = line.split()
    fields = tuple(frozenset(_numbers(text, *limits)) for text, limits in zip(texts, _RANGES, strict=True))
    return _Line(fields, not (texts[0].startswith("*") or texts[1].startswith("*")))


def _numbers(text: str, low: int, high: int) -> Iterator[int]:
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or first))
        yield from range(begin, end + 1, int(step or 1))


@lru_cache(20_000)
def seconds_of_day(line: str, zone: str, day: int, excepted: frozenset[str] = frozenset()) -> tuple[int, ...]:
    """Returns the seconds of a UTC day that a cron line names in a zone.

    Clocks change at whole minutes. A line that names local times fires in the first pass of one that comes twice, and
    at the first minute after a gap for those that the gap skips.
    """
    wanted, tz, found = _line_of(line), zone_of(zone), []
    before = datetime.fromtimestamp(day * DAY_S - 60, UTC).astimezone(tz).replace(tzinfo=None)
    for second in range(day * DAY_S, (day + 1) * DAY_S, 60):
        aware = datetime.fromtimestamp(second, UTC).astimezone(tz)
        local = aware.replace(tzinfo=None, fold=0)
        skipped = []
        if wanted.names_times:
            each = before + timedelta(minutes=1)
            while each < local:
                skipped.append(each)
                each += timedelta(minutes=1)
        is_named = wanted.matches(local) and not (wanted.names_times and aware.fold)
        moments = [*([local] if is_named else []), *(each for each in skipped if wanted.matches(each))]
        if any(f"{each:%Y-%m-%d}" not in excepted for each in moments):
            found.append(second)
        before = local
    return tuple(found)
