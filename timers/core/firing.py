"""Fires due timers, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from timers.core.keys import MAX_OFFSET
from timers.core.machine_state import MachineState
from timers.core.ports import TooMuch
from timers.core.timer import DueRows, Row, bytes_of

RUN_BYTES = 256 * 1024
"""Stored groups are fired together up to this size, about that of a record batch."""


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
        for due, rows, due_bytes in self._runs(scanned, max_rows):
            if full:
                through = last
                break
            if chunk.reduced and count + rows > max_rows:
                ((due_s, group),) = due
                rest, rows = group[max_rows - count :], max_rows - count
                due = [(due_s, group[:rows])]
            alive = self._index.alive(due)
            if alive:
                if not fires:
                    self._outbox.begin(tick)
                    fires = True
                self._fire(alive, tick)
            count += rows
            size += due_bytes
            full = count >= max_rows or size >= self._limits.chunk_bytes
            last_s, last_rows = due[-1]
            last = (last_s, last_rows[-1][0])
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

    def _runs(self, scanned: Iterable[DueRows], max_rows: int) -> Iterator[tuple[list[DueRows], int, int]]:
        """Yields what to fire in one call: (rows by due second, number of rows, their size in bytes).

        Each stored group holds the timers of one fetch and second, often only a few. Each later step has a cost for
        each call.
        """
        # While chunks are reduced, the rest of a split group is stored under the key of this group.
        max_bytes = 0 if self._outbox.chunk.reduced else min(RUN_BYTES, self._limits.chunk_bytes)
        run: list[DueRows] = []
        before = count = size = 0
        for due_s, rows in scanned:
            group_bytes = bytes_of(rows)
            if run and (size + group_bytes > max_bytes or before + count >= max_rows):
                yield run, count, size
                run, before, count, size = [], before + count, 0, 0
            run.append((due_s, rows))
            count += len(rows)
            size += group_bytes
        if run:
            yield run, count, size
