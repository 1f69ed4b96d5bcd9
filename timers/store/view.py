"""What a store holds at one moment, read once from its first key to its last one, while its machine goes on.

It is one plain iterator of RocksDB, which shows the database as it was when the iterator was made. rocksdict's
``Rdict.snapshot()`` does not: in version 0.3.29 its ``items()`` and ``iter()`` read the present state.

The iterator keeps the memory and the files that it reads, also those that the machine has replaced since, and the lock
of a closed store.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from timers.core.ports import Lost
from timers.core.progress import SettingChange
from timers.store import layout
from timers.store.database import Database
from timers.store.failures import INCOMPLETE, UNREADABLE

SLICE_BYTES = 256 * 1024
"""Bytes that are read before :meth:`RocksView.close` of another thread may end the view."""

COPIED = (layout.LINEAGE, layout.READ_THROUGH)
"""Of the last keys. The others count what one database has written, or come from the progress."""


class RocksView:
    """Implements :class:`timers.core.ports.View`. One thread reads it, and any other one may close it."""

    def __init__(
        self, db: Database, applied: int, rows: int, history: tuple[SettingChange, ...], read_through_s: int | None
    ) -> None:
        self.applied, self.rows, self.history = applied, rows, history
        self._read_through_s = read_through_s or 0
        self._db = db
        self._lock = Lock()
        self._items: Iterator[tuple[bytes, bytes]] | None = db.rdict.items(read_opt=db.no_caching)
        db.iterators.add(self)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        rows, key, last = 0, b"", dict[bytes, bytes]()
        while part := self._next(key):
            for key, value in part:
                if key < layout.ROWS_END:
                    rows += layout.row_count(value)
                elif key >= layout.OTHER:
                    last[key] = value
                    if key not in COPIED:
                        continue
                yield key, value
        # An iterator that meets a damaged block ends as if there were no more keys.
        if layout.IDENTITY not in last:
            raise self._db.ended_early(key)
        names = (layout.APPLIED, layout.PENDING, layout.READ_THROUGH)
        applied, pending, through_s = (layout.U64.unpack(last.get(name, bytes(8)))[0] for name in names)
        if (applied, pending, rows, through_s) != (self.applied, self.rows, self.rows, self._read_through_s):
            why = f"{rows} rows of {self.rows} were read, and the numbers {applied}, {pending}, {through_s}"
            raise self._db.damaged(INCOMPLETE, why)

    def _next(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """The next keys and values; none at the end. ``key`` is the last one."""
        part, size = [], 0
        with self._lock:
            if self._items is None:
                raise Lost("the store was closed before its snapshot was written")
            try:
                for item in self._items:
                    part.append(item)
                    size += len(item[0]) + len(item[1])
                    if size > SLICE_BYTES:
                        break
            except Exception as error:
                raise self._db.damaged(UNREADABLE, f"{error}, behind the key {key!r}") from error
        return part

    def close(self) -> None:
        """Free the iterator."""
        with self._lock:
            self._items = None
