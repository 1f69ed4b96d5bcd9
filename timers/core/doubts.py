"""Doubts about a request log: brokers may have deleted pending requests while its topic was compacted [I29].

A worker notices a compacted topic by its configuration. It cannot know which requests are gone: compaction leaves no
trace. But a store that had read them before still holds them. So progress keeps a doubt: the offset up to which the log
may lack requests, and the worker whose store is whole. A machine whose store ends before this offset would have to read
what may be gone, so it is not opened. The doubt ends when a whole store holds nothing of the requests below the offset,
or when an operator accepts the loss.
"""

from __future__ import annotations

from dataclasses import replace

from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.operation import Entry, chain_of, request_of
from timers.core.ports import Outbox, Store
from timers.core.progress import HOT_HORIZON, Doubt, Progress
from timers.core.timer import Tick

SEARCHED_ROWS = 2_000
"""Rows, or entries, that one search reads at most: 4 ms, in which no timer fires."""

FIRST_TICK = Tick(0)


def is_refused(progress: Progress, applied: int, worker: str, *, is_compacted: bool) -> bool:
    """Whether a machine must not be opened, because it would read what the log may lack, or its store may have done so.

    Args:
        applied: offset up to which its store was written.
        worker: id of the worker that has the store. If a doubt names another one, the store may have read after
            compaction, while its machine was fenced.
        is_compacted: whether the topic is compacted now. Then all that the store lacks may be gone.
    """
    doubt = progress.doubt or Doubt(0, "")
    return doubt.worker not in ("", worker) or applied < (progress.next_offset if is_compacted else doubt.before_offset)


def noted(progress: Progress, worker: str) -> Progress:
    """Returns the progress with a doubt about all that was accepted. ``worker``: its store is whole; empty: not known.

    A doubt never shrinks: a store may have accepted less again after an operator has lowered ``next_offset``.
    """
    before = max(progress.next_offset, progress.doubt.before_offset if progress.doubt else 0)
    known = progress.doubt.worker if progress.doubt else ""
    return replace(progress, doubt=Doubt(before, worker or known))


def commit_refusal(outbox: Outbox, progress: Progress) -> None:
    """Commit a doubt for a machine that is refused because its topic is compacted now, if progress has none that is as
    large. Otherwise the next opening after the topic was corrected would not know of it.

    Raises:
        Lost, Fenced: as :meth:`timers.core.ports.Outbox.commit`.
    """
    after = noted(progress, "")
    if after != progress:
        outbox.begin(FIRST_TICK)
        outbox.commit(after)


class Doubts:
    """What a machine knows of doubts about its log.

    Args:
        store: of the machine. It is protected while its log is in doubt.

    Attributes:
        worker: id of this worker, whose store is whole, while the topic is compacted; else None.
    """

    def __init__(self, store: Store, progress: Progress) -> None:
        self.worker: str | None = None
        self._store = store
        store.protect(on=progress.doubt is not None)
        self._extends: str | None = None
        """Id of this worker, if the doubt must still be extended to what was accepted since the last comparison."""
        self._was_compared = False
        """Whether the topic's configuration was compared since this machine was opened."""
        self._leftovers: Leftovers | None = None

    def note(self, worker: str, *, is_compacted: bool) -> None:
        """Note what the last comparison of the topic's configuration says. Call it when the machine is opened, and
        after each change. While it recovers, a machine of a compacted topic must be closed instead.

        Args:
            worker: id of this worker, whose store is whole.
            is_compacted: whether brokers may delete requests that wait [I29].
        """
        if is_compacted:
            self.worker = worker
            self._store.protect(on=True)
        elif self.worker is not None or not self._was_compared:
            # Compaction may have deleted requests that were accepted since the topic's configuration was last read.
            self.worker, self._extends, self._was_compared = None, worker, True

    def settled(self, progress: Progress, committed: Progress, of_index_s: int | None) -> Progress:
        """Returns ``progress`` with a longer doubt, or without a doubt that is over. For once a second.

        Args:
            of_index_s: seconds for which the index remembers ids; None: not bounded.
        """
        progress = self._compared(progress, committed, of_index_s)
        self._store.protect(on=self.worker is not None or progress.doubt is not None)
        return progress

    def _compared(self, progress: Progress, committed: Progress, of_index_s: int | None) -> Progress:
        if self.worker is None and self._extends is not None:
            if progress.doubt is not None:
                progress = noted(progress, self._extends)
            self._extends = None
        doubt = progress.doubt
        if doubt is None or self.worker is not None or not self._was_compared or doubt != committed.doubt:
            return progress
        if self._leftovers is None or self._leftovers.doubt != doubt:
            self._leftovers = Leftovers(self._store, doubt, remembered_s(progress, of_index_s))
        return progress.without_doubt() if self._leftovers.are_gone(committed.fired_through) else progress


class Leftovers:
    """Looks, a piece at a time, for what a whole store still holds of the requests below the offset of a doubt.

    Rows are read in the order in which they fire. The search stays at the first row below the offset until this row is
    gone. Rows that are written later have higher offsets, so the search never goes back.

    Args:
        remembered_s: seconds for which ids are remembered after their last timer; None: not bounded, so the search
            never ends.
    """

    def __init__(self, store: Store, doubt: Doubt, remembered_s: int | None) -> None:
        self.doubt = doubt
        self._store = store
        self._remembered_s = remembered_s
        self._after = NOTHING_FIRED
        self._ids_after = b""
        self._chain: bytes | None = None
        """Id of a timer that rests on the requests below the offset."""
        self._gone_s: int | None = None

    def are_gone(self, fired_through: OrderKey) -> bool:
        """Whether the store holds neither a row below the offset, nor an id that must be remembered, nor a timer that
        repeats and was set below the offset: a replay needs each record of its chain [I37]."""
        if self._remembered_s is None:
            return False
        if self._gone_s is None and self._no_row_is_left() and self._no_chain_is_left():
            self._gone_s = fired_through[0]
        # All versions below the offset were due by this second, so their ids are forgotten one retention later.
        return self._gone_s is not None and fired_through[0] >= self._gone_s + self._remembered_s

    def _no_row_is_left(self) -> bool:
        read = 0
        for through, rows in self._store.waiting(self._after):
            if any(row[0] < self.doubt.before_offset for row in rows):
                return False
            self._after, read = through, read + len(rows)
            if read >= SEARCHED_ROWS:
                return False
        return True

    def _no_chain_is_left(self) -> bool:
        """Reads the newest entries and a part of the others. An entry moves from the former to the latter, so none is
        passed over. 100,000 newest entries take 10 ms, each second until all others are read once, or one is found."""
        if self._chain is not None:
            entry = self._store.entries([self._chain]).get(self._chain)
            if entry is not None and self._rests(entry):
                return False
        page = self._store.entries_after(self._ids_after, SEARCHED_ROWS)
        entries = (*self._store.newest_entries(), *page.entries)
        self._chain = next((id for id, entry in entries if self._rests(entry)), None)
        if self._chain is not None:
            return False
        self._ids_after = page.through or self._ids_after
        return page.through is None

    def _rests(self, entry: Entry) -> bool:
        """Whether an entry is of a timer that repeats and was set below the offset."""
        return chain_of(entry) is not None and request_of(entry) < self.doubt.before_offset


def remembered_s(progress: Progress, of_index_s: int | None) -> int | None:
    """Returns for how long ids are remembered, also in an index without ids; None: not bounded.

    A cold request, and a promoted copy, may have to be remembered for as long as the timer is cold.
    """
    return None if progress.largest(HOT_HORIZON) else of_index_s
