"""Views of a real store, and stores that are restored from them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.harness.snapshots import records_of, restored
from tests.harness.store_damage import Requests, SimulatedWorker, flip
from timers.core.keys import NOTHING_FIRED
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Row
from timers.machines.store.failures import Condemnations, StoreDamaged
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import snapshot

TIMERS = 20_000
MEMORY = RocksMemory(2**22)


def row(offset: int, value: bytes = b"") -> Row:
    return offset, "t", f"key-{offset}", value, None, None


def opened(path: Path, condemnations: Condemnations | None = None, *, indexed: bool = False) -> RocksStore:
    return RocksStore.open(path, "here", MEMORY, condemnations, indexed=indexed)


def fill(store: RocksStore, first: int = 0, count: int = TIMERS, value: bytes = b"v" * 50) -> None:
    """Write timers, ten in each second, in batches of 1,000."""
    for start in range(first, first + count, 1000):
        rows = {
            due_s: [row(at, value) for at in range(10 * due_s, 10 * due_s + 10)]
            for due_s in range(start // 10, start // 10 + 100)
        }
        store.write(rows, start + 1000)


def test_a_view_stays_as_it_was_while_the_machine_writes_deletes_and_compacts(tmp_path: Path) -> None:
    """Each version of rocksdict that is allowed must pass: its ``Rdict.snapshot()`` does not."""
    store = opened(tmp_path / "s")
    fill(store)
    before = list(store.scan(NOTHING_FIRED, TIMERS))
    view = store.view()
    rdict = store._db.rdict
    ends = threading.Event()
    read: list[tuple[bytes, bytes]] = []

    def reading() -> Iterator[tuple[bytes, bytes]]:
        for at, item in enumerate(view):
            if at == 500:
                assert ends.wait(60)
            yield item

    thread = threading.Thread(target=lambda: read.extend(reading()))
    thread.start()
    for due_s, _ in store.scan(NOTHING_FIRED, 999):  # half of them fire, in one range
        last = due_s, 10 * due_s + 9
    store.delete(last, 10_000)
    rdict.flush()
    fill(store, TIMERS, 10_000)
    rdict.flush()
    rdict.compact_range(None, None)
    fill(store, 30_000, 1000)
    ends.set()
    thread.join()
    assert (view.applied, view.rows) == (TIMERS, TIMERS)
    again = opened(tmp_path / "again")
    again.restore([read], view.applied, view.history)
    assert list(again.scan(NOTHING_FIRED, TIMERS)) == before
    for each in (again, store):
        each.close()


def test_a_view_of_a_store_with_damaged_files_is_refused(tmp_path: Path) -> None:
    condemnations = Condemnations()
    store = opened(tmp_path / "s", condemnations)
    fill(store, value=os.urandom(50))
    store._db.rdict.compact_range(None, None)
    store.close()
    flip(max((tmp_path / "s").glob("*.sst"), key=lambda file: file.stat().st_size), Random(7))
    store = opened(tmp_path / "s", condemnations)
    with pytest.raises(StoreDamaged):
        list(store.view())
    assert condemnations.by_reason["unreadable"] == 1
    store.close()
    assert not (tmp_path / "s").exists(), "a store in doubt is emptied"


def test_an_iterator_that_ends_early_is_no_view(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store)
    view = store.view()
    items = iter(list(view._items or ())[:-4])
    view._items = items
    with pytest.raises(StoreDamaged, match="nothing was read behind"):
        list(view)
    store.close()


@pytest.mark.parametrize("attribute", ["pending", "applied", "read_through_s"])
def test_a_view_with_other_numbers_than_the_store_counts_is_refused(attribute: str, tmp_path: Path) -> None:
    condemnations = Condemnations()
    store = opened(tmp_path / "s", condemnations)
    fill(store)
    setattr(store, attribute, (getattr(store, attribute) or 0) + 1)
    with pytest.raises(StoreDamaged, match="20000 rows of "):
        list(store.view())
    assert condemnations.by_reason["incomplete"] == 1
    store.close()


def test_a_closed_store_ends_its_view_and_may_be_opened_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, value=b"v" * 500)
    reading = iter(store.view())
    next(reading)
    store.close()
    with pytest.raises(Lost, match="was closed before"):
        list(reading)
    again = opened(tmp_path / "s")
    assert again.pending == TIMERS
    again.close()


@pytest.mark.parametrize("indexed", [False, True])
def test_an_empty_store_has_a_snapshot(indexed: bool, tmp_path: Path) -> None:
    store = opened(tmp_path / "s", indexed=indexed)
    store.write({}, 9)
    again = restored(tmp_path / "again", store.view(), MEMORY, indexed=indexed)
    assert (again.applied, again.pending, again.oldest_due_s()) == (9, 0, None)
    for each in (again, store):
        each.close()


@pytest.fixture(scope="module", params=[False, True], ids=["native", "by id"])
def requests(request: pytest.FixtureRequest) -> Requests:
    return Requests(12_000, has_ids=request.param)


def state(worker: SimulatedWorker, requests: Requests) -> tuple[object, ...]:
    """What a store must hold: rows that have not fired, the index, and the log that it was read from."""
    store = worker.store
    ids = [b"id-%d" % offset for offset in range(requests.count)] if requests.has_ids else []
    rows = [(due_s, each) for due_s, group in store.scan(worker.outbox.progress.fired_through, 10**9) for each in group]
    return (
        store.applied,
        store.pending,
        store.lineage,
        rows,
        {id: entry for id, entry in store.entries(ids).items() if entry},
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_a_restored_store_that_reads_on_is_that_of_all(seed: int, requests: Requests, tmp_path: Path) -> None:
    """restore(view at A) + log[A:] == the live store, and each timer fires once."""
    random = Random(seed)
    live = SimulatedWorker(requests, tmp_path / "live", Progress(), 0)
    for _ in range(random.randrange(1, 7)):
        live.step()
    view = live.store.view()
    for _ in range(random.randrange(0, 3)):
        live.step()
    records, named = records_of(view)
    while live.loop.machine.position < requests.count or random.random() < 0.9:
        live.step()
    other = SimulatedWorker(requests, tmp_path / "other", Progress(), 0)
    other.store.restore(snapshot.pages(records, named), named.applied, view.history)
    other.store.close()
    other.outbox.progress, other.second = live.outbox.progress, live.second
    other.open()
    assert other.store.applied == named.applied > 0
    while other.loop.machine.position < requests.count:
        other.step()
    assert state(other, requests) == state(live, requests)
    while not other.done:
        other.step()
    assert sorted([*live.outbox.fired, *other.outbox.fired]) == sorted(requests.must_fire)
    for worker in (live, other):
        worker.store.close()
