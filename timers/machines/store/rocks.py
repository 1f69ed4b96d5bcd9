"""A store on RocksDB: one database for each machine. :mod:`timers.machines.store.layout` describes its keys and values.

After a crash the store may lack the last batches; then ``applied`` is lower too, and the requests from this offset on
are read from the request log again.

If a store cannot be read, no timer is lost: see :mod:`timers.machines.store.database`.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice, starmap
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgpack
from rocksdict import Checkpoint, WriteBatch

from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.keys import pack as pack_key
from timers.core.lineage import Lineage
from timers.core.operation import NO_ENTRIES, Entry, is_cancelled, offset_of
from timers.core.ports import MAX_GROUPS_LEFT_OUT, HeldOf, IndexPage, IsHeld, Lost, Page
from timers.core.progress import SettingChange
from timers.core.snapshots import Unreadable
from timers.core.timer import NO_ROWS, DueRows, Row, RowsByDue, without
from timers.errors import StoreError
from timers.machines.store import layout
from timers.machines.store.database import Database
from timers.machines.store.failures import INCOMPLETE, STALE, UNREADABLE, Condemnations, StoreDamaged, failure
from timers.machines.store.layout import INDEX, JOURNAL, OTHER, ROWS_END, U64, journal_key, parts, unpack
from timers.machines.store.memory_limit import IndexJournal, RocksMemory
from timers.machines.store.one_target import IS_COMPILED, one_target

SLICE_BYTES = 256 * 1024
"""Bytes that are read before :meth:`RocksView.close` of another thread may end the view."""

COPIED = (layout.COUNT, layout.LINEAGE, layout.READ_THROUGH)
"""Of the last keys. The others count what one database has written, or come from the progress."""


class RocksView:
    """What a store holds at one moment, read once from its first key to its last one, while its machine goes on.

    It is one plain iterator of RocksDB, which shows the database as it was when the iterator was made. rocksdict's
    ``Rdict.snapshot()`` does not: in version 0.3.29 its ``items()`` and ``iter()`` read the present state.

    The iterator keeps the memory and the files that it reads, also those that the machine has replaced since, and the
    lock of a closed store.

    Implements :class:`timers.core.ports.View`. One thread reads it, and any other one may close it.
    """

    def __init__(
        self, db: Database, applied: int, rows: int, history: tuple[SettingChange, ...], read_through_s: int | None
    ) -> None:
        self.applied, self.rows, self.history = applied, rows, history
        self._read_through_s = read_through_s or 0
        self._read = 0
        self._db = db
        self._lock = Lock()
        self._items: Iterator[tuple[bytes, bytes]] | None = db.rdict.items(read_opt=db.no_caching)
        db.iterators.add(self)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        key, last = b"", dict[bytes, bytes]()
        while part := self._next(key):
            for key, value in part:
                if key >= layout.OTHER:
                    last[key] = value
                    if key not in COPIED:
                        continue
                yield key, value
        # An iterator that meets a damaged block ends as if there were no more keys.
        if layout.IDENTITY not in last:
            raise self._db.ended_early(key)
        names = (layout.APPLIED, layout.PENDING, layout.READ_THROUGH)
        applied, pending, through_s = (layout.U64.unpack(last.get(name, bytes(8)))[0] for name in names)
        if (applied, pending, self._read, through_s) != (self.applied, self.rows, self.rows, self._read_through_s):
            why = f"{self._read} rows of {self.rows} were read, and the numbers {applied}, {pending}, {through_s}"
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
                    if item[0] < layout.ROWS_END:
                        self._read += layout.row_count(item[1])
                    if size > SLICE_BYTES:
                        break
            except Exception as error:
                raise self._db.damaged(UNREADABLE, f"{error}, behind the key {key!r}") from error
        return part

    def close(self) -> None:
        """Free the iterator."""
        with self._lock:
            self._items = None


logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_PAIR = struct.Struct(">QQ")

POINT_DELETES = 128
"""Maximum number of entries that are deleted one by one. A range tombstone makes every later scan slower until the next
flush, so it is used only for more entries."""

RESTORE_ENTRIES = 4096
"""Maximum entries in one write of a restore or of an opening. No other thread runs meanwhile."""


def next_key(key: OrderKey) -> bytes:
    """The first 16 bytes above ``key``."""
    due_s, offset = key
    return pack_key(due_s + 1, 0) if offset == MAX_OFFSET else pack_key(due_s, offset + 1)


class RocksStore:
    """Implements :class:`timers.core.ports.SnapshotStore`. Open with :meth:`open`.

    Every method that reads or writes raises :class:`StoreDamaged` if the store is damaged, and :class:`StoreError` if
    the system refuses.
    """

    def __init__(self, db: Database, memory: RocksMemory, *, indexed: bool) -> None:
        self._db = db
        self._memory = memory
        self._pack = layout.packer()
        self.applied = db.number(layout.APPLIED)
        self.pending = db.number(layout.PENDING)
        self.read_through_s = db.number(layout.READ_THROUGH) or None
        lineage = db.get(layout.LINEAGE), db.get(layout.COUNT)
        self.lineage = self._decoded(_lineage, lineage)
        self._scanned: list[tuple[bytes, int]] = []
        """Key and number of rows of each entry that was scanned; with 0 rows: of the first one of those that were
        passed over, one after the other."""
        self._journal: IndexJournal | None = None
        if indexed:
            journal = memory.journal()
            try:
                for key, packed in db.items(JOURNAL, INDEX):
                    self._decoded(partial(self._remember, journal, key), packed)
            except BaseException:
                memory.forget(journal)
                raise
            self._journal = journal

    @classmethod
    def open(
        cls,
        path: Path,
        identity: str,
        memory: RocksMemory,
        condemnations: Condemnations | None = None,
        *,
        indexed: bool = False,
    ) -> RocksStore:
        """Open the store at ``path``. If it is damaged, or belongs to another log, app or format, it is emptied
        first.

        Args:
            path: a directory for this store only; made if it is missing.
            identity: names cluster, topic id, partition and app; the format version is added here.
            memory: shared with the worker's other stores.

        Raises:
            StoreError: the disk is full, read-only, or refuses for another reason. Nothing was deleted.
        """
        condemnations = condemnations or Condemnations()
        full_identity = f"format={layout.FORMAT} {identity}{' journaled' if indexed else ''}".encode()
        options = memory.options(indexed=indexed)
        try:
            if path.exists():
                try:
                    db = Database.reopen(path, options, full_identity, condemnations)
                    if db is not None:
                        return cls._of(db, memory, indexed=indexed)
                except StoreDamaged as damage:
                    logger.error("%s", damage)
                Database.wipe(path)
            return cls._of(Database.create(path, options, full_identity, condemnations), memory, indexed=indexed)
        except (StoreError, Lost):
            raise
        except Exception as error:
            raise failure(path, error) from error

    @classmethod
    def _of(cls, db: Database, memory: RocksMemory, *, indexed: bool) -> RocksStore:
        try:
            return cls(db, memory, indexed=indexed)
        except BaseException:
            db.close()
            raise

    @staticmethod
    def _remember(journal: IndexJournal, key: bytes, packed: bytes) -> None:
        journal.restore(U64.unpack_from(key, 1)[0], _unpack_any(packed))

    def view(self) -> RocksView:
        return RocksView(self._db, self.applied, self.pending, self.history, self.read_through_s)

    def copy(self, path: Path) -> None:
        """Write a copy into a new directory, of hard links: it takes milliseconds, and little of the disk at first."""
        try:
            Checkpoint(self._db.rdict).create_checkpoint(str(path))
        except Exception as error:
            raise failure(path, error) from error

    def restore(self, pages: Iterable[Page], applied: int, history: tuple[SettingChange, ...]) -> None:
        """See :class:`timers.core.ports.SnapshotStore`. Nothing is judged, and rows are not unpacked.

        Raises:
            Unreadable: a value in ``pages`` cannot be decoded.
        """
        pending, last = 0, dict[bytes, bytes]()
        for part in (page[at : at + RESTORE_ENTRIES] for page in pages for at in range(0, len(page), RESTORE_ENTRIES)):
            batch = WriteBatch(raw_mode=True)
            if part[0][0] >= INDEX and part[-1][0] < OTHER:  # only ids, of which there may be many millions
                deque(starmap(batch.put, part), maxlen=0)
            else:
                if part[-1][0] >= OTHER:
                    last |= {key: value for key, value in part if key >= OTHER}
                pending += _restored(partial(self._put_part, batch), part)
            self._db.write(batch)
        batch = WriteBatch(raw_mode=True)
        for key, value in last.items():
            batch.put(key, value)
        batch.put(layout.HISTORY, _pack_history(history))
        through = last.get(layout.READ_THROUGH)
        through_s = None if through is None else _restored(U64.unpack, through)[0]
        lineage = _restored(_lineage, (last.get(layout.LINEAGE), last.get(layout.COUNT)))
        self._write(batch, pending, applied, lineage)
        self.read_through_s = through_s

    def _put_part(self, batch: WriteBatch, part: Page) -> int:
        """Put rows, journal and index of a part of a snapshot into a batch. Returns the number of rows."""
        rows = 0
        for key, value in part:
            if key < ROWS_END:
                rows += layout.row_count(value)
            elif key < INDEX and self._journal is not None:
                self._remember(self._journal, key, value)
            elif key >= OTHER:
                continue
            batch.put(key, value)
        return rows

    @property
    def history(self) -> tuple[SettingChange, ...]:
        packed = self._db.get(layout.HISTORY)
        return tuple(SettingChange(*change) for change in self._decoded(_unpack_any, packed)) if packed else ()

    def note_read_through(self, second: int) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(layout.READ_THROUGH, U64.pack(second))
        self._write(batch, self.pending, self.applied)
        self.read_through_s = second

    def condemn(self) -> None:
        self._db.condemn(STALE)

    def discard(self) -> None:
        """Let :meth:`close` delete the store."""
        self._db.discard()

    def protect(self, *, on: bool) -> None:
        self._db.protect(on=on)

    def note_history(self, history: tuple[SettingChange, ...]) -> None:
        if history != self.history:
            batch = WriteBatch(raw_mode=True)
            batch.put(layout.HISTORY, _pack_history(history))
            self._write(batch, self.pending, self.applied)

    def write(
        self,
        rows: RowsByDue,
        applied: int,
        entries: Mapping[bytes, Entry | None] = NO_ENTRIES,
        lineage: Lineage | None = None,
        held: RowsByDue = NO_ROWS,
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        put, pack, pending = batch.put, self._pack, self.pending
        for each in (rows, held) if held else (rows,):
            for due_s in sorted(each):  # RocksDB takes keys in order 20 % faster
                group = each[due_s]
                if len(group) == 1:
                    put(pack_key(due_s, group[0][0]), pack(group))
                else:
                    for part in parts(group):
                        put(pack_key(due_s, part[0][0]), pack(part))
            pending += sum(map(len, each.values()))
        journal = self._journal
        journaled, direct = (NO_ENTRIES, entries) if journal is None else journal.split(entries)
        _put(batch, direct.items())
        if journal is not None and journaled:
            _put(batch, journal.next_to_index(journaled))
            if journal.finishes_older_set():
                batch.delete_range(journal_key(journal.older_first), journal_key(journal.newer_first))
            batch.put(journal_key(journal.next), msgpack.packb(dict(journaled)))
        self._write(batch, pending, applied, lineage)
        if journal is not None and direct:
            journal.note_known(direct)
        if journal is not None and journaled:
            journal.note_written(journaled)

    def entries(self, ids: Collection[bytes]) -> dict[bytes, Entry | None]:
        known: dict[bytes, Entry | None] = {}
        if self._journal is not None:
            known, ids = self._journal.find(ids)
        if ids:
            found = self._db.get_all([INDEX + id for id in ids])
            read = dict(zip(ids, self._decoded(_entries_in, found), strict=True))
            if self._journal is not None:
                self._journal.note_known(read)
            known |= read
        return known

    def entries_after(self, id: bytes, limit: int) -> IndexPage:
        """The next entries in the order of ids, without those that are still in the journal.

        These count too: while most ids are in the journal, a page without them could read the whole index.
        """
        journal = self._journal or ()
        read = [(key[1:], value) for key, value in islice(self._db.items(INDEX + id + b"\0", OTHER), limit)]
        entries = [(id, self._decoded(layout.unpack_entry, value)) for id, value in read if id not in journal]
        return IndexPage(entries, read[-1][0] if len(read) == limit else None)

    def newest_entries(self) -> list[tuple[bytes, Entry]]:
        if self._journal is None:
            return []
        entries = [(id, entry) for id, entry in self._journal.items() if entry is not None]
        return [*entries, *self._journal.known_chains()]

    def cancels_from(self, offset: int, after: bytes = b"") -> Iterator[tuple[bytes, int]]:
        """See :class:`timers.core.ports.Store`. To its end it reads the whole index."""
        journal = self._journal
        if journal is None:
            return
        read = ((key[1:], value) for key, value in self._db.items(INDEX + after, OTHER))
        older = ((id, self._decoded(layout.unpack_entry, value)) for id, value in read if id not in journal)
        newer = sorted(_cancels(journal.items(), offset))
        yield from (each for each in merge(_cancels(older, offset), newer) if not after or each[0] > after)

    def _decoded(self, decode: Callable[[Any], _T], value: Any) -> _T:
        try:
            return decode(value)
        except Exception as error:
            raise self._db.damaged(UNREADABLE, error) from error

    def _write(self, batch: WriteBatch, pending: int, applied: int, lineage: Lineage | None = None) -> None:
        if applied != self.applied:
            batch.put(layout.APPLIED, U64.pack(applied))
        lineage = lineage or self.lineage
        for key, value in layout.pack_lineage(lineage, self.lineage):
            batch.put(key, value)
        if lineage.counted is None and self.lineage.counted is not None:
            batch.delete(layout.COUNT)
        batch.put(layout.PENDING, U64.pack(pending))
        self._db.write(batch)
        self.applied, self.pending, self.lineage = applied, pending, lineage

    def scan(self, after: OrderKey, until_s: int, passes: IsHeld | None = None) -> Iterator[DueRows]:
        """See :class:`timers.core.ports.Store`. Without a C compiler ``passes`` is not asked."""
        scan = self._scan(after, until_s) if passes is None or not IS_COMPILED else self._left(after, until_s, passes)
        self._db.iterators.add(scan)
        return scan

    def _left(self, after: OrderKey, until_s: int, passes: IsHeld) -> Generator[DueRows]:
        """The same as :meth:`_scan` without what is passed over. A failure of ``passes`` is none of the store."""
        self._scanned = scanned = list[tuple[bytes, int]]()
        numbers = U64.unpack_from
        for key, value in self._db.items(next_key(after), next_key((until_s, MAX_OFFSET))):
            if (group := one_target(value)) and passes(numbers(key)[0], *group):
                if scanned and scanned[-1][1]:  # the rows that are deleted together end here
                    scanned.append((key, 0))
                continue
            rows = self._decoded(unpack, value)
            scanned.append((key, len(rows)))
            yield numbers(key)[0], rows

    def _scan(self, after: OrderKey, until_s: int) -> Generator[DueRows]:
        """The loop over RocksDB is here, because :meth:`Database.items` would add 0.1 µs for each entry."""
        self._scanned = scanned = list[tuple[bytes, int]]()
        end = pack_key(until_s, MAX_OFFSET)
        first = key = next_key(after)
        numbers = U64.unpack_from
        try:
            for key, value in self._db.rdict.items(from_key=first, read_opt=self._db.no_caching):
                if key > end:
                    return
                rows = unpack(value)
                scanned.append((key, len(rows)))
                yield numbers(key)[0], rows
        except Exception as error:
            raise self._db.damaged(UNREADABLE, error) from error
        raise self._db.ended_early(key)

    def waiting(self, after: OrderKey, sought: Sequence[bytes] = ()) -> Iterator[tuple[OrderKey, Sequence[Row]]]:
        """See :class:`timers.core.ports.Store`. MessagePack has texts as they are, so they are sought in whole entries.
        An entry of one row takes 1.8 µs if it is decoded, and 0.6 µs if not, without its look-up in the index.
        """
        first = next_key(after)
        # An entry of the same second may begin before ``after`` and end after it.
        first = self._db.last_between(first[:8], first) or first
        one, two, *_ = (*sought, b"", b"")
        pair, skipped = _PAIR.unpack_from, 0
        for key, value in self._db.items(first, ROWS_END):
            if one in value and two in value:
                due_s = pair(key)[0]
                rows = [row for row in self._decoded(unpack, value) if (due_s, row[0]) > after]
                if rows:
                    yield (due_s, rows[-1][0]), rows
            else:
                skipped += 1
                if skipped % MAX_GROUPS_LEFT_OUT == 0 and (through := pair(key)) > after:
                    yield through, ()

    def held(self, first: OrderKey, through: OrderKey, target: str) -> Iterator[tuple[OrderKey, list[Row]]]:
        """See :class:`timers.core.ports.Store`. MessagePack has texts as they are: other entries are not unpacked."""
        end, skipped = next_key(through), 0
        sought, pair = target.encode(), _PAIR.unpack_from
        for key, value in self._db.items(pack_key(*first), ROWS_END):
            if key >= end:
                return
            if sought in value:
                yield pair(key), self._decoded(unpack, value)
            else:
                skipped += 1
                if skipped % MAX_GROUPS_LEFT_OUT == 0:
                    yield pair(key), []

    def replace(self, groups: Sequence[tuple[DueRows, list[Row]]]) -> None:
        batch, count = WriteBatch(raw_mode=True), 0
        for (due_s, rows), left in groups:
            batch.delete(pack_key(due_s, rows[0][0]))
            if left:
                batch.put(pack_key(due_s, left[0][0]), self._pack(left))
            count += len(rows) - len(left)
        self._write(batch, self.pending - count, self.applied)

    def row(self, key: OrderKey) -> Row | None:
        # Most rows are the first of their entry, as each row is that was written alone: then one read finds it.
        value = self._db.get(pack_key(*key))
        if value is None:
            found = self._db.last_between(pack_key(key[0], 0), pack_key(*key))
            value = None if found is None else self._db.get(found)
        rows = [] if value is None else self._decoded(unpack, value)
        return next((row for row in rows if row[0] == key[1]), None)

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        batch = WriteBatch(raw_mode=True)
        end = next_key(through)
        scanned = [each for each in self._scanned if each[0] < end]
        if kept or any(not rows for _, rows in scanned):
            self._delete_others(batch, scanned, kept, end)
        else:
            _delete(batch, [key for key, _ in scanned])
        if rest:  # groups that were scanned after its own stay as they are
            batch.put(pack_key(through[0], rest[0][0]), self._pack(rest))
        self._write(batch, self.pending - count, self.applied)
        self._scanned = []

    def _delete_others(
        self, batch: WriteBatch, scanned: Sequence[tuple[bytes, int]], kept: Sequence[DueRows], end: bytes
    ) -> None:
        """Delete what was scanned without the rows that are kept. An entry that is kept as a whole is not written."""
        run: list[bytes] = []  # deleted entries, one after the other
        left = deque(kept)
        for (key, rows), next_one in zip(scanned, (*(key for key, _ in scanned[1:]), end), strict=True):
            first = pack_key(left[0][0], left[0][1][0][0]) if left else end
            group = left.popleft()[1] if first < next_one else []
            if len(group) < rows:
                run.append(key)
            if group or not rows:
                _delete(batch, run)
                run = []
            if 0 < len(group) < rows:
                batch.put(first, self._pack(group))
        _delete(batch, run)

    def drop_through(
        self,
        fired_through: OrderKey,
        next_offset: int,
        held_of: HeldOf | None = None,
        *,
        indexed: bool = False,
    ) -> bool:
        """Delete the rows that have fired since this store was written; see :class:`timers.core.ports.Store`.

        Another worker may have fired only a part of an entry, because it groups rows in another way: the rest is kept.
        """
        if fired_through == NOTHING_FIRED:
            return True
        until_s, applied = fired_through[0], self.applied

        def parts_of(due_s: int, rows: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
            """Returns the rows that have fired, those that are held, and those that wait."""
            past = (
                rows if (due_s, rows[-1][0]) <= fired_through else [r for r in rows if (due_s, r[0]) <= fired_through]
            )
            held = held_of.rows(due_s, past) if held_of and past else []
            return without(past, held), held, rows[len(past) :]

        def stays(due_s: int, value: bytes) -> bool:
            """Whether a whole entry is held, if this is known without unpacking it."""
            if held_of is None or not IS_COMPILED or (group := one_target(value)) is None:
                return False
            is_past = (due_s, group[2]) <= fired_through and group[2] < applied
            return is_past and held_of.group(due_s, *group)

        def entries() -> Iterator[tuple[bytes, int, list[Row]]]:
            """Yields key, second and rows. :meth:`scan` would remember all of them."""
            for key, value in self._db.items(next_key(NOTHING_FIRED), next_key((until_s, MAX_OFFSET))):
                due_s = U64.unpack_from(key)[0]
                if not stays(due_s, value):
                    yield key, due_s, self._decoded(unpack, value)

        # Whether the store holds a row at or below ``fired_through`` that no commit accepted.
        past = entries() if applied > next_offset else ()
        is_late = any(row[0] >= next_offset for _, due_s, rows in past for row in parts_of(due_s, rows)[0])
        if is_late and indexed:
            return False
        if is_late:
            until_s, applied = layout.LAST_S, next_offset
        elif held_of is None:
            self._drop_before(next_key(fired_through) if fired_through[1] == MAX_OFFSET else pack_key(until_s, 0))
        lineage = self.lineage if applied == self.applied else self.lineage.before(applied)
        batch, pending, changed = WriteBatch(raw_mode=True), self.pending, 0
        for key, due_s, rows in entries():
            _, *left = parts_of(due_s, rows)
            if rows[-1][0] >= applied:
                left = [[row for row in part if row[0] < applied] for part in left]
            if len(left[0]) == len(rows) or len(left[1]) == len(rows):
                continue
            pending -= len(rows) - len(left[0]) - len(left[1])
            batch.delete(key)
            for part in left:  # a scan begins above ``fired_through``: held rows have an entry of their own
                if part:
                    batch.put(pack_key(due_s, part[0][0]), self._pack(part))
            changed += 1
            # What has fired may be deleted in parts. What is read again goes together with the new ``applied``.
            if changed % RESTORE_ENTRIES == 0 and not is_late:
                self._write(batch, pending, applied)
                batch = WriteBatch(raw_mode=True)
        self._write(batch, pending, applied, lineage)
        return True

    def _drop_before(self, end: bytes) -> None:
        """Delete all rows before a key. They are counted, and neither unpacked nor deleted one by one: the write keeps
        all threads waiting."""
        first, count = next_key(NOTHING_FIRED), partial(self._decoded, layout.row_count)
        number = sum(count(value) for _, value in self._db.items(first, end))
        if number > self.pending:
            raise self._db.damaged(UNREADABLE, f"{number} rows are before the key {end!r}, and {self.pending} in all")
        if number:
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(first, end)
            self._write(batch, self.pending - number, self.applied)

    def oldest_due_s(self, after: OrderKey = NOTHING_FIRED) -> int | None:
        key = self._db.first_from(next_key(after))
        return None if key >= ROWS_END else int(U64.unpack_from(key)[0])

    def close(self) -> None:
        if self._journal is not None:
            self._memory.forget(self._journal)
            self._journal = None
        self._db.close()


def _lineage(values: tuple[bytes | None, bytes | None]) -> Lineage:
    return layout.unpack_lineage(*values)


def _restored(decode: Callable[[Any], _T], value: Any) -> _T:
    """Returns what a value of a snapshot is. If it cannot be decoded, the snapshot is at fault, and not the store."""
    try:
        return decode(value)
    except Exception as error:
        raise Unreadable(f"it holds a value that cannot be decoded ({error!r})") from error


def _delete(batch: WriteBatch, keys: Sequence[bytes]) -> None:
    """Delete scanned entries between which no others were scanned."""
    if len(keys) <= POINT_DELETES:
        for key in keys:
            batch.delete(key)
    else:
        batch.delete_range(keys[0], keys[-1] + b"\0")


def _pack_history(history: tuple[SettingChange, ...]) -> bytes:
    packed: bytes = msgpack.packb([(change.name, change.from_offset, change.value) for change in history])
    return packed


def _put(batch: WriteBatch, entries: Iterable[tuple[bytes, Entry | None]]) -> None:
    put, pack_entry = batch.put, layout.pack_entry
    for id, entry in entries:
        if entry is None:
            batch.delete(INDEX + id)
        else:
            put(INDEX + id, pack_entry(entry))


def _cancels(entries: Iterable[tuple[bytes, Entry | None]], offset: int) -> Iterator[tuple[bytes, int]]:
    """Yields (id, offset) of those entries that are cancels at or after ``offset``."""
    cancels = ((id, offset_of(entry)) for id, entry in entries if entry is not None and is_cancelled(entry))
    return (each for each in cancels if each[1] >= offset)


def _entries_in(values: Sequence[bytes | None]) -> list[Entry | None]:
    unpack_entry = layout.unpack_entry
    return [None if value is None else unpack_entry(value) for value in values]


def _unpack_any(value: bytes) -> Any:
    return msgpack.unpackb(value, use_list=False, strict_map_key=False)
