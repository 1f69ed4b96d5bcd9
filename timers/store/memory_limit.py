"""Limits the memory of the stores of one worker."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBufferManager

from timers.store.index_journal import IndexJournal

BLOOM_BITS = 10
"""Bits for each key. Most ids that are looked up are new; for one in a hundred of these, RocksDB reads a block that
does not have it."""

JOURNAL_BYTES = 30_000_000
"""Memory of one set of the index journals of all stores together (:mod:`timers.store.index_journal`): 100,000 ids of 32
bytes. If timers have ids, the two sets take twice as much, which the memory limit does not include."""

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
