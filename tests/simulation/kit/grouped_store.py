"""A simulated store that keeps rows in groups, as that on disk does, where a group is one entry under its first key.

A scan begins with the first group above a key, so it misses the end of one that begins below. A delete takes whole
groups, and so does each change of one. So the simulator finds what is right row by row, and wrong group by group.
"""

from collections.abc import Iterator, Mapping, Sequence

from tests.harness.memory_store import MemoryView
from tests.simulation.kit.faults import Faults, Violation
from tests.simulation.kit.store import SimStore
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.keys import pack as pack_key
from timers.core.lineage import Lineage
from timers.core.operation import NO_ENTRIES, Entry
from timers.core.ports import HeldOf, IsHeld
from timers.core.timer import NO_ROWS, DueRows, Row, RowsByDue
from timers.machines.store import layout
from timers.machines.store.memory import passes_over

GROUP_ROWS = 3
"""Most rows of one group. They come together in one batch."""


class GroupedStore(SimStore):
    """The store of a run with pauses."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(faults)
        self._known: set[OrderKey] = set()
        """Keys with which groups begin, also of rows that are gone, or that a loss of power may bring back."""

    def _sorted(self) -> list[tuple[OrderKey, list[Row]]]:
        groups = dict[OrderKey, list[Row]]()
        starts = self._starts
        for (due_s, offset), row in self._rows:
            if (due_s, offset) in starts:
                groups[due_s, offset] = last = [row]
            else:
                last.append(row)
        return list(groups.items())

    @property
    def _starts(self) -> set[OrderKey]:
        """Keys of the first rows of all groups."""
        known = self._known
        before: int | None = None
        starts = set()
        for key, _ in self._rows:
            if key in known or key[0] != before:
                starts.add(key)
            before = key[0]
        return starts

    def _begin(self, due_s: int, rows: Sequence[Row]) -> None:
        """Note that rows are one group from now on."""
        known = self._known
        known.difference_update((due_s, row[0]) for row in rows)
        known.update([(due_s, rows[0][0])] if rows else [])

    def write(
        self,
        rows: RowsByDue,
        applied: int,
        entries: Mapping[bytes, Entry | None] = NO_ENTRIES,
        lineage: Lineage | None = None,
        held: RowsByDue = NO_ROWS,
    ) -> None:
        for each in (rows, held):
            for due_s, group in each.items():
                for at in range(0, len(group), GROUP_ROWS):
                    self._begin(due_s, group[at : at + GROUP_ROWS])
        super().write(rows, applied, entries, lineage, held)

    def _load(self, key: bytes, value: bytes) -> None:
        super()._load(key, value)
        if key < layout.ROWS_END:
            self._begin(layout.U64.unpack_from(key)[0], layout.unpack(value))

    def view(self) -> MemoryView:
        view, pack = super().view(), layout.packer()
        rows = [(pack_key(*key), pack(group)) for key, group in self._sorted()]
        return MemoryView(view.applied, view.rows, view.history, [*rows, *list(view.items)[len(self._rows) :]])

    def scan(self, after: OrderKey, until_s: int, passes: IsHeld | None = None) -> Iterator[DueRows]:
        self._scanned = scanned = set[OrderKey]()
        for key, group in self._sorted():
            if not after < key <= (until_s, MAX_OFFSET):
                continue
            if passes is None or not passes_over(passes, key[0], group):
                scanned.add(key)
                yield key[0], list(group)

    def waiting(self, after: OrderKey, sought: Sequence[bytes] = ()) -> Iterator[tuple[OrderKey, Sequence[Row]]]:
        for key, group in self._sorted():
            if rows := [row for row in group if (key[0], row[0]) > after]:
                yield (key[0], rows[-1][0]), rows

    def held(self, first: OrderKey, through: OrderKey, target: str) -> Iterator[tuple[OrderKey, list[Row]]]:
        for key, group in self._sorted():
            if first <= key <= through:
                yield key, list(group) if any(row[1] == target for row in group) else []

    def replace(self, groups: Sequence[tuple[DueRows, list[Row]]]) -> None:
        stored = dict(self._sorted())
        for (due_s, rows), _ in groups:
            if [row[0] for row in stored.get((due_s, rows[0][0]), ())] != [row[0] for row in rows]:
                raise Violation(f"{rows} are no group of {due_s}")
        super().replace(groups)
        for (due_s, _), left in groups:
            self._begin(due_s, left)

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        stored, end = dict(self._sorted()), through
        whole = {(key[0], row[0]) for key in self._scanned if key <= end for row in stored[key]}
        left = {(due_s, row[0]) for due_s, rows in (*kept, (through[0], rest)) for row in rows}
        if left - whole:
            raise Violation(f"{left - whole} stay, and were not scanned")
        self._scanned = whole - left
        super().delete((through[0], MAX_OFFSET), count)
        for due_s, rows in (*kept, (through[0], rest)):
            self._begin(due_s, rows)

    def drop_through(
        self,
        fired_through: OrderKey,
        next_offset: int,
        held_of: HeldOf | None = None,
        *,
        indexed: bool = False,
    ) -> bool:
        before, held = self._sorted(), set[OrderKey]()
        for (due_s, _), group in before if held_of else ():
            past = [row for row in group if (due_s, row[0]) <= fired_through]
            held |= {(due_s, row[0]) for row in (held_of.rows(due_s, past) if held_of and past else ())}

        def of_them(due_s: int, rows: list[Row]) -> list[Row]:
            return [row for row in rows if (due_s, row[0]) in held]

        changes = held_of and held_of._replace(rows=of_them)
        if not super().drop_through(fired_through, next_offset, changes, indexed=indexed):
            return False
        left = {key for key, _ in self._rows}
        for (due_s, _), group in before:
            rows = [row for row in group if (due_s, row[0]) in left]
            kept = [row for row in rows if (due_s, row[0]) <= fired_through] if held_of else []
            for part in (kept, rows[len(kept) :]):
                self._begin(due_s, part)
        return True

    def oldest_due_s(self, after: OrderKey = NOTHING_FIRED) -> int | None:
        return next((key[0] for key, _ in self._sorted() if key > after), None)
