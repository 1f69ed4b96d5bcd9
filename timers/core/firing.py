"""Fires due timers, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from timers.core.keys import MAX_OFFSET
from timers.core.machine_state import MachineState
from timers.core.ports import TooMuch
from timers.core.timer import Row, bytes_of

JOINED_BYTES = 256 * 1024
"""Stored groups of one second are fired together up to this size, about that of a record batch."""


class Firing(MachineState):
    """Fires timers after their due second has begun."""

    def fire_chunk(self) -> bool:
        """Fire the next chunk of due timers. Call until it returns False.

        Raises:
            Lost: drop this machine and open it again.
        """
        tick = self._tick
        if tick is None or self.recovering or self.rescuing:
            return False
        start = self.progress.fired_through
        second = self._barrier.through(tick.second)
        if second is None or second < start[0]:
            return False
        through = last = (second, MAX_OFFSET)
        chunk = self._outbox.chunk
        max_rows = chunk.limit(self._limits.chunk_timers)
        rest: list[Row] = []
        count = size = 0
        full = fires = False
        scanned = self._store.scan(start, second)  # [I3] each chunk is a new scan from fired_through
        for due_s, rows, group_size in self._groups(scanned, max_rows):
            if full:
                through = last
                break
            if chunk.reduced and count + len(rows) > max_rows:
                rows, rest = rows[: max_rows - count], rows[max_rows - count :]
            alive = self._index.alive(due_s, rows)
            if alive:
                if not fires:
                    self._outbox.begin(tick)
                    fires = True
                self._fire(due_s, alive, tick)
            count += len(rows)
            size += group_size
            full = count >= max_rows or size >= self._limits.chunk_bytes
            last = (due_s, rows[-1][0])
            if rest:
                through = last
                break
        else:
            # [I3] The scan reached its end, and this thread accepted nothing since it began: the second is complete.
            full = False
        after = replace(self.progress, fired_through=max(start, through))
        if fires:
            try:
                self._commit(after, count)
            except TooMuch as error:
                if not error.rolled_back:
                    raise
                return True  # nothing was committed: the next chunk begins with the same timer, and is smaller
        else:
            self.progress = after  # no timer fired, so this needs no commit of its own
        if count:
            # [I3] Delete exactly (old, new], after the commit. Rows of former versions need no commit: they never fire.
            self._store.delete(after.fired_through, count, rest)
        return full

    def _groups(self, scanned: Iterable[tuple[int, list[Row]]], max_rows: int) -> Iterator[tuple[int, list[Row], int]]:
        """The groups to fire at once, and their sizes in bytes."""
        if self._outbox.chunk.reduced:
            return _sized(scanned)  # the rest of a split group is stored under the key of this group
        return _joined(scanned, max_rows, min(JOINED_BYTES, self._limits.chunk_bytes))


def _sized(groups: Iterable[tuple[int, list[Row]]]) -> Iterator[tuple[int, list[Row], int]]:
    """Yields (due second, rows, their size in bytes)."""
    for due_s, rows in groups:
        yield due_s, rows, bytes_of(rows)


def _joined(
    groups: Iterable[tuple[int, list[Row]]], max_rows: int, max_bytes: int
) -> Iterator[tuple[int, list[Row], int]]:
    """Joins small groups that follow each other and are due in one second; see :func:`_sized`.

    Each stored group holds the timers of one fetch, often only a few. Each later step has a cost for each group.

    Args:
        max_rows: maximum number of rows of a joined group.
        max_bytes: maximum size of a joined group in bytes.
    """
    joined: list[Row] = []
    joined_s = joined_size = 0
    for due_s, rows, size in _sized(groups):
        if joined and (due_s != joined_s or joined_size + size > max_bytes or len(joined) + len(rows) > max_rows):
            yield joined_s, joined, joined_size
            joined, joined_size = [], 0
        joined_s = due_s
        joined_size += size
        joined += rows
    if joined:
        yield joined_s, joined, joined_size
