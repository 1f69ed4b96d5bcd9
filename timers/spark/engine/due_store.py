"""The due timers of one machine, as the store that :class:`timers.core.machine.Machine` expects."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.lineage import Lineage
from timers.core.operation import NO_ENTRIES, Entry
from timers.core.ports import IndexPage
from timers.core.progress import SettingChange
from timers.core.timer import DueRows, Row, RowsByDue
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Group


class DueStore:
    """Implements :class:`timers.core.ports.Store` for the time of a micro-batch.

    The bucket keeps the timers that wait. It adds the due ones before the machine fires, and takes the accepted ones.

    Args:
        partition: of the request topic.
        applied: offset up to which the bucket holds the accepted requests.
        history: settings history under which they were accepted.

    Attributes:
        lineage: which log the micro-batch reads, up to its end. It is not changed by writes.
        accepted: timers that the machine has accepted and the bucket has not taken yet.
    """

    def __init__(self, partition: int, applied: int, history: tuple[SettingChange, ...]) -> None:
        self.applied = applied
        self.lineage = Lineage()
        self.history = history
        self.read_through_s: int | None = None
        self.accepted: list[Group] = []
        self._partition = partition
        self._due: dict[int, list[Group]] = {}
        self._fired: list[tuple[OrderKey, int]] = []
        """(key, offset): the rows at or below the key and below the offset have fired."""

    @property
    def pending(self) -> int:
        """Number of due timers, and of accepted ones that the bucket has not taken."""
        return sum(group.timers for groups in (self.accepted, *self._due.values()) for group in groups)

    def add_due(self, groups: Iterable[Group]) -> None:
        """Add due timers."""
        for group in groups:
            self._due.setdefault(group.due_s, []).append(group)

    def take_accepted(self) -> list[Group]:
        """Remove the timers that were accepted, and return them."""
        accepted, self.accepted = self.accepted, []
        return accepted

    def clear(self) -> None:
        """Remove the due timers: all of them have fired."""
        self._due.clear()

    def write(
        self,
        rows: RowsByDue,
        applied: int,
        entries: Mapping[bytes, Entry | None] = NO_ENTRIES,
        lineage: Lineage | None = None,
    ) -> None:
        self.accepted += timer_batches.groups(self._partition, rows)
        self.applied = applied

    def scan(self, after: OrderKey, until_s: int) -> Iterator[DueRows]:
        for due_s in sorted(self._due):
            if due_s > until_s:
                return
            for group in sorted(self._due[due_s], key=lambda each: each.first_offset):
                rows = self._left(due_s, group.rows, after)
                if rows:
                    yield due_s, rows

    def _left(self, due_s: int, rows: list[Row], after: OrderKey) -> list[Row]:
        """The rows that have not fired."""
        if due_s <= after[0]:
            rows = [row for row in rows if (due_s, row[0]) > after]
        for through, before_offset in self._fired:
            if due_s <= through[0]:
                rows = [row for row in rows if (due_s, row[0]) > through or row[0] >= before_offset]
        return rows

    def waiting(self, after: OrderKey, sought: Sequence[bytes] = ()) -> Iterator[tuple[OrderKey, Sequence[Row]]]:
        for due_s, rows in self.scan(after, max(self._due, default=0)):
            yield (due_s, rows[-1][0]), rows

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = ()) -> None:
        due_s, offset = through
        for second in [each for each in self._due if (each, MAX_OFFSET) <= through]:
            del self._due[second]
        if due_s in self._due:
            # Groups do not overlap: of those that begin at or below the offset, only the last one may have other rows.
            # No other is unpacked, because a second may have thousands of groups, and fires in many chunks.
            left = sorted(self._due[due_s], key=lambda each: each.first_offset)
            begun = bisect_right(left, offset, key=lambda each: each.first_offset)
            is_last_done = begun > 0 and left[begun - 1].rows[-1][0] <= offset
            self._due[due_s] = left[begun if is_last_done else max(0, begun - 1) :]

    def drop_through(self, fired_through: OrderKey, next_offset: int) -> None:
        """Hide the rows that have fired.

        No row at or above ``next_offset`` is at or below ``fired_through``: a micro-batch is repeated if another owner
        of the partition has committed since the store was made (:class:`timers.spark.engine.machines.PartitionRun`).
        """
        self._fired.append((fired_through, next_offset))

    def oldest_due_s(self) -> int | None:
        return min(self._due, default=None)

    # ---- parts of the interface that timers without ids do not use ---------------------------------------------------

    def note_history(self, history: tuple[SettingChange, ...]) -> None:
        self.history = history

    def note_read_through(self, second: int) -> None:
        self.read_through_s = second

    def protect(self, *, on: bool) -> None:
        """Do nothing: Spark's checkpoint holds what waits."""

    def condemn(self) -> None:
        """Do nothing: who rescues its timers deletes the checkpoint."""

    def entries(self, ids: Collection[bytes]) -> dict[bytes, Entry | None]:
        return {}

    def cancels_from(self, offset: int) -> list[tuple[bytes, int]]:
        return []

    def entries_after(self, id: bytes, limit: int) -> IndexPage:
        return IndexPage((), None)
