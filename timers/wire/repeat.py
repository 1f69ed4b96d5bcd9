"""The rule of a repeating timer, and the header ``timer-repeat`` that holds it.

The header is text, so that any client can write it: ``name=value`` joined by ``; ``::

    cron=0 9 * * 1-5; zone=Europe/Paris; until=1798761600; catch-up=latest
    every=900; from=1795000000

=============  =========================================================================================================
``every``      seconds between two occurrences, at least 1
``cron``       a cron line of five fields (:mod:`timers.wire.cron`), in place of ``every``
``zone``       IANA name of the zone of the cron line
``from``       first epoch second that counts; with ``every`` it is the first occurrence
``until``      last epoch second that counts
``catch-up``   what is sent of occurrences that were missed: ``latest`` (the default), ``all``, ``none``
``spread``     seconds over which timers with one rule are spread: each is late by a share of its own
``except``     local dates without an occurrence, such as ``2026-12-24,2026-12-25``; with ``every`` they are of UTC
=============  =========================================================================================================

The *nominal* second of an occurrence is the one that the rule names; ``from``, ``until`` and ``except`` speak of it. It
is due at the nominal second plus its share of ``spread``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Self

from timers.core.printable import quoted
from timers.errors import InvalidTimerError
from timers.wire.checks import MAX_DUE_S
from timers.wire.cron import DAY_S, EPOCH_DAY, CronError, Rule, least_gap, newest_seconds, next_second, parse
from timers.wire.instants import epoch_second
from timers.wire.zones import EXAMPLE_ZONE, UnknownZone
from timers.wire.zones import zone as zone_of

LATEST, ALL, NONE = "latest", "all", "none"
CATCH_UPS = (LATEST, ALL, NONE)

MAX_HEADER_BYTES = 1_000
MAX_REPEATING_VALUE_BYTES = 65_536
MAX_REPEATING_HEADER_BYTES = 4_096
"""The largest value and headers of a request that repeats: each occurrence writes both to the log again."""
MAX_EXCEPTED = 50

GAP_DAYS = 400
"""Days in which the least gap of a rule is looked for: more than a year, so that both changes of clocks are in them."""

EXAMPLE = "cron=0 9 * * 1-5; zone=Europe/Paris"

_NAMES = ("every", "cron", "zone", "from", "until", "catch-up", "spread", "except")
_SECONDS = re.compile("[0-9]{1,11}", re.ASCII)
_PLAIN = re.compile(rb"every=([1-9][0-9]{0,10}); from=([0-9]{1,11})")
_ZONE = re.compile("[A-Za-z0-9_+/-]{1,64}", re.ASCII)


class RepeatError(InvalidTimerError, ValueError):
    """A rule that cannot be read, or that a sender must not set. The message names what is wrong, and what works."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """When a timer repeats: made by :meth:`cron`, :meth:`every` or :meth:`of_header`."""

    cron_line: str | None = None
    every_s: int | None = None
    zone: str | None = None
    from_s: int | None = None
    until_s: int | None = None
    catch_up: str = LATEST
    spread_s: int = 0
    excepted: tuple[str, ...] = ()
    """Local dates as ``2026-12-24``, ascending."""

    @classmethod
    def cron(
        cls,
        line: str,
        *,
        zone: str,
        from_: datetime | int | None = None,
        until: datetime | int | None = None,
        catch_up: str = LATEST,
        spread: timedelta | int = 0,
        except_: Iterable[date | str] = (),
    ) -> Self:
        """Return a rule by a cron line: ``Repeat.cron("0 9 * * 1-5", zone="Europe/Paris")``.

        Args:
            line: minute, hour, day of month, month, day of week.
            zone: IANA name of the zone of these.
            from_: first moment that counts: aware, or an epoch second; None: at once.
            until: last moment that counts; None: for ever.
            catch_up: what is sent of occurrences that were missed: ``latest``, ``all`` or ``none``.
            spread: each timer is delayed by a part of this time, always the same part for one id.
            except_: dates in the zone without an occurrence.

        Raises:
            RepeatError: a part is wrong.
        """
        return cls._checked(line, None, zone, from_, until, catch_up, spread, except_)

    @classmethod
    def every(
        cls,
        interval: timedelta | int,
        *,
        from_: datetime | int | None = None,
        until: datetime | int | None = None,
        catch_up: str = LATEST,
        spread: timedelta | int = 0,
        except_: Iterable[date | str] = (),
    ) -> Self:
        """Return a rule by an interval of whole seconds: ``Repeat.every(900)``. Arguments as of :meth:`cron`.

        Args:
            interval: from one occurrence to the next, however long anything takes.
            from_: the first occurrence; None: an interval after the timer is set.
            except_: dates in UTC.
        """
        return cls._checked(None, interval, None, from_, until, catch_up, spread, except_)

    @classmethod
    def _checked(
        cls,
        line: str | None,
        interval: timedelta | int | None,
        zone: str | None,
        from_: datetime | int | None,
        until: datetime | int | None,
        catch_up: str,
        spread: timedelta | int,
        except_: Iterable[date | str],
    ) -> Self:
        dates = (str(each) for each in ([except_] if isinstance(except_, str) else except_))
        parts = {
            "cron": line,
            "every": None if interval is None else _seconds_of("every", interval),
            "zone": zone,
            "from": None if from_ is None else _second_of("from", from_),
            "until": None if until is None else _second_of("until", until),
            "catch-up": catch_up,
            "spread": _seconds_of("spread", spread),
            "except": ",".join(dates) or None,
        }
        return cls.of_parts({name: str(part) for name, part in parts.items() if part is not None})

    # ---- the header -------------------------------------------------------------------------------------------------

    @classmethod
    def of_header(cls, data: bytes) -> Repeat:
        """Read the value of the header. Zones are not looked up: this result is the same on each machine.

        Raises:
            RepeatError: it is no rule.
        """
        return (_of_interval if data.startswith(b"every=") else _of_line)(data)

    @classmethod
    def of_parts(cls, parts: Mapping[str, str]) -> Self:
        """Read the parts of the header, by name.

        Raises:
            RepeatError: they are no rule.
        """
        has_line = "cron" in parts
        if has_line == ("every" in parts):
            raise RepeatError(f"a rule has one of cron and every (try {EXAMPLE!r} or 'every=900')")
        every_s = None
        if has_line:
            if "zone" not in parts:
                raise RepeatError(f"cron line {quoted(parts['cron'])} has no zone (try zone={EXAMPLE_ZONE})")
            if _ZONE.fullmatch(parts["zone"]) is None:
                raise RepeatError(f"zone {quoted(parts['zone'])} is no name of a zone (try zone={EXAMPLE_ZONE})")
            try:
                parse(parts["cron"])
            except CronError as error:
                raise RepeatError(str(error)) from None
        else:
            if "zone" in parts:
                raise RepeatError("every has no zone: it counts elapsed seconds (leave zone out, or use cron)")
            every_s = _whole("every", parts["every"], "900")
            if every_s == 0:
                raise RepeatError("every=0 is less than a second (try every=1)")
        from_s, until_s = (
            _whole(name, parts[name], "1798761600") if name in parts else None for name in ("from", "until")
        )
        if from_s is not None and until_s is not None and until_s < from_s:
            raise RepeatError(f"until={until_s} is before from={from_s}: both are epoch seconds")
        catch_up = parts.get("catch-up", LATEST)
        if catch_up not in CATCH_UPS:
            raise RepeatError(f"catch-up={quoted(catch_up)[1:-1]} is none of {', '.join(CATCH_UPS)} (try {LATEST})")
        spread_s = _whole("spread", parts.get("spread", "0"), "60")
        if every_s is not None and spread_s >= every_s:
            raise RepeatError(f"spread={spread_s} is not less than every={every_s}: occurrences would pass each other")
        return cls(
            parts.get("cron"),
            every_s,
            parts.get("zone"),
            from_s,
            until_s,
            catch_up,
            spread_s,
            _dates(parts.get("except")),
        )

    def to_header(self) -> bytes:
        """Return the value of the header. Parts that are as without them are left out."""
        parts = {
            "every": self.every_s,
            "cron": self.cron_line,
            "zone": self.zone,
            "from": self.from_s,
            "until": self.until_s,
            "catch-up": None if self.catch_up == LATEST else self.catch_up,
            "spread": self.spread_s or None,
            "except": ",".join(self.excepted) or None,
        }
        return "; ".join(f"{name}={part}" for name, part in parts.items() if part is not None).encode()

    def with_from(self, second: int) -> Repeat:
        """Return the rule with another ``from``."""
        return replace(self, from_s=second)

    # ---- its seconds ------------------------------------------------------------------------------------------------

    def share_s(self, id: bytes) -> int:
        """Return how many seconds after the nominal one the timer of an id is due: 0 <= share < max(spread, 1)."""
        if not self.spread_s:
            return 0
        return int.from_bytes(hashlib.sha256(id).digest()[:8], "big") % self.spread_s

    def next_nominal(self, after_s: int, limit_s: int = MAX_DUE_S) -> int | None:
        """Return the first nominal second in (``after_s``, ``limit_s``]; None if there is none.

        Raises:
            UnknownZone: this machine lacks the zone.
        """
        if self.from_s is not None:
            after_s = max(after_s, self.from_s - 1)
        if self.until_s is not None:
            limit_s = min(limit_s, self.until_s)
        if after_s >= limit_s:
            return None
        second = next_second(self._rule(), after_s, limit_s) if self.every_s is None else self._next_of_every(after_s)
        return second if second is not None and second <= limit_s else None

    def first_due(self, now_s: int, id: bytes) -> int | None:
        """Return when a timer with this rule that is set now is due first; None: never.

        Raises:
            UnknownZone: this machine lacks the zone.
        """
        begun = self.with_from(now_s) if self.every_s is not None and self.from_s is None else self
        nominal_s = begun.next_nominal(now_s)
        return None if nominal_s is None else nominal_s + self.share_s(id)

    def newest(self, after_s: int, through_s: int, most: int) -> tuple[list[int], int]:
        """Return the newest ``most`` nominal seconds in (after, through], ascending, and how many there are in it.

        With a cron line, only the last 400 days of the span are looked at.

        Raises:
            UnknownZone: this machine lacks the zone.
        """
        if self.from_s is not None:
            after_s = max(after_s, self.from_s - 1)
        if self.until_s is not None:
            through_s = min(through_s, self.until_s)
        if self.every_s is None:
            return newest_seconds(self._rule(), after_s, through_s, most)
        return self._newest_of_every(after_s, through_s, most)

    def least_gap_s(self, from_s: int) -> int:
        """Return the least gap between two nominal seconds in the 400 days from a second on; 400 days if there is none.

        Raises:
            UnknownZone: this machine lacks the zone.
        """
        return self.every_s or least_gap(self._rule(), from_s, GAP_DAYS)

    def check(self, now_s: int) -> None:
        """Check what senders check: the zone is known, the rule comes again, and the spread is less than its least gap.

        Raises:
            RepeatError: one of these is not so.
        """
        if self.until_s is not None and self.until_s <= now_s:
            raise RepeatError(f"until={self.until_s} has passed: it is an epoch second, and now it is {now_s}")
        try:
            if self.zone is not None:
                zone_of(self.zone)
        except UnknownZone as error:
            raise RepeatError(str(error)) from None
        if self.first_due(now_s, b"") is None:
            until = "" if self.until_s is None else f" up to until={self.until_s}"
            raise RepeatError(f"the rule {quoted(self.to_header())} never comes again{until} (try {EXAMPLE!r})")
        if self.spread_s and self.spread_s >= (gap_s := self.least_gap_s(now_s)):
            raise RepeatError(
                f"spread={self.spread_s} is not less than {gap_s}, the least number of seconds between two occurrences "
                f"in the next {GAP_DAYS} days (try spread={gap_s // 2})"
            )

    def _rule(self) -> Rule:
        assert self.cron_line is not None
        assert self.zone is not None
        return Rule(self.cron_line, self.zone, _days(self.excepted) if self.excepted else ())

    def _next_of_every(self, after_s: int) -> int:
        every_s, from_s = self._every()
        second = from_s if after_s < from_s else from_s + ((after_s - from_s) // every_s + 1) * every_s
        if self.excepted:
            days = _days(self.excepted)
            while second // DAY_S in days:
                end_s = (second // DAY_S + 1) * DAY_S
                second += -(-(end_s - second) // every_s) * every_s
        return second

    def _newest_of_every(self, after_s: int, through_s: int, most: int) -> tuple[list[int], int]:
        every_s, from_s = self._every()
        after_s = max(after_s, from_s - 1)
        if through_s <= after_s:
            return [], 0

        def count(low_s: int, high_s: int) -> int:
            """How many nominal seconds are in (low, high]."""
            return (high_s - from_s) // every_s - (low_s - from_s) // every_s

        days, total = _days(self.excepted), count(after_s, through_s)
        for day in days:
            low_s, high_s = max(after_s, day * DAY_S - 1), min(through_s, (day + 1) * DAY_S - 1)
            total -= count(low_s, high_s) if low_s < high_s else 0
        newest: list[int] = []
        second = through_s - (through_s - from_s) % every_s
        while second > after_s and len(newest) < most:
            if second // DAY_S in days:
                before_s = second // DAY_S * DAY_S - 1
                second = before_s - (before_s - from_s) % every_s
            else:
                newest.append(second)
                second -= every_s
        return newest[::-1], total

    def _every(self) -> tuple[int, int]:
        assert self.every_s is not None
        if self.from_s is None:
            raise ValueError("an interval without `from` has no seconds: use with_from()")
        return self.every_s, self.from_s


def _of_header(data: bytes) -> Repeat:
    if plain := _PLAIN.fullmatch(data):  # a quarter of the time: each interval has a rule of its own
        return Repeat(None, int(plain[1]), None, int(plain[2]))
    if len(data) > MAX_HEADER_BYTES:
        raise RepeatError(f"the rule has {len(data)} bytes, more than {MAX_HEADER_BYTES}: name fewer dates to except")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RepeatError(f"the rule {quoted(data)} is not UTF-8 (try {EXAMPLE!r})") from None
    parts: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or name not in _NAMES:
            raise RepeatError(
                f"the rule has a part {quoted(part.strip())}: parts are {', '.join(_NAMES[:-1])} and {_NAMES[-1]} "
                f"(try {EXAMPLE!r})"
            )
        if name in parts:
            raise RepeatError(f"the rule has {name} twice: {quoted(parts[name])} and {quoted(value)}")
        if not value:
            raise RepeatError(f"the rule has {name} without a value (leave it out, or try {EXAMPLE!r})")
        parts[name] = value
    return Repeat.of_parts(parts)


_of_interval, _of_line = lru_cache(4_096)(_of_header), lru_cache(4_096)(_of_header)
"""Two, because intervals may have a rule for each second in which a timer was set."""


def _whole(name: str, text: str, example: str) -> int:
    if _SECONDS.fullmatch(text) is None:
        raise RepeatError(
            f"{name}={quoted(text)[1:-1]} is not a whole number of seconds up to {MAX_DUE_S} (try {example})"
        )
    return int(text)


def _dates(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    dates = sorted({each.strip() for each in text.split(",")})
    for each in dates:
        try:
            if re.fullmatch(r"\d{4}-\d{2}-\d{2}", each, re.ASCII) is None:
                raise ValueError
            date.fromisoformat(each)
        except ValueError:
            raise RepeatError(f"except has {quoted(each)}, which is no date (try 2026-12-24,2026-12-25)") from None
    if len(dates) > MAX_EXCEPTED:
        raise RepeatError(
            f"except has {len(dates)} dates, more than {MAX_EXCEPTED}: set the timer again when these are over"
        )
    return tuple(dates)


@lru_cache(4_096)
def _days(dates: tuple[str, ...]) -> tuple[int, ...]:
    """Dates as days since 1970-01-01."""
    return tuple(date.fromisoformat(each).toordinal() - EPOCH_DAY for each in dates)


def _seconds_of(name: str, length: timedelta | int) -> int:
    if isinstance(length, timedelta):
        if length % timedelta(seconds=1):
            raise RepeatError(f"{name} {length} is not a whole number of seconds")
        return length // timedelta(seconds=1)
    if isinstance(length, bool) or not isinstance(length, int):
        raise RepeatError(f"{name} {quoted(length)} is neither a timedelta nor a whole number of seconds (try 900)")
    return length


def _second_of(name: str, at: datetime | int) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise RepeatError(
                f"{name} {quoted(str(at))} has no zone: give an aware datetime, such as datetime.now(UTC)"
            )
        return epoch_second(at)
    if isinstance(at, bool) or not isinstance(at, int):
        raise RepeatError(f"{name} {quoted(at)} is neither an aware datetime nor an epoch second")
    return at
