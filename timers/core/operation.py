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

ABSENT: Final = "absent"
"""The condition of a request that counts only if there is no timer of its id (:mod:`timers.core.only_if`)."""

Entry: TypeAlias = tuple[int, int, int] | tuple[int, int, int, int] | tuple[int, int, int, bytes, bytes]
"""(due second, source offset, append second) of the latest version of an id; the first two are its order key. The entry
of a promoted copy also has the offset of its request. The entry of a message that a marker tracks
(:mod:`timers.core.markers`) also has its key and value."""

CANCELLED_DUE_S = -1
"""Due second in the entry of a cancelled id: its key is below all others, so it counts as fired."""

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
SET: Final = "set"
"""The condition was true, and no timer was pending: the new one is set."""
EXISTS: Final = "exists"
"""The request counts only without a timer of its id, and there is one, or there was one a short time ago."""
CHANGED: Final = "changed"
"""The request was made for another version than the latest one."""
TOO_LATE: Final = "too-late"
"""The request was made for the latest version, and was appended in its due second or later."""
REFUSED: Final = (EXISTS, CHANGED, TOO_LATE)
"""Verdicts on requests that change nothing, because their condition was not true."""
VERDICTS = (CANCELLED, REPLACED, ALREADY_FIRED, UNKNOWN, SET, *REFUSED)
VerdictName: TypeAlias = Literal[
    "cancelled", "replaced", "already-fired", "unknown", "set", "exists", "changed", "too-late"
]

NO_VERSION = -1
"""In a verdict on a request with a condition: its id has no version."""


class Verdict(NamedTuple):
    """The answer to a cancel, a replacement, or a request with a condition."""

    id: bytes
    offset: int
    """Offset of the request."""
    verdict: VerdictName
    due_s: int | None
    """Due second of the former timer; None if it is not known."""
    version: int | None = None
    """If the request has a condition: offset of the latest record of the id that counts, or :data:`NO_VERSION`."""


class OperationResults(NamedTuple):
    """What new operations change in the index, and the answers to their senders."""

    entries: Entries
    """Entries to write with the batch."""
    verdicts: Sequence[Verdict] = ()
    """Verdicts to commit before the entries are written [I2]."""
    superseded: Sequence[OrderKey] = ()
    """Versions to republish: a tombstone of an older version is after them in the log."""
    refused: int = 0
    """Number of requests for a timer that change nothing, because their condition was not true."""


NO_RESULTS = OperationResults({})
