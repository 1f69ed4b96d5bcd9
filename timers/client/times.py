"""Parses times that users write: ``90s``, ``1h30m``, RFC 3339, local times with a zone, epoch seconds. Pure."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable

from timers.client.request import due_second, in_range
from timers.errors import InvalidTimerError
from timers.wire.checks import MAX_DUE_S
from timers.wire.instants import parse_instant, parse_local
from timers.wire.printable import quoted

_UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,11}}){unit})?" for unit in _UNITS_S))
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})?", re.ASCII)


def parse_duration(text: str) -> int:
    """Seconds of a duration such as ``90s``, ``15m``, ``3d`` or ``1h30m``."""
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        hint = f" (did you mean {text}s?)" if re.fullmatch(r"[0-9]{1,11}", text) else ""
        raise InvalidTimerError(
            f"{quoted(text):.100} is not a duration{hint}: write 90s, 15m, 2h, 3d, 1w, or several, large to small, "
            "such as 1h30m"
        )
    total_s = sum(int(count or 0) * unit_s for count, unit_s in zip(found.groups(), _UNITS_S.values(), strict=True))
    if total_s > MAX_DUE_S:
        raise InvalidTimerError(f"{quoted(text):.100} is {total_s} seconds, which ends after the year 5138")
    return total_s


tell = logging.getLogger("timers.client").warning
"""Says what happened to a local time, if the caller does not take it."""


def parse_due(text: str, say: Callable[[str], object] = tell) -> int:
    """Epoch second of an absolute time: RFC 3339 with an offset, a local time with the name of its zone, or epoch
    seconds of up to 11 digits.

    A fraction of a second is rounded up, so that the timer is not early.

    Args:
        say: called with a sentence if a local time is missing or comes twice; :func:`~timers.wire.instants.parse_local`
            says which second it is then.

    Raises:
        InvalidTimerError: another form, no offset, or milliseconds (with the corrected number).
    """
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)  # the client would refuse a time before the year 2002
    if re.fullmatch(r"[0-9]{1,25}", text):
        return due_second(int(text), None)
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
    except (ValueError, OverflowError) as error:
        raise InvalidTimerError(f"{quoted(text):.100} is not a time: {error}") from error
    if instant_s is None:
        raise InvalidTimerError(
            f"{quoted(text):.100} names no offset, so it is no instant: add Z for UTC, an offset such as +02:00, or a "
            "space and a zone such as Europe/Berlin"
        )
    due_s = instant_s
    return in_range(due_s, f"{quoted(text):.100}")


def parse_ahead(text: str, now_s: float) -> int:
    """Epoch second of a duration after ``now_s``, rounded up, or with a minus before it, or of an absolute time."""
    if re.fullmatch(r"-([0-9]+[wdhms])+", text):
        return parse_moment(text[1:], now_s)
    if re.fullmatch(r"([0-9]+[wdhms])+", text):
        return math.ceil(now_s) + parse_duration(text)
    return parse_due(text)


def parse_moment(text: str, now_s: float) -> int:
    """Epoch second of a duration before ``now_s``, or of an absolute time."""
    if re.fullmatch(r"([0-9]+[wdhms])+", text):
        return max(0, int(now_s) - parse_duration(text))
    return parse_due(text)


def from_now(seconds: float) -> str:
    """Words for a time that is ``seconds`` from now; negative: in the past."""
    return f"in {seconds:,.0f} s" if seconds > 0 else f"{-seconds:,.0f} s ago"
