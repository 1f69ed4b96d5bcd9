"""Two stores that were read up to the same offset are compared by what will fire, and by what they know of ids."""

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.memory_store import MemoryStore
from tests.harness.snapshots import SimSnapshots
from timers.core.lineage import Lineage, RecordCount
from timers.core.machine import Machine
from timers.core.operation import Entry
from timers.core.ports import Lost, SnapshotStore
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Unreadable
from timers.core.timer import Origin, Row
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topics import Cluster
from timers.machines import verifying
from timers.machines.store import layout, memory_limit
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import Stores
from timers.machines.store.rocks import RocksStore
from timers.machines.verifying import CHECKED, Verified, compared, progress_at, restored, spec_at, verify
from timers.process.config.settings import Settings

SETTINGS = Settings.load({})
TP = SETTINGS.id_topic, 0
CLUSTER = Cluster("cluster", {TP[0]: b"topic id"}, {TP[0]: 1})
STORES = Stores(SETTINGS, CLUSTER, RocksMemory(2**25), Condemnations(), enabled_formats(SETTINGS))
PLACE = STORES.place_of(TP)


def row(offset: int, id: str = "", value: bytes = b"value") -> Row:
    return offset, "target", "key", value, None, Origin(id, 100, 0) if id else None


def filled(store: Any, *groups: tuple[int, list[Row]], applied: int = 50, entries: dict[bytes, Entry]) -> Any:
    for due_s, rows in groups:
        store.write({due_s: rows}, applied)
    store.write({}, applied, entries)
    return store


def machine(store: SnapshotStore, progress: Progress) -> Machine:
    outbox: Any = None
    return spec_at(SETTINGS, enabled_formats(SETTINGS)[TP[0]], TP, progress).machine(progress, store, outbox)


def found(one: Any, two: Any, progress: Progress, check: Any = lambda: None) -> Verified:
    return compared((machine(one, progress), one), (machine(two, progress), two), 10, check)


ROWS = [row(1, "a"), row(2, "b"), row(3, "c")]
ENTRIES: dict[bytes, Entry] = {b"a": (100, 1, 7), b"b": (100, 2, 7), b"c": (100, 3, 7)}


def rocks(path: Path) -> RocksStore:
    return RocksStore.open(path, "test", RocksMemory(2**25), Condemnations(), indexed=True)


def test_groups_and_versions_that_were_replaced_make_no_difference(tmp_path: Path) -> None:
    one = filled(rocks(tmp_path / "store"), (100, ROWS), (100, [row(4, "x")]), entries=ENTRIES)
    two = filled(MemoryStore(), (100, ROWS[:1]), (100, ROWS[1:]), entries=ENTRIES)
    assert found(one, two, Progress(50)) == (10, 50, 3, (), 0)
    one.close()


def test_what_has_fired_by_now_is_not_compared() -> None:
    one = filled(MemoryStore(), (100, ROWS), entries=ENTRIES)
    two = filled(MemoryStore(), (100, ROWS[1:]), entries=ENTRIES)
    assert found(one, two, Progress(50, (100, 1))).different == 0
    assert found(one, two, Progress(50)).different == 1


@pytest.mark.parametrize(
    ("rows", "entries", "sentence"),
    [
        (ROWS[:2], ENTRIES, "offset 3, due at second 100, is in the log, and not in the newer snapshot"),
        ([*ROWS, row(9)], ENTRIES, "offset 9, due at second 100, is in the newer snapshot, and not in the log"),
        ([*ROWS[:2], row(3, "c", b"other")], ENTRIES, "offset 3, due at second 100, has other fields"),
        (ROWS, {**ENTRIES, b"d": (200, 9, 7)}, "the id b'd'"),
    ],
)
def test_each_difference_is_found(rows: list[Row], entries: dict[bytes, Entry], sentence: str) -> None:
    one = filled(MemoryStore(), (100, ROWS), entries=ENTRIES)
    result = found(one, filled(MemoryStore(), (100, rows), entries=entries), Progress(50))
    assert result.different == 1
    assert sentence in result.differences[0]


@pytest.mark.parametrize(("changed", "different"), [({}, 0), ({b"7": (100, 7, 9)}, 1), ({b"8": None}, 1)])
def test_entries_of_the_journal_are_compared_in_the_place_of_those_before(
    changed: dict[bytes, Entry | None], different: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are set, replaced and removed again and again, so each part of the store has some of each."""
    for name in ("JOURNAL_BYTES", "MIN_JOURNAL_BYTES"):
        monkeypatch.setattr(memory_limit, name, 10_000)
    stores, random = (rocks(tmp_path / "store"), MemoryStore()), Random(1)
    for offset in range(300):
        ids = {b"%d" % random.randrange(9, 200) for _ in range(3)} | ({b"7", b"8"} if offset == 100 else set())
        entries = {id: None if random.random() < 0.3 and int(id) > 8 else (100, offset, 7) for id in ids}
        for store in stores:
            store.write({}, offset, entries)
    kinds = {key[:1] for key, _ in stores[0].view()}
    assert {layout.JOURNAL, layout.INDEX} <= kinds
    stores[0].write({}, 300, changed)
    assert found(*stores, Progress(300)).different == different
    stores[0].close()


def test_a_log_that_has_lost_records_in_its_middle_is_found() -> None:
    """Also if these have fired, so that no timer is missing."""
    stores = [filled(MemoryStore(), (100, ROWS), entries=ENTRIES) for _ in range(2)]
    for store, records in zip(stores, (37, 40), strict=True):
        store.lineage = Lineage(counted=RecordCount(10, 50, records, 30))
    result = found(stores[0], stores[1], Progress(50))
    assert (result.different, result.differences) == (3, ("the log has 37 records from offset 10 to 50, and had 40",))
    assert found(stores[1], stores[1], Progress(50)).different == 0
    stores[0].lineage = Lineage(counted=RecordCount(20, 50, 30, 30))
    assert found(stores[0], stores[1], Progress(50)).different == 0, "of another range"


@pytest.mark.parametrize("what", ["timers", "ids", "ids of the journal"])
@pytest.mark.parametrize("side", [0, 1], ids=["folded", "newer"])
def test_a_comparison_can_be_stopped_wherever_it_is(what: str, side: int, tmp_path: Path) -> None:
    """A stop of the worker must not wait for what one of the stores has, and the other one has not."""
    numbers = range(20 * CHECKED)
    groups = [(100 + number, [row(number, str(number))]) for number in numbers if what == "timers"]
    stores = [rocks(tmp_path / name) if "journal" in what else MemoryStore() for name in ("folded", "newer")]
    filled(
        stores[side], *groups, applied=2000, entries={b"%d" % number: (100 + number, number, 7) for number in numbers}
    )
    stores[1 - side].write({}, 2000)
    for until in range(1, 10):
        checks = 0

        def check(until: int = until) -> None:
            nonlocal checks
            checks += 1
            if checks == until:
                raise Lost("stop")

        with pytest.raises(Lost, match="stop"):
            found(stores[0], stores[1], Progress(2000), check)


def test_the_older_snapshot_and_the_log_make_up_the_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores are real ones; the log is a store's own entry."""
    older = filled(MemoryStore(), (100, ROWS[:2]), applied=30, entries={b"a": (100, 1, 7), b"b": (100, 2, 7)})
    newer = filled(MemoryStore(), (100, ROWS), entries=ENTRIES)
    names = [NamedSnapshot(b"id", each, 0, 1, at, 1, rows, b"") for each, at, rows in ((1, 30, 2), (2, 50, 3))]
    progress = replace(Progress(80), snapshot=names[1], older_snapshot=names[0])
    is_folded = True

    def replayed(settings: Any, request_format: Any, tp: Any, at: Progress, store: Any, check: Any) -> Machine:
        assert at.next_offset == 50
        if store.applied == 30:
            store.write({100: ROWS[2:]} if is_folded else {}, 50, {b"c": (100, 3, 7)})
        return machine(store, at)

    monkeypatch.setattr(verifying, "replayed", replayed)

    def result(progress: Progress) -> Verified | None:
        snapshots = SimSnapshots({1: older, 2: newer}, PLACE)
        return verify(STORES, TP, progress, snapshots, tmp_path / "x", lambda: None)

    assert result(progress) == (30, 50, 3, (), 0)
    is_folded = False
    assert (result(progress) or Verified(0, 0, 0, (), 0)).different == 1
    assert result(replace(progress, older_snapshot=None)) is None
    compacted: Any = SimpleNamespace(topic_is_compacted=True)
    of_compacted = replace(STORES, formats={TP[0]: compacted})
    assert verify(of_compacted, TP, progress, SimSnapshots({}, PLACE), tmp_path, print) is None
    assert [*(tmp_path / "x").glob("*")] == [], "its stores are deleted"
    with pytest.raises(Unreadable):
        verify(STORES, TP, progress, SimSnapshots({2: newer}, PLACE), tmp_path / "x", lambda: None)


def test_a_restore_of_a_comparison_may_rest_at_each_page() -> None:
    """The machines of the worker fire meanwhile."""
    older = filled(MemoryStore(), (100, ROWS), applied=30, entries=ENTRIES)
    named = NamedSnapshot(b"id", 1, 0, 1, 30, 1, len(ROWS), b"")
    snapshots, store, checks = SimSnapshots({1: older}, PLACE), MemoryStore(), []
    restored(store, Progress(30), named, PLACE, snapshots, lambda: checks.append(store.pending))
    assert len(checks) == len([*snapshots.pages(named)])
    assert (store.pending, store.applied) == (len(ROWS), 30)


def test_the_log_is_read_as_far_as_the_newer_snapshot() -> None:
    assert progress_at(Progress(80, (7, 7)), 50) == Progress(50, (7, 7))
