"""A store in memory, for simulated timers and for tests."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter

from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.lineage import Lineage
from timers.core.operation import NO_ENTRIES, Entry, is_cancelled, offset_of
from timers.core.ports import HeldOf, IndexPage, IsHeld
from timers.core.progress import SettingChange
from timers.core.timer import NO_ROWS, DueRows, Row, RowsByDue

_key: Callable[[tuple[OrderKey, Row]], OrderKey] = itemgetter(0)


def passes_over(passes: IsHeld, due_s: int, rows: Sequence[Row]) -> bool:
    """Whether a scan passes over a whole group."""
    is_one = all(row[1] == rows[0][1] for row in rows)
    return is_one and passes(due_s, rows[0][1], rows[0][0], rows[-1][0], len(rows))


class MemoryStore:
    """Implements :class:`timers.core.ports.Store` with one sorted list of rows.

    Args:
        group: maximum rows that a scan returns together; small, so that chunks also end inside a second.
    """

    def __init__(self, group: int = 3) -> None:
        self.applied = 0
        self.lineage = Lineage()
        self.history: tuple[SettingChange, ...] = ()
        self.read_through_s: int | None = None
        self.condemned = self.protected = False
        self._rows: list[tuple[OrderKey, Row]] = []
        self._entries: dict[bytes, Entry] = {}
        self._group = group
        self._scanned: set[OrderKey] = set()

    @property
    def pending(self) -> int:
        return len(self._rows)

    def note_read_through(self, second: int) -> None:
        self.read_through_s = second

    def condemn(self) -> None:
        self.condemned = True

    def protect(self, *, on: bool) -> None:
        self.protected = on

    def note_history(self, history: tuple[SettingChange, ...]) -> None:
        self.history = history

    def write(
        self,
        rows: RowsByDue,
        applied: int,
        entries: Mapping[bytes, Entry | None] = NO_ENTRIES,
        lineage: Lineage | None = None,
        held: RowsByDue = NO_ROWS,
    ) -> None:
        for due_s, group in (*rows.items(), *held.items()):
            for row in group:
                insort(self._rows, ((due_s, row[0]), row), key=_key)
        for id, entry in entries.items():
            if entry is None:
                self._entries.pop(id, None)
            else:
                self._entries[id] = entry
        self.applied = applied
        self.lineage = lineage or self.lineage

    def entries(self, ids: Collection[bytes]) -> dict[bytes, Entry | None]:
        return {id: self._entries.get(id) for id in ids}

    def entries_after(self, id: bytes, limit: int) -> IndexPage:
        entries = sorted(each for each in self._entries.items() if each[0] > id)[:limit]
        return IndexPage(entries, entries[-1][0] if len(entries) == limit else None)

    def newest_entries(self) -> Sequence[tuple[bytes, Entry]]:
        return ()

    def cancels_from(self, offset: int, after: bytes = b"") -> Iterator[tuple[bytes, int]]:
        entries = sorted(each for each in self._entries.items() if not after or each[0] > after)
        return ((id, at) for id, entry in entries if is_cancelled(entry) and (at := offset_of(entry)) >= offset)

    def scan(self, after: OrderKey, until_s: int, passes: IsHeld | None = None) -> Iterator[DueRows]:
        start, end = (bisect_right(self._rows, key, key=_key) for key in (after, (until_s, MAX_OFFSET)))
        found = self._rows[start:end]
        self._scanned = scanned = set[OrderKey]()
        while found:
            due_s = found[0][0][0]
            group = [row for (due, _), row in found[: self._group] if due == due_s]
            found = found[len(group) :]
            if passes is not None and passes_over(passes, due_s, group):
                continue
            scanned.update((due_s, row[0]) for row in group)
            yield due_s, group

    def waiting(self, after: OrderKey, sought: Sequence[bytes] = ()) -> Iterator[tuple[OrderKey, Sequence[Row]]]:
        scanned = self._scanned
        for due_s, rows in self.scan(after, MAX_OFFSET):
            self._scanned = scanned  # delete works only after scan
            yield (due_s, rows[-1][0]), rows

    def held(self, first: OrderKey, through: OrderKey, target: str) -> Iterator[tuple[OrderKey, list[Row]]]:
        at, end = bisect_left(self._rows, first, key=_key), bisect_right(self._rows, through, key=_key)
        for key, row in self._rows[at:end]:
            yield key, [row] if row[1] == target else []

    def replace(self, groups: Sequence[tuple[DueRows, list[Row]]]) -> None:
        left = {(due_s, row[0]) for (due_s, _), rows in groups for row in rows}
        self._remove({(due_s, row[0]) for (due_s, rows), _ in groups for row in rows} - left)

    def row(self, key: OrderKey) -> Row | None:
        at = bisect_left(self._rows, key, key=_key)
        return self._rows[at][1] if at < len(self._rows) and self._rows[at][0] == key else None

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        left = {(due_s, row[0]) for due_s, rows in kept for row in rows}
        gone = {key for key in self._scanned if key <= through} - left
        assert len(gone) == count, f"{len(gone)} rows at or below {through}, not {count}"
        self._remove(gone)

    def _remove(self, keys: set[OrderKey]) -> None:
        if keys:
            start, end = bisect_left(self._rows, min(keys), key=_key), bisect_right(self._rows, max(keys), key=_key)
            self._rows[start:end] = [each for each in self._rows[start:end] if each[0] not in keys]

    def oldest_due_s(self, after: OrderKey = NOTHING_FIRED) -> int | None:
        start = bisect_right(self._rows, after, key=_key)
        return self._rows[start][0][0] if start < len(self._rows) else None

    def drop_through(
        self,
        fired_through: OrderKey,
        next_offset: int,
        held_of: HeldOf | None = None,
        *,
        indexed: bool = False,
    ) -> bool:
        def is_past(key: OrderKey, row: Row) -> bool:
            return key <= fired_through and not (held_of and held_of.rows(key[0], [row]))

        passed_over = any(row[0] >= next_offset and is_past(key, row) for key, row in self._rows)
        if passed_over and indexed:
            return False
        self._rows = [each for each in self._rows if not is_past(*each)]
        if passed_over:
            self._rows = [(key, row) for key, row in self._rows if row[0] < next_offset]
            self.applied = next_offset
            self.lineage = self.lineage.before(next_offset)
        return True
