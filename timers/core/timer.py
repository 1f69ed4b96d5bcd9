"""Types for pending timers, decoded requests, fetches and ticks.

On the hot path a timer is a plain tuple, :data:`Row`: a class instance for each timer would take longer than all other
work on it. Rows are kept in lists of one due second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from timers.core.lineage import Lineage, PassedBatch
from timers.core.operation import Operation
from timers.core.sums import bytes_of

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

TopicPartition: TypeAlias = tuple[str, int]
"""(topic, partition)"""


class Origin(NamedTuple):
    """Identity of a timer, if its offset is not enough: it has an id, was moved to the retry topic, or was cold."""

    timer_id: str
    """The id that the sender gave, or the source of the request."""
    due_s: int
    """The due second of the request."""
    attempt: int
    """Number of failed attempts."""
    source: str | None = None
    """``<topic>/<partition>/<offset>`` of the request, for a moved timer with an id and for a timer that was cold; None
    if ``timer_id`` is the source."""

    @property
    def request(self) -> str:
        """``<topic>/<partition>/<offset>`` of the request of a moved timer."""
        return self.source or self.timer_id

    @property
    def has_id(self) -> bool:
        """Whether the sender of a moved timer gave it an id."""
        return self.request != self.timer_id


Key: TypeAlias = str | bytes | None
"""Key of a callback: text of a ``Future``, sent as UTF-8; bytes or None in other request formats."""

Row: TypeAlias = tuple[int, str, Key, bytes, Headers | None, Origin | None]
"""(source offset, callback topic, callback key, callback value, headers or None, origin or None)"""


def origin_of(row: Row, due_s: int, source: str) -> Origin:
    """Returns the identity of a timer that leaves its own topic.

    Args:
        source: ``<topic>/<partition>/<offset>`` of the record that it was read from.
    """
    if row[5] is None:
        return Origin(source, due_s, 0)
    origin = Origin(*row[5])
    return origin if origin.source is not None else origin._replace(source=source)


RowsByDue: TypeAlias = dict[int, list[Row]]
"""Due second -> its rows in ascending source offset."""

NO_ROWS: RowsByDue = {}
"""Never changed."""

DueRows: TypeAlias = tuple[int, list[Row]]
"""(due second, some of its rows in ascending source offset)"""


def without(rows: list[Row], some: Sequence[Row]) -> list[Row]:
    """Returns the rows that are not among some of them, which are in the same order."""
    if not some:
        return rows
    if len(some) == len(rows):
        return []
    offsets = {row[0] for row in some}
    return [row for row in rows if row[0] not in offsets]


RUN_BYTES = 256 * 1024
"""Stored groups are looked up in the index together up to this size,"""
RUN_ROWS = 2_000
"""and until they have so many rows."""


def runs(scanned: Iterable[DueRows], max_rows: int, max_bytes: int) -> Iterator[tuple[list[DueRows], int, int]]:
    """Yields what is looked up in the index together: (rows by due second, number of rows, their size in bytes).

    Each stored group holds the timers of one fetch and second, often only a few. Each later step has a cost for
    each call.
    """
    run: list[DueRows] = []
    before = count = size = 0
    for due_s, rows in scanned:
        group_bytes = bytes_of(rows)
        if run and (size + group_bytes > max_bytes or count >= RUN_ROWS or before + count >= max_rows):
            yield run, count, size
            run, before, count, size = [], before + count, 0, 0
        run.append((due_s, rows))
        count += len(rows)
        size += group_bytes
    if run:
        yield run, count, size


def key_bytes(key: Key) -> bytes | None:
    """Returns the record key of a callback."""
    return key.encode() if isinstance(key, str) else key


def id_text(data: bytes) -> str:
    """Returns a timer's id as text, as rows hold it. Bytes that are not UTF-8 are escaped."""
    return data.decode("utf-8", "surrogateescape")


def id_bytes(text: str) -> bytes:
    """Returns the bytes of an id. Inverse of :func:`id_text`."""
    return text.encode("utf-8", "surrogateescape")


CUT_VALUE_BYTES = 4096
"""Bytes that are kept of a value that is too large."""


class CutValue(bytes):
    """The first bytes of a value that is larger than every limit of its partition [I23]. ``len()`` is that of the whole
    value, so every decoder rejects it as it rejects the whole value.

    Attributes:
        length: bytes of the whole value.
    """

    length: int
    sha256: bytes

    @classmethod
    def of(cls, first: bytes, length: int, sha256: bytes) -> CutValue:
        """Returns a cut value; ``first`` are its first bytes."""
        cut = cls(first)
        cut.length, cut.sha256 = length, sha256
        return cut

    def __len__(self) -> int:
        return self.length


class Rejected(NamedTuple):
    """A request that cannot be read, with all its bytes for the dead letter."""

    offset: int
    code: str
    message: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Forwarded(NamedTuple):
    """A request that goes cold."""

    record: Any
    """The request record, forwarded unchanged."""
    due_s: int
    seal: int
    """Secret of the seal."""


class PromotedCopy(NamedTuple):
    """A promoted copy of a cold request. Its row is in ``Decoded.rows``."""

    key: bytes
    """Key of its entry: the timer's id, or the request's offset as 8 bytes."""
    offset: int
    """Offset of the copy."""
    original: int
    """Offset of the request."""
    due_s: int
    append_s: int
    """Append second of the copy."""


class Definition(NamedTuple):
    """A request for a timer that repeats (:mod:`timers.core.repeating`). It has no row."""

    row: Row
    """Its callback, as the first occurrence has it, without the headers of an occurrence."""
    rule: bytes
    """The text of the rule, from which each occurrence can be computed: its first second is in it."""
    append_s: int
    digest: bytes
    """8 bytes: two definitions with the same digest ask for the same."""
    decided_s: int
    """What is due up to this nominal second is not sent: the append second, or less if it comes from another app, which
    says up to where it has sent or skipped it. Only what the first occurrence is depends on it."""


class Follows(NamedTuple):
    """What an occurrence says of its place in the chain."""

    offset: int
    """Offset of the record that it follows."""
    version: int
    """Offset of the definition."""
    is_last: bool
    """Whether none follows it."""


@dataclass(slots=True)
class Decoded:
    """Result of decoding some records of one partition."""

    rows: RowsByDue = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    """Operations of all valid records with an id, in ascending source offset."""
    forwarded: list[Forwarded] = field(default_factory=list)
    """Requests that go cold, in ascending source offset; they have no rows."""
    copies: list[PromotedCopy] = field(default_factory=list)
    """Promoted copies, in ascending offset."""
    ignored: int = 0
    """Number of promoted copies that do not count."""
    callers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(caller, outcome) -> records, if the format names a caller."""
    append_s: dict[int, int] = field(default_factory=dict)
    """If the format has conditions: offset of each operation -> its append second, or 0 if a producer set its time."""
    conditions: dict[int, str] = field(default_factory=dict)
    """Offset of an operation -> its condition: the source of a version, or :data:`timers.core.operation.ABSENT`."""
    asked: set[int] = field(default_factory=set)
    """Offsets of requests that ask for a verdict; others without a condition get none if there is no timer."""

    definitions: dict[int, Definition] = field(default_factory=dict)
    """Offset of an operation -> the definition of a timer that repeats. Such an operation has no row."""
    follows: dict[int, Follows] = field(default_factory=dict)
    """Offset of an operation that is an occurrence -> which record it follows."""

    fired_versions: dict[int, int] = field(default_factory=dict)
    """Offset of a tombstone of the engine -> offset of the version that fired. Other cancels end every version."""

    def extend(self, later: Decoded) -> None:
        """Add the result of the records that follow."""
        for due_s, rows in later.rows.items():
            self.rows.setdefault(due_s, []).extend(rows)
        self.rejected.extend(later.rejected)
        self.operations.extend(later.operations)
        self.forwarded.extend(later.forwarded)
        self.copies.extend(later.copies)
        self.append_s.update(later.append_s)
        self.conditions.update(later.conditions)
        self.asked |= later.asked
        self.definitions.update(later.definitions)
        self.follows.update(later.follows)
        self.fired_versions.update(later.fired_versions)
        self.callers.update(later.callers)

    def drop(self, offsets: Collection[int]) -> None:
        """Remove the timers of these offsets: rows, and requests that would go cold."""
        if not offsets:
            return
        left = {due_s: [row for row in rows if row[0] not in offsets] for due_s, rows in self.rows.items()}
        self.rows = {due_s: rows for due_s, rows in left.items() if rows}
        self.forwarded = [each for each in self.forwarded if each.record.offset not in offsets]


class Fetched(NamedTuple):
    """Records of one partition, and the range of offsets that the fetch covers [I13].

    Offsets have holes (transaction markers, aborted records, compaction). So ``to_offset`` comes from the fetch, not
    from the records.
    """

    from_offset: int
    """Start of the range, inclusive."""
    to_offset: int
    """End of the range, exclusive: where the next fetch begins."""
    records: Sequence[Any]
    """Records in ascending ``.offset``. The core only passes them to the decoder."""
    size: int = 0
    """Bytes that the records unpacked to."""
    passed: Sequence[PassedBatch] = ()
    """The record batches of the range, ascending, also those without committed records. The last one may end after the
    range."""
    connection: int = 0
    """See :class:`timers.core.lineage.Leader`."""
    lineage: Lineage | None = None
    """That of ``to_offset``, from a reader that sees no record batches; None: ``passed`` says it."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick: the time by the brokers' clock."""

    append_ms: int
    """Epoch milliseconds at which the broker appended it. No other clock decides anything [I10]."""
    second: int = field(init=False, repr=False, compare=False)
    """The epoch second that had begun when the tick was appended."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "second", self.append_ms // 1000)


CLOCK_STEP_BACK_S = 2
"""If a tick is more seconds behind than this, the broker's clock went back [I10]; smaller steps are skew."""


def latest_tick(known: Tick | None, seen: Tick) -> Tick:
    """Returns the tick that is the present time after ``seen`` was read: old and duplicate ticks have no effect.

    If ``seen`` is more than :data:`CLOCK_STEP_BACK_S` before ``known``, the broker's clock went back, and ``seen`` is
    the time [I10].
    """
    newer = known is None or seen.append_ms > known.append_ms or seen.second < known.second - CLOCK_STEP_BACK_S
    return seen if newer or known is None else known
