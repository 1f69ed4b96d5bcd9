"""Stores on disk: identity, lock, damage and full disks."""

import errno
import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest
from rocksdict import Rdict

from tests.harness.constants import Constants
from timers.core.keys import NOTHING_FIRED
from timers.core.operation import defined, repeated, repeating
from timers.core.progress import SettingChange
from timers.core.timer import Row
from timers.errors import StoreError
from timers.machines.store import failures, layout, memory_limit, one_target, rocks
from timers.machines.store.failures import Condemnations, StoreWaits
from timers.machines.store.memory_limit import IndexJournal, RocksMemory
from timers.machines.store.rocks import RocksStore

MEMORY = RocksMemory(16 * 1024 * 1024)


def row(offset: int, value: bytes = b"") -> Row:
    return offset, "t", "k", value, None, None


def opened(path: Path, identity: str = "cluster=c topic=t") -> RocksStore:
    return RocksStore.open(path, identity, MEMORY)


def test_a_store_keeps_its_content(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0), row(2)], 4: [row(1)]}, 9)
    store.close()
    again = opened(tmp_path / "s")
    assert (again.applied, again.pending, again.oldest_due_s()) == (9, 3, 4)
    again.close()


@pytest.mark.parametrize("identity", ["cluster=c topic=u", ""])
def test_a_store_of_another_log_is_wiped(tmp_path: Path, identity: str) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    store.close()
    other = opened(tmp_path / "s", identity)
    assert (other.applied, other.pending, other.oldest_due_s()) == (0, 0, None)
    other.close()


def test_a_store_of_another_format_is_wiped(tmp_path: Path, constants: Constants) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    store.close()
    constants(layout, FORMAT=layout.FORMAT + 1)
    later = opened(tmp_path / "s")
    assert later.applied == 0
    later.close()


def test_a_damaged_store_is_rebuilt(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    store.close()
    (tmp_path / "s" / "CURRENT").write_text("no manifest\n")
    again = opened(tmp_path / "s")
    assert again.applied == 0
    again.close()


def test_an_open_store_cannot_be_opened_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    with pytest.raises(StoreWaits, match="still open in this worker"):
        opened(tmp_path / "s")
    assert (store.applied, store.pending) == (1, 1)
    store.close()


def test_a_store_keeps_the_settings_history(tmp_path: Path) -> None:
    history = (SettingChange("A", 0, 10), SettingChange("A", 7, 20))
    store = opened(tmp_path / "store")
    assert store.history == ()
    store.note_history(history)
    store.close()
    store = opened(tmp_path / "store")
    assert store.history == history
    store.close()


def test_many_rows_of_one_second_are_several_entries(tmp_path: Path, constants: Constants) -> None:
    constants(layout, GROUP_ROWS=4, GROUP_BYTES=30)
    store = opened(tmp_path / "s")
    store.write({5: [row(offset) for offset in range(10)], 6: [row(offset, bytes(20)) for offset in range(10, 14)]}, 14)
    groups = [(due_s, len(rows)) for due_s, rows in store.scan(NOTHING_FIRED, 10)]
    assert groups[:3] == [(5, 4), (5, 4), (5, 2)]
    assert [due_s for due_s, _ in groups[3:]] == [6] * 4
    store.close()


@pytest.mark.parametrize("entries", [1, rocks.POINT_DELETES * 2])
def test_a_part_of_the_last_entry_is_deleted(tmp_path: Path, entries: int) -> None:
    store = opened(tmp_path / "s")
    for number in range(entries):
        store.write({number: [row(4 * number + index) for index in range(4)]}, 4 * number + 4)
    groups = list(store.scan(NOTHING_FIRED, entries))
    due_s, rows = groups[-1]
    store.delete((due_s, rows[0][0]), 4 * entries - 3, rows[1:])
    assert list(store.scan((due_s, rows[0][0]), entries)) == [(due_s, rows[1:])]
    assert (store.pending, store.oldest_due_s()) == (3, due_s)
    store.delete((due_s, rows[3][0]), 3)
    assert list(store.scan(NOTHING_FIRED, entries)) == []
    store.close()


@pytest.mark.parametrize("entries", [rocks.POINT_DELETES // 2, rocks.POINT_DELETES * 2])
def test_delete_works_for_few_and_for_many_entries(tmp_path: Path, entries: int) -> None:
    store = opened(tmp_path / "s")
    for number in range(entries):
        store.write({number: [row(2 * number), row(2 * number + 1)]}, 2 * number + 2)
    store.write({entries: [row(2 * entries)]}, 2 * entries + 1)
    fired = [(due_s, rows[-1][0], len(rows)) for due_s, rows in store.scan(NOTHING_FIRED, entries - 1)]
    store.delete((fired[-1][0], fired[-1][1]), sum(count for _, _, count in fired))
    assert [(due_s, len(rows)) for due_s, rows in store.scan(NOTHING_FIRED, 10**6)] == [(entries, 1)]
    assert (store.pending, store.oldest_due_s()) == (1, entries)
    store.close()


def test_entries_after_the_last_possible_second_are_not_rows(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({99_999_999_999: [row(0)]}, 1)
    assert [due_s for due_s, _ in store.scan(NOTHING_FIRED, 10**12)] == [99_999_999_999]
    store.delete((99_999_999_999, 0), 1)
    assert store.oldest_due_s() is None
    assert list(store.scan(NOTHING_FIRED, 10**12)) == []
    store.close()


def test_a_page_of_the_index_ends_though_all_its_ids_are_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(memory_limit, JOURNAL_BYTES=600, MIN_JOURNAL_BYTES=600)
    store = RocksStore.open(tmp_path / "s", "cluster=c", MEMORY, indexed=True)
    for number in range(100):
        store.write({}, number + 1, {b"%03d" % number: (number, number, 0)})
    assert store.entries_after(b"", 10).entries[-1][0] == b"009"
    monkeypatch.setattr(IndexJournal, "__contains__", lambda journal, id: True)
    page = store.entries_after(b"", 10)
    assert (page.entries, page.through) == ([], b"009")
    store.close()


def test_timers_that_repeat_are_newest_entries_beside_the_journal(tmp_path: Path, constants: Constants) -> None:
    """Those that a loss of the end of a log has stopped are found there within a minute [I37]."""
    constants(memory_limit, JOURNAL_BYTES=6_000, MIN_JOURNAL_BYTES=6_000)
    store = RocksStore.open(tmp_path / "s", "cluster=c", MEMORY, indexed=True)
    store.write({}, 1, {b"repeats": defined(0, 0, b"8 bytes.")})
    for number in range(1, 200):
        store.write({}, number + 1, {b"%03d" % number: (number, number, 0)})
    assert b"repeats" not in dict(store.newest_entries()), "it is in the index"
    chain = repeating(store.entries([b"repeats"])[b"repeats"])
    assert chain is not None
    occurrence = repeated(10, 200, 0, chain, is_last=False)
    store.write({}, 201, {b"repeats": occurrence})
    assert [entry for id, entry in store.newest_entries() if id == b"repeats"] == [occurrence]
    store.close()


MIB = 1024 * 1024


def test_all_stores_share_one_memory_limit(tmp_path: Path) -> None:
    memory = RocksMemory(16 * MIB)
    stores = [RocksStore.open(tmp_path / str(number), "cluster=c", memory) for number in range(24)]
    peak = 0
    for due_s in range(12):  # 36 MiB, more than the limit
        for store in stores:
            store.write({due_s: [row(due_s, os.urandom(128 * 1024))]}, due_s + 1)
        peak = max(peak, memory.cache.get_usage())
        give_up = monotonic() + 300  # a disk may stall
        while memory.cache.get_usage() > 16 * MIB:  # data counts until it is flushed
            assert monotonic() < give_up, f"{memory.cache.get_usage()} bytes are held"
            sleep(0.002)  # RocksDB's threads need the core
    assert peak > 4 * MIB
    for store in stores:
        assert sum(len(rows) for _, rows in store.scan(NOTHING_FIRED, 100)) == 12
        store.close()
    assert memory.cache.get_usage() <= 16 * MIB


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Limit files to ``size`` bytes in the block; writes then fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_after_a_failed_flush_a_write_raises_one_sentence_and_the_store_is_older(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = opened(path)
    store.write({5: [row(0)]}, 1)
    with file_limit(64 * 1024):
        store.write({6: [row(1, os.urandom(100_000))]}, 2)
        store._db.rdict.flush(wait=False)
        with pytest.raises(StoreError) as error:
            while store.applied == 2:
                store.write({}, 2)
        with pytest.raises(StoreError):
            store.delete((5, 0), 1)
        assert (store.applied, store.pending) == (2, 2)
        store.close()  # the write has said what is wrong
    sentence = str(error.value)
    assert str(path) in sentence and os.strerror(errno.EFBIG) in sentence and "ulimit -f" in sentence
    assert "Nothing was deleted" in sentence and "\n" not in sentence
    again = opened(path)
    assert (again.applied, list(again.scan(NOTHING_FIRED, 10))) == (0, [])
    again.close()


def test_a_store_that_cannot_be_protected_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """The log may lack what it holds, so it is flushed before its writes are made to survive a crash."""
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    with file_limit(0):
        with pytest.raises(StoreError, match=f"{os.strerror(errno.EFBIG)}.*ulimit -f"):
            store.protect(on=True)
        store.close()  # the sentence was said


def test_a_failed_flush_at_the_close_raises_and_the_store_is_older(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    with file_limit(0), pytest.raises(StoreError, match=os.strerror(errno.EFBIG)):
        store.close()
    again = opened(tmp_path / "s")
    assert (again.applied, again.pending) == (0, 0)
    again.close()


def test_a_store_that_cannot_be_opened_on_a_full_disk_is_not_wiped(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    store.close()
    with file_limit(0):
        for name in ("s", "new"):
            with pytest.raises(StoreError, match=f"{tmp_path / name}.* {os.strerror(errno.EFBIG)}"):
                opened(tmp_path / name)
    again = opened(tmp_path / "s")
    assert (again.applied, again.pending) == (1, 1)
    again.close()
    new = opened(tmp_path / "new")
    assert new.applied == 0
    new.close()


@pytest.mark.parametrize("killed_before", ["RocksDB", "the first entry"])
def test_a_store_whose_worker_was_killed_while_it_made_it_is_not_called_damaged(
    tmp_path: Path, killed_before: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, condemnations = tmp_path / "s", Condemnations()
    path.mkdir()
    if killed_before == "the first entry":
        Rdict(str(path)).close()
    store = RocksStore.open(path, "cluster=c topic=t", MEMORY, condemnations)
    store.write({5: [row(0)]}, 1)
    store.close()
    assert sum(condemnations.by_reason.values()) == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    again = RocksStore.open(path, "cluster=c topic=t", MEMORY, condemnations)
    assert (again.applied, again.pending) == (1, 1)
    again.close()


def test_used_up_inodes_are_not_called_a_lack_of_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = f"IO error: {os.strerror(errno.ENOSPC)}: while open a file"
    assert "make space there" in str(failures.refusal(tmp_path / "new" / "s", error))
    room = SimpleNamespace(f_files=1000, f_favail=0, f_bavail=10**6)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    sentence = str(failures.refusal(tmp_path / "new" / "s", error))
    assert "all inodes of this file system are used (df -i)" in sentence and "make space" not in sentence


@pytest.mark.parametrize("code", sorted(failures.REMEDIES))
def test_each_error_of_the_operating_system_has_advice(code: int) -> None:
    error = failures.refusal(
        Path("/data/s"), Exception(f"IO error: While open a file: /data/s/4.log: {os.strerror(code)}")
    )
    assert failures.REMEDIES[code] in str(error)


def test_the_rest_of_a_group_stays_also_if_the_scan_has_read_further(tmp_path: Path) -> None:
    """A machine reads one group more before it fires, to know where a run of groups ends."""
    store = opened(tmp_path / "s")
    store.write({5: [row(0), row(1), row(2)], 6: [row(3)]}, 4)
    scanned = store.scan(NOTHING_FIRED, 9)
    (_, group), _ = next(scanned), next(scanned)
    scanned.close()  # type: ignore[attr-defined]
    store.delete((5, 0), 1, group[1:])
    left = [(due_s, each[0]) for due_s, rows in store.scan((5, 0), 9) for each in rows]
    assert (left, store.pending) == ([(5, 1), (5, 2), (6, 3)], 3)
    store.close()


@pytest.mark.skipif(not one_target.IS_COMPILED, reason="it is asked where there is a C compiler")
def test_a_failure_of_what_is_passed_over_is_none_of_the_store(tmp_path: Path) -> None:
    def fails(*group: object) -> bool:
        raise ValueError(group)

    store = RocksStore.open(tmp_path / "store", "here", RocksMemory(2**20))
    store.write({1: [(7, "mail", "k", b"", None, None)]}, 8)
    with pytest.raises(ValueError, match="1, 'mail', 7, 7, 1"):
        list(store.scan(NOTHING_FIRED, 9, fails))
    store.close()
    again = RocksStore.open(tmp_path / "store", "here", RocksMemory(2**20))
    assert again.pending == 1
    again.close()
