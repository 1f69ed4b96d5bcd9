"""Memory of the stores of one worker."""

from __future__ import annotations

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager

from timers.store.index_journal import IndexJournal

BLOOM_BITS = 10
"""A key. Most ids that are looked up are new, and one in a hundred of these then looks at a block in vain."""

JOURNAL_IDS = 100_000
"""Ids in a generation, of all stores together; see :mod:`timers.store.index_journal`. Two generations take about 60 MB:
where timers have ids, and beside the memory limit."""

LEAST_JOURNAL_IDS = 1_000
"""However many stores there are."""

WRITE_BUFFERS_SHARE = 2 / 3
"""Of the memory limit: what is written and not yet in a table. The rest is for blocks and indexes of tables. Timers
that fire before they are flushed never become a table, so most of it goes here."""

ARENA_BYTES = 128 * 1024
"""RocksDB takes memory for a write buffer in such pieces. By default they are 1 MiB, at once and for each store: 512
partitions then hold 556 MiB under a bound of 128."""


class RocksMemory:
    """Memory of all stores of a worker: one block cache is the bound of their blocks, indexes and write buffers.

    Measured with 3,000,000 timers in 4, 64 and 512 stores: write buffers stay below their share, everything together
    below ``limit_bytes`` plus 0.25 MB for each open store. A store that is written to holds at least one fetch, so a
    memory limit below 0.5 MB a store is passed; and so it is for a moment while stores are written faster than flushed.

    Args:
        limit_bytes: for all stores together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.cache = Cache(limit_bytes)
        self._journal: set[IndexJournal] = set()
        # Charged to the cache, which gives blocks away for them. Never stalling: a writer would wait for memory that
        # stores hold which nobody writes to, and so for ever.
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(limit_bytes * WRITE_BUFFERS_SHARE), False, self.cache
        )

    def options(self, *, indexed: bool = False) -> Options:
        """Options of one store. RocksDB's and Faust's defaults are sized for a machine that runs nothing else.

        Args:
            indexed: keys are also looked up one by one, not only scanned.
        """
        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_block_size(16 * 1024)
        table.set_cache_index_and_filter_blocks(True)  # else outside the memory limit
        if indexed:
            table.set_bloom_filter(BLOOM_BITS, False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.write_buffers)
        options.set_write_buffer_size(32 * 1024 * 1024)
        options.set_arena_block_size(ARENA_BYTES)
        options.set_max_write_buffer_number(3)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(2)
        options.set_max_total_wal_size(256 * 1024 * 1024)
        return options

    def journal(self) -> IndexJournal:
        """For a store that is opened, and has an index."""
        journal = IndexJournal(self._journal_ids)
        self._journal.add(journal)
        return journal

    def forget(self, journal: IndexJournal) -> None:
        """The store was closed."""
        self._journal.discard(journal)

    def _journal_ids(self) -> int:
        return max(LEAST_JOURNAL_IDS, JOURNAL_IDS // max(1, len(self._journal)))
