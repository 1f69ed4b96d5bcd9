"""A store that cannot be read, or lacks written batches, is condemned and rebuilt."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.store_damage import Requests, images, run, wait_for_background_jobs
from timers.core.keys import NOTHING_FIRED
from timers.core.ports import Lost
from timers.core.timer import Row
from timers.errors import StoreError
from timers.machines.store import database, failures, memory_limit
from timers.machines.store.database import Database
from timers.machines.store.failures import Condemnations, StoreDamaged
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore

TIMERS = 20_000


def row(offset: int) -> Row:
    return offset, "t", f"key-{offset}", os.urandom(50), None, None


def opened(path: Path, condemnations: Condemnations | None = None) -> RocksStore:
    return RocksStore.open(path, "cluster=c topic=t", RocksMemory(2**20), condemnations, indexed=True)


def fill(store: RocksStore, first: int = 0, count: int = TIMERS) -> None:
    """Write timers with ids, one for each second, in batches of 100."""
    for start in range(first, first + count, 100):
        offsets = range(start, start + 100)
        entries = {b"id-%06d" % offset: (offset, offset, 0) for offset in offsets}
        store.write({offset: [row(offset)] for offset in offsets}, start + 100, entries)


def use_a_small_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_limit, "JOURNAL_BYTES", 30_000)
    patch.setattr(memory_limit, "MIN_JOURNAL_BYTES", 30_000)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with all entries in one file; tests change copies of it."""
    path = tmp_path_factory.mktemp("filled") / "s"
    with pytest.MonkeyPatch.context() as patch:
        use_a_small_journal(patch)
        store = opened(path)
        fill(store)
        store._db.rdict.compact_range(None, None)
        store.close()
    return path


@pytest.fixture
def file(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with all entries, in a closed store at ``tmp_path / "s"``."""
    use_a_small_journal(monkeypatch)
    shutil.copytree(filled, tmp_path / "s")
    return max((tmp_path / "s").glob("*.sst"), key=lambda file: file.stat().st_size)


def flip(file: Path, share: float) -> None:
    data = bytearray(file.read_bytes())
    start = int(len(data) * share)
    data[start : start + 64] = bytes(byte ^ 0xFF for byte in data[start : start + 64])
    file.write_bytes(data)


READS: dict[str, Callable[[RocksStore], Any]] = {
    "scan": lambda store: sum(len(rows) for _, rows in store.scan(NOTHING_FIRED, TIMERS)),
    "waiting": lambda store: sum(len(rows) for _, rows in store.waiting(NOTHING_FIRED)),
    "entries": lambda store: store.entries([b"id-%06d" % offset for offset in range(TIMERS)]),
    "entries_after": lambda store: store.entries_after(b"", TIMERS),
    "drop_through": lambda store: store.drop_through((TIMERS, 0), TIMERS),
}


@pytest.mark.parametrize("read", READS)
def test_a_flipped_block_is_an_error_and_the_next_store_is_empty(read: str, file: Path, tmp_path: Path) -> None:
    for share in (0.86, 0.88, 0.9, 0.92) if "entries" in read else (0.3,):
        flip(file, share)
    condemnations = Condemnations()
    store = opened(tmp_path / "s", condemnations)
    with pytest.raises(StoreDamaged, match=r"is damaged, unreadable: .*checksum.* filled again"):
        READS[read](store)
    assert condemnations.by_reason["unreadable"] == 1
    store.close()
    again = opened(tmp_path / "s", condemnations)
    assert (again.applied, again.pending, again.oldest_due_s()) == (0, 0, None)
    assert condemnations.by_reason["unreadable"] == 1
    again.close()


def test_the_first_block_is_read_for_the_oldest_timer(file: Path, tmp_path: Path) -> None:
    flip(file, 0.0)
    store = opened(tmp_path / "s")
    with pytest.raises(StoreDamaged):
        store.oldest_due_s()
    store.close()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
@pytest.mark.parametrize("how", [Path.unlink, lambda file: os.truncate(file, file.stat().st_size // 2)])
def test_a_missing_or_short_file_is_noticed(name: str, how: Callable[[Path], None], file: Path, tmp_path: Path) -> None:
    how(next((tmp_path / "s").glob(name)))
    condemnations = Condemnations()
    store = opened(tmp_path / "s", condemnations)
    assert (store.applied, sum(condemnations.by_reason.values())) == (0, 1)
    store.close()


def crash(store: RocksStore, path: Path, target: Path) -> None:
    """Copy a store as a crash leaves it, then close it. No file may come or go while the others are copied."""
    wait_for_background_jobs(store)
    shutil.copytree(path, target)
    store.close()


def test_a_crash_takes_what_was_not_flushed(tmp_path: Path, constants: Constants) -> None:
    store = opened(tmp_path / "s")
    fill(store, 0, 1000)
    store._db.rdict.flush()
    fill(store, 1000, 1000)
    crash(store, tmp_path / "s", tmp_path / "copy")
    condemnations = Condemnations()
    again = opened(tmp_path / "copy", condemnations)
    assert again.applied == again.pending == READS["scan"](again) == 1000
    constants(database, FLUSH_S=0.0)
    fill(again, 1000, 1000)
    crash(again, tmp_path / "copy", tmp_path / "last")
    last = opened(tmp_path / "last", condemnations)
    assert last.applied == last.pending == READS["scan"](last) == 2000, "it is flushed after some time"
    assert not any(condemnations.by_reason.values())
    last.close()


def test_a_write_touches_no_file(tmp_path: Path) -> None:
    """A write to a file waits for the disk, and the interpreter with it."""
    store = opened(tmp_path / "s")
    fill(store, 0, 100)
    before = {file.name: file.stat() for file in (tmp_path / "s").iterdir()}
    fill(store, 100, 1000)
    store.delete((50, 50), 51)
    after = {file.name: file.stat() for file in (tmp_path / "s").iterdir()}
    assert [(name, file.st_size, file.st_mtime_ns) for name, file in after.items()] == [
        (name, file.st_size, file.st_mtime_ns) for name, file in before.items()
    ]
    store.close()
    assert (tmp_path / "s" / "LOG").stat().st_size == 0


def test_a_disk_that_is_too_slow_condemns_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path / "s")
    asked: list[str] = []

    class Stalled:
        def property_int_value(self, name: str) -> int:
            asked.append(name)
            return int(name == "rocksdb.is-write-stopped" and len(asked) < 5)

        def write(self, *_: Any) -> None:
            raise Exception("Result incomplete: Write stall")  # as rocksdict does

    rdict, store._db.rdict = store._db.rdict, Stalled()
    with pytest.raises(Lost, match="is too slow"):
        store.write({5: [row(0)]}, 1)
    assert asked.count("rocksdb.is-write-stopped") > 1, "it has waited"
    store._db.rdict = rdict
    assert store.applied == 0
    store.close()
    again = opened(tmp_path / "s")
    assert again.applied == 0
    again.close()


def test_a_new_store_survives_a_crash_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    crash(store, tmp_path / "s", tmp_path / "copy")
    condemnations = Condemnations()
    opened(tmp_path / "copy", condemnations).close()
    assert not any(condemnations.by_reason.values())


def test_what_the_log_may_lack_survives_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 0, 1000)
    store.protect(on=True)
    fill(store, 1000, 1000)
    crash(store, tmp_path / "s", tmp_path / "copy")
    again = opened(tmp_path / "copy")
    assert again.applied == again.pending == READS["scan"](again) == 2000
    again.protect(on=True)
    fill(again, 2000, 1000)
    again.protect(on=False)
    fill(again, 3000, 1000)
    crash(again, tmp_path / "copy", tmp_path / "last")
    last = opened(tmp_path / "last")
    assert last.applied == last.pending == READS["scan"](last) == 3000
    last.close()


def test_a_manifest_without_its_end_is_an_older_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = opened(path)
    fill(store, 0, 1000)
    store._db.rdict.flush()
    manifest = next(path.glob("MANIFEST-*"))
    known = manifest.stat().st_size
    fill(store, 1000, 1000)
    store._db.rdict.flush()
    fill(store, 2000, 1000)
    crash(store, path, tmp_path / "copy")
    os.truncate(tmp_path / "copy" / manifest.name, known)
    condemnations = Condemnations()
    again = opened(tmp_path / "copy", condemnations)
    assert again.applied == again.pending == READS["scan"](again) == 1000
    assert not any(condemnations.by_reason.values())
    again.close()


def with_failed_compaction(path: Path, condemnations: Condemnations) -> RocksStore:
    """The store in ``path``, in which a compaction has met damaged bytes: RocksDB refuses writes from then on."""
    store = opened(path, condemnations)
    for file in path.glob("*.sst"):
        flip(file, 0.3)
    store.write({1: [row(TIMERS)]}, TIMERS + 1)
    with pytest.raises(Exception, match="Corruption"):
        store._db.rdict.compact_range(None, None)
        store._db.rdict.flush()
    return store


@pytest.mark.usefixtures("file")
def test_a_write_that_rocksdb_refuses_condemns_the_store(tmp_path: Path) -> None:
    condemnations = Condemnations()
    store = with_failed_compaction(tmp_path / "s", condemnations)
    with pytest.raises(Lost):
        for number in range(1000):
            store.write({1: [row(TIMERS + number)]}, TIMERS + number + 1)
    store.close()
    again = opened(tmp_path / "s", condemnations)
    assert again.applied == 0
    again.close()


@pytest.mark.usefixtures("file")
def test_a_store_with_damage_at_its_close_is_condemned(tmp_path: Path) -> None:
    condemnations = Condemnations()
    store = with_failed_compaction(tmp_path / "s", condemnations)
    store.close()
    assert condemnations.by_reason["write-refused"] == 1
    assert not (tmp_path / "s").exists()


def test_pauses_before_a_rebuild_grow_with_repeated_damage(tmp_path: Path) -> None:
    condemnations = Condemnations()
    errors = [condemnations.damaged(tmp_path, failures.UNREADABLE, "why") for _ in range(12)]
    assert [error.pause_s for error in errors][:5] == [0, 0, 10, 20, 40]
    assert errors[-1].pause_s == failures.PAUSES.longest_s
    assert "12 times" in str(errors[-1]) and "check the disk" in str(errors[-1])
    assert condemnations.damaged(tmp_path / "other", failures.UNREADABLE, "why").pause_s == 0


def test_an_error_of_the_operating_system_condemns_no_store(tmp_path: Path) -> None:
    condemnations = Condemnations()
    store = opened(tmp_path / "s", condemnations)
    refused = store._db.damaged(failures.UNREADABLE, "IO error: While open a file: Too many open files")
    assert isinstance(refused, StoreError) and "ulimit -n" in str(refused)
    assert not any(condemnations.by_reason.values()) and (tmp_path / "s" / "CURRENT").exists()
    store.close()


def test_a_partly_deleted_store_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path / "s")
    fill(store, 0, 100)
    store.close()

    def die(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            Database.wipe(tmp_path / "s")
    again = opened(tmp_path / "s")
    assert again.applied == 0
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("has_ids", [False, True])
def test_damaged_stores_lose_no_timer_and_fire_none_twice(has_ids: bool, seeds: range, tmp_path: Path) -> None:
    """Runs some seeds of ``python -m tests.harness.store_damage``."""
    requests = Requests(5_000, has_ids=has_ids)
    disks = images(requests, tmp_path)
    results = [run(seed, requests, disks, tmp_path) for seed in seeds]
    assert [(result.what, result.lost, result.wrong) for result in results if result.lost or result.wrong] == []
    assert sum(result.noticed for result in results) >= len(seeds) // 2
