"""What an opening drops from a large store, and what it counts there: with little memory, and in short writes."""

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from timers.core.fired import MOVED_HOLE_S
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey, pack
from timers.core.operation import cancelled
from timers.core.ports import HeldOf
from timers.core.progress import Progress, Rescue
from timers.core.rescue import Cut, held, next_lost
from timers.core.timer import Row
from timers.machines.store.database import Database
from timers.machines.store.failures import StoreDamaged
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RESTORE_ENTRIES, RocksStore

MIB = 2**20
MEMORY = RocksMemory(64 * MIB)
ROWS = 20_000


def row(offset: int, target: str = "t") -> Row:
    return offset, target, "k", b"", None, None


def written(path: Path, targets: str = "t") -> RocksStore:
    """A store with :data:`ROWS` entries of one row: the row of an offset is due at this second."""
    store = RocksStore.open(path, "here", MEMORY)
    for first in range(0, ROWS, 1000):
        group = range(first, first + 1000)
        store.write({at: [row(at, targets[at % len(targets)])] for at in group}, group.stop)
    return store


def peak_of(call: Callable[[], object]) -> int:
    """Returns the largest number of bytes of Python objects that a call has made at a time."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of operations of each write, during which no other thread runs."""
    found, write = list[int](), Database.write

    def noted(self: Database, batch: WriteBatch) -> None:
        found.append(batch.len())
        write(self, batch)

    monkeypatch.setattr(Database, "write", noted)
    return found


@pytest.mark.parametrize("through", [(ROWS - 2, MAX_OFFSET), (ROWS - 2, ROWS - 2), (MOVED_HOLE_S, 7)], ids=str)
def test_what_has_fired_is_dropped_in_little_memory(through: OrderKey, tmp_path: Path, sizes: list[int]) -> None:
    store = written(tmp_path / "s")
    sizes.clear()
    assert peak_of(lambda: store.drop_through(through, ROWS)) < MIB
    assert max(sizes) < 10
    left = [] if through[0] == MOVED_HOLE_S else [ROWS - 1]
    assert [due_s for due_s, _ in store.scan(NOTHING_FIRED, MOVED_HOLE_S)] == left
    assert (store.pending, store.applied, store.oldest_due_s()) == (len(left), ROWS, left[0] if left else None)
    store.close()
    again = RocksStore.open(tmp_path / "s", "here", MEMORY)
    assert again.pending == len(left)
    again.close()


def test_what_is_held_stays_and_the_rest_goes_in_short_writes(tmp_path: Path, sizes: list[int]) -> None:
    store, target = written(tmp_path / "s", "th"), "h"
    held_of = HeldOf(
        lambda _, rows: [each for each in rows if each[1] == target],
        lambda due_s, topic, first, last, number: topic == target,
    )
    sizes.clear()
    store.drop_through((ROWS, 0), ROWS, held_of)
    assert sum(sizes) >= ROWS // 2 and max(sizes) < RESTORE_ENTRIES + 10
    assert store.pending == ROWS // 2
    assert all(rows[0][1] == target for _, rows in store.scan(NOTHING_FIRED, ROWS))
    store.close()


def test_a_store_with_ids_that_is_of_no_use_is_not_changed(tmp_path: Path, sizes: list[int]) -> None:
    """One late row: a fenced owner had read it. The store is emptied, so nothing is written before."""
    store, usable = written(tmp_path / "s"), list[bool]()
    sizes.clear()
    through = ROWS - 2, MAX_OFFSET
    assert peak_of(lambda: usable.append(store.drop_through(through, ROWS - 5, indexed=True))) < MIB
    assert (usable, sizes, store.applied, store.pending) == ([False], [], ROWS, ROWS)
    assert store.drop_through(through, ROWS - 5) and (store.applied, store.pending) == (ROWS - 5, 0)
    store.close()


def test_a_store_with_fewer_rows_than_it_counts_is_damaged(tmp_path: Path) -> None:
    store = written(tmp_path / "s")
    store.pending = ROWS - 3
    with pytest.raises(StoreDamaged, match=r"19999 rows are before the key .*, and 19997 in all"):
        store.drop_through((ROWS - 2, MAX_OFFSET), ROWS)
    store.close()


@pytest.mark.parametrize("value", [b"", b"\x81\xa1k\x01", b"\xc0"])
def test_an_entry_that_is_no_list_of_rows_is_damage(value: bytes, tmp_path: Path) -> None:
    store = written(tmp_path / "s")
    store._db.rdict[pack(7, 7)] = value
    with pytest.raises(StoreDamaged):
        [*store.view()]
    store.close()
    store = written(tmp_path / "s")
    store._db.rdict[pack(7, 7)] = value
    with pytest.raises(StoreDamaged):
        store.drop_through((ROWS - 2, MAX_OFFSET), ROWS)
    store.close()


def test_a_store_is_whole_if_a_process_ends_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part counts what is left, so the next opening goes on."""
    store, write, held_of = written(tmp_path / "s", "th"), Database.write, HeldOf(lambda *_: [], lambda *_: False)

    def once(self: Database, batch: WriteBatch) -> None:
        write(self, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Database, "write", once)
        store.drop_through((ROWS - 2, MAX_OFFSET), ROWS, held_of)
    store.close()
    store = RocksStore.open(tmp_path / "s", "here", MEMORY)
    assert store.pending == sum(len(rows) for _, rows in store.scan(NOTHING_FIRED, ROWS)) == ROWS - RESTORE_ENTRIES
    store.drop_through((ROWS - 2, MAX_OFFSET), ROWS, held_of)
    assert (store.pending, store.applied) == (1, ROWS)
    store.close()


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[RocksStore]:
    """A store with many ids that were cancelled, and a few that its log has lost: at or after offset 90,000."""
    store = RocksStore.open(tmp_path / "ids", "here", RocksMemory(2 * MIB), indexed=True)
    for first in range(0, 60_000, 2000):
        store.write({}, first + 2000, {b"%06d" % at: cancelled(at, 0) for at in range(first, first + 2000)})
    store.write({}, 100_000, {b"%06d" % (6 * at): cancelled(90_000 + at, 0) for at in range(1000)})
    yield store
    store.close()


def test_lost_cancels_are_counted_without_a_list_of_all_ids(indexed: RocksStore) -> None:
    progress = Progress(100_000)
    found = []
    assert peak_of(lambda: found.append(held(progress, indexed, Cut(90_000)))) < MIB
    assert found[0] == (0, 1000)


def test_the_index_is_read_once_for_lost_cancels(indexed: RocksStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read, items = [0], Database.items

    def counted(self: Database, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for each in items(self, first, end):
            read[0] += 1
            yield each

    monkeypatch.setattr(Database, "items", counted)
    rescues: tuple[Rescue, ...] = (Rescue(90_000, 100_000, NOTHING_FIRED),)
    lost = list[bytes]()
    while rescues:
        chunk = next_lost(rescues, (), indexed, 100)
        lost += [id for id, _ in chunk.cancels]
        rescues = chunk.left
    assert lost == [b"%06d" % (6 * at) for at in range(1000)]
    assert read[0] < 1.5 * 60_000
