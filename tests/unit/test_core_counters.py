"""Totals count what was committed, once, whatever became of the machines that did it."""

from __future__ import annotations

import random

import pytest

from timers.core.counters import LATE, RETRIED, WAITED, Histogram, Tally
from timers.core.machine import Limits, Machine
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Tick
from timers.store.memory import MemoryStore
from timers.testing import SimClock, SimLedger, SimLog
from timers.wire import future

TOPIC = "timer-request"


# ---- the histogram --------------------------------------------------------------------------------------------------


def test_a_value_on_a_bound_lies_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 10), (2.0, 100), (2.1, 1000)):
        histogram.observe(value, times)
    assert histogram.counts == [11, 100, 1000]
    assert histogram.sum == pytest.approx(0.5 + 10 + 200 + 2100)


# ---- one transaction ------------------------------------------------------------------------------------------------


def fill(tally: Tally, progress: Progress, *, late: bool = False) -> None:
    """A transaction that is about to be committed: 5 + 2 firings, a retry, a dead letter."""
    tally.begin()
    tally.sending.late = late
    tally.sending.fire(10, 3)
    tally.sending.fire(10, 2)
    tally.sending.fire_again(4)
    tally.sending.fire_again(4)
    tally.sending.retried += 1
    tally.sending.dead_letter("topic-unknown")
    tally.sending.progress = progress
    tally.sending.ended_ms = 10_025


def totals(tally: Tally) -> tuple[int, int, dict[str, int]]:
    return tally.fired, tally.retried, tally.dead_lettered


NOTHING: tuple[int, int, dict[str, int]] = (0, 0, {})
ALL = (7, 1, {"topic-unknown": 1})


@pytest.mark.parametrize(("late", "way"), [(False, WAITED), (True, LATE)])
def test_a_committed_transaction_counts_with_its_lags(late: bool, way: str) -> None:
    tally = Tally()
    fill(tally, Progress(1), late=late)
    assert totals(tally) == NOTHING
    tally.settle(Progress(1))
    assert totals(tally) == ALL
    assert sum(tally.lag[way].counts) == 5
    assert tally.lag[way].sum == pytest.approx(5 * 0.025)
    assert sum(tally.lag[RETRIED].counts) == 2
    assert tally.lag[RETRIED].sum == pytest.approx(2 * 6.025)
    tally.settle(Progress(1))
    assert totals(tally) == ALL


def test_what_was_begun_again_counts_once() -> None:
    tally = Tally()
    fill(tally, Progress(1))
    fill(tally, Progress(1))
    tally.settle(Progress(1))
    assert totals(tally) == ALL


def test_a_commit_in_doubt_counts_if_it_is_what_stands_in_the_log() -> None:
    tally = Tally()
    fill(tally, Progress(1))
    tally.resume(Progress(1), 0)
    assert totals(tally) == ALL
    assert sum(tally.lag[WAITED].counts) == 5


@pytest.mark.parametrize("found", [Progress(), Progress(2)])
def test_a_commit_in_doubt_that_did_not_happen_is_forgotten(found: Progress) -> None:
    tally = Tally()
    fill(tally, Progress(1))
    tally.resume(found, 0)
    assert totals(tally) == NOTHING
    tally.settle(found)
    assert totals(tally) == NOTHING


# ---- requests -------------------------------------------------------------------------------------------------------


def test_requests_count_when_a_commit_covers_them() -> None:
    tally = Tally()
    tally.take(10, 8, 0)
    tally.take(15, 4, 3)
    assert (tally.accepted, tally.late) == (0, 0)
    tally.settle(Progress(10))
    assert (tally.accepted, tally.late) == (8, 0)
    tally.settle(Progress(15))
    assert (tally.accepted, tally.late) == (12, 3)


def test_requests_that_another_worker_passed_are_its_to_count() -> None:
    tally = Tally()
    tally.resume(Progress(5), 5)
    tally.take(10, 8, 0)
    tally.resume(Progress(7), 10)
    tally.settle(Progress(20))
    assert tally.accepted == 0


# ---- a life ---------------------------------------------------------------------------------------------------------


class Unreliable(SimLedger):
    """Commits fail now and then: before they are heard of, or after."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def commit(self, progress: Progress) -> None:
        fate = self._dice.random()
        if fate < 0.15:
            raise Lost("the request was lost")
        super().commit(progress)
        if fate > 0.85:
            raise Lost("the reply was lost")


@pytest.mark.parametrize("seed", range(60))
def test_accepted_are_the_readable_requests_below_the_committed_offset(seed: int) -> None:
    """Through commits that are lost either way and disks that are wiped, compared after every commit."""
    dice = random.Random(seed)
    log = SimLog(SimClock(0), partitions=1)
    ledger = Unreliable(dice)
    store = MemoryStore(3)
    tally = Tally()
    limits = Limits(chunk_timers=3, chunk_bytes=10**6, max_request_bytes=100)
    readable: list[bool] = []
    now_s = 0

    def opened() -> Machine:
        store.drop_through(ledger.progress.fired_through, ledger.progress.next_offset)
        machine = Machine(ledger.progress, future.decode, store, ledger, limits, tally)
        machine.observe(Tick(now_s * 1000))
        return machine

    machine = opened()
    for _ in range(60):
        try:
            for _ in range(dice.randrange(4)):
                good = dice.random() < 0.9
                key = b"%d" % max(0, now_s + dice.randrange(-3, 6)) if good else b"soon"
                log.append(TOPIC, key, future.encode("t", "k", b""), partition=0)
                readable.append(good)
            machine.accept(log.fetch(TOPIC, 0, machine.position, dice.randrange(1, 9)))
            if dice.random() < 0.5:
                now_s += 1
                machine.observe(Tick(now_s * 1000))
                while machine.fire_chunk():
                    pass
                machine.commit_progress()
        except Lost:
            if dice.random() < 0.2:
                store = MemoryStore(3)
            machine = opened()
        fired = [key for fired, _, _ in ledger.commits for key in fired]
        committed = ledger.progress.next_offset
        assert tally.accepted <= sum(readable)
        if machine.progress.next_offset == committed and not machine.recovering:
            assert tally.accepted == sum(readable[:committed])
    assert fired, "nothing happened"
