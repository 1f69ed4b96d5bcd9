"""The disk of a simulated worker: its stores survive a crash of the process."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from tests.harness.memory_store import MemoryStore
from tests.simulation.kit.faults import Faults, Violation
from timers.core.keys import OrderKey
from timers.core.lineage import Lineage
from timers.core.operation import NO_ENTRIES, Entry
from timers.core.ports import HeldOf
from timers.core.timer import NO_ROWS, DueRows, Row, RowsByDue, TopicPartition

_UNSYNCED_WRITES = 6
"""Most write batches that a power loss takes: they were in memory."""


_Image: TypeAlias = tuple[int, Lineage, list[tuple[OrderKey, Row]], dict[bytes, Entry], int | None]
"""A copy of the content of a store."""


class SimStore(MemoryStore):
    """The in-memory store, with points at which the worker may crash, and earlier images for a power loss."""

    def __init__(self, faults: Faults, group: int = 3) -> None:
        super().__init__(group)
        self.faults = faults
        self.closed = False
        self._past: deque[_Image] = deque(maxlen=_UNSYNCED_WRITES)

    @property
    def keys(self) -> list[OrderKey]:
        return [key for key, _ in self._rows]

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self._rows]

    def write(
        self,
        rows: RowsByDue,
        applied: int,
        entries: Mapping[bytes, Entry | None] = NO_ENTRIES,
        lineage: Lineage | None = None,
        held: RowsByDue = NO_ROWS,
    ) -> None:
        self.faults.point("before a store write")
        self._past.append(self._image())
        super().write(rows, applied, entries, lineage, held)
        self.faults.point("after a store write")

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        self.faults.point("before a store delete")
        self._past.append(self._image())
        super().delete(through, count, rest, kept)
        self.faults.point("after a store delete")

    def replace(self, groups: Sequence[tuple[DueRows, list[Row]]]) -> None:
        self.faults.point("before a store delete")
        self._past.append(self._image())
        super().replace(groups)
        self.faults.point("after a store delete")

    def drop_through(
        self,
        fired_through: OrderKey,
        next_offset: int,
        held_of: HeldOf | None = None,
        *,
        indexed: bool = False,
    ) -> bool:
        self._past.append(self._image())
        is_usable = super().drop_through(fired_through, next_offset, held_of, indexed=indexed)
        self.faults.point("after opening a store")
        return is_usable

    def _load(self, key: bytes, value: bytes) -> None:
        self.faults.point("while a store is restored")
        self._past.append(self._image())
        super()._load(key, value)

    def sync(self) -> None:
        """Let a loss of power take nothing that was written so far."""
        self._past.clear()

    def note_read_through(self, second: int) -> None:
        self._past.append(self._image())
        super().note_read_through(second)

    def protect(self, *, on: bool) -> None:
        super().protect(on=on)
        if on:
            self._past.clear()

    def _image(self) -> _Image:
        return self.applied, self.lineage, self._rows[:], self._entries.copy(), self.read_through_s

    def close(self) -> None:
        """Release its lock. A process that crashes here closes nothing."""
        if self.release is not None and not self.faults.has_crashed:
            self.release()

    def discard(self) -> None:
        """As :meth:`condemn`: a store that is used after that is empty when it is opened again."""
        self.condemn()

    release: Callable[[], None] | None = None

    def empty(self) -> None:
        self.applied, self.lineage, self._rows, self._entries, self.read_through_s = 0, Lineage(), [], {}, None
        self.condemned = False
        self._past.clear()  # its directory was deleted

    def lose_power(self, writes: int) -> None:
        """Lose the last ``writes`` write batches."""
        for _ in range(min(writes, len(self._past))):
            self.applied, self.lineage, self._rows, self._entries, self.read_through_s = self._past.pop()


class SimDisk:
    """The stores of one worker, by machine."""

    def __init__(self, store: type[SimStore] = SimStore) -> None:
        self._store = store
        self._stores: dict[TopicPartition, SimStore] = {}
        self._open: set[TopicPartition] = set()

    def open(self, machine: TopicPartition, faults: Faults) -> SimStore:
        """Open the store of ``machine``. A store has one lock, as in RocksDB."""
        if machine in self._open:
            raise Violation(f"the store of {machine} is open already")
        if machine not in self._stores:
            self._stores[machine] = self._store(faults)
        elif self._stores[machine].condemned:
            self._stores[machine].empty()
        self._open.add(machine)
        self._stores[machine].closed = False
        self._stores[machine].release = partial(self.close, machine)
        return self._stores[machine]

    def applied(self, machine: TopicPartition) -> int:
        """Offset up to which the store of ``machine`` was written; 0 without a store."""
        return self._stores[machine].applied if machine in self._stores else 0

    def beside(self, faults: Faults) -> SimStore:
        """An empty store beside the one that is open."""
        return self._store(faults)

    def use(self, machine: TopicPartition, store: SimStore) -> None:
        """Put a store in the place of that of ``machine``. It was closed before, so all of it is on the disk."""
        store.sync()
        self._stores[machine] = store

    def close(self, machine: TopicPartition) -> None:
        self._open.discard(machine)
        if machine in self._stores:
            self._stores[machine].closed = True

    def crash(self) -> None:
        """Release all locks, as after a crash of the process."""
        self._open.clear()

    def lose_power(self, writes: int) -> None:
        """Crash, and lose the last ``writes`` write batches of each store."""
        self.crash()
        for store in self._stores.values():
            store.lose_power(writes)

    def kill(self) -> None:
        """Crash, and lose the last write batches of each store that was open and need not survive a crash."""
        self.crash()
        for store in self._stores.values():
            if not store.protected and not store.closed:
                store.lose_power(_UNSYNCED_WRITES)

    def wipe(self) -> None:
        """Lose all stores."""
        assert not self._open, "the process must end before its disk is lost"
        self._stores.clear()
