"""The index of schedules, whose topic may be compacted. The engine writes a tombstone for each fired schedule [I19].

Every tombstone ends the history of its id. Compaction treats all tombstones alike too, so a replay of the
compacted log builds the same index. The engine writes a tombstone when a version fires. A newer version may have
come before this tombstone, and would be deleted with the older one. So the machine that accepts such a tombstone
republishes the newer version: it appends it again after the tombstone, in the transaction that accepts the tombstone.
From then on only this copy is the latest version.

Republishing ends: one copy for a tombstone, one tombstone for a firing, one firing for a version. No version of the id
can fire until the copy is read. So all tombstones that the machine has not read are before the copy, and do not end it.

Senders of schedules get no verdicts, so fired versions need not be remembered: an entry at or below ``fired_through``
counts as none, and its tombstone or a sweep removes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.index import Index
from timers.core.keys import OrderKey
from timers.core.operation import Entries, Entry, OperationResults, key_of, offset_of
from timers.core.ports import Store
from timers.core.progress import Hole
from timers.core.timer import Decoded

OVERDUE = "overdue"
"""Error code of a schedule that was due before it was written, if the settings reject such schedules."""


class ScheduleIndex(Index):
    """An index without verdicts, which republishes superseded versions."""

    fires_first = True

    def __init__(self, store: Store, holes: Sequence[Hole] = ()) -> None:
        super().__init__(store, retention_s=0, holes=holes)

    def judge(self, decoded: Decoded, fired_through: OrderKey, committed: OrderKey) -> OperationResults:
        """Returns entries and superseded versions of operations. Reads the store only for tombstones of the engine."""
        entries: Entries = {}
        named_versions: list[tuple[bytes, int]] = []
        superseded: list[OrderKey] = []
        for id, offset, due_s, append_s in decoded.operations:
            if due_s is not None:
                entries[id] = (due_s, offset, append_s)
                continue
            version = decoded.fired_versions.get(offset)
            if version is not None:
                if id in entries:
                    self._note_if_superseded(entries[id], version, fired_through, superseded)
                else:
                    named_versions.append((id, version))
            entries[id] = None
        if named_versions:
            known = self._store.entries([id for id, _ in named_versions])
            for id, version in named_versions:
                self._note_if_superseded(known.get(id), version, fired_through, superseded)
        return OperationResults(entries, superseded=superseded)

    def _note_if_superseded(
        self, entry: Entry | None, version: int, fired_through: OrderKey, superseded: list[OrderKey]
    ) -> None:
        """Note the entry as superseded, if the tombstone is for another version, and the entry has not fired."""
        if entry is not None and offset_of(entry) != version and not self._has_fired(entry, fired_through):
            superseded.append(key_of(entry))
