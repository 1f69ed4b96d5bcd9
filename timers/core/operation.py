"""Timers with an id: operations of records, entries of the index, and verdicts.

On the hot path these are plain tuples, like rows: class instances would take longer than the decisions.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from timers.core.keys import OrderKey

Operation: TypeAlias = tuple[bytes, int, int | None, int]
"""(id, source offset, due second or None to cancel, append second). An operation with a due second has a row too. In a
cancel the last number is the offset of the version that it cancels, or :data:`ANY_VERSION`."""

ANY_VERSION = -1
"""In a cancel that a user wrote: it is for every version."""

Entry: TypeAlias = tuple[int, int, int] | tuple[int, int, int, bytes, bytes]
"""(due second, source offset, append second) of the latest version of an id; the first two are its order key. The entry
of a message that a marker tracks (:mod:`timers.core.markers`) also has its key and value."""

Entries: TypeAlias = dict[bytes, Entry | None]
"""Id -> its latest version; None removes the entry."""

NO_ENTRIES: Mapping[bytes, Entry | None] = MappingProxyType({})

CANCELLED: Final = "cancelled"
"""The timer was pending and does not fire."""
REPLACED: Final = "replaced"
"""The timer was pending and does not fire: a new version replaces it."""
ALREADY_FIRED: Final = "already-fired"
"""The cancel or the replacement came too late; a replacement is then a new timer."""
UNKNOWN: Final = "unknown"
"""No timer has this id: it never had one, or it was cancelled, or it fired so long ago that the retention has ended."""
VERDICTS = (CANCELLED, REPLACED, ALREADY_FIRED, UNKNOWN)
VerdictName: TypeAlias = Literal["cancelled", "replaced", "already-fired", "unknown"]


class Verdict(NamedTuple):
    """The answer to a cancel or a replacement."""

    id: bytes
    offset: int
    """Offset of the cancel or the replacement."""
    verdict: VerdictName
    due_s: int | None
    """Due second of the former timer; None if it is not known."""


class OperationResults(NamedTuple):
    """What new operations change in the index, and the answers to their senders."""

    entries: Entries
    """Entries to write with the batch."""
    verdicts: Sequence[Verdict] = ()
    """Verdicts to commit before the entries are written [I2]."""
    superseded: Sequence[OrderKey] = ()
    """Versions to republish: a tombstone of an older version is after them in the log."""
