"""Removes index entries that are not needed any more, a few at a time."""

from __future__ import annotations

from collections.abc import Callable

from timers.core.operation import Entries, Entry
from timers.core.ports import Store

MIN_SWEEP_ENTRIES = 500
"""Minimum number of entries that one sweep reads."""


class Sweeper:
    """Removes entries in many short sweeps, so that no timer waits for a long one.

    A sweep reads as many entries as were written since the last one. So all entries are read before their number has
    doubled.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor = b""
        self._written = 0

    def note_written(self, entries: int) -> None:
        """Note how many entries were written."""
        self._written += entries

    def sweep(self, is_over: Callable[[Entry], bool]) -> None:
        """Read the next entries, and remove those that are over. Call once a second."""
        limit, self._written = max(MIN_SWEEP_ENTRIES, self._written), 0
        page = self._store.entries_after(self._cursor, limit)
        self._cursor = b"" if page.through is None else page.through
        over: Entries = {id: None for id, entry in page.entries if is_over(entry)}
        if over:
            self._store.write({}, self._store.applied, over)
