"""Counters count each committed transaction once, also if its machine has ended."""

import random

import pytest

from tests.harness.list_outbox import ListOutbox
from tests.simulation.kit import SimClock, SimLog
from timers.core.counters import (
    LATE,
    MAX_COUNTED_TOPICS,
    OTHER_TOPICS,
    RETRIED,
    WAITED,
    Accepted,
    Counters,
    Histogram,
    TransactionCounters,
)
from timers.core.limits import Limits
from timers.core.machine import Machine
from timers.core.ports import NO_OUTPUT, Lost, Output
from timers.core.progress import Progress
from timers.core.timer import Row, Tick
from timers.kafka.request_formats import NATIVE
from timers.machines.partition import PartitionSpec
from timers.machines.store.memory import MemoryStore
from timers.wire import future

TOPIC = "timer-request"


# ---- the histogram --------------------------------------------------------------------------------------------------


def test_a_value_equal_to_a_bound_is_in_the_bucket_below() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 10), (2.0, 100), (2.1, 1000)):
        histogram.observe(value, times)
    assert histogram.counts == [11, 100, 1000]
    assert histogram.sum == pytest.approx(0.5 + 10 + 200 + 2100)


# ---- one transaction ------------------------------------------------------------------------------------------------


def fill(counters: Counters, progress: Progress, *, late: bool = False) -> None:
    """Fill a transaction: 5 + 2 firings, a retry and a dead letter."""
    counters.transaction = TransactionCounters()
    counters.transaction.kind = LATE if late else WAITED
    row: Row = (0, "t", None, b"", None, None)
    counters.transaction.fire("t", [(10, [row] * 3), (10, [row] * 2)])
    counters.transaction.fire_again("t", 4)
    counters.transaction.fire_again("u", 4)
    counters.transaction.retried += 1
    counters.transaction.dead_lettered["topic-unknown"] += 1
    counters.transaction.progress = progress
    counters.transaction.ended_ms = 10_025


def totals(counters: Counters) -> tuple[int, int, dict[str, int]]:
    return counters.fired, counters.retried, counters.dead_lettered


NO_TOTALS: tuple[int, int, dict[str, int]] = (0, 0, {})
ALL = (7, 1, {"topic-unknown": 1})


@pytest.mark.parametrize(("late", "way"), [(False, WAITED), (True, LATE)])
def test_a_committed_transaction_counts_with_its_lags(late: bool, way: str) -> None:
    counters = Counters()
    fill(counters, Progress(1), late=late)
    assert totals(counters) == NO_TOTALS
    counters.count_committed(Progress(1))
    assert totals(counters) == ALL
    assert sum(counters.lag[way].counts) == 5
    assert counters.lag[way].sum == pytest.approx(5 * 0.025)
    assert sum(counters.lag[RETRIED].counts) == 2
    assert counters.lag[RETRIED].sum == pytest.approx(2 * 6.025)
    counters.count_committed(Progress(1))
    assert totals(counters) == ALL


def test_callbacks_are_counted_by_topic_with_the_lag_of_those_that_waited() -> None:
    counters = Counters()
    fill(counters, Progress(1))
    counters.count_committed(Progress(1))
    fill(counters, Progress(2), late=True)
    counters.count_committed(Progress(2))
    assert {topic: (each.fired, sum(each.lag.counts)) for topic, each in counters.topics.items()} == {
        "t": (12, 5),
        "u": (2, 0),
    }
    assert counters.topics["t"].lag.sum == pytest.approx(5 * 0.025)


def test_topics_above_the_maximum_are_counted_as_one() -> None:
    counters = Counters()
    for number in range(MAX_COUNTED_TOPICS + 3):
        counters.transaction.fire(f"topic-{number}", [(10, [(0, f"topic-{number}", None, b"", None, None)])])
        counters.count_committed(Progress(number))
    assert len(counters.topics) == MAX_COUNTED_TOPICS + 1
    assert counters.topics[OTHER_TOPICS].fired == 3
    counters.transaction.fire("topic-0", [(10, [(0, "topic-0", None, b"", None, None)])])
    counters.count_committed(Progress(999))
    assert (counters.topics["topic-0"].fired, counters.topics[OTHER_TOPICS].fired) == (2, 3)


def test_a_repeated_transaction_counts_once() -> None:
    counters = Counters()
    fill(counters, Progress(1))
    fill(counters, Progress(1))
    counters.count_committed(Progress(1))
    assert totals(counters) == ALL


def test_an_unknown_commit_counts_if_its_progress_is_in_the_log() -> None:
    counters = Counters()
    fill(counters, Progress(1))
    counters.resume(Progress(1), 0)
    assert totals(counters) == ALL
    assert sum(counters.lag[WAITED].counts) == 5


@pytest.mark.parametrize("found", [Progress(), Progress(2)])
def test_an_unknown_commit_without_its_progress_in_the_log_does_not_count(found: Progress) -> None:
    counters = Counters()
    fill(counters, Progress(1))
    counters.resume(found, 0)
    assert totals(counters) == NO_TOTALS
    counters.count_committed(found)
    assert totals(counters) == NO_TOTALS


# ---- requests -------------------------------------------------------------------------------------------------------


def test_requests_count_when_their_offset_is_committed() -> None:
    counters = Counters()
    counters.uncommitted.append(Accepted(10, 8, 0))
    counters.uncommitted.append(Accepted(15, 4, 3))
    assert (counters.accepted, counters.late) == (0, 0)
    counters.count_committed(Progress(10))
    assert (counters.accepted, counters.late) == (8, 0)
    counters.count_committed(Progress(15))
    assert (counters.accepted, counters.late) == (12, 3)


def test_requests_that_another_worker_accepted_do_not_count() -> None:
    counters = Counters()
    counters.resume(Progress(5), 5)
    counters.uncommitted.append(Accepted(10, 8, 0))
    counters.resume(Progress(7), 10)
    counters.count_committed(Progress(20))
    assert counters.accepted == 0


# ---- random ---------------------------------------------------------------------------------------------------------


class UnreliableOutbox(ListOutbox):
    """An outbox whose commits sometimes fail, with or without effect."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        fate = self._dice.random()
        if fate < 0.15:
            raise Lost("the request was lost")
        super().commit(progress, output)
        if fate > 0.85:
            raise Lost("the reply was lost")


@pytest.mark.parametrize("seed", range(60))
def test_accepted_are_the_readable_requests_below_the_committed_offset(seed: int) -> None:
    """Commits fail with and without effect, and disks are wiped; the counters are compared after each commit."""
    dice = random.Random(seed)
    log = SimLog(SimClock(0), partitions=1)
    outbox = UnreliableOutbox(dice)
    store = MemoryStore(3)
    counters = Counters()
    spec = PartitionSpec((TOPIC, 0), NATIVE, Limits(chunk_timers=3, chunk_bytes=10**6, max_request_bytes=100))
    readable: list[bool] = []
    now_s = 0

    def opened() -> Machine:
        assert spec.catch_up(store, outbox.progress)
        machine = spec.machine(outbox.progress, store, outbox, counters)
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
        fired = [key for fired, _, _ in outbox.commits for key in fired]
        committed = outbox.progress.next_offset
        assert counters.accepted <= sum(readable)
        if machine.progress.next_offset == committed and not machine.recovering:
            assert counters.accepted == sum(readable[:committed])
    assert fired, "nothing happened"
