"""Timers with an id: what a record asks for, what is remembered of an id, and what became of it.

On the hot path these are plain tuples, as rows are.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from timers.core.keys import OrderKey

Operation: TypeAlias = tuple[bytes, int, int | None, int]
"""(id, source offset, due second or None to cancel, append second). A timer of this id has its row beside it. Of a
cancel the last is the offset of the only version that it speaks of, or :data:`ANY_VERSION`."""

ANY_VERSION = -1
"""A cancel is meant for whatever version there is: it is a user's."""

Entry: TypeAlias = tuple[int, int, int]
"""(due second, source offset, append second) of the latest version of an id; the first two are its order key."""

Entries: TypeAlias = dict[bytes, Entry | None]
"""Id -> its latest version; None ends the history of the id."""

NO_ENTRIES: Mapping[bytes, Entry | None] = MappingProxyType({})

CANCELLED = "cancelled"
"""The timer was pending, and never fires."""
REPLACED = "replaced"
"""The timer was pending, and never fires: a new version takes its place."""
ALREADY_FIRED = "already-fired"
"""The cancel came too late; or the update did, and is a timer of its own."""
UNKNOWN = "unknown"
"""There is no timer of this id: there never was, or it was cancelled, or has fired too long ago."""
VERDICTS = (CANCELLED, REPLACED, ALREADY_FIRED, UNKNOWN)


class Verdict(NamedTuple):
    """What a cancel or an update came to."""

    id: bytes
    offset: int
    """Of the record that asked."""
    verdict: str
    """One of :data:`VERDICTS`."""
    due_s: int | None
    """Due second of the timer that it speaks of, None if that is unknown."""


class Judged(NamedTuple):
    """What new operations come to."""

    entries: Entries
    """To be written with the batch."""
    verdicts: Sequence[Verdict] = ()
    """To be committed before that [I2]."""
    superseded: Sequence[OrderKey] = ()
    """Versions that are alive and stand before a tombstone which is not about them; to be appended again."""
