"""The store on disk and the store in memory are one store: the same calls, the same rows."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.memory_store import MemoryStore
from tests.harness.snapshots import restored
from tests.property.unicode_text import texts
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.lineage import Batch, RecordCount
from timers.core.operation import Entry, cancelled
from timers.core.ports import HeldOf, Store
from timers.core.timer import DueRows, Origin, Row, RowsByDue
from timers.machines.store import layout, memory_limit, rocks
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore, RocksView

MEMORY = RocksMemory(16 * 1024 * 1024)
ALL_S = 10**11


@pytest.fixture(autouse=True)
def small_groups() -> Iterator[None]:
    """Entries of at most 3 rows, few point deletes and few recent ids, so that small examples meet every limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "GROUP_ROWS", 3)
        patch.setattr(layout, "GROUP_BYTES", 40)
        patch.setattr(rocks, "POINT_DELETES", 2)
        patch.setattr(rocks, "MAX_GROUPS_LEFT_OUT", 2)
        patch.setattr(memory_limit, "JOURNAL_BYTES", 600)
        patch.setattr(memory_limit, "MIN_JOURNAL_BYTES", 600)
        yield


VALUES = st.tuples(
    st.sampled_from(["t", "ü"]),
    texts(3),
    st.binary(max_size=30),
    st.none() | st.lists(st.tuples(st.sampled_from(["a", "b"]), st.none() | st.binary(max_size=3)), max_size=2),
    st.none() | st.builds(Origin, st.just("t/0/1"), st.integers(0, 9), st.integers(0, 9), st.none() | texts(3)),
)
SECONDS = st.integers(0, 3)
ALL_IDS = [b"a", b"ab", b"\xff\xff", b"\x00", b"b"]
IDS = st.sampled_from(ALL_IDS)
PLAIN_ENTRIES = st.tuples(SECONDS, st.integers(0, 30), SECONDS)
MESSAGE_ENTRIES = st.tuples(SECONDS, st.integers(0, 30), SECONDS, st.binary(max_size=9), st.binary(max_size=300))
REPEATING_ENTRIES = st.tuples(
    SECONDS, st.integers(0, 30), SECONDS, st.integers(0, 30), st.binary(min_size=8, max_size=8), SECONDS
)
ENTRIES = st.dictionaries(
    IDS,
    st.one_of(
        st.none(), PLAIN_ENTRIES, MESSAGE_ENTRIES, REPEATING_ENTRIES, REPEATING_ENTRIES.map(lambda e: (*e, True))
    ),
    max_size=4,
)
ROWS = st.lists(st.tuples(SECONDS, VALUES), min_size=1, max_size=9)
BATCH = st.tuples(st.just("write"), st.tuples(ROWS, ENTRIES))
FIRE = st.tuples(st.just("fire"), st.tuples(SECONDS, st.integers(1, 3), st.integers(0, 3)))
REOPEN = st.tuples(st.just("reopen"), st.none())
VIEW = st.tuples(st.just("view"), st.none())
RESTORE = st.tuples(st.just("restore"), st.none())
OVERTAKEN = st.tuples(
    st.just("superseded"), st.tuples(SECONDS, st.integers(0, 30) | st.just(MAX_OFFSET), st.integers(0, 30))
)


def rows_of(
    store: MemoryStore | RocksStore, after: OrderKey = NOTHING_FIRED, until_s: int = ALL_S
) -> list[tuple[int, Row]]:
    """All rows of a scan, without the groups, which are each store's own affair."""
    rows = []
    for due_s, group in store.scan(after, until_s):
        assert group, "an empty group"
        rows += [(due_s, _plain(row)) for row in group]
    return rows


def _plain(row: Row) -> Row:
    offset, topic, key, value, headers, origin = row
    plain_headers = [(name, data) for name, data in headers] if headers else None
    return offset, topic, key, value, plain_headers, Origin(*origin) if origin else None


def paged(store: Store, limit: int) -> list[tuple[bytes, Entry]]:
    """All entries of the index, in pages that each read no more than ``limit`` of its keys."""
    entries: list[tuple[bytes, Entry]] = []
    through: bytes | None = b""
    while through is not None:
        page = store.entries_after(through, limit)
        assert len(page.entries) <= limit
        assert page.through is None or page.through > through
        entries += page.entries
        through = page.through
    return entries


def meaning(store: MemoryStore | RocksStore) -> tuple[object, ...]:
    """All that a store holds."""
    entries = {id: entry for id, entry in store.entries(ALL_IDS).items() if entry}
    return store.applied, store.pending, store.lineage, rows_of(store), entries


class Twins:
    """Both stores, given the same calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory = MemoryStore()
        self.rocks = RocksStore.open(path, "here", MEMORY, indexed=True)
        self.fired_through: OrderKey = NOTHING_FIRED
        self.next_offset = 0
        self._viewed: tuple[RocksView, tuple[object, ...]] | None = None
        self._restored = 0

    @property
    def now_s(self) -> int:
        """What the calls' seconds count from: else all that comes would soon be late."""
        return max(0, self.fired_through[0])

    def write(
        self, values: list[tuple[int, tuple[object, ...]]], entries: dict[bytes, tuple[int, int, int] | None]
    ) -> None:
        """Accept one batch; late rows are not stored."""
        rows: RowsByDue = {}
        for ahead_s, value in values:
            due_s = self.now_s + ahead_s
            if (due_s, self.next_offset) > self.fired_through:
                rows.setdefault(due_s, []).append((self.next_offset, *value))  # type: ignore[arg-type]
            self.next_offset += 1
        batch = Batch(self.next_offset - 1, self.next_offset - 1, len(values), 2**32 - 1)
        lineage = self.memory.lineage.through([(self.next_offset // 8, batch)], self.next_offset)
        lineage = lineage._replace(counted=RecordCount(1, self.next_offset, len(values), 0))
        for store in (self.memory, self.rocks):
            store.write(rows, self.next_offset, entries, lineage)

    def fire(self, ahead_s: int, groups: int, left: int) -> None:
        """What a machine does: scan some groups, and delete exactly these. RocksDB's groups lead.

        Up to ``left`` rows of the last group stay, as while the brokers are slow.
        """
        second = self.now_s + ahead_s
        last, count = None, 0
        rest: list[Row] = []
        for due_s, rows in self.rocks.scan(self.fired_through, second):
            if groups == 0:
                break
            groups -= 1
            if groups == 0:
                fired = max(1, len(rows) - left)
                rows, rest = rows[:fired], rows[fired:]
            last, count = (due_s, rows[-1][0]), count + len(rows)
            if rest:
                break
        else:
            last = max((second, MAX_OFFSET), self.fired_through)
        if last is not None:
            self.fired_through = last
            if count:
                self.rocks.delete(last, count, rest)
                self.memory.delete(last, count, rest)

    def view(self) -> None:
        """Take a view of the store on disk, and remember what the one in memory holds now."""
        self.end_view()
        self._viewed = self.rocks.view(), meaning(self.memory)

    def end_view(self) -> None:
        """Restore another store from the view: it holds what the twin held then."""
        if self._viewed is not None:
            view, seen = self._viewed
            self._viewed, other = None, self._from(view)
            assert meaning(other) == seen
            other.close()

    def restore(self) -> None:
        """Go on with a store that was restored from a view of this one."""
        self.end_view()
        other = self._from(self.rocks.view())
        self.rocks.close()
        self.rocks, self.path = other, self.path.with_name(f"restored-{self._restored}")

    def _from(self, view: RocksView) -> RocksStore:
        self._restored += 1
        return restored(self.path.with_name(f"restored-{self._restored}"), view, MEMORY, indexed=True)

    def reopen(self) -> None:
        """Close and open again."""
        self.end_view()
        self.rocks.close()
        self.rocks = RocksStore.open(self.path, "here", MEMORY, indexed=True)
        self.drop()

    def superseded(self, ahead_s: int, offset: int, next_offset: int) -> None:
        """Another owner came in between, fired up to a key, and has accepted less, or more, than we."""
        self.fired_through = max(self.fired_through, (self.now_s + ahead_s, offset))
        self.end_view()
        self.rocks.close()
        self.rocks = RocksStore.open(self.path, "here", MEMORY, indexed=True)
        self.drop(next_offset)

    def drop(self, next_offset: int = MAX_OFFSET) -> None:
        both = self.memory, self.rocks
        usable = [each.drop_through(self.fired_through, next_offset, indexed=True) for each in both]
        assert usable[0] == usable[1]
        for each in () if usable[0] else both:
            each.drop_through(self.fired_through, next_offset)
        self.next_offset = self.memory.applied

    def check_sought(self, everything: list[tuple[int, Row]]) -> None:
        """Rows with these texts are found, from any key that was reached."""
        for topic, id in (("ü", ""), ("t", "t/0/1")):
            after, seen = NOTHING_FIRED, []
            for through, rows in list(
                self.rocks.waiting(NOTHING_FIRED, [each.encode() for each in (topic, id) if each])
            ):
                assert through > after
                after = through
                seen += [(through[0], _plain(row)) for row in rows]
            wanted = [each for each in everything if each[1][1] == topic and (not id or each[1][5])]
            assert [each for each in seen if each in wanted] == wanted

    def check(self, ahead_s: int) -> None:
        second = self.now_s + ahead_s
        assert rows_of(self.rocks) == rows_of(self.memory)
        assert rows_of(self.rocks, self.fired_through, second) == rows_of(self.memory, self.fired_through, second)
        everything = rows_of(self.memory)
        for after in (
            NOTHING_FIRED,
            self.fired_through,
            (second, MAX_OFFSET),
            *((due_s, row[0]) for due_s, row in everything),
        ):
            waiting = list(self.rocks.waiting(after))
            seen = [(due_s, _plain(row)) for (due_s, _), rows in waiting for row in rows]
            assert seen == [(due_s, row) for due_s, row in everything if (due_s, row[0]) > after]
            assert all((due_s, rows[-1][0]) == (due_s, offset) for (due_s, offset), rows in waiting)
        self.check_sought(everything)
        assert self.rocks.pending == self.memory.pending == len(rows_of(self.memory))
        assert self.rocks.applied == self.memory.applied
        assert self.rocks.lineage == self.memory.lineage
        for place in ((0, b""), (3, b""), (0, b"a"), (0, b"b")):
            assert list(self.rocks.cancels_from(*place)) == list(self.memory.cancels_from(*place))
        assert self.rocks.oldest_due_s() == self.memory.oldest_due_s()
        page = list(self.memory.entries_after(b"", 10).entries)
        mature = list(self.rocks.entries_after(b"", 10).entries)
        assert [entry for entry in page if entry in mature] == mature  # without the latest ones
        assert paged(self.memory, 2) == page
        assert paged(self.rocks, 2) == mature
        for ids in (ALL_IDS, [b"a", b"nobody"]):
            found = self.rocks.entries(ids)
            assert {id: found[id] for id in found if found[id]} == {id: entry for id, entry in page if id in ids}


HELD = "ü"


class HeldTwins(Twins):
    """Both stores, while a hold of one target goes on: what is due is passed over, and released in parts.

    Args:
        begin: the hold holds what is above this key, which may be inside a group.
    """

    def __init__(self, path: Path, begin: OrderKey) -> None:
        super().__init__(path)
        self.begin = self.released = begin

    def is_held(self, key: OrderKey, target: str) -> bool:
        return target == HELD and self.begin < key and self.released < key

    def is_whole(self, due_s: int, target: str, first: int, last: int, number: int) -> bool:
        return all(self.is_held((due_s, offset), target) for offset in (first, last))

    def write(
        self, values: list[tuple[int, tuple[object, ...]]], entries: dict[bytes, tuple[int, int, int] | None]
    ) -> None:
        """Accept one batch; some of its rows are late by a second: those that are held are stored."""
        waiting: RowsByDue = {}
        held: RowsByDue = {}
        for ahead_s, value in values:
            row: Row = (self.next_offset, *value)  # type: ignore[assignment]
            key = max(0, self.now_s + ahead_s - 1), self.next_offset
            if key > self.fired_through:
                waiting.setdefault(key[0], []).append(row)
            elif self.is_held(key, row[1]):
                held.setdefault(key[0], []).append(row)
            self.next_offset += 1
        for store in (self.memory, self.rocks):
            store.write(waiting, self.next_offset, entries, None, held)

    def fire(self, ahead_s: int, groups: int, left: int) -> None:
        """As a machine: a chunk passes over what is held, and takes only a part of its last group."""
        second, last, count = self.now_s + ahead_s, None, 0
        rest: list[Row] = []
        kept: list[DueRows] = []
        for due_s, rows in self.rocks.scan(self.fired_through, second, self.is_whole):
            if groups == 0:
                break
            groups -= 1
            fired = rows if groups else rows[: max(1, len(rows) - left)]
            rest = rows[len(fired) :]
            held = [row for row in fired if self.is_held((due_s, row[0]), row[1])]
            if held:
                kept.append((due_s, held))
            last, count = (due_s, fired[-1][0]), count + len(fired) - len(held)
            if rest:
                break
        else:
            last = max((second, MAX_OFFSET), self.fired_through)
        if last is None:
            return
        all_kept = [
            (due_s, [row])
            for due_s, rows in self.memory.scan(self.fired_through, second)
            for row in rows
            if self.is_held((due_s, row[0]), row[1])
        ]
        self.fired_through = last
        if count or rest:
            self.rocks.delete(last, count, rest, kept)
            self.memory.delete(last, count, rest, all_kept)

    def release(self, limit: int) -> None:
        """Release the next rows of the hold."""
        groups: list[tuple[DueRows, list[Row]]] = []
        for (due_s, _), rows in self.rocks.held((max(0, self.released[0]), 0), self.fired_through, HELD):
            held = [
                row for row in rows if (due_s, row[0]) <= self.fired_through and self.is_held((due_s, row[0]), row[1])
            ]
            held = held[:limit]
            limit -= len(held)
            if held:
                groups.append(((due_s, rows), [row for row in rows if row not in held]))
        for store in (self.rocks, self.memory):
            store.replace(groups)
        gone = [(due_s, row[0]) for (due_s, rows), left in groups for row in rows if row not in left]
        self.released = max([self.released, *gone])

    def drop(self, next_offset: int = MAX_OFFSET) -> None:
        def held_of(due_s: int, rows: list[Row]) -> list[Row]:
            return [row for row in rows if self.is_held((due_s, row[0]), row[1])]

        for store in (self.memory, self.rocks):
            store.drop_through(self.fired_through, next_offset, HeldOf(held_of, self.is_whole))
        self.next_offset = self.memory.applied

    def check(self, ahead_s: int) -> None:
        super().check(ahead_s)
        for store in (self.rocks, self.memory):
            for after in (NOTHING_FIRED, self.begin, self.released):
                found = store.held((max(0, after[0]), 0), self.fired_through, HELD)
                held = {(due_s, row[0]) for (due_s, _), rows in found for row in rows if row[1] == HELD}
                keys = {(due_s, row[0]) for due_s, row in rows_of(self.memory) if row[1] == HELD}
                wanted = {key for key in keys if after < key <= self.fired_through}
                assert wanted <= held <= keys
            for due_s, row in rows_of(self.memory):
                assert _plain(store.row((due_s, row[0])) or row) == row
                assert store.row((due_s, row[0])) is not None
                assert store.row((due_s + 7, row[0])) is None


def test_a_range_of_deleted_entries_ends_at_what_is_held(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks, "POINT_DELETES", 128)
        twins = HeldTwins(tmp_path / "store", NOTHING_FIRED)
        free, held = ("t", "k", b"v", None, None), (HELD, "k", b"v", None, None)
        every = {2, 150, 151, 300, 399}
        twins.write([(each, held if each in every else free) for each in range(1, 400)], {})
        twins.write([(each, free) for each in every], {})
        twins.fire(500, 10**6, 0)
        twins.check(0)
        assert [due_s + 1 for due_s, _ in rows_of(twins.rocks)] == sorted(every)
        twins.release(3)
        twins.check(0)
        assert [due_s + 1 for due_s, _ in rows_of(twins.rocks)] == [300, 399]
        twins.rocks.close()


def test_what_is_recent_becomes_keys_and_the_journal_goes(tmp_path: Path) -> None:
    twins = Twins(tmp_path / "store")
    for number in range(40):
        before = b"%d" % max(0, number - 3)
        twins.next_offset = number + 1  # a store that has applied nothing has no entries
        entry = cancelled(number, 0) if number % 3 else (number, number, 0)
        twins.write([], {b"%d" % number: entry, before: None if number % 2 else (9, 9, 9)})
        if number % 7 == 0:
            twins.reopen()
        page = dict(twins.memory.entries_after(b"", 100).entries)
        assert twins.rocks.entries(page) == page
        assert list(twins.rocks.cancels_from(20)) == list(twins.memory.cancels_from(20))
        mature = dict(twins.rocks.entries_after(b"", 100).entries)
        assert mature.items() <= page.items()
        assert page.keys() - mature.keys() <= {b"%d" % each for each in range(max(0, number - 11), number + 1)}
        assert sum(key < b"\xfe" for key in twins.rocks._db.rdict.keys(from_key=b"\xfd")) <= 8, "batches in the journal"
    twins.rocks.close()


CALLS = st.lists(st.one_of(BATCH, BATCH, FIRE, FIRE, REOPEN, OVERTAKEN, VIEW, RESTORE), min_size=6, max_size=20)


@pytest.mark.slow
@settings(max_examples=25)
@given(CALLS, SECONDS)
def test_the_stores_are_twins(calls: list[tuple[str, object]], second: int) -> None:
    compare(calls, second)


@pytest.mark.long
@settings(max_examples=300)
@given(CALLS, SECONDS)
def test_the_stores_are_twins_in_many_runs(calls: list[tuple[str, object]], second: int) -> None:
    compare(calls, second)


RELEASE = st.tuples(st.just("release"), st.tuples(st.integers(0, 5)))
HELD_CALLS = st.lists(
    st.one_of(BATCH, BATCH, FIRE, FIRE, RELEASE, REOPEN, OVERTAKEN, VIEW, RESTORE), min_size=6, max_size=20
)
BEGIN = st.just(NOTHING_FIRED) | st.tuples(SECONDS, st.integers(0, 9))


@pytest.mark.slow
@settings(max_examples=25)
@given(HELD_CALLS, SECONDS, BEGIN)
def test_stores_are_twins_while_rows_are_held(calls: list[tuple[str, object]], second: int, begin: OrderKey) -> None:
    compare(calls, second, lambda path: HeldTwins(path, begin))


@pytest.mark.long
@settings(max_examples=400)
@given(HELD_CALLS, SECONDS, BEGIN)
def test_stores_are_twins_in_many_runs_of_holds(calls: list[tuple[str, object]], second: int, begin: OrderKey) -> None:
    compare(calls, second, lambda path: HeldTwins(path, begin))


def compare(calls: list[tuple[str, object]], second: int, twins_of: Callable[[Path], Twins] = Twins) -> None:
    """Give both stores the same calls, and compare them after each."""
    path = Path(tempfile.mkdtemp(prefix="timers-twins-"))
    try:
        twins = twins_of(path / "store")
        for name, argument in calls:
            call = getattr(twins, name)
            if argument is None:
                call()
            else:
                call(*argument)  # type: ignore[misc]
            twins.check(second)
        twins.end_view()
        twins.rocks.close()
    finally:
        shutil.rmtree(path)
