"""Reads instants from text. Fractions of a second are rounded up, so that no timer is early. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

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
