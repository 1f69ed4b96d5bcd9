"""A worker's disk: stores that outlive the process, until they are lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from timers.core.keys import OrderKey
from timers.core.operation import NO_ENTRIES, Entry
from timers.core.timer import Row, RowsByDue, TopicPartition
from timers.store.memory import MemoryStore
from timers.testing.faults import Faults

_UNSYNCED_WRITES = 6
"""Most write batches that a power loss takes: the write-ahead log is not synced."""


_Image: TypeAlias = tuple[int, list[tuple[OrderKey, Row]], dict[bytes, Entry], int | None]
"""All that a store holds."""


class SimStore(MemoryStore):
    """The in-memory store with places to die at, and a past to fall back to.

    Args:
        faults: of the worker that holds it open.
        group: rows in a group; small, so that chunks end inside a second.
    """

    def __init__(self, faults: Faults, group: int = 3) -> None:
        super().__init__(group)
        self.faults = faults
        self._past: deque[_Image] = deque(maxlen=_UNSYNCED_WRITES)

    @property
    def keys(self) -> list[OrderKey]:
        """Keys of all rows."""
        return [key for key, _ in self._rows]

    @property
    def rows(self) -> list[Row]:
        """All rows in key order."""
        return [row for _, row in self._rows]

    def write(self, rows: RowsByDue, applied: int, entries: Mapping[bytes, Entry | None] = NO_ENTRIES) -> None:
        """Add rows, write or forget entries, and move ``applied``."""
        self.faults.point("before a store write")
        self._past.append(self._image())
        super().write(rows, applied, entries)
        self.faults.point("after a store write")

    def delete(self, through: OrderKey, count: int) -> None:
        """Forget every row at or below ``through``."""
        self.faults.point("before a store delete")
        self._past.append(self._image())
        super().delete(through, count)
        self.faults.point("after a store delete")

    def drop_through(self, fired_through: OrderKey, next_offset: int) -> None:
        """Forget what has fired meanwhile."""
        self._past.append(self._image())
        super().drop_through(fired_through, next_offset)
        self.faults.point("after opening a store")

    def note_read_through(self, second: int) -> None:
        """Remember that all that the log held then is here."""
        self._past.append(self._image())
        super().note_read_through(second)

    def _image(self) -> _Image:
        return self.applied, self._rows[:], self._entries.copy(), self.read_through_s

    def empty(self) -> None:
        """Begin anew."""
        self.applied, self._rows, self._entries, self.read_through_s = 0, [], {}, None
        self.condemned = False

    def lose_power(self, writes: int) -> None:
        """Go back by some write batches, as a disk does that had not synced them."""
        for _ in range(min(writes, len(self._past))):
            self.applied, self._rows, self._entries, self.read_through_s = self._past.pop()


class SimDisk:
    """The stores of one worker, by machine. Survives a crash.

    Args:
        store: what a store is made of.
    """

    def __init__(self, store: type[SimStore] = SimStore) -> None:
        self._store = store
        self._stores: dict[TopicPartition, SimStore] = {}
        self._open: set[TopicPartition] = set()

    def open(self, machine: TopicPartition, faults: Faults) -> SimStore:
        """The store of ``machine``; there is one lock, as RocksDB has."""
        assert machine not in self._open, f"the store of {machine} is open already"
        if machine not in self._stores:
            self._stores[machine] = self._store(faults)
        elif self._stores[machine].condemned:
            self._stores[machine].empty()
        self._open.add(machine)
        return self._stores[machine]

    def close(self, machine: TopicPartition) -> None:
        """Release one store."""
        self._open.discard(machine)

    def crash(self) -> None:
        """The process died: its locks are gone."""
        self._open.clear()

    def lose_power(self, writes: int) -> None:
        """The machine died: so is what was not synced."""
        self.crash()
        for store in self._stores.values():
            store.lose_power(writes)

    def wipe(self) -> None:
        """The disk is gone."""
        assert not self._open, "a disk is lost with the process on it"
        self._stores.clear()
