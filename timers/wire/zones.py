"""The time zones of this project: those of the package ``tzdata``, and no others.

:class:`zoneinfo.ZoneInfo` reads the system's zone files first. They differ between images: by a Debian 12 of before
2026, 09:00 of 15 January 2027 in America/Vancouver is an hour later than by the package. So every local time that is
read or shown, by a worker or a sender, goes through :func:`zone`.

A zone that was made by ``ZoneInfo.from_file`` cannot be pickled or deep-copied, so messages and rows hold its name.
"""

from __future__ import annotations

import difflib
import struct
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import import_module, resources
from zoneinfo import ZoneInfo

from timers.core.printable import quoted
from timers.core.repeating import ZoneUnknown

EXAMPLE_ZONE = "Europe/Berlin"

_MAX_NAME = 64
"""The longest name of the package has 32 characters."""

_ZONES = 1024
"""More than the package has names: a zone is read once."""

_ALIKE = 0.85
"""How alike a name must be to be meant, from 0 to 1."""

_OFFSETS = 16_384
_SECOND = timedelta(seconds=1)


class UnknownZone(ZoneUnknown, ValueError):
    """There is no zone of this name in the package ``tzdata``, or the package is missing or damaged.

    It holds only the name: the sentence, which names a zone that may be meant, is made when it is read. A worker meets
    the same unknown zone again and again.
    """

    def __str__(self) -> str:
        return _why_unknown(str(self.args[0]))


def zone(name: str) -> ZoneInfo:
    """Return the zone of an IANA name, such as ``Europe/Berlin``.

    Raises:
        UnknownZone: there is none.
    """
    found = _zone(name) if name in zone_names() else None
    if found is None:
        raise UnknownZone(name)
    return found


@lru_cache(_ZONES)
def _zone(name: str) -> ZoneInfo | None:
    try:
        with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (ImportError, OSError, ValueError, struct.error):
        return None


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones of the package; none if it is missing."""
    try:
        return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())
    except (ImportError, OSError, ValueError):
        return frozenset()


@cache
def zone_data_version() -> str:
    """Return the version of the zone data, such as ``2026f``; empty if the package ``tzdata`` is missing."""
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return ""


@lru_cache(_OFFSETS)
def offset_s(name: str, second: int) -> int:
    """Return the offset of a zone from UTC at an epoch second, in seconds; :func:`zone` says what it raises."""
    offset = datetime.fromtimestamp(second, UTC).astimezone(zone(name)).utcoffset()
    assert offset is not None
    return offset // _SECOND


@lru_cache(_ZONES)
def change_of_offset(name: str, before_s: int, after_s: int) -> int:
    """Return the first epoch second with the offset of ``after_s``, which differs from that of ``before_s``.

    The offset must change only once between them. No zone changes its offset twice in two days.
    """
    offset = offset_s(name, after_s)
    while after_s - before_s > 1:
        middle_s = (before_s + after_s) // 2
        if offset_s(name, middle_s) == offset:
            after_s = middle_s
        else:
            before_s = middle_s
    return after_s


def _why_unknown(name: str) -> str:
    names = sorted(zone_names())
    if name in names:
        return f"the file of zone {name} cannot be read: install the package tzdata again"
    if not names:
        return f"zone {quoted(name[:_MAX_NAME])} cannot be read: the package tzdata is not installed"
    wanted = name[:_MAX_NAME].strip().replace(" ", "_").lower()
    meant = [known for known in names if f"/{known}".lower().endswith(f"/{wanted}")]
    if wanted and not meant:
        by_lower = {known.lower(): known for known in names}
        by_lower |= {known.rsplit("/", 1)[-1].lower(): known for known in names}
        meant = [by_lower[near] for near in difflib.get_close_matches(wanted, by_lower, 1, _ALIKE)]
    hint = f"did you mean {meant[0]}?" if wanted and meant else f"write a region and a city, such as {EXAMPLE_ZONE}"
    return f"there is no zone {quoted(name[:_MAX_NAME])} in the zone data {zone_data_version()}: {hint}"
