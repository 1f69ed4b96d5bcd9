"""What only a store on disk can do: belong to somebody, be locked, be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from timers.core.keys import NEVER
from timers.core.timer import Row
from timers.store import rocks
from timers.store.rocks import RocksMemory, RocksStore

MEMORY = RocksMemory(8 * 1024 * 1024, 8 * 1024 * 1024)


def row(offset: int, value: bytes = b"") -> Row:
    return offset, "t", "k", value, None, None


def opened(path: Path, identity: str = "cluster=c topic=t") -> RocksStore:
    return RocksStore.open(path, identity, MEMORY)


def test_a_store_is_found_again(tmp_path: Path) -> None:
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


def test_a_store_of_another_format_is_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    store.close()
    monkeypatch.setattr(rocks, "FORMAT", rocks.FORMAT + 1)
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


def test_a_store_that_somebody_has_open_is_not_touched(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({5: [row(0)]}, 1)
    with pytest.raises(Exception, match="lock"):
        opened(tmp_path / "s")
    assert (store.applied, store.pending) == (1, 1)
    store.close()


def test_one_second_of_many_rows_is_cut_into_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "GROUP_ROWS", 4)
    monkeypatch.setattr(rocks, "GROUP_BYTES", 30)
    store = opened(tmp_path / "s")
    store.write({5: [row(offset) for offset in range(10)], 6: [row(offset, bytes(20)) for offset in range(10, 14)]}, 14)
    groups = [(due_s, len(rows)) for due_s, rows in store.scan(NEVER, 10)]
    assert groups[:3] == [(5, 4), (5, 4), (5, 2)]
    assert [due_s for due_s, _ in groups[3:]] == [6] * 4
    store.close()


@pytest.mark.parametrize("entries", [rocks.POINT_DELETES // 2, rocks.POINT_DELETES * 2])
def test_few_entries_and_many_are_deleted_alike(tmp_path: Path, entries: int) -> None:
    store = opened(tmp_path / "s")
    for number in range(entries):
        store.write({number: [row(2 * number), row(2 * number + 1)]}, 2 * number + 2)
    store.write({entries: [row(2 * entries)]}, 2 * entries + 1)
    fired = [(due_s, rows[-1][0], len(rows)) for due_s, rows in store.scan(NEVER, entries - 1)]
    store.delete((fired[-1][0], fired[-1][1]), sum(count for _, _, count in fired))
    assert [(due_s, len(rows)) for due_s, rows in store.scan(NEVER, 10**6)] == [(entries, 1)]
    assert (store.pending, store.oldest_due_s()) == (1, entries)
    store.close()


def test_what_stands_beyond_the_last_second_is_not_taken_for_rows(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.write({99_999_999_999: [row(0)]}, 1)
    assert [due_s for due_s, _ in store.scan(NEVER, 10**12)] == [99_999_999_999]
    store.delete((99_999_999_999, 0), 1)
    assert store.oldest_due_s() is None
    assert list(store.scan(NEVER, 10**12)) == []
    store.close()
