"""The seconds of the rule of a repeating timer, by brute force: every UTC minute is looked at in its time zone.

Nothing of :mod:`timers.wire.repeat` and :mod:`timers.wire.cron` is used, so that a simulated run finds their errors.

A run may change its zone data: then ``Europe/Paris`` stands for the rules of another zone until it is changed back. A
rule is asked by the data of the moment at which the engine asked it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from unittest.mock import patch
from zoneinfo import ZoneInfo

from tests.harness import cron_reference
from timers.wire import cron, zones

DAY_S = 86_400

MOST_DAYS = 800
"""So many days a next second is looked for."""

_BLOCK_DAYS = 32

NO_ZONES: Mapping[str, str] = MappingProxyType({})
"""Zone data without changes."""

ZONES_CHANGED = MappingProxyType(
    {
        "Europe/Paris": "Africa/Lagos",
        "Australia/Lord_Howe": "Asia/Kolkata",
        "Africa/Cairo": "Europe/Moscow",
        "America/Havana": "America/New_York",
        "America/Vancouver": "America/Phoenix",
    }
)
"""Other zone data: zone -> the zone whose rules it has."""


@contextmanager
def zone_data(changed: Mapping[str, str]) -> Iterator[None]:
    """Let the product have other zone data, as after an update of the package ``tzdata`` and a restart."""
    read = zones._zone.__wrapped__
    try:
        with patch.object(zones, "_zone", lru_cache(lambda name: read(changed.get(name, name)))):
            _forget_seconds()
            yield
    finally:
        _forget_seconds()


def _forget_seconds() -> None:
    for cached in (zones.offset_s, zones.change_of_offset, cron._first_match, cron._day_of, cron._plain):
        cached.cache_clear()


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

    def by(self, changed: Mapping[str, str]) -> SimRule:
        """Returns the rule by some zone data."""
        return replace(self, zone=changed[self.zone]) if self.zone in changed else self

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
        block = second // (_BLOCK_DAYS * DAY_S)
        for each in range(block, block + MOST_DAYS // _BLOCK_DAYS + 1):
            seconds = seconds_of_block(self.line, self.zone, each, self.excepted)
            yield from seconds[bisect_left(seconds, second + 1) :]


@lru_cache(20_000)
def seconds_of_block(line: str, zone: str, block: int, excepted: frozenset[str] = frozenset()) -> tuple[int, ...]:
    """Returns the seconds that a cron line names in a zone in some days.

    A line that names local times fires in the first pass of one that comes twice, and at the first minute after a gap
    for those that the gap skips.
    """
    begin_s, end_s = block * _BLOCK_DAYS * DAY_S, (block + 1) * _BLOCK_DAYS * DAY_S
    dates = frozenset(map(date.fromisoformat, excepted))
    # From a day earlier on: the second pass of an hour may be under way.
    found = cron_reference.seconds_of(line, _zone_of(zone), begin_s - DAY_S, end_s, dates)
    return tuple(each for each in found if each >= begin_s)


@lru_cache(1000)
def _zone_of(name: str) -> ZoneInfo:
    """A zone by the unchanged data."""
    found = zones._zone.__wrapped__(name)
    assert found is not None
    return found
