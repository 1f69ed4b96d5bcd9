"""Reads times as people write them in a filter."""

from __future__ import annotations

import re

from timers.client.times import parse_ahead, parse_moment
from timers.console.problems import Problem
from timers.errors import InvalidTimerError
from timers.wire.printable import quoted
from timers.wire.query import format_due

FORMS = "now, 1h (from now), -1h (ago), 12:00 or tomorrow 09:00 (UTC), 2030-01-31 12:00 (UTC), or epoch seconds"

_DAY_S = 86_400
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}


def moment(name: str, text: str, now_s: float, *, is_past: bool = False) -> int:
    """The epoch second that a text names.

    Args:
        is_past: a time without a day is the last one: at 03:00, 12:00 is yesterday's. Without this it is today's.

    Raises:
        Problem: it names none.
    """
    text = text.strip()
    try:
        if text.lower() == "now":
            return int(now_s)
        found = re.fullmatch(r"(?:(yesterday|today|tomorrow)\b ?)?(\d{1,2}:\d{2}(?::\d{2})?)?", text.lower(), re.ASCII)
        if text and found:
            day, time = found[1], (found[2] or "00:00").zfill(5)
            text = f"{format_due(int(now_s) + _DAYS[day or 'today'] * _DAY_S)[:10]} {time}"
            second = parse_ahead(_instant(text), now_s)
            return second - _DAY_S if is_past and day is None and second > now_s else second
        if text.startswith("-"):
            return parse_moment(text[1:], now_s)
        return parse_ahead(_instant(text.removeprefix("+").replace(" ", "") if text[:1] == "+" else text), now_s)
    except InvalidTimerError:
        raise Problem("parameter-invalid", f"{name}={quoted(text[:100])} is no time: write {FORMS}") from None


def _instant(text: str) -> str:
    """A time of a day in UTC as RFC 3339; other texts unchanged."""
    found = re.fullmatch(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2})?)?Z?", text, re.ASCII)
    return f"{found[1]}T{found[2] or '00:00'}{found[3] or ':00'}Z" if found else text
