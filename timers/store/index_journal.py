"""The latest operations of an index: in memory and in a journal, so that most never become keys of their own.

A schedule that fires soon is set, looked up, and ended by its tombstone. As a key of RocksDB that is a put, a get and
a delete, each at a place of its own, which takes longer than all else that happens to it. So the operations of a batch
are one entry of a journal, and are kept in memory, in two generations. When the young one is full it takes the place of
the old one, whose ids have become keys by then, a few with each batch, and whose part of the journal is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from timers.core.operation import Entry

_ABSENT: Final = (-1, -1, -1)


class IndexJournal:
    """What need not be looked up in the database.

    Args:
        size: asked for how many ids are kept in a generation.

    Attributes:
        first: number of the first batch in the journal.
        turned: number of the first batch that is not in the old generation.
        next: number of the next batch.
    """

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size
        self._young: dict[bytes, Entry | None] = {}
        self._old: dict[bytes, Entry | None] = {}
        self._leaving: list[bytes] = []
        self._left = 0
        self.first = self.turned = self.next = 0

    def __contains__(self, id: bytes) -> bool:
        return id in self._young or id in self._old

    def restore(self, number: int, entries: Mapping[bytes, Entry | None]) -> None:
        """On opening: batch ``number`` of the journal, in their order."""
        if not self._young:
            self.first = self.turned = number
        self._young.update(entries)
        self.next = number + 1

    def find(self, ids: Collection[bytes]) -> tuple[dict[bytes, Entry | None], list[bytes]]:
        """Entries of those that are here, None of an id whose history has ended; and the ids that are not here."""
        get = self._young.get
        found: dict[bytes, Entry | None] = {id: get(id, _ABSENT) for id in ids}
        missing = [id for id, entry in found.items() if entry is _ABSENT]
        if missing:
            old = self._old
            found |= {id: old[id] for id in missing if id in old}
            missing = [id for id in missing if found[id] is _ABSENT]
            for id in missing:
                del found[id]
        return found, missing

    def leaving(self, operations: int) -> list[tuple[bytes, Entry | None]]:
        """What becomes keys in the batch that brings so many operations: two for each, so that the old generation is
        through before the young one is full. In the order of ids, so that neighbours go to neighbouring places."""
        young, old = self._young, self._old
        ids = sorted(id for id in self._leaving[self._left : self._left + 2 * operations] if id not in young)
        return [(id, old[id]) for id in ids]

    def is_last(self, operations: int) -> bool:
        """Whether nothing of the old generation is left after that: then its journal can go."""
        return self.first < self.turned and self._left + 2 * operations >= len(self._leaving)

    def wrote(self, entries: Mapping[bytes, Entry | None]) -> None:
        """The next batch was written, with all that."""
        self._left = min(self._left + 2 * len(entries), len(self._leaving))
        self._young.update(entries)
        self.next += 1
        if self._left == len(self._leaving):
            self.first = self.turned
            if len(self._young) >= self._size():
                self._old, self._young = self._young, {}
                self._leaving, self._left = list(self._old), 0
                self.turned = self.next
