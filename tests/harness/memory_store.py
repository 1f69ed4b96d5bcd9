"""The store in memory, of which snapshots can be taken, and into which they can be restored."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from timers.core.keys import pack as pack_key
from timers.core.ports import Page
from timers.core.progress import SettingChange
from timers.machines.store import layout, memory


@dataclass
class MemoryView:
    """Implements :class:`timers.core.ports.View`."""

    applied: int
    rows: int
    history: tuple[SettingChange, ...]
    items: Iterable[tuple[bytes, bytes]]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.items)

    def close(self) -> None:
        """Do nothing: it is a copy."""


class MemoryStore(memory.MemoryStore):
    """Implements :class:`timers.core.ports.SnapshotStore`."""

    def view(self) -> MemoryView:
        pack = layout.packer()
        items = [(pack_key(due_s, row[0]), pack([row])) for (due_s, _), row in self._rows]
        items += sorted((layout.INDEX + id, layout.pack_entry(entry)) for id, entry in self._entries.items())
        items += sorted(layout.pack_lineage(self.lineage))
        if self.read_through_s is not None:
            items.append((layout.READ_THROUGH, layout.U64.pack(self.read_through_s)))
        return MemoryView(self.applied, self.pending, self.history, items)

    def restore(self, pages: Iterable[Page], applied: int, history: tuple[SettingChange, ...]) -> None:
        for page in pages:
            for key, value in page:
                self._load(key, value)
        self.applied, self.history = applied, history

    def _load(self, key: bytes, value: bytes) -> None:
        if key < layout.ROWS_END:
            due_s = layout.U64.unpack_from(key)[0]
            self._rows += [((due_s, row[0]), row) for row in layout.unpack(value)]
        elif key < layout.OTHER:
            self._entries[key[1:]] = layout.unpack_entry(value)
        elif key == layout.LINEAGE:
            self.lineage = layout.unpack_lineage(value, None)._replace(counted=self.lineage.counted)
        elif key == layout.COUNT:
            self.lineage = self.lineage._replace(counted=layout.unpack_lineage(None, value).counted)
        elif key == layout.READ_THROUGH:
            (self.read_through_s,) = layout.U64.unpack(value)
