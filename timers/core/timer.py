"""A timer while it waits, and what is read from a request topic.

On the hot path a timer is a plain tuple, :data:`Row`: no object per timer is built (a class instance costs more than
everything else that happens to it). Rows travel in lists that share one due second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from timers.core.operation import Operation

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

TopicPartition: TypeAlias = tuple[str, int]
"""(topic, partition)"""


class Origin(NamedTuple):
    """Where a timer came from when its own record does not say: it has an id, or its callback failed and is tried
    again."""

    timer_id: str
    """Identity that it was given, or that it got when it was first accepted."""
    due_s: int
    """The due second first asked for."""
    attempt: int
    """How often sending it has failed."""
    source: str | None = None
    """``<topic>/<partition>/<offset>`` of its request, of one that was moved and has an id, or that was cold. Else the
    id is that."""

    @property
    def request(self) -> str:
        """Where its request stands, once it was moved."""
        return self.source or self.timer_id

    @property
    def has_id(self) -> bool:
        """Whether who asked for it gave it an id, once it was moved."""
        return self.request != self.timer_id


Key: TypeAlias = str | bytes | None
"""Of a callback: a ``Future`` holds text, which is sent as UTF-8; request formats of other formats have any bytes, or
none."""

Row: TypeAlias = tuple[int, str, Key, bytes, Headers | None, Origin | None]
"""(source offset, callback topic, callback key, callback value, headers or None, origin or None)"""


def origin_of(row: Row, due_s: int, source: str) -> Origin:
    """What a timer is known by wherever it goes from its own topic.

    Args:
        row: the timer.
        due_s: its due second.
        source: ``<topic>/<partition>/<offset>`` of the record that it was read from.
    """
    if row[5] is None:
        return Origin(source, due_s, 0)
    origin = Origin(*row[5])
    return origin if origin.source is not None else origin._replace(source=source)


RowsByDue: TypeAlias = dict[int, list[Row]]
"""Due second -> its rows in ascending source offset."""


def key_bytes(key: Key) -> bytes | None:
    """A callback's record key."""
    return key.encode() if isinstance(key, str) else key


def id_text(data: bytes) -> str:
    """A timer's id as a row holds it, whatever its bytes."""
    return data.decode("utf-8", "surrogateescape")


def id_bytes(text: str) -> bytes:
    """The bytes behind :func:`id_text`."""
    return text.encode("utf-8", "surrogateescape")


def bytes_of(rows: Sequence[Row]) -> int:
    """Bytes that rows hold: keys, values and headers; what bounds memory."""
    size = sum([len(row[2] or "") + len(row[3]) for row in rows])
    return size + sum([len(name) + len(value or b"") for row in rows if row[4] for name, value in row[4]])


class Rejected(NamedTuple):
    """A request that cannot be read, kept whole for the dead letter."""

    offset: int
    code: str
    message: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Forwarded(NamedTuple):
    """A request that goes cold."""

    record: Any
    """As it was read: goes whole."""
    due_s: int
    seal: int
    """Key to seal it with."""


class Returned(NamedTuple):
    """A promoted copy of a request that went cold; its row stands among the others."""

    key: bytes
    """What it is remembered by: the timer's id, or the request's offset as 8 bytes."""
    offset: int
    """Of the copy."""
    original: int
    """Offset of the request."""
    due_s: int
    append_s: int
    """Of the copy."""


@dataclass(slots=True)
class Decoded:
    """What a request format made of some records of one partition."""

    rows: RowsByDue = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    """Of a request format whose timers have ids: every good record's that names one, in ascending source offset."""
    forwarded: list[Forwarded] = field(default_factory=list)
    """What goes cold, in ascending source offset; it has no row."""
    returned: list[Returned] = field(default_factory=list)
    """Promoted copies, in ascending offset."""
    ignored: int = 0
    """How many of them do not count."""
    callers: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of a request format that is told who asks: (caller, outcome) -> records."""

    def extend(self, later: Decoded) -> None:
        """Add what was made of the records that follow."""
        for due_s, rows in later.rows.items():
            self.rows.setdefault(due_s, []).extend(rows)
        self.rejected.extend(later.rejected)
        self.operations.extend(later.operations)
        self.forwarded.extend(later.forwarded)
        self.returned.extend(later.returned)
        for caller, count in later.callers.items():
            self.callers[caller] = self.callers.get(caller, 0) + count


class Fetched(NamedTuple):
    """Records of one partition, and the range of offsets they answer for [I13].

    Offsets have holes (transaction markers, aborted records, compaction): ``to_offset`` comes from the fetch, never
    from the records.
    """

    from_offset: int
    """First offset this fetch answers for, inclusive."""
    to_offset: int
    """End of the range, exclusive: where the next fetch begins."""
    records: Sequence[Any]
    """Records in ascending ``.offset``; opaque to the core, which only hands them to the request format's decoder."""


class Tick(NamedTuple):
    """One observed passing of time."""

    append_ms: int
    """Epoch milliseconds at which the broker appended it. The only clock that decides anything."""

    @property
    def second(self) -> int:
        """The epoch second that this tick proves to have begun."""
        return self.append_ms // 1000
