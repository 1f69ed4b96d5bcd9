"""Timers with an id: operations of records, entries of the index, and verdicts.

On the hot path operations and entries are plain tuples, like rows. Named tuples would cost more than the decisions:
Python's garbage collector stops tracking plain tuples of numbers, and never those of a subclass. With its default
settings the acceptance of a request takes 9.5 µs with plain tuples, and 15 µs with named ones. So functions of this
file name their fields, and only they know the positions and the lengths.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from timers.core.keys import OrderKey

Operation: TypeAlias = tuple[bytes, int, int | None, int]
"""(id, source offset, due second or None to cancel, append second). An operation with a due second has a row too. The
append second is 0 in schedules, whose index does not need it."""

id_of: Callable[[Operation], bytes] = itemgetter(0)
"""Returns the id of an operation."""

ABSENT: Final = "absent"
"""The condition of a request that counts only if there is no timer of its id (:mod:`timers.core.only_if`)."""

Version: TypeAlias = tuple[int, int, int]
"""(due second, source offset, append second); the first two are the order key."""

PromotedVersion: TypeAlias = tuple[int, int, int, int]
"""A version that came back from the cold tier: (due second, offset and append second of the copy, offset of the
request)."""

TrackedMessage: TypeAlias = tuple[int, int, int, bytes, bytes]
"""A version of a message that markers track (:mod:`timers.core.index`), with its key and value."""

RepeatingVersion: TypeAlias = tuple[int, int, int, int, bytes, int]
"""The latest record of a timer that repeats (:mod:`timers.core.repeating`): (due second and offset of its occurrence,
the later one of due second and append second, offset of the definition, digest and append second of the definition).
Until the first occurrence is read, the first three are those of the definition: its append second is the due second."""

LastVersion: TypeAlias = tuple[int, int, int, int, bytes, int, bool]
"""The last occurrence of a timer that repeats: as :data:`RepeatingVersion`, and True. It ends as any timer does."""

Entry: TypeAlias = Version | PromotedVersion | TrackedMessage | RepeatingVersion | LastVersion
"""The latest version of an id."""

due_s_of: Callable[[Entry], int] = itemgetter(0)
offset_of: Callable[[Entry], int] = itemgetter(1)
append_s_of: Callable[[Entry], int] = itemgetter(2)
key_of: Callable[[Entry], OrderKey] = itemgetter(slice(0, 2))
"""Returns the order key of an entry."""
version_of: Callable[[Entry], Version] = itemgetter(slice(0, 3))
further_fields_of: Callable[[Entry], tuple[object, ...]] = itemgetter(slice(3, None))
"""Returns what an entry has beside its version: nothing, unless it is a promoted version or a message."""


def request_of(entry: Entry) -> int:
    """Returns the offset of the request that set a version; that of a promoted version, or of an occurrence, is not its
    source offset."""
    return entry[3] if len(entry) == 4 or len(entry) >= 6 else entry[1]


def defined(offset: int, append_s: int, digest: bytes) -> RepeatingVersion:
    """Returns the entry of an id after the definition at ``offset``."""
    return append_s, offset, append_s, offset, digest, append_s


def repeated(due_s: int, offset: int, append_s: int, former: RepeatingVersion, *, is_last: bool) -> Entry:
    """Returns the entry of an id after the occurrence at ``offset``, which takes the place of ``former``."""
    _, _, _, version, digest, begun_s = former
    after = due_s, offset, due_s if due_s > append_s else append_s, version, digest, begun_s
    return (*after, True) if is_last else after


def repeating(entry: Entry | None) -> RepeatingVersion | None:
    """Returns an entry if the latest record of its id is one that another occurrence follows: it is never over."""
    return entry if entry is not None and len(entry) == 6 else None


def chain_of(entry: Entry | None) -> RepeatingVersion | None:
    """Returns what :func:`repeating` returns, and the same of a last occurrence."""
    if entry is None or len(entry) < 6:
        return None
    return entry if len(entry) == 6 else entry[:6]


place_of: Callable[[RepeatingVersion], tuple[int, int]] = itemgetter(1, 3)
"""Returns the offsets of the latest record of a timer that repeats, and of its definition."""


def digest_of(entry: RepeatingVersion) -> bytes:
    """Returns the digest of the definition."""
    return entry[4]


def message_of(entry: Entry | None) -> tuple[bytes, bytes] | None:
    """Returns (key, value) of a message that markers track; None for other entries."""
    return entry[3:] if entry is not None and len(entry) == 5 else None


_CANCELLED_DUE_S = -1
"""Its key is below all others, so a cancelled id counts as fired."""


def cancelled(offset: int, time_s: int) -> Version:
    """Returns the entry of an id that a cancel at ``offset`` has ended in second ``time_s``."""
    return _CANCELLED_DUE_S, offset, time_s


def is_cancelled(entry: Entry) -> bool:
    """Whether the latest operation of an id is a cancel."""
    return entry[0] == _CANCELLED_DUE_S


Entries: TypeAlias = dict[bytes, Entry | None]
"""Id -> its latest version; None removes the entry."""

NO_ENTRIES: Mapping[bytes, Entry | None] = MappingProxyType({})

CANCELLED: Final = "cancelled"
"""The timer was pending and does not fire."""
REPLACED: Final = "replaced"
"""The timer was pending and does not fire: a new version replaces it."""
ALREADY_FIRED: Final = "already-fired"
"""The cancel or the replacement came too late; a replacement is then a new timer. Not for a request that names a
version."""
UNKNOWN: Final = "unknown"
"""No timer has this id: it never had one, or it was cancelled, or it fired so long ago that the retention has ended."""
SET: Final = "set"
"""The condition was true, and no timer was pending: the new one is set."""
EXISTS: Final = "exists"
"""The request counts only without a timer of its id, and there is one, or there was one a short time ago."""
CHANGED: Final = "changed"
"""The request was made for another version than the latest one."""
TOO_LATE: Final = "too-late"
"""The request was made for the latest version, and was appended in its due second or later, or read after it fired."""
UNCHANGED: Final = "unchanged"
"""The request for a timer that repeats asks for what its latest version asks for: nothing changes."""
REFUSED: Final = (EXISTS, CHANGED, TOO_LATE)
"""Verdicts on requests that change nothing, because their condition was not true."""
VERDICTS = (CANCELLED, REPLACED, ALREADY_FIRED, UNKNOWN, SET, UNCHANGED, *REFUSED)
VerdictName: TypeAlias = Literal[
    "cancelled", "replaced", "already-fired", "unknown", "set", "unchanged", "exists", "changed", "too-late"
]

NO_VERSION = -1
"""In a verdict on a request with a condition: its id has no version."""


class Verdict(NamedTuple):
    """The answer to a cancel, a replacement, or a request with a condition or that asks for one."""

    id: bytes
    offset: int
    """Offset of the request."""
    verdict: VerdictName
    due_s: int | None
    """Due second of the former timer; None if it is not known."""
    version: int | None = None
    """If the request has a condition: offset of the latest record of the id that counts, or :data:`NO_VERSION`."""
    held: tuple[str, int, int] | None = None
    """Reason, number and first second of the hold that held the former timer; None: it was not held."""


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
    late_changes: tuple[int, ...] = ()
    """Offsets to add to :attr:`timers.core.progress.Progress.late_changes`, in the transaction of the verdicts."""
    begun: Sequence[int] = ()
    """Offsets of the definitions that count: the first occurrence of each is appended."""
    unlisted: int = 0
    """Number of requests that count although the version that they name has fired: the list is full."""


NO_RESULTS = OperationResults({})
