"""An opening restores a store from the snapshots that the progress names, or leaves it as it is."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.memory_store import MemoryView
from tests.harness.snapshots import Records, records_of
from timers.core.keys import NOTHING_FIRED, pack
from timers.core.ports import Lost, Page
from timers.core.progress import LOG_CUT, History, NamedSnapshot, Progress, Rescue, SettingChange
from timers.core.snapshots import Footer, Unreadable, bytes_of_snapshot
from timers.core.timer import Row, TopicPartition
from timers.errors import LogMismatch, StoreError
from timers.kafka.progress_log import ProgressLog
from timers.machines.store import layout, opening
from timers.machines.store.database import Database
from timers.machines.store.failures import Condemnations, failure
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import (
    ROOM_BYTES,
    Opened,
    Stores,
    delete_copies,
    may_restore,
    restore,
    room_for,
    store_path,
    stored_partitions,
)
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.wire import snapshot
from timers.wire.progress import encode

TP = "timer-request", 3
CLUSTER: Any = SimpleNamespace(cluster_id="cluster", topic_ids={TP[0]: b"t" * 16}, stale_after_s={})
MEMORY = RocksMemory(2**22)
ROWS = 40
MIB = 2**20


class SimSnapshotLog:
    """The records of each snapshot, by its number; those that are missing cannot be read."""

    records: dict[int, Records]
    closed = 0
    damaged = False

    def __init__(
        self, settings: Settings, topic: str, partition: int, check: Callable[[], None], patience_s: float
    ) -> None:
        assert patience_s < 60
        assert (topic, partition) == ("app-snapshot-timer-request", 3)
        self._check = check

    def footer(self, named: NamedSnapshot) -> Footer:
        if named.number not in self.records:
            raise Unreadable("it is gone")
        return snapshot.decode_footer(self.records[named.number][-1][1])

    def whole(self) -> Iterator[tuple[NamedSnapshot, Footer]]:
        for number, records in self.records.items():
            end, places = snapshot.decode_footer(records[-1][1]), (0, len(records))
            if records[-1][0] == snapshot.record_key(number, len(records) - 1):
                yield NamedSnapshot(b"s" * 16, number, *places, end.applied, end.keys, end.rows, end.digest), end

    def pages(self, named: NamedSnapshot) -> Iterable[Page]:
        for page in snapshot.pages(self.records[named.number], named):
            self._check()
            yield page

    def close(self) -> None:
        type(self).closed += 1


def row(offset: int) -> Row:
    return offset, "t", "k", b"v", None, None


class Rig:
    """A machine whose progress names two snapshots: of its store at offset 20, and at offset 40."""

    def __init__(self, path: Path) -> None:
        self.settings = Settings(data_dir=path, worker_id="w", app_id="app")
        formats: Any = {TP[0]: SimpleNamespace(name="future-by-id", has_ids=False)}
        self.stores = Stores(self.settings, CLUSTER, MEMORY, Condemnations(), formats)
        SimSnapshotLog.records, store = {}, self.opened()
        named = []
        for number in (1, 2):
            store.write({due_s: [row(due_s)] for due_s in range(20 * number - 20, 20 * number)}, 20 * number)
            records, one = records_of(store.view(), NOTHING_FIRED, number)
            SimSnapshotLog.records[number] = records
            named.append(one)
        store.close()
        Database.wipe(store_path(self.settings, TP))
        self.progress = self.committed = Progress(50, (4, 4), snapshot=named[1], older_snapshot=named[0])

    def accept(self, losses: str) -> None:
        self.settings = replace(self.settings, accept_loss=losses)
        self.stores = replace(self.stores, settings=self.settings)

    def opened(self) -> RocksStore:
        return self.stores.open(TP)

    def restore(self, check: Callable[[], None] = lambda: None, low: int = 0, **changes: Any) -> RocksStore:
        return self.reopened(replace(self.progress, **changes), low, check=check).store

    def reopened(
        self,
        progress: Progress,
        low: int,
        *apps: str,
        is_new: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> Opened:
        before = Opened(progress, self.opened(), low, is_new)
        if not may_restore(before, apps):
            return before
        return restore(self.stores, TP, before, check, apps)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(opening, "SnapshotLog", SimSnapshotLog)
    made = Rig(tmp_path)

    class CommittedLog(ProgressLog):
        """Knows the progress of the machine."""

        def __init__(self, settings: Settings, *_: object) -> None:
            self._settings = settings

        def read(self, tps: Iterable[TopicPartition], **_: object) -> dict[TopicPartition, bytes]:
            return dict.fromkeys(tps, encode(made.committed, b"t" * 16))

        def ends(self, topic: str, partition: int) -> tuple[int, int]:
            return 0, 50

        def close(self) -> None: ...

    monkeypatch.setattr(opening, "ProgressLog", CommittedLog)
    return made


def held(store: RocksStore) -> tuple[int, list[int]]:
    found = store.applied, [each[0] for _, rows in store.scan(NOTHING_FIRED, 10**9) for each in rows]
    store.close()
    return found


def test_the_newest_snapshot_is_restored_without_what_has_fired(rig: Rig) -> None:
    assert held(rig.restore()) == (40, [*range(5, 40)])
    assert held(rig.opened()) == (40, [*range(5, 40)]), "it is a store as any other"


@pytest.mark.parametrize("damage", ["gone", "not whole", "another machine"])
def test_the_former_one_is_restored_if_the_last_is_bad(damage: str, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    records = SimSnapshotLog.records
    if damage == "gone":
        del records[2]
    elif damage == "not whole":
        del records[2][1]
    else:
        footer = snapshot.decode_footer(records[2][-1][1])
        other = footer._replace(place=footer.place._replace(app="other"))
        records[2][-1] = records[2][-1][0], snapshot.encode_footer(other)
    assert held(rig.restore()) == (20, [*range(5, 20)])
    assert "timer-request/3: its snapshot at offset 40 cannot be read: " in caplog.text


def damage() -> None:
    for records in SimSnapshotLog.records.values():
        del records[1]


def test_the_log_is_read_from_its_start_if_no_snapshot_can_be_read(rig: Rig) -> None:
    damage()
    assert held(rig.restore()) == (0, [])


def test_the_machine_stops_if_no_snapshot_can_be_read_and_its_log_begins_later(rig: Rig) -> None:
    store = rig.opened()
    store.write({99: [row(3)]}, 10)
    store.close()
    damage()
    rig.accept("timer-request/3")
    way = "TIMERS_ACCEPT_LOSS=timer-request/3,timer-request/3:snapshot"
    with pytest.raises(LogMismatch, match=f"begins at offset 17, but must be read from 10.*at offset 40 and 20.*{way}"):
        rig.restore(low=17)
    assert held(rig.opened()) == (10, [3]), "it may be the last copy"
    rig.accept("timer-request/3,timer-request/3:snapshot")
    assert held(rig.restore(low=17)) == (17, [3])


def test_a_snapshot_below_the_start_of_the_log_is_not_restored(rig: Rig) -> None:
    del SimSnapshotLog.records[2]
    with pytest.raises(LogMismatch):
        rig.restore(low=30)


def test_an_opening_whose_snapshots_another_owner_has_deleted_begins_again(rig: Rig) -> None:
    damage()
    newest = rig.progress.snapshot
    assert newest is not None
    rig.committed = replace(rig.progress, snapshot=newest._replace(number=3), older_snapshot=None)
    with pytest.raises(Lost, match="does not name its snapshot at offset 40 any more"):
        rig.restore(low=17)
    assert held(rig.opened()) == (0, [])


def test_a_process_that_is_killed_before_the_restored_store_has_its_place_finds_it(rig: Rig) -> None:
    rig.opened().close()
    store = rig.stores.open(TP, beside=True)
    store.write({99: [row(8)]}, 9)
    store.close()
    path = store_path(rig.settings, TP)
    shutil.copytree(path.with_name(f"{path.name}.restoring"), path.with_name("whole"))
    assert held(rig.opened()) == (0, []), "it may not be whole"
    assert copies(rig) == ["whole"], "a task of Spark that is killed deletes no half copy"
    path.with_name("whole").rename(path.with_name(f"{path.name}.restored"))
    assert held(rig.opened()) == (9, [8])


def test_a_store_that_has_read_more_is_kept(rig: Rig) -> None:
    store = rig.opened()
    store.write({99: [row(39)]}, 40)
    store.close()
    assert held(rig.restore()) == (40, [39])


def test_a_store_from_which_the_log_can_be_read_is_kept_if_no_snapshot_can_be_read(rig: Rig) -> None:
    store = rig.opened()
    store.write({99: [row(3)]}, 10)
    store.close()
    damage()
    assert held(rig.restore(low=7)) == (10, [3])


def test_a_store_that_holds_what_its_log_has_lost_at_its_end_is_kept(rig: Rig) -> None:
    store = rig.opened()
    store.write({99: [row(35)]}, 36)
    store.close()
    settings = History([SettingChange(LOG_CUT, 30, 1)])
    assert held(rig.restore(rescues=(Rescue(30, 50, NOTHING_FIRED),), settings=settings)) == (36, [35])


def copies(rig: Rig) -> list[str]:
    """The directories beside the store."""
    path = store_path(rig.settings, TP)
    return sorted(each.name for each in path.parent.glob("*") if each.is_dir() and each != path)


def fill(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let a disk have so many bytes left."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_a_store_is_read_on_if_the_disk_has_no_room_for_a_quicker_restore(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the copy fills the disk, and all partitions of the worker stop."""
    store, named = rig.opened(), rig.progress.snapshot
    assert named is not None
    store.write({99: [row(3)]}, 10)
    store.close()
    fill(monkeypatch, bytes_of_snapshot(named) + ROOM_BYTES - 1)
    assert held(rig.restore()) == (10, [3])
    assert "timer-request/3: its log is read on, although a restore is quicker: it needs" in caplog.text
    fill(monkeypatch, bytes_of_snapshot(named) + ROOM_BYTES)
    assert held(rig.restore()) == (40, [*range(5, 40)])
    assert copies(rig) == []


def test_copies_that_begin_together_leave_room_for_each_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone has room. Together they fill the disk, and again after the next start."""
    store, named = rig.opened(), rig.progress.snapshot
    assert named is not None
    store.write({99: [row(3)]}, 10)
    store.close()
    other, size = rig.settings.data_dir / "worker-other/app-x/t/7.restoring", bytes_of_snapshot(named)
    other.mkdir(parents=True)
    fill(monkeypatch, 2 * size - MIB + ROOM_BYTES)
    with room_for(rig.settings, other, [named], must=True):
        assert held(rig.restore()) == (10, [3])
        with room_for(rig.settings, other, [named]) as why:
            assert f"it needs {size + ROOM_BYTES:,} bytes on the disk of {other}, which has" in why
        with (other / "1.sst").open("wb") as file:  # so much less will be written
            file.write(os.urandom(MIB + 2**16))
            os.fsync(file.fileno())
        assert held(rig.restore()) == (40, [*range(5, 40)])
    with room_for(rig.settings, other, [named]) as why:
        assert not why
    assert not list(rig.settings.data_dir.rglob("*.room"))


def test_room_for_the_copy_of_a_killed_process_is_free_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    named = rig.progress.snapshot
    assert named is not None
    fill(monkeypatch, bytes_of_snapshot(named) + ROOM_BYTES)
    note = store_path(rig.settings, TP).parent.with_name("0.room")
    note.write_bytes(b"1000000 /gone")
    with note.open() as file, room_for(rig.settings, rig.settings.data_dir / "x", [named]) as why:
        assert not why and not note.exists()
        note.write_bytes(b"1000000 /gone")
    with note.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with room_for(rig.settings, rig.settings.data_dir / "x", [named]) as why:
            assert why


@pytest.mark.parametrize("low", [0, 17])
def test_a_copy_that_fills_the_disk_although_it_had_room_is_given_up_if_the_log_can_be_read(
    low: int, rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may have filled it. A failure of the present store, or of a copy that is needed, is one."""
    store, write = rig.opened(), Database.write
    store.write({99: [row(3)]}, 10)
    store.close()

    def full(self: Database, batch: Any) -> None:
        if self._path.name.endswith(".restoring"):
            raise failure(self._path, os.strerror(errno.ENOSPC))
        write(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", full)
        if low:
            with pytest.raises(StoreError, match="No space left"):
                rig.restore(low=low)
        else:
            assert held(rig.restore()) == (10, [3])
            assert "its log is read on, although a restore is quicker: the store in" in caplog.text
    assert copies(rig) == []
    assert held(rig.restore(low=low)) == (40, [*range(5, 40)])


def test_an_empty_store_is_restored_on_any_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its log would fill takes the same room."""
    fill(monkeypatch, 0)
    assert held(rig.restore()) == (40, [*range(5, 40)])


def test_a_restore_that_must_be_is_tried_on_any_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(monkeypatch, 0)
    assert held(rig.restore(low=17)) == (40, [*range(5, 40)])


def test_what_former_processes_have_left_is_deleted_when_a_worker_starts(rig: Rig) -> None:
    rig.opened().close()
    path = store_path(rig.settings, TP)
    beside = rig.stores.open(TP, beside=True)
    for name in ("older", "newer"):
        RocksStore.open(path.with_name(f"{path.name}.verified") / name, "", MEMORY).close()
    RocksStore.open(path.with_name(f"{path.name}.copy"), "", MEMORY).close()
    in_use = "import sys, time, rocksdict; db = rocksdict.Rdict(sys.argv[1]); print(flush=True); time.sleep(600)"
    used = path.with_name("4.restoring")
    with subprocess.Popen([sys.executable, "-c", in_use, used], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        beside.close()
        delete_copies(rig.settings)
        assert copies(rig) == ["4.restoring"], "a process that is ending may have it open"
        process.kill()
    delete_copies(rig.settings)
    assert copies(rig) == []
    assert held(rig.opened()) == (0, [])


def test_a_restored_store_that_has_not_its_place_yet_is_one_of_this_worker(rig: Rig) -> None:
    path = store_path(rig.settings, TP)
    path.with_name(f"{path.name}.restored").mkdir(parents=True)
    assert stored_partitions(rig.settings, [TP[0]]) == [TP]
    path.mkdir()
    assert stored_partitions(rig.settings, [TP[0]]) == [TP]


def test_a_store_whose_close_finds_damage_does_not_delete_the_restored_one(rig: Rig) -> None:
    """Another store has its directory when it is closed for the second time."""
    path, present = store_path(rig.settings, TP), rig.opened()

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            return getattr(rdict, name)

        def close(self) -> None:
            rdict.close()
            raise OSError("Corruption: block checksum mismatch")

    rdict, present._db.rdict = present._db.rdict, Damaged()
    found = restore(rig.stores, TP, Opened(rig.progress, present, 17), lambda: None).store
    assert (path / "CURRENT").exists()
    found.write({99: [row(41)]}, 42)
    assert held(found) == (42, [*range(5, 40), 41])
    assert held(rig.opened()) == (42, [*range(5, 40), 41])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, b"\xc1") for key in (layout.journal_key(0), layout.LINEAGE, layout.COUNT, layout.READ_THROUGH)),
        (layout.journal_key(0), b"\x01"),
        (layout.JOURNAL + b"\0", b"\x80"),
        *((pack(30, 30), value) for value in (b"", b"\x81\xa1k\x01", b"\xc0")),
    ],
)
def test_a_snapshot_with_a_value_that_cannot_be_decoded_is_not_taken_for_a_damaged_store(
    key: bytes, value: bytes, rig: Rig
) -> None:
    """Its digest is right: the memory of the worker that wrote it was damaged, for example."""
    formats: Any = {TP[0]: SimpleNamespace(name="future-by-id", has_ids=True)}
    rig.stores = replace(rig.stores, formats=formats)
    store = rig.opened()
    store.write({30: [row(30)]}, 40)
    view = store.view()
    items = dict(view)
    items[key] = value
    view.close()
    records, newest = records_of(MemoryView(40, 1, (), sorted(items.items())), NOTHING_FIRED, 2)
    store.close()
    Database.wipe(store_path(rig.settings, TP))
    SimSnapshotLog.records[2] = records
    rig.progress = rig.committed = replace(rig.progress, snapshot=newest)
    assert held(rig.restore(low=17)) == (20, [*range(5, 20)])
    assert not any(rig.stores.condemnations.by_reason.values())


def test_a_restore_that_is_stopped_leaves_the_store_as_it_was(rig: Rig) -> None:
    store = rig.opened()
    store.write({99: [row(3)]}, 10)
    store.close()
    ticks = iter(range(10))

    def check() -> None:
        if next(ticks, None) is None:
            raise Lost("told to stop")

    closed = SimSnapshotLog.closed
    with pytest.raises(Lost, match="told to stop"):
        rig.restore(check)
    assert SimSnapshotLog.closed == closed + 1
    assert held(rig.opened()) == (10, [3])
    assert copies(rig) == [], "a half copy keeps a disk full"
    assert held(rig.restore()) == (40, [*range(5, 40)]), "it begins again"


APP, OWN = "app", "app-snapshot-timer-request"


def test_a_machine_without_progress_stops_if_a_snapshot_says_that_it_is_not_new(rig: Rig) -> None:
    with pytest.raises(LogMismatch, match=f"'{OWN}' has a snapshot of it at offset 40.*ACCEPT_LOSS=timer-request/3$"):
        rig.reopened(Progress.first(5), 17, APP, is_new=True)
    rig.accept("timer-request/3")
    opened = rig.reopened(Progress.first(5), 17, APP, is_new=True)
    assert (opened.progress.next_offset, opened.progress.fired_through) == (40, NOTHING_FIRED)
    assert opened.progress.snapshot == rig.progress.snapshot
    assert held(opened.store) == (40, [*range(40)]), "nothing says what has fired"
    assert held(rig.reopened(opened.progress, 17).store) == (40, [*range(40)]), "it is named again"


def test_a_machine_without_progress_goes_on_from_the_newest_snapshot_that_can_be_read(rig: Rig) -> None:
    SimSnapshotLog.records[2][1] = SimSnapshotLog.records[2][2]
    rig.accept("timer-request/3")
    assert held(rig.reopened(Progress(next_offset=45), 0, APP, is_new=True).store) == (20, [*range(20)])


def test_a_new_machine_is_new(rig: Rig) -> None:
    SimSnapshotLog.records.clear()
    closed = SimSnapshotLog.closed
    assert held(rig.reopened(Progress(), 0, is_new=True).store) == (0, [])
    assert SimSnapshotLog.closed == closed, "without a topic of snapshots nothing is looked at"
    assert held(rig.reopened(Progress(), 17, APP, is_new=True).store) == (17, []), "a new app starts where the log does"


def test_a_machine_with_damaged_snapshots_is_not_new(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    SimSnapshotLog.records.clear()
    monkeypatch.setattr(SimSnapshotLog, "damaged", True)
    with pytest.raises(LogMismatch, match=f"the snapshots of it in '{OWN}' are damaged.*ACCEPT_LOSS=timer-request/3:"):
        rig.reopened(Progress(), 17, APP, is_new=True)
    rig.accept("timer-request/3:snapshot")
    assert held(rig.reopened(Progress(), 17, APP, is_new=True).store) == (17, [])


def test_an_app_that_was_renamed_does_not_skip_what_was_deleted(rig: Rig) -> None:
    SimSnapshotLog.records.clear()
    with pytest.raises(LogMismatch, match="this app has no progress of it, and 'other-snapshot-timer-request' has"):
        rig.reopened(Progress(), 17, APP, "other", is_new=True)
    assert held(rig.reopened(Progress(), 0, APP, "other", is_new=True).store) == (0, [])
    rig.accept("timer-request/3")
    assert held(rig.reopened(Progress(), 17, "other", is_new=True).store) == (17, [])


def test_a_progress_that_names_none_of_the_snapshots_stops_until_a_loss_is_accepted(rig: Rig) -> None:
    went_back = replace(rig.progress, snapshot=None, older_snapshot=None)
    with pytest.raises(LogMismatch, match=r"names no snapshot that can be read.* at offset 40.*/3:snapshot$"):
        rig.reopened(went_back, 17)
    rig.accept("timer-request/3:snapshot")
    opened = rig.reopened(went_back, 17)
    assert opened.progress == replace(went_back, snapshot=rig.progress.snapshot)
    assert held(opened.store) == (40, [*range(5, 40)]), "it says what has fired"


@pytest.mark.parametrize(("now_s", "applied"), [(None, 0), (1100, 40), (1101, 0)])
def test_a_snapshot_of_a_compacted_topic_is_used_while_it_is_new(now_s: int | None, applied: int, rig: Rig) -> None:
    store = rig.opened()
    store.write({99: [row(39)]}, 40)
    store.note_read_through(1000)
    records, newest = records_of(store.view(), NOTHING_FIRED, 3)
    store.close()
    Database.wipe(store_path(rig.settings, TP))
    SimSnapshotLog.records = {3: records}
    rig.committed = replace(rig.progress, snapshot=newest, older_snapshot=None)
    cluster: Any = SimpleNamespace(**{**vars(CLUSTER), "stale_after_s": {TP[0]: 100}})
    before = Opened(rig.committed, rig.opened(), 0)
    stores = replace(rig.stores, cluster=cluster)
    found = restore(stores, TP, before, lambda: None, now_s=lambda: now_s).store
    assert held(found)[0] == applied
