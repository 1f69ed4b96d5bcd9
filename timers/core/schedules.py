"""The index of a request format whose topic may be compacted, where what has fired is ended by a tombstone of the
engine's own [I19].

A tombstone ends the history of its id, whoever wrote it: compaction sees no difference either, so a replay of what it
has left comes to the same index. But one of ours is written when a version fires, and a newer version may have come
before it: that one would be gone with it. So whoever accepts such a tombstone first appends the newer version again,
behind the tombstone, in the transaction that commits past it; only that copy is alive from then on.

It comes to an end: each copy answers a tombstone, each tombstone a firing, and a version fires once. Until its copy is
read nothing of the id can fire, so all tombstones that were under way stand before the copy and find nothing.

Nobody is told of cancels and updates, so what has fired need not be remembered: an entry at or below ``fired_through``
is as good as none, and its tombstone, or a sweep, removes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.index import Index
from timers.core.keys import OrderKey
from timers.core.operation import ANY_VERSION, Entries, Entry, Judged, Operation
from timers.core.ports import Store
from timers.core.timer import Row, id_bytes

OVERDUE = "overdue"
"""Code of a schedule that was due before it was written, where such schedules are rejected."""


class ScheduleIndex(Index):
    """Implements what :class:`timers.core.index.Index` does, without verdicts."""

    fires_first = True

    def __init__(self, store: Store) -> None:
        super().__init__(store, retention_s=0)

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        """Decide new operations in the order of the log. Only for tombstones of ours is the store asked."""
        entries: Entries = {}
        named: list[tuple[bytes, int]] = []
        superseded: list[OrderKey] = []
        for id, offset, due_s, version in operations:
            if due_s is not None:
                entries[id] = (due_s, offset, 0)
                continue
            if version != ANY_VERSION:
                if id in entries:
                    self._look(entries[id], version, fired_through, superseded)
                else:
                    named.append((id, version))
            entries[id] = None
        if named:
            known = self._store.entries([id for id, _ in named])
            for id, version in named:
                self._look(known.get(id), version, fired_through, superseded)
        return Judged(entries, superseded=superseded)

    @staticmethod
    def _look(entry: Entry | None, version: int, fired_through: OrderKey, superseded: list[OrderKey]) -> None:
        if entry is not None and entry[1] != version and entry[:2] > fired_through:
            superseded.append(entry[:2])

    def alive(self, due_s: int, rows: list[Row]) -> list[Row]:
        """Those of one due second that are still the latest of their id."""
        ids = [id_bytes(row[5][0]) for row in rows if row[5] is not None]
        latest = map(self._store.entries(ids).get, ids)
        return [row for row, entry in zip(rows, latest, strict=True) if entry is not None and entry[1] == row[0]]
