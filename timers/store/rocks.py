"""A store on RocksDB: one database for each machine.

Layout (format version :data:`FORMAT`), keys and values as bytes::

    due_s (8, big-endian) | offset (8, big-endian)   ->  msgpack array of rows, all of that due second
    0xFD number (8, big-endian)                      ->  msgpack map of id -> [due_s, offset, append second] or nil
    0xFE id                                          ->  due_s (8) | offset (8) | append second (8), big-endian
    0xFF "applied"                                   ->  8 bytes, big-endian
    0xFF "pending"                                   ->  8 bytes, big-endian
    0xFF "identity"                                  ->  text
    0xFF "read-through"                              ->  8 bytes, big-endian
    0xFF "history"                                   ->  msgpack array of [setting, from offset, value]

One entry holds all timers of one fetched batch that share a due second, under the key of the first of them. The next
batch has higher offsets, so entries of a second never overlap and key order stays timer order. Against one entry a
timer this saves 0.7 us of 1.9 us on the way in and more on the way out (``docs/adr/0002``); a lone timer is an entry of
one row and costs what it did.

Entries of the index are there only in stores of timers with an id; the latest stand in a journal, batch by batch
(:mod:`timers.store.index_journal`). A version that is replaced or cancelled stays in its group until its second is
scanned: rewriting the group would cost more than the row is worth.

The write-ahead log is on and is not synced: after a crash of the machine ``applied`` is a little older, consistently,
and the rest is read from the request log again.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgpack
from rocksdict import Options, Rdict, ReadOptions, WriteBatch

from timers.core import keys
from timers.core.keys import MAX_OFFSET, NEVER, OrderKey
from timers.core.operation import NO_ENTRIES, Entry
from timers.core.progress import SettingChange
from timers.core.timer import Row, RowsByDue, bytes_of
from timers.store.failures import failure, refusal
from timers.store.index_journal import IndexJournal
from timers.store.memory_limit import RocksMemory

FORMAT = 1
"""Version of the layout; part of the identity, so another version's store is rebuilt from the log."""

GROUP_ROWS = 512
"""Most rows in one entry: bounds how far a chunk can overshoot its limit."""

GROUP_BYTES = 1024 * 1024
"""Most bytes in one entry, give or take one row."""

POINT_DELETES = 128
"""Up to so many entries are deleted one by one. A range tombstone costs every later scan a little until the next flush,
so one is written only where it replaces many."""

_APPLIED = b"\xffapplied"
_PENDING = b"\xffpending"
_IDENTITY = b"\xffidentity"
_HISTORY = b"\xffhistory"
_READ_THROUGH = b"\xffread-through"
_JOURNAL = b"\xfd"
_INDEX = b"\xfe"
_INDEX_END = b"\xff"
_ROWS_END = _JOURNAL
_LAST_S = 2**56 - 1
"""No due second is above it, and its keys are below ``_ROWS_END``."""
_U64 = struct.Struct(">Q")
_ENTRY = struct.Struct(">QQQ")

_ANY_TEXT = "surrogatepass"
"""Ids may be text that stands for bytes; see :func:`timers.core.timer.id_text`."""


class RocksStore:
    """Implements :class:`timers.core.ports.Store`. Open with :meth:`open`."""

    def __init__(self, path: Path, db: Rdict, memory: RocksMemory, *, indexed: bool) -> None:
        self._path = path
        self._db = db
        self._memory = memory
        self._pack_text = msgpack.Packer(use_bin_type=True).pack
        self._applied = self._read_number(_APPLIED)
        self._pending = self._read_number(_PENDING)
        self._read_through_s = self._read_number(_READ_THROUGH) or None
        self._first_key = bytes(16)
        self._scanned: list[bytes] = []
        self._broken = False
        self._once = ReadOptions()
        self._once.fill_cache(False)  # a timer is read to be fired, and never again
        self._journal: IndexJournal | None = memory.journal() if indexed else None
        if self._journal is not None:
            journal = db.items(from_key=_JOURNAL, read_opt=self._once)
            for key, packed in takewhile(lambda item: item[0] < _INDEX, journal):
                entries = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
                self._journal.restore(_U64.unpack_from(key, 1)[0], entries)

    @classmethod
    def open(cls, path: Path, identity: str, memory: RocksMemory, *, indexed: bool = False) -> RocksStore:
        """Open the store at ``path``; one that belongs to another log, app or format is wiped first.

        Args:
            path: a directory of this store's own; made if it is missing.
            identity: names cluster, topic id, partition and app; the format version is added here.
            memory: shared with the worker's other stores.
            indexed: its timers have ids.

        Raises:
            StoreError: the disk is full, read-only, or otherwise refuses. Nothing was wiped for that.
        """
        name = f"format={FORMAT} {identity}{' journaled' if indexed else ''}".encode()
        options = memory.options(indexed=indexed)
        try:
            if path.exists():
                db = cls._reopen(path, options)
                if db is not None:
                    if db.get(_IDENTITY) == name:
                        return cls(path, db, memory, indexed=indexed)
                    db.close()
                cls.wipe(path)
            path.mkdir(parents=True)
            db = Rdict(str(path), options)
            db.put(_IDENTITY, name)
            return cls(path, db, memory, indexed=indexed)
        except Exception as error:
            refused = refusal(path, error)
            if refused is None:
                raise
            raise refused from error

    @staticmethod
    def _reopen(path: Path, options: Options) -> Rdict | None:
        """The database that is there; None if it is damaged: a cache that cannot be read is worth nothing."""
        try:
            return Rdict(str(path), options)
        except Exception as error:
            if "lock hold by" in str(error) or "While lock file" in str(error) or refusal(path, error):
                raise
            return None

    @staticmethod
    def wipe(path: Path) -> None:
        """Delete a closed store: its log can be read again."""
        shutil.rmtree(path)

    @property
    def applied(self) -> int:
        """Everything below this offset is in the store, as far as it was pending."""
        return self._applied

    @property
    def pending(self) -> int:
        """How many timers are stored."""
        return self._pending

    @property
    def history(self) -> tuple[SettingChange, ...]:
        """Settings under which it was written, as last noted."""
        packed = self._db.get(_HISTORY)
        return tuple(SettingChange(*change) for change in msgpack.unpackb(packed)) if packed else ()

    @property
    def read_through_s(self) -> int | None:
        """All that the log held when this second began is here; None: nobody has said so yet."""
        return self._read_through_s

    def note_read_through(self, second: int) -> None:
        """Remember that."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_READ_THROUGH, _U64.pack(second))
        self._write(batch, self._pending, self._applied)
        self._read_through_s = second

    def condemn(self) -> None:
        """Let it belong to nobody, so that it is wiped when it is opened next."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_IDENTITY, b"")
        self._write(batch, self._pending, self._applied)

    def note_history(self, history: tuple[SettingChange, ...]) -> None:
        """Remember the settings under which it will be written from now on."""
        if history != self.history:
            batch = WriteBatch(raw_mode=True)
            batch.put(_HISTORY, msgpack.packb([(change.name, change.from_offset, change.value) for change in history]))
            self._write(batch, self._pending, self._applied)

    def write(self, rows: RowsByDue, applied: int, entries: Mapping[bytes, Entry | None] = NO_ENTRIES) -> None:
        """Add rows, write or forget entries of the index and move ``applied``: all of it or nothing."""
        batch = WriteBatch(raw_mode=True)
        pending = self._pending
        for due_s, group in rows.items():
            pending += len(group)
            if len(group) <= GROUP_ROWS and (len(group) == 1 or bytes_of(group) <= GROUP_BYTES):
                batch.put(keys.encode((due_s, group[0][0])), self._pack(group))
            else:
                for part in _parts(group):
                    batch.put(keys.encode((due_s, part[0][0])), self._pack(part))
        journal = self._journal
        if journal is None:
            _put(batch, entries.items())
        elif entries:
            _put(batch, journal.leaving(len(entries)))
            if journal.is_last(len(entries)):
                batch.delete_range(_journal_key(journal.first), _journal_key(journal.turned))
            batch.put(_journal_key(journal.next), msgpack.packb(dict(entries)))
        self._write(batch, pending, applied)
        if journal is not None and entries:
            journal.wrote(entries)

    def _pack(self, rows: Sequence[Row]) -> bytes:
        try:
            packed: bytes = self._pack_text(rows)
        except UnicodeEncodeError:  # to be ready for it costs all others a third more
            packed = msgpack.packb(rows, use_bin_type=True, unicode_errors=_ANY_TEXT)
        return packed

    def entries(self, ids: Collection[bytes]) -> dict[bytes, Entry | None]:
        """The entries of some ids."""
        known: dict[bytes, Entry | None] = {}
        if self._journal is not None:
            known, ids = self._journal.find(ids)
        if ids:
            found = self._db.get([_INDEX + id for id in ids])
            known |= {id: _ENTRY.unpack(value) for id, value in zip(ids, found, strict=True) if value is not None}
        return known

    def entries_after(self, id: bytes, limit: int) -> Sequence[tuple[bytes, Entry]]:
        """The next entries in the order of ids, without the latest ones."""
        journal = self._journal or ()
        items = self._db.items(from_key=_INDEX + id + b"\0", read_opt=self._once)
        entries = ((key[1:], value) for key, value in takewhile(lambda item: item[0] < _INDEX_END, items))
        page = islice((entry for entry in entries if entry[0] not in journal), limit)
        return [(id, _ENTRY.unpack(value)) for id, value in page]

    def _write(self, batch: WriteBatch, pending: int, applied: int) -> None:
        if applied != self._applied:
            batch.put(_APPLIED, _U64.pack(applied))
        batch.put(_PENDING, _U64.pack(pending))
        try:
            self._db.write(batch)
        except Exception as error:
            self._broken = True
            raise failure(self._path, error) from error
        self._applied, self._pending = applied, pending

    def scan(self, after: OrderKey, until_s: int) -> Iterator[tuple[int, list[Row]]]:
        """Groups of rows above ``after`` and due at or before ``until_s``: (due second, rows)."""
        self._scanned = scanned = []
        end = keys.encode((until_s, MAX_OFFSET))
        for key, value in self._db.items(from_key=_next_key(after), read_opt=self._once):
            if key > end:
                return
            scanned.append(key)
            yield _U64.unpack_from(key)[0], _unpack(value)

    def waiting(self, after: OrderKey) -> Iterator[tuple[int, list[Row]]]:
        """Groups of rows above ``after``, for somebody who only looks: (due second, rows)."""
        first = _next_key(after)
        for key in self._db.keys(from_key=first, backwards=True, read_opt=self._once):
            if key[:8] == first[:8]:  # an entry that begins before and may end after
                first = key
            break
        for key, value in self._db.items(from_key=first, read_opt=self._once):
            if key >= _ROWS_END:
                return
            due_s = _U64.unpack_from(key)[0]
            rows = [row for row in _unpack(value) if (due_s, row[0]) > after]
            if rows:
                yield due_s, rows

    def delete(self, through: OrderKey, count: int) -> None:
        """Forget every row at or below ``through``; ``count`` says how many these are."""
        batch = WriteBatch(raw_mode=True)
        end = _next_key(through)
        gone = [key for key in self._scanned if key < end]
        if len(gone) <= POINT_DELETES:
            for key in gone:
                batch.delete(key)
        else:
            batch.delete_range(self._first_key, end)
        self._write(batch, self._pending - count, self._applied)
        self._first_key = end
        self._scanned = []

    def drop_through(self, fired_through: OrderKey, next_offset: int) -> None:
        """On opening: forget what has fired since this store was written; see :class:`timers.core.ports.Store`.

        Another worker may have fired part of an entry, since it grouped the same rows otherwise: the rest is kept.
        """
        if fired_through == NEVER:
            return
        until_s, applied = fired_through[0], self._applied
        if applied > next_offset and self._passed_over(fired_through, next_offset):
            until_s, applied = _LAST_S, next_offset
        batch = WriteBatch(raw_mode=True)
        pending = self._pending
        for due_s, rows in self.scan(NEVER, until_s):
            rest = [row for row in rows if (due_s, row[0]) > fired_through and row[0] < applied]
            if len(rest) < len(rows):
                pending -= len(rows) - len(rest)
                batch.delete(self._scanned[-1])
                if rest:
                    batch.put(keys.encode((due_s, rest[0][0])), self._pack(rest))
        self._write(batch, pending, applied)

    def _passed_over(self, fired_through: OrderKey, next_offset: int) -> bool:
        """Whether a row that was never committed is held at or below ``fired_through``."""
        return any(
            row[0] >= next_offset and (due_s, row[0]) <= fired_through
            for due_s, rows in self.scan(NEVER, fired_through[0])
            for row in rows
        )

    def oldest_due_s(self) -> int | None:
        """Due second of the first row, None if there is none."""
        for key in self._db.keys(from_key=self._first_key):
            if key >= _ROWS_END:
                break
            due_s: int = _U64.unpack_from(key)[0]
            return due_s
        return None

    def close(self) -> None:
        """Flush and release the directory's lock.

        Raises:
            StoreError: what could not be flushed is in the write-ahead log. Said once: not if a write failed before.
        """
        if self._journal is not None:
            self._memory.forget(self._journal)
        try:
            self._db.close()
        except Exception as error:
            if not self._broken:
                raise failure(self._path, error) from error

    def _read_number(self, key: bytes) -> int:
        value: Any = self._db.get(key)
        return int(_U64.unpack(value)[0]) if value is not None else 0


def _put(batch: WriteBatch, entries: Iterable[tuple[bytes, Entry | None]]) -> None:
    for id, entry in entries:
        if entry is None:
            batch.delete(_INDEX + id)
        else:
            batch.put(_INDEX + id, _ENTRY.pack(*entry))


def _journal_key(number: int) -> bytes:
    return _JOURNAL + _U64.pack(number)


def _unpack(value: Any) -> list[Row]:
    rows: list[Row] = msgpack.unpackb(value, use_list=False, unicode_errors=_ANY_TEXT)
    return rows


def _next_key(key: OrderKey) -> bytes:
    """First 16 bytes above ``key``."""
    due_s, offset = key
    return keys.encode((due_s + 1, 0) if offset == MAX_OFFSET else (due_s, offset + 1))


def _parts(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), GROUP_ROWS):
        some = rows[start : start + GROUP_ROWS]
        if bytes_of(some) <= GROUP_BYTES:
            yield some
        else:
            yield from _smaller_parts(some)


def _smaller_parts(rows: list[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        row_size = bytes_of([row])
        if part and size + row_size > GROUP_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += row_size
    yield part
