"""Schedules in a topic that may be compacted: what a tombstone ends, and what is appended again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from timers.core.machine import CLEANING_S, Limits, Machine, catch_up
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.schedules import ScheduleIndex
from timers.core.second_barrier import SecondBarrier
from timers.core.timer import Row, Tick
from timers.store.memory import MemoryStore
from timers.testing import SimClock, SimLedger, SimLog
from timers.wire.formats import schedule

TOPIC = "schedules"


class Ledger(SimLedger):
    """Writes to the log what a worker would."""

    def __init__(self, log: SimLog) -> None:
        super().__init__()
        self._log = log
        self._tombstones: list[Row] = []
        self._copies: list[Row] = []
        self.hold_tombstones = False

    def begin(self, tick: Tick) -> None:
        super().begin(tick)
        self._tombstones, self._copies = [], []

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        super().fire(due_s, rows)
        self._tombstones += rows

    def republish(self, rows: Sequence[Row]) -> None:
        super().republish(rows)
        self._copies += rows

    def commit(self, progress: Progress) -> None:
        super().commit(progress)
        for row in self._tombstones:
            self._log.append(TOPIC, schedule.published(row).key, None, schedule.tombstone_headers(row[0]), 0)
        for row in self._copies:
            key, value, headers, timestamp_ms = schedule.published(row)
            self._log.append(TOPIC, key, value, headers, 0, timestamp_ms=timestamp_ms)


class Bench:
    """One machine of schedules, by hand."""

    def __init__(self, *, reject_overdue: bool = False, stale_after_s: int = 0) -> None:
        self.log = SimLog(SimClock(0), partitions=1)
        self.ledger = Ledger(self.log)
        self.store = MemoryStore()
        self.reject_overdue = reject_overdue
        self.stale_after_s = stale_after_s
        self.open()

    def open(self) -> None:
        progress = self.ledger.progress
        if not catch_up(self.store, progress, indexed=True):
            self.store = MemoryStore()
        limits = Limits(
            1000, 10**6, 100, partitions=1, reject_overdue=self.reject_overdue, stale_after_s=self.stale_after_s
        )
        index = ScheduleIndex(self.store)
        self.machine = Machine(
            progress,
            schedule.decode,
            self.store,
            self.ledger,
            limits,
            index=index,
            decode_rejecting=schedule.decode_rejecting_overdue,
        )

    def set(self, id: bytes, due_s: int, value: bytes = b"v") -> int:
        return self.log.append(TOPIC, id, value, schedule.encode_headers(due_s, "t", b"k"), 0).offset

    def cancel(self, id: bytes) -> None:
        self.log.append(TOPIC, id, None, (), 0)

    def read(self, count: int = 10**6) -> None:
        self.machine.accept(self.log.fetch(TOPIC, 0, self.machine.position, count))

    def read_all(self) -> None:
        while self.machine.position < self.log.end(TOPIC, 0):
            self.read()

    def second(self, second: int, end: int | None = None) -> None:
        """A second begins, when the log ends at ``end``: what comes behind that may be unread when it fires."""
        self.machine.observe(Tick(second * 1000), self.log.end(TOPIC, 0) if end is None else end)
        while self.machine.fire_chunk():
            pass

    @property
    def fired(self) -> list[tuple[int, int]]:
        return self.ledger.fired


def test_a_tombstone_ends_the_version_that_it_names_and_nothing_comes_after() -> None:
    bench = Bench()
    bench.second(0)
    bench.set(b"a", 5)
    bench.read()
    bench.second(5)
    bench.read_all()
    bench.second(9)
    assert bench.fired == [(5, 0)]
    assert bench.ledger.again == []
    assert bench.store.entries_after(b"", 9) == []


def test_a_version_that_came_before_the_tombstone_of_another_is_appended_again_and_fires_once() -> None:
    bench = Bench()
    bench.second(0)
    bench.set(b"a", 5)
    bench.read()
    newer = bench.set(b"a", 7, b"newer")  # before the tombstone, and not read when the second was let through
    bench.second(5, newer)
    bench.read_all()
    assert bench.ledger.again == [newer]
    copy = bench.log.fetch(TOPIC, 0, 0).records[-1]
    original = bench.log.fetch(TOPIC, 0, newer, 1).records[0]
    assert (copy.key, copy.value, copy.headers, copy.timestamp) == (
        (original.key, original.value, original.headers, original.timestamp)
    )
    bench.second(7)
    bench.read_all()
    bench.second(20)
    assert bench.fired == [(5, 0), (7, copy.offset)]
    assert bench.ledger.again == [newer], "one tombstone, one copy"


def test_between_the_tombstone_and_its_copy_nothing_fires_twice() -> None:
    bench = Bench()
    bench.second(0)
    bench.set(b"a", 5)
    bench.read()
    newer = bench.set(b"a", 7, b"newer")
    bench.second(5, newer)
    bench.read(2)  # the newer version, and the tombstone of the older; the copy is in the log, unread
    assert bench.ledger.again == [newer]
    bench.second(7, bench.machine.position)
    assert bench.fired == [(5, 0)]
    bench.read_all()
    bench.second(8)
    assert len(bench.fired) == 2 and bench.fired[1][1] > newer


def test_a_copy_is_not_made_of_what_a_customer_has_cancelled() -> None:
    bench = Bench()
    bench.second(0)
    bench.set(b"a", 5)
    bench.read()
    newer = bench.set(b"a", 7, b"newer")
    bench.cancel(b"a")
    bench.second(5, newer)
    bench.read_all()
    bench.second(9)
    assert bench.fired == [(5, 0)] and bench.ledger.again == []


def test_several_tombstones_that_were_under_way_make_one_copy() -> None:
    """Overdue versions of one id each fire on arrival; what is alive behind them survives all their tombstones."""
    bench = Bench()
    bench.second(10)
    bench.set(b"a", 1)
    bench.set(b"a", 2)
    bench.set(b"a", 20, b"alive")
    bench.read_all()
    assert bench.fired == [(1, 0), (2, 1)]
    assert bench.ledger.again == [2]
    bench.second(20)
    bench.read_all()
    bench.second(30)
    assert [due_s for due_s, _ in bench.fired] == [1, 2, 20]
    assert len(bench.ledger.again) == 1


def test_a_replay_ends_what_a_tombstone_ended_and_appends_nothing() -> None:
    bench = Bench()
    bench.second(0)
    bench.set(b"a", 5)
    bench.read()
    newer = bench.set(b"a", 7, b"newer")
    bench.second(5, newer)
    bench.read(2)
    bench.store = MemoryStore()
    bench.open()
    bench.second(6)
    bench.read_all()
    bench.second(7)
    assert bench.ledger.again == [newer]
    assert len(bench.fired) == 2


def test_what_cannot_be_read_ends_its_id() -> None:
    bench = Bench()
    bench.second(0)
    bench.set(b"a", 5)
    bench.log.append(TOPIC, b"a", b"v", [("scheduler-epoch", b"soon")], 0)
    bench.read_all()
    bench.second(6)
    assert bench.ledger.rejected == [(1, "key-not-a-number")]
    assert bench.fired == []


def test_a_change_of_the_rule_for_overdue_ones_holds_from_where_it_was_made() -> None:
    bench = Bench()
    bench.log.clock.advance_ms(10_000)
    bench.second(10)
    before = bench.set(b"a", 20)
    bench.log.clock.advance_ms(15_000)
    bench.log.append(TOPIC, b"b", b"v", schedule.encode_headers(24, "t", b"k"), 0)  # overdue, and not yet late
    bench.read_all()
    bench.machine.commit_progress()
    bench.reject_overdue = True
    bench.store = MemoryStore()
    bench.open()
    bench.second(10)
    bench.log.append(TOPIC, b"c", b"v", schedule.encode_headers(24, "t", b"k"), 0)
    bench.read_all()
    assert bench.ledger.rejected == [(2, "overdue")]
    bench.second(26)
    assert bench.fired == [(20, before), (24, 1)]


def test_a_store_that_fell_behind_is_read_anew() -> None:
    """It may hold a version that was cancelled, where compaction has left nothing of either."""
    bench = Bench(stale_after_s=100)
    assert not bench.machine.may_accept, "not before the time is known"
    bench.second(0)
    bench.set(b"a", 500)
    bench.read_all()
    bench.second(60)
    bench.machine.commit_progress()
    bench.open()
    bench.second(160)
    bench.machine.commit_progress()
    assert bench.store.read_through_s == 160, "it has kept up"
    bench.open()
    with pytest.raises(Lost, match="has not kept up with its log for 101 s"):
        bench.second(261)
    assert bench.store.condemned


def test_a_new_store_may_take_its_time_to_be_read() -> None:
    bench = Bench(stale_after_s=100)
    bench.second(0)
    bench.set(b"a", 500)
    bench.second(100)
    bench.read_all()
    bench.second(101)
    assert bench.store.read_through_s == 0
    bench.machine.commit_progress()
    assert bench.store.read_through_s == 101


def test_a_second_that_waited_long_for_a_compacted_log_is_let_through_with_a_later_one() -> None:
    """What explains a gap that was read meanwhile stands behind the end that was asked for."""
    patient, strict = SecondBarrier(), SecondBarrier(CLEANING_S)
    for barrier in (patient, strict):
        barrier.tick(10, 100, 0)
        barrier.tick(10 + CLEANING_S + 1, 160, 0)
        barrier.read(100)
    assert (patient.second, strict.second) == (10, None)
    strict.read(160)
    assert strict.second == 10 + CLEANING_S + 1
    strict.tick(20, 170, 160)
    strict.tick(21, 180, 160)
    strict.read(170)
    assert strict.second == 20, "one that is near is let through as it is"
