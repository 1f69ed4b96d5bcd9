"""Schedules in a compacted topic: which version a tombstone ends, and which one is republished."""

from dataclasses import replace

import pytest

from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import LIMITS, SCHEDULES, MachineRig
from tests.simulation.kit import SimClock, SimLog
from timers.core.machine import Machine
from timers.core.ports import NO_OUTPUT, Lost, Output
from timers.core.progress import Progress
from timers.core.second_barrier import UNCOMPACTED_S, SecondBarrier
from timers.core.steps import State
from timers.core.store_validity import StoreTooOld
from timers.machines.store.memory import MemoryStore
from timers.wire.formats import schedule

TOPIC = "schedules"


class LogOutbox(ListOutbox):
    """An outbox that writes tombstones and republished versions to the log, as a worker does."""

    def __init__(self, log: SimLog) -> None:
        super().__init__()
        self._log = log

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        super().commit(progress, output)
        for row in (row for _, rows in output.due for row in rows):
            self._log.append(TOPIC, schedule.as_published(row).key, None, schedule.tombstone_headers(row[0]), 0)
        for row in output.republished:
            key, value, headers, timestamp_ms = schedule.as_published(row)
            self._log.append(TOPIC, key, value, headers, 0, timestamp_ms=timestamp_ms)


class ScheduleRig(MachineRig):
    """A machine of schedules."""

    def __init__(self, *, stale_after_s: int = 0) -> None:
        log = SimLog(SimClock(0), partitions=1)
        limits = replace(LIMITS, partitions=1, stale_after_s=stale_after_s)
        super().__init__(SCHEDULES, limits, topic=TOPIC, log=log, outbox=LogOutbox(log))

    def set(self, id: bytes, due_s: int, value: bytes = b"v") -> int:
        return self.log.append(TOPIC, id, value, schedule.encode_headers(due_s, "t", b"k"), 0).offset

    def cancel(self, id: bytes) -> None:
        self.log.append(TOPIC, id, None, (), 0)

    @property
    def fired(self) -> list[tuple[int, int]]:
        fired: list[tuple[int, int]] = self.outbox.fired
        return fired


def test_a_tombstone_ends_the_version_that_it_names() -> None:
    rig = ScheduleRig()
    rig.second(0)
    rig.set(b"a", 5)
    rig.read()
    rig.second(5)
    rig.read_all()
    rig.second(9)
    assert rig.fired == [(5, 0)]
    assert rig.outbox.republished == []
    assert rig.store.entries_after(b"", 9).entries == []


def test_a_version_before_the_tombstone_of_another_is_republished_and_fires_once() -> None:
    rig = ScheduleRig()
    rig.second(0)
    rig.set(b"a", 5)
    rig.read()
    newer = rig.set(b"a", 7, b"newer")  # before the tombstone, and unread when the second was released
    rig.second(5, newer)
    rig.read_all()
    assert rig.outbox.republished == [newer]
    copy = rig.log.fetch(TOPIC, 0, 0).records[-1]
    original = rig.log.fetch(TOPIC, 0, newer, 1).records[0]
    assert (copy.key, copy.value, copy.headers, copy.timestamp) == (
        (original.key, original.value, original.headers, original.timestamp)
    )
    rig.second(7)
    rig.read_all()
    rig.second(20)
    assert rig.fired == [(5, 0), (7, copy.offset)]
    assert rig.outbox.republished == [newer], "one tombstone, one copy"


def test_no_version_fires_twice_between_a_tombstone_and_the_republished_copy() -> None:
    rig = ScheduleRig()
    rig.second(0)
    rig.set(b"a", 5)
    rig.read()
    newer = rig.set(b"a", 7, b"newer")
    rig.second(5, newer)
    rig.read(2)  # the newer version, and the tombstone of the older; the copy is in the log, unread
    assert rig.outbox.republished == [newer]
    rig.second(7, rig.machine.position)
    assert rig.fired == [(5, 0)]
    rig.read_all()
    rig.second(8)
    assert len(rig.fired) == 2 and rig.fired[1][1] > newer


def test_a_cancelled_version_is_not_republished() -> None:
    rig = ScheduleRig()
    rig.second(0)
    rig.set(b"a", 5)
    rig.read()
    newer = rig.set(b"a", 7, b"newer")
    rig.cancel(b"a")
    rig.second(5, newer)
    rig.read_all()
    rig.second(9)
    assert rig.fired == [(5, 0)] and rig.outbox.republished == []


def test_several_unread_tombstones_cause_one_copy() -> None:
    """Overdue versions of one id fire on arrival. The pending version after them survives all their tombstones."""
    rig = ScheduleRig()
    rig.second(10)
    rig.set(b"a", 1)
    rig.set(b"a", 2)
    rig.set(b"a", 20, b"alive")
    rig.read_all()
    assert rig.fired == [(1, 0), (2, 1)]
    assert rig.outbox.republished == [2]
    rig.second(20)
    rig.read_all()
    rig.second(30)
    assert [due_s for due_s, _ in rig.fired] == [1, 2, 20]
    assert len(rig.outbox.republished) == 1


def test_a_replay_applies_tombstones_and_republishes_nothing() -> None:
    rig = ScheduleRig()
    rig.second(0)
    rig.set(b"a", 5)
    rig.read()
    newer = rig.set(b"a", 7, b"newer")
    rig.second(5, newer)
    rig.read(2)
    rig.open(wipe=True)
    rig.second(6)
    rig.read_all()
    rig.second(7)
    assert rig.outbox.republished == [newer]
    assert len(rig.fired) == 2


def test_an_unreadable_record_ends_the_version_of_its_id() -> None:
    rig = ScheduleRig()
    rig.second(0)
    rig.set(b"a", 5)
    rig.log.append(TOPIC, b"a", b"v", [("scheduler-epoch", b"soon")], 0)
    rig.read_all()
    rig.second(6)
    assert rig.outbox.rejected == [(1, "key-not-a-number")]
    assert rig.fired == []


def test_a_changed_overdue_setting_applies_from_its_offset_on() -> None:
    rig = ScheduleRig()
    rig.log.clock.advance_ms(10_000)
    rig.second(10)
    before = rig.set(b"a", 20)
    rig.log.clock.advance_ms(15_000)
    rig.log.append(TOPIC, b"b", b"v", schedule.encode_headers(24, "t", b"k"), 0)  # overdue, and not yet late
    rig.read_all()
    rig.machine.commit_progress()
    rig.open(wipe=True, limits=replace(rig.spec.limits, reject_overdue=True))
    rig.second(10)
    rig.log.append(TOPIC, b"c", b"v", schedule.encode_headers(24, "t", b"k"), 0)
    rig.read_all()
    assert rig.outbox.rejected == [(2, "overdue")]
    rig.second(26)
    assert rig.fired == [(20, before), (24, 1)]


def test_a_store_that_fell_behind_is_condemned() -> None:
    """The store may hold a cancelled version, of which compaction has removed both records."""
    rig = ScheduleRig(stale_after_s=100)
    assert not rig.machine.may_accept, "not before the time is known"
    rig.second(0)
    rig.set(b"a", 500)
    rig.read_all()
    rig.second(60)
    rig.machine.commit_progress()
    rig.open()
    rig.second(160)
    rig.machine.commit_progress()
    assert rig.store.read_through_s == 160, "it has kept up"
    rig.open()
    with pytest.raises(Lost, match="has not read its log for 101 s"):
        rig.second(261)
    assert rig.store.condemned


def test_a_log_is_read_ahead_without_ticks_once_the_age_of_the_store_was_checked() -> None:
    """A machine that reads ahead gets no ticks: with one it would accept what comes after its progress."""
    rig = ScheduleRig(stale_after_s=100)
    rig.second(0)
    rig.set(b"a", 500)
    rig.read_all()
    rig.machine.commit_progress()
    rig.set(b"b", 600)

    def ahead(store: MemoryStore, now_s: float) -> Machine:
        return rig.spec.machine(rig.outbox.progress, store, rig.outbox, now_s=now_s)

    machine = ahead(MemoryStore(), 50)
    assert (machine.state, machine.may_accept) == (State.RECOVERING, True)
    machine.accept(rig.log.fetch(TOPIC, 0, 0, 1))
    assert (machine.state, machine.may_accept, machine.pending) == (State.WAITING, False, 1)
    assert rig.store.read_through_s == 0
    with pytest.raises(StoreTooOld, match="has not read its log for 101 s"):
        ahead(rig.store, 101)


def test_a_new_store_is_not_condemned_while_it_is_filled() -> None:
    rig = ScheduleRig(stale_after_s=100)
    rig.second(0)
    rig.set(b"a", 500)
    rig.second(100)
    rig.read_all()
    rig.second(101)
    assert rig.store.read_through_s == 0
    rig.machine.commit_progress()
    assert rig.store.read_through_s == 101


def test_a_second_does_not_wait_for_an_end_that_its_log_has_lost() -> None:
    barrier = SecondBarrier()
    barrier.tick(10, 19, 14)
    barrier.tick(11, 20, 14)
    assert barrier.released_s is None
    barrier.tick(12, 14, 14)
    assert barrier.released_s == 12


def test_a_second_that_waited_long_for_a_compacted_log_is_released_with_a_later_one() -> None:
    """Records that replaced compacted ones may be after the end of the first second."""
    native, compacted = SecondBarrier(), SecondBarrier(UNCOMPACTED_S)
    for barrier in (native, compacted):
        barrier.tick(10, 100, 0)
        barrier.tick(10 + UNCOMPACTED_S + 1, 160, 0)
        barrier.read(100)
    assert (native.released_s, compacted.released_s) == (10, None)
    compacted.read(160)
    assert compacted.released_s == 10 + UNCOMPACTED_S + 1
    compacted.tick(20, 170, 160)
    compacted.tick(21, 180, 160)
    compacted.read(170)
    assert compacted.released_s == 20, "a second without a long wait is released at its own end"
