"""The newest operations of an index, in memory and in a journal in the store.

A timer that fires soon is set, looked up, and ended by its tombstone. With one RocksDB key for each id, this needs a
put, a get and a delete at random places, which take longer than all other work on the timer. So the operations of one
batch are one entry of the journal, and stay in memory.

The ids in memory form two sets, newer and older. Each batch writes some ids of the older set to the index in the
database. When all are written, the older part of the journal is deleted. When the newer set is full, it becomes the
older one. Most ids are ended before that, and never become a key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from timers.core.operation import Entry, message_of

ENTRY_BYTES = 250
"""Memory of an entry in one set, besides its id."""

_ABSENT: Final = (-1, -1, -1)


def _size(entries: Mapping[bytes, Entry | None]) -> int:
    """Memory of entries in one set."""
    size = sum(map(len, entries)) + ENTRY_BYTES * len(entries)
    if (
        message_of(next((entry for entry in entries.values() if entry is not None), None)) is None
    ):  # all entries of an index are of one kind
        return size
    return size + sum(len(key) + len(value) for key, value in filter(None, map(message_of, entries.values())))


class IndexJournal:
    """Newest ids of an index, which are looked up in memory instead of in the database.

    Args:
        max_bytes: returns how much memory the newer set may take.

    Attributes:
        older_first: number of the first batch in the journal.
        newer_first: number of the first batch of the newer set.
        next: number of the next batch.
    """

    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._newer_bytes = 0
        self._newer: dict[bytes, Entry | None] = {}
        self._older: dict[bytes, Entry | None] = {}
        self._unwritten: list[bytes] = []
        self._written = self._written_next = 0
        self.older_first = self.newer_first = self.next = 0

    def __contains__(self, id: bytes) -> bool:
        return id in self._newer or id in self._older

    def items(self) -> Iterator[tuple[bytes, Entry | None]]:
        """Each id in memory, with its newest entry."""
        yield from ((id, entry) for id, entry in self._older.items() if id not in self._newer)
        yield from self._newer.items()

    def restore(self, number: int, entries: Mapping[bytes, Entry | None]) -> None:
        """Add batch ``number`` of the journal to the memory. Call on opening, for each batch in ascending order."""
        if not self._newer:
            self.older_first = self.newer_first = number
        self._add(entries)
        self.next = number + 1

    def find(self, ids: Collection[bytes]) -> tuple[dict[bytes, Entry | None], list[bytes]]:
        """The entries of the ids that are in memory (None: the id has ended), and the ids that are not in memory."""
        get = self._newer.get
        found: dict[bytes, Entry | None] = {id: get(id, _ABSENT) for id in ids}
        missing = [id for id, entry in found.items() if entry is _ABSENT]
        if missing:
            older = self._older
            found |= {id: older[id] for id in missing if id in older}
            missing = [id for id in missing if found[id] is _ABSENT]
            for id in missing:
                del found[id]
        return found, missing

    def _add(self, entries: Mapping[bytes, Entry | None]) -> None:
        newer = self._newer
        self._newer_bytes += _size({id: entry for id, entry in entries.items() if id not in newer})
        newer.update(entries)

    def next_to_index(self, entries: Mapping[bytes, Entry | None]) -> list[tuple[bytes, Entry | None]]:
        """The entries of the older set that a batch with these entries must write to the index.

        Their number is two for each operation, or more if the batch fills a large part of the newer set: if it fills a
        tenth, two tenths of the older set. So the whole older set is written before the newer set is full, whatever the
        lengths of ids are. They are in the order of ids, because RocksDB writes neighbouring keys faster.
        """
        size = _size(entries)
        share = 2 * len(self._unwritten) * size // self._max_bytes()
        self._written_next = min(self._written + max(2 * len(entries), share), len(self._unwritten))
        newer, older = self._newer, self._older
        ids = sorted(id for id in self._unwritten[self._written : self._written_next] if id not in newer)
        return [(id, older[id]) for id in ids]

    def finishes_older_set(self) -> bool:
        """Whether the next batch writes the last entries of the older set. Then its part of the journal is deleted."""
        return self.older_first < self.newer_first and self._written_next == len(self._unwritten)

    def note_written(self, entries: Mapping[bytes, Entry | None]) -> None:
        """Note that the next batch was written, with the entries from :meth:`next_to_index`."""
        self._written = self._written_next
        self._add(entries)
        self.next += 1
        if self._written == len(self._unwritten):
            self.older_first = self.newer_first
            if self._newer_bytes >= self._max_bytes():
                self._older, self._newer, self._newer_bytes = self._newer, {}, 0
                self._unwritten, self._written = list(self._older), 0
                self.newer_first = self.next
