"""Limits the memory of the stores of one worker, and keeps the newest operations of their indexes in it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBufferManager

from timers.core.operation import Entry, chain_of, message_of, repeating

ENTRY_BYTES = 250
"""Memory of an entry in one set, besides its id."""


def _size(entries: Mapping[bytes, Entry | None]) -> int:
    """Memory of entries in one set."""
    size = sum(map(len, entries)) + ENTRY_BYTES * len(entries)
    if (
        message_of(next((entry for entry in entries.values() if entry is not None), None)) is None
    ):  # one entry shows the kind of all entries of an index
        return size
    return size + sum(len(key) + len(value) for key, value in filter(None, map(message_of, entries.values())))


class IndexJournal:
    """Newest ids of an index, in memory and in a journal in the store.

    A timer that fires soon is set, looked up, and ended by its tombstone. With one RocksDB key for each id, this needs
    a put, a get and a delete at random places, which take longer than all other work on the timer. So the operations of
    one batch are one entry of the journal, and stay in memory.

    The ids in memory form two sets, newer and older. Each batch writes some ids of the older set to the index in the
    database. When all are written, the older part of the journal is deleted. When the newer set is full, or the journal
    has twice as much since it began, it becomes the older one. Most ids are ended before that, and never become a key.

    A timer that repeats is not ended, so its entry goes back to the index at once, if the last one was read from there.

    What was read from the database, or went there at once, stays in memory until it would take more than half a set: a
    timer that repeats is looked up when it fires, and again a moment later, when its next occurrence is accepted.

    Args:
        max_bytes: returns how much memory the newer set may take.

    Attributes:
        older_first: number of the first batch in the journal.
        newer_first: number of the first batch of the newer set.
        next: number of the next batch.
    """

    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._newer_bytes = self._journal_bytes = 0
        self._newer: dict[bytes, Entry | None] = {}
        self._older: dict[bytes, Entry | None] = {}
        self._known: dict[bytes, Entry | None] = {}
        """What is in the database, of ids that are in neither set."""
        self._known_bytes = 0
        self._unwritten: list[bytes] = []
        self._written = self._written_next = self._size_next = 0
        self.older_first = self.newer_first = self.next = 0

    def __contains__(self, id: bytes) -> bool:
        return id in self._newer or id in self._older

    def items(self) -> Iterator[tuple[bytes, Entry | None]]:
        """Each id in memory, with its newest entry."""
        yield from ((id, entry) for id, entry in self._older.items() if id not in self._newer)
        yield from self._newer.items()

    def known_chains(self) -> Iterator[tuple[bytes, Entry]]:
        """The newest timers that repeat of those that :meth:`items` leaves out."""
        return ((id, entry) for id, entry in self._known.items() if entry is not None and repeating(entry) is not None)

    def restore(self, number: int, entries: Mapping[bytes, Entry | None]) -> None:
        """Add batch ``number`` of the journal to the memory. Call on opening, for each batch in ascending order."""
        if not self._newer:
            self.older_first = self.newer_first = number
        self._add(entries, _size(entries))
        self.next = number + 1

    def find(self, ids: Collection[bytes]) -> tuple[dict[bytes, Entry | None], list[bytes]]:
        """The entries of the ids that are in memory (None: the id has ended), and the ids that are not in memory."""
        newer, older, known = self._newer, self._older, self._known
        found: dict[bytes, Entry | None] = {}
        missing = []
        for id in ids:
            if id in known:  # a known id is in neither set
                found[id] = known[id]
            elif id in newer:
                found[id] = newer[id]
            elif id in older:
                found[id] = older[id]
            else:
                missing.append(id)
        return found, missing

    def note_known(self, entries: Mapping[bytes, Entry | None]) -> None:
        """Remember entries as they are in the database."""
        known, most = self._known, self._max_bytes() // 2
        if known.keys().isdisjoint(entries.keys()):
            size = _size(entries)
        else:
            size = _size({id: entry for id, entry in entries.items() if id not in known})
        if self._known_bytes + size > most:
            known = self._known = {}
            self._known_bytes, size = 0, _size(entries)
        if size <= most:
            known |= entries
            self._known_bytes += size

    def split(
        self, entries: Mapping[bytes, Entry | None]
    ) -> tuple[Mapping[bytes, Entry | None], Mapping[bytes, Entry | None]]:
        """The entries of a batch that go to the journal, and those that go to the index at once."""
        known = self._known
        direct = {
            id: entry for id, entry in entries.items() if known.get(id) is not None and chain_of(entry) is not None
        }
        if not direct:
            return entries, direct
        return {id: entry for id, entry in entries.items() if id not in direct}, direct

    def _add(self, entries: Mapping[bytes, Entry | None], size: int) -> None:
        newer = self._newer
        again = newer.keys() & entries.keys()
        self._newer_bytes += size - _size({id: entries[id] for id in again}) if again else size
        self._journal_bytes += size
        newer.update(entries)

    def next_to_index(self, entries: Mapping[bytes, Entry | None]) -> list[tuple[bytes, Entry | None]]:
        """The entries of the older set that a batch with these entries must write to the index.

        Their number is two for each operation, or more if the batch fills a large part of the newer set: if it fills a
        tenth, two tenths of the older set. So the whole older set is written before the newer set is full, whatever the
        lengths of ids are. They are in the order of ids, because RocksDB writes neighbouring keys faster.
        """
        size = self._size_next = _size(entries)
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
        self._add(entries, self._size_next)
        if self._known:
            self._known_bytes -= _size({id: self._known.pop(id) for id in entries if id in self._known})
        self.next += 1
        if self._written == len(self._unwritten):
            self.older_first = self.newer_first
            if self._newer_bytes >= self._max_bytes() or self._journal_bytes >= 2 * self._max_bytes():
                self._older, self._newer, self._newer_bytes, self._journal_bytes = self._newer, {}, 0, 0
                self._unwritten, self._written = list(self._older), 0
                self.newer_first = self.next


BLOOM_BITS = 10
"""Bits for each key. Most ids that are looked up are new; for one in a hundred of these, RocksDB reads a block that
does not have it."""

JOURNAL_BYTES = 30_000_000
"""Memory of one set of the index journals of all stores together (:class:`IndexJournal`): 100,000 ids of 32
bytes. If timers have ids, the two sets and what was read take two and a half times as much, which the memory limit does
not include."""

MIN_JOURNAL_BYTES = 300_000
"""Minimum memory of one set of one store."""

WRITE_BUFFERS_SHARE = 2 / 3
"""Share of the memory limit for write buffers; the rest is for blocks and indexes of tables. Timers that fire before
they are flushed are never written to a table, so write buffers get most of it."""

ARENA_BYTES = 128 * 1024
"""RocksDB allocates memory for a write buffer in pieces of this size. The default is 1 MiB, allocated at once for each
store: 512 partitions would hold 556 MiB under a limit of 128 MiB."""


UNCOUNTED_FILES = 10
"""RocksDB keeps so many tables fewer open than its ``max_open_files`` says, for other files. It takes 20 at least."""


@cache
def _default_options() -> dict[str, str]:
    """The files of options that RocksDB and rocksdict write: name -> content."""
    with tempfile.TemporaryDirectory(prefix="timers-") as name:
        Rdict(name, Options(raw_mode=True)).close()
        directory = Path(name)
        return {file.name: file.read_text() for file in (*directory.glob("OPTIONS-*"), *directory.glob("*.json"))}


def _without_log() -> Options:
    """Default options, but RocksDB writes no log of what it does: the thread that writes a batch would wait for the
    disk of this log, too. rocksdict has the level of this log only in a file of options."""
    with tempfile.TemporaryDirectory(prefix="timers-") as directory:
        for name, content in _default_options().items():
            quiet = content.replace("info_log_level=INFO_LEVEL", "info_log_level=FATAL_LEVEL")
            (Path(directory) / name).write_text(quiet)
        options, _ = Options.load_latest(directory)
    return options


class RocksMemory:
    """Limits the memory of all stores of a worker: one cache for their blocks, indexes and write buffers.

    Measured with 3,000,000 timers in 4, 64 and 512 stores: write buffers stay below their share, all memory together
    below ``limit_bytes`` plus 0.25 MB for each open store. Two cases exceed the limit: a limit below 0.5 MB for each
    store, because a store that is written to holds at least one fetch; and, for a moment, stores that are written
    faster than they are flushed.

    Attributes:
        max_open_files: RocksDB's limit of one store: its open tables, and :data:`UNCOUNTED_FILES`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.max_open_files = 256
        self.cache = Cache(limit_bytes)
        self._journals: set[IndexJournal] = set()
        # The cache counts write buffers, and evicts blocks for them. Writers never wait: the memory may belong to
        # stores that are not written to, and then it would never become free.
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(limit_bytes * WRITE_BUFFERS_SHARE), False, self.cache
        )

        self._options = {indexed: self._made(indexed=indexed) for indexed in (False, True)}

    def options(self, *, indexed: bool = False) -> Options:
        """Options of a store."""
        options = self._options[indexed]
        options.set_max_open_files(self.max_open_files)
        return options

    def _made(self, *, indexed: bool) -> Options:
        """Options of a store. The defaults of RocksDB and Faust are for a host with one store."""
        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_block_size(16 * 1024)
        table.set_cache_index_and_filter_blocks(True)  # else the memory limit would not include them
        if indexed:
            table.set_bloom_filter(BLOOM_BITS, False)
        options = _without_log()
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.write_buffers)
        options.set_write_buffer_size(32 * 1024 * 1024)
        options.set_arena_block_size(ARENA_BYTES)
        options.set_max_write_buffer_number(3)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        return options

    def journal(self) -> IndexJournal:
        """The index journal for a store that is opened."""
        journal = IndexJournal(self._journal_bytes)
        self._journals.add(journal)
        return journal

    def forget(self, journal: IndexJournal) -> None:
        """Stop counting the index journal of a store that was closed."""
        self._journals.discard(journal)

    def _journal_bytes(self) -> int:
        return max(MIN_JOURNAL_BYTES, JOURNAL_BYTES // max(1, len(self._journals)))
