"""The index of a door whose topic may be compacted, where what has fired is ended by a tombstone of the engine's own.

A tombstone ends the story of its id, whoever wrote it: compaction sees no difference either, so a replay of what it has
left comes to the same index. But one of ours is written when a version fires, and a newer version may have come before
it: that one would be gone with it. So whoever accepts such a tombstone first appends the newer version again, behind
the tombstone, in the transaction that commits past it; only that copy is alive from then on.

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

KNOWN = 100_000
"""Most ids whose entry is remembered in memory."""


class ScheduleIndex(Index):
    """Implements what :class:`timers.core.index.Index` does, without verdicts."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, retention_s=0)
        self._known: dict[bytes, int] = {}
        """Id -> offset of its version, as of when it was about to fire; forgotten with any other record of the id. So
        the store need not be asked again when the tombstone comes back."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        """Decide new operations in the order of the log. Only for tombstones of ours is the store asked."""
        forget = self._known.pop
        entries: Entries = {}
        doubtful: list[tuple[bytes, int]] = []
        overtaken: list[OrderKey] = []
        for id, offset, due_s, version in operations:
            known = forget(id, None)
            if due_s is not None:
                entries[id] = (due_s, offset, 0)
                continue
            if version != ANY_VERSION and known != version:
                if id not in entries:
                    doubtful.append((id, version))
                else:
                    self._look(entries[id], version, fired_through, overtaken)
            entries[id] = None
        if doubtful:
            # Of several in one batch the first decides: it leaves nothing for the others.
            stored = self._store.entries({id for id, _ in doubtful})
            for id, version in doubtful:
                self._look(stored.pop(id, None), version, fired_through, overtaken)
        self._written += len(operations)
        return Judged(entries, overtaken=overtaken)

    @staticmethod
    def _look(entry: Entry | None, version: int, fired_through: OrderKey, overtaken: list[OrderKey]) -> None:
        if entry is not None and entry[1] != version and entry[:2] > fired_through:
            overtaken.append(entry[:2])

    def alive(self, due_s: int, rows: list[Row]) -> list[Row]:
        """Those of one due second that are still the latest of their id."""
        alive = super().alive(due_s, rows)
        if len(self._known) < KNOWN:
            self._known.update({id_bytes(row[5][0]): row[0] for row in alive if row[5] is not None})
        return alive
