"""Reads due times and durations that callers and people give. Pure, except for the clock to which delays are added.

:func:`timers.process.counted.duration` writes what :func:`parse_duration` reads.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from numbers import Real
from typing import TypeAlias, TypeGuard

from timers.core.printable import quoted
from timers.errors import InvalidTimerError
from timers.process.counted import span
from timers.wire.checks import MAX_DUE_S
from timers.wire.instants import epoch_second, local_second, parse_instant, parse_local

At: TypeAlias = datetime | float | str
"""An absolute due time from callers."""

_MICROSECOND = timedelta(microseconds=1)
_NS = 1_000_000_000
LEAST_AT_S = 10**9
"""In 2001. A smaller number for ``at`` is a delay, or a time in another unit."""
_FINER_UNITS = (("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9))


def due_second(at: At | None, delay: timedelta | float | None, *, now_ns: int | None = None) -> int:
    """The due second of a due time. Fractions are rounded up, so that no timer is early. A past second is valid.

    Args:
        at: aware datetime, epoch seconds, or a text; :func:`parse_due` says which.
        delay: timedelta or seconds from now.
        now_ns: the present time in epoch nanoseconds; this machine's clock if None.

    Raises:
        InvalidTimerError: both or neither given, a naive datetime, a negative or far too large number.
    """
    if delay is None and type(at) is int and LEAST_AT_S <= at <= MAX_DUE_S:  # the usual case of bulk callers
        return at
    if delay is None and at is None:
        raise InvalidTimerError("no due time: give at=... (when) or delay=... (how long from now)")
    if delay is not None and at is not None:
        raise InvalidTimerError(f"two due times, at={quoted(at):.100} and delay={quoted(delay):.100}: give one of them")
    try:
        return _absolute(at) if delay is None else _relative(delay, time.time_ns() if now_ns is None else now_ns)
    except InvalidTimerError:
        raise
    except Exception as error:  # pandas.NaT is a datetime that refuses to be compared, and numpy has a NaT of its own
        raise InvalidTimerError(_no_due_time(at) if delay is None else _no_time_span(delay)) from error


def _no_due_time(at: object) -> str:
    form = "an aware datetime, epoch seconds, or a text such as '2030-01-31T12:00:00Z'"
    return f"at={quoted(at):.100} is not a due time: give {form}"


def _no_time_span(delay: object) -> str:
    return f"delay={quoted(delay):.100} is not a time span: give a timedelta or seconds"


def _absolute(at: object) -> int:
    if isinstance(at, str):
        return parse_due(at)
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidTimerError(
                f"at={at.isoformat()} names no time zone, so it is no instant: use an aware datetime, "
                "such as datetime.now(timezone.utc) + timedelta(minutes=15)"
            )
        return in_range(epoch_second(at), f"at={at.isoformat()}")
    if not is_number(at):
        raise InvalidTimerError(_no_due_time(at))
    due_s = int(math.ceil(at))  # noqa: RUF046  # numpy's ceiling is no int
    if 0 <= due_s < LEAST_AT_S:
        raise InvalidTimerError(
            f"at={at!r} is an epoch second before the year 2002: did you mean delay={at!r}, seconds from now? "
            "(a time that early can be given as an aware datetime)"
        )
    for unit, factor in _FINER_UNITS:
        if MAX_DUE_S < due_s <= MAX_DUE_S * factor:
            raise InvalidTimerError(
                f"at={quoted(at):.100} has more than 11 digits: it looks like {unit}, and due times are epoch seconds; "
                f"did you mean {-(-due_s // factor)}?"
            )
    return in_range(due_s, f"at={quoted(at):.100}")


def _relative(delay: object, now_ns: int) -> int:
    if isinstance(delay, timedelta):
        delay_ns = -(-delay // _MICROSECOND) * 1000  # rounded up, because pandas counts nanoseconds
    elif not is_number(delay):
        raise InvalidTimerError(_no_time_span(delay))
    else:
        # `min`: a huge delay must get the error of `in_range`. `float`: the product may be too large for numpy's types.
        seconds = delay if isinstance(delay, int | Decimal) else float(delay)
        delay_ns = math.ceil(min(seconds, 10 * MAX_DUE_S) * _NS)
    if delay_ns < 0:
        raise InvalidTimerError(f"delay={quoted(delay):.100} is negative: 0 fires at once, and so does any past at=...")
    return in_range(-(-(now_ns + delay_ns) // _NS), f"delay={quoted(delay):.100}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number of any type, such as numpy's."""
    if isinstance(value, int):
        return not isinstance(value, bool)
    try:
        return isinstance(value, Real | Decimal) and math.isfinite(float(value))
    except (TypeError, ValueError, ArithmeticError):  # numpy's time spans, a signaling NaN, a Fraction beyond floats
        return False


def in_range(due_s: int, given: str) -> int:
    """Returns ``due_s``, the due second of what was ``given``.

    Raises:
        InvalidTimerError: it is out of range.
    """
    if due_s < 0:
        raise InvalidTimerError(f"{given} is before 1970: due times are epoch seconds from 0 to {MAX_DUE_S}")
    if due_s > MAX_DUE_S:
        raise InvalidTimerError(f"{given} is after the year 5138: due times are epoch seconds from 0 to {MAX_DUE_S}")
    return due_s


_UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,11}}){unit})?" for unit in _UNITS_S))
_ISO_DURATION = re.compile(
    r"P(?=.*[0-9])(?:([0-9]{1,11})W)?(?:([0-9]{1,11})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,11})H)?(?:([0-9]{1,11})M)?(?:([0-9]{1,11})S)?)?"
)
"""As Java's ``Duration`` and many programs write one. Years and months have no fixed number of seconds."""
_OTHER_UNITS = re.compile(r"([0-9]{1,11}) ?(s|m|h|d|w)(?:ec|econd|in|inute|r|our|ay|eek)?s?", re.IGNORECASE)
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}(:?\d{2})?)?", re.ASCII)
"""Also with the offsets ``+00`` and ``+0000``, which databases write."""


def parse_duration(text: str) -> int:
    """Seconds of a duration such as ``90s``, ``15m``, ``3d`` or ``1h30m``, or as ISO 8601 writes it: ``PT15M``."""
    found = _DURATION.fullmatch(text) or _ISO_DURATION.fullmatch(text)
    if not text or found is None:
        other = _OTHER_UNITS.fullmatch(text)
        meant = f"{text}s" if re.fullmatch(r"[0-9]{1,11}", text) else other and "".join(other.groups()).lower()
        hint = f" (did you mean {meant}?)" if meant else ""
        raise InvalidTimerError(
            f"{quoted(text):.100} is not a duration{hint}: write 90s, 15m, 2h, 3d, 1w, or several, large to small, "
            "such as 1h30m, or PT1H30M"
        )
    total_s = sum(int(count or 0) * unit_s for count, unit_s in zip(found.groups(), _UNITS_S.values(), strict=True))
    if total_s > MAX_DUE_S:
        raise InvalidTimerError(f"{quoted(text):.100} is {total_s} seconds, which ends after the year 5138")
    return total_s


tell = logging.getLogger("timers.client").warning
"""Says what happened to a local time, if the caller does not take it."""


def parse_due(text: str, say: Callable[[str], object] = tell, zone: str | None = None) -> int:
    """Epoch second of an absolute time: RFC 3339 with an offset, a local time with the name of its zone, or epoch
    seconds of up to 11 digits.

    A fraction of a second is rounded up, so that the timer is not early.

    Args:
        say: called with a sentence if a local time is missing or comes twice; :func:`~timers.wire.instants.parse_local`
            says which second it is then.
        zone: of a time that names neither an offset nor a zone.

    Raises:
        InvalidTimerError: another form, no offset, or milliseconds (with the corrected number).
    """
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)  # the client would refuse a time before the year 2002
    if re.fullmatch(r"[0-9]{1,25}", text):
        return due_second(int(text), None)
    if number := re.fullmatch(r"([0-9]{1,25})\.([0-9]*)", text):  # as programs write numbers that may have fractions
        return parse_due(str(int(number[1]) + bool(number[2].strip("0"))))
    try:
        local = parse_local(text)
        if local is not None:
            due_s, note = local
            if note:
                say(note)
            return in_range(due_s, f"{quoted(text):.100}")
        if not _RFC3339.fullmatch(text):
            raise InvalidTimerError(
                f"{quoted(text):.100} is not a time: write RFC 3339, such as 2030-01-31T12:00:00Z or "
                "2030-01-31T12:00:00+02:00, a local time and its zone, such as 2030-01-31T12:00:00 Europe/Berlin, or "
                "epoch seconds, such as 1896091200"
            )
        instant_s = parse_instant(text.upper())
        if instant_s is None and zone is not None:
            due_s, note = local_second(datetime.fromisoformat(text.upper()), zone)
            if note:
                say(note)
            instant_s = due_s
    except (ValueError, OverflowError) as error:
        raise InvalidTimerError(f"{quoted(text):.100} is not a time: {error}") from error
    if instant_s is None:
        raise InvalidTimerError(
            f"{quoted(text):.100} names no offset, so it is no instant: add Z for UTC, an offset such as +02:00, or a "
            "space and a zone such as Europe/Berlin"
        )
    return in_range(instant_s, f"{quoted(text):.100}")


_SPAN = re.compile(r"-?(([0-9]+[wdhms])+|P[0-9WDTHMS]+)", re.ASCII)


def parse_ahead(text: str, now_s: float) -> int:
    """Epoch second of a duration after ``now_s``, rounded up, or with a minus before it, or of an absolute time."""
    if not text.startswith("-") and _SPAN.fullmatch(text):
        return math.ceil(now_s) + parse_duration(text)
    return parse_moment(text, now_s)


def parse_moment(text: str, now_s: float) -> int:
    """Epoch second of a duration before ``now_s``, with or without a minus, or of an absolute time."""
    if _SPAN.fullmatch(text):
        return max(0, int(now_s) - parse_duration(text.removeprefix("-")))
    try:
        return parse_due(text)
    except InvalidTimerError as error:
        raise InvalidTimerError(f"{error}; or give a duration, such as 90s, 15m, 2h or 1d12h") from None


_SHORT_S = 120
"""Below this, a time is said in seconds."""


def from_now(seconds: float) -> str:
    """Words for a time that is ``seconds`` from now; negative: in the past."""
    length = f"{abs(seconds):.0f} s" if abs(seconds) < _SHORT_S else span(abs(seconds))
    return f"in {length}" if seconds > 0 else f"{length} ago"
