"""The simulated log behaves as Kafka does: holes, isolation, fencing."""

import pytest

from tests.simulation.kit import Crashed, Faults, SimClock, SimLog, SimProducer, SimStore
from timers.core.keys import NOTHING_FIRED
from timers.errors import Fenced


@pytest.fixture
def log() -> SimLog:
    return SimLog(SimClock(1000))


def producer(log: SimLog, transactional_id: str = "t") -> SimProducer:
    made = SimProducer(log, transactional_id)
    made.init_transactions()
    return made


def offsets(log: SimLog, *, committed: bool = True) -> tuple[list[int], int]:
    fetched = log.fetch("x", 0, 0, committed=committed)
    return [record.offset for record in fetched.records], fetched.to_offset


def test_markers_and_aborted_records_leave_holes(log: SimLog) -> None:
    first = producer(log)
    for name in (b"a", b"b"):
        first.begin()
        first.produce("x", name, b"1", partition=0)
        if name == b"a":
            first.commit()
    producer(log)  # fences, and so aborts b
    log.append("x", b"c", b"1", partition=0)
    assert offsets(log) == ([0, 4], 5)  # 0 a, 1 commit marker, 2 b, 3 abort marker, 4 c
    assert offsets(log, committed=False) == ([0, 2, 4], 5)


def test_committed_reads_stop_at_an_open_transaction(log: SimLog) -> None:
    log.append("x", b"a", b"1", partition=0)
    first = producer(log)
    first.begin()
    first.produce("x", b"b", b"1", partition=0)
    log.append("x", b"c", b"1", partition=0)
    assert offsets(log) == ([0], 1)
    assert log.last_stable("x", 0) == 1
    assert log.end("x", 0) == 3
    first.commit()
    assert offsets(log) == ([0, 1, 2], 4)


def test_a_late_marker_holds_the_end_back_until_the_producer_opens_again(log: SimLog) -> None:
    log.slow_markers.add(("x", 0))
    first = producer(log)
    first.begin()
    first.produce("x", b"a", b"1", partition=0)
    first.commit()
    log.append("x", b"b", b"1", partition=0)
    assert offsets(log) == ([], 0)
    assert log.last_stable("x", 0, without="t") == 2
    producer(log)
    assert offsets(log) == ([0, 1], 3)


def test_a_damaged_record_is_not_visible(log: SimLog) -> None:
    log.takes_damaged = True
    log.append("x", b"a", b"1", partition=0)
    log.takes_damaged = False
    log.append("x", b"b", b"1", partition=0)
    assert offsets(log) == ([1], 2)
    log.damaged[0].unreadable = False
    assert offsets(log) == ([0, 1], 2)
    assert [record.offset for record in log.committed] == [1]


def test_a_fenced_producer_can_neither_send_nor_commit(log: SimLog) -> None:
    former = producer(log)
    former.begin()
    former.produce("x", b"a", b"1", partition=0)
    producer(log)
    with pytest.raises(Fenced):
        former.commit()
    with pytest.raises(Fenced):
        former.produce("x", b"b", b"1", partition=0)
    assert offsets(log)[0] == []


def test_repeating_a_commit_changes_nothing(log: SimLog) -> None:
    repeated = producer(log)
    repeated.begin()
    repeated.produce("x", b"a", b"1", partition=0)
    repeated.send_offset("group", ("x", 0), 7)
    assert log.group_offsets == {}
    repeated.commit()
    repeated.commit()
    assert offsets(log) == ([0], 2)
    assert log.group_offsets == {("group", ("x", 0)): (7, "")}


def test_the_newest_record_is_found_after_an_open_transaction(log: SimLog) -> None:
    other = producer(log)
    other.begin()
    other.produce("x", b"b", b"1", partition=0)
    committed = log.append("x", b"a", b"2", partition=0)
    assert offsets(log) == ([], 0)
    assert log.newest("x", 0, b"a") is committed
    assert log.newest("x", 0, b"b") is None


def test_a_log_that_lost_its_end_grows_again(log: SimLog) -> None:
    for value in (b"1", b"2", b"3"):
        log.append("x", b"a", value, partition=0)
    log.lose_end("x", 0, 1)
    again = log.append("x", b"a", b"4", partition=0)
    assert [record.value for record in log.fetch("x", 0, 0).records] == [b"1", b"4"]
    assert (again.offset, log.end("x", 0)) == (1, 2)


def test_records_have_the_brokers_time_which_can_go_back(log: SimLog) -> None:
    log.append("x", b"a", b"1", partition=0)
    log.clock.step_ms(-5000)
    log.append("x", b"b", b"1", partition=0)
    assert [record.timestamp_ms for record in log.fetch("x", 0, 0).records] == [1_000_000, 995_000]
    with pytest.raises(ValueError, match="time passes forward"):
        log.clock.advance_ms(-1)


def test_faults_happen_at_the_chosen_points() -> None:
    faults = Faults()
    faults.crash_after(1)
    faults.point("one")
    with pytest.raises(Crashed, match="two"):
        faults.point("two")
    faults.point("three")
    faults.crash_at("five")
    faults.point("four")
    with pytest.raises(Crashed, match="five"):
        faults.point("five")
    faults.arm("abort")
    assert [faults.take("abort"), faults.take("abort")] == [True, False]


def test_a_power_loss_takes_the_last_write_batches() -> None:
    store = SimStore(Faults())
    row = (0, "t", "k", b"v", None, None)
    store.write({5: [row]}, 1)
    list(store.scan(NOTHING_FIRED, 5))
    store.delete((5, 0), 1)
    store.write({}, 2)
    assert (store.keys, store.applied) == ([], 2)
    store.lose_power(2)
    assert (store.keys, store.applied) == ([(5, 0)], 1)
    store.lose_power(9)
    assert (store.keys, store.applied) == ([], 0)


def test_a_compaction_returns_tombstones_too_whose_time_is_over() -> None:
    """What no worker has noticed is put back, whatever it was."""
    log = SimLog(SimClock(0), partitions=1)
    for value in (b"v", None):
        log.append("t", b"k", value, partition=0)
    assert [each.offset for each in log.compact("t", 0, 2, 0)] == [0]
    log.clock.now_ms += 1
    assert [each.offset for each in log.compact("t", 0, 2, 0)] == [1]
