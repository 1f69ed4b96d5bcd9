"""Reads instants from text. Fractions of a second are rounded up, so that no timer is early. Pure, except for the rules
of time zones, which are files of a package (:mod:`timers.wire.zones`)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from timers.wire.zones import change_of_offset
from timers.wire.zones import zone as zone_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINER = re.compile(r"\.[0-9]{6}([0-9]+)")


def epoch_second(at: datetime) -> int:
    """Return the epoch second of an aware datetime, rounded up."""
    return -((_EPOCH - at) // timedelta(seconds=1))  # the floor of the negative is the ceiling


def parse_instant(text: str) -> int | None:
    """Return the epoch second of a time in ISO 8601, rounded up; None if it has no offset from UTC.

    Raises:
        ValueError: it is not a time.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        return None
    finer = _FINER.search(text)  # digits after the microseconds, which fromisoformat() ignores
    return epoch_second(at) + bool(finer and not at.microsecond and finer[1].strip("0"))


_LOCAL = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?) ([A-Za-z][\w+-]*(?:/[A-Za-z][\w+-]*){0,2})",
    re.ASCII,
)


def parse_local(text: str) -> tuple[int, str] | None:
    """Return the epoch second of a local time, such as ``2027-03-28T02:30:00 Europe/Berlin``; None for other texts.

    If clocks are set forward over this time, the second is the first one after. If it comes twice because they are set
    back, the second is that of its first time. Then the second part of the result is a sentence that says so; otherwise
    it is empty.

    Raises:
        ValueError: the day, the time of day or the zone does not exist.
    """
    found = _LOCAL.fullmatch(text)
    if found is None:
        return None
    day, time_of_day, name = found.groups()
    return local_second(datetime.fromisoformat(f"{day}T{time_of_day}"), name)


def local_second(local: datetime, name: str) -> tuple[int, str]:
    """Return the epoch second of a naive datetime in a zone, rounded up, and a sentence; see :func:`parse_local`.

    Raises:
        ValueError: the zone does not exist.
    """
    zone = zone_of(name)
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    due_s = epoch_second(first.astimezone(UTC))
    if first.utcoffset() == second.utcoffset():
        return due_s, ""
    shown = f"{local.isoformat()} in {name}"
    if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != local:
        due_s = change_of_offset(name, epoch_second(second.astimezone(UTC)), due_s)
        at = datetime.fromtimestamp(due_s, zone).isoformat()
        return due_s, f"there is no {shown}, where clocks are set forward: the first second after is {at}"
    return due_s, (
        f"{shown} comes twice, because clocks are set back: {first.isoformat()} is taken, the first; the second is "
        f"{second.isoformat()}"
    )
