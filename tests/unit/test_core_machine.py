"""The rules of a machine, one example each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from timers.core.keys import MAX_OFFSET, NEVER
from timers.core.machine import MAX_REQUEST_BYTES, Limits, Machine, OutOfPlace, catch_up
from timers.core.ports import Lost
from timers.core.progress import Progress, SettingChange
from timers.core.timer import Fetched, Tick
from timers.store.memory import MemoryStore
from timers.testing import SimClock, SimLedger, SimLog
from timers.wire import future

TOPIC = "timer-request"
LIMITS = Limits(chunk_timers=1000, chunk_bytes=10**6, max_request_bytes=100)


class Bench:
    """A machine, and by hand what surrounds it."""

    def __init__(self, progress: Progress = Progress(), limits: Limits = LIMITS, group: int = 3) -> None:  # noqa: B008
        self.log = SimLog(SimClock(0), partitions=1)
        self.ledger = SimLedger()
        self.ledger.progress = progress
        self.store = MemoryStore(group)
        self.limits = limits
        self.open()

    def open(self) -> Machine:
        """Open as a worker does, with what was committed and what is on disk."""
        progress = self.ledger.progress
        if not catch_up(self.store, progress):
            self.store = MemoryStore()
        self.machine = Machine(progress, future.decode, self.store, self.ledger, self.limits)
        return self.machine

    def ask(self, *due: int, value: bytes = b"") -> None:
        for due_s in due:
            self.log.append(TOPIC, b"%d" % due_s, future.encode("t", "k", value), partition=0)

    def fetch(self, from_offset: int | None = None, count: int = 10**6) -> Fetched:
        start = self.machine.position if from_offset is None else from_offset
        return self.log.fetch(TOPIC, 0, start, count)

    def accept(self, *due: int) -> None:
        self.ask(*due)
        self.machine.accept(self.fetch())

    def tick(self, second: float) -> None:
        self.machine.observe(Tick(round(second * 1000)))

    def fire(self) -> None:
        while self.machine.fire_chunk():
            pass

    @property
    def state(self) -> Any:
        rows = [(due_s, row[0]) for due_s, group in self.store.scan(NEVER, 10**12) for row in group]
        return self.machine.progress, self.store.applied, rows


# ---- time -----------------------------------------------------------------------------------------------------------


def test_what_is_due_fires_in_key_order_and_no_sooner() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(9, 7, 8, 7)
    bench.tick(6.999)
    bench.fire()
    assert bench.ledger.fired == []
    bench.tick(8)
    bench.fire()
    assert bench.ledger.fired == [(7, 1), (7, 3), (8, 2)]
    assert bench.machine.progress.fired_through == (8, MAX_OFFSET)
    assert bench.ledger.tick == Tick(8000)
    assert (bench.machine.pending, bench.machine.oldest_due_s) == (1, 9)


def test_a_missed_second_needs_no_tick_of_its_own() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(*range(1, 50))
    bench.tick(49)
    bench.fire()
    assert [due_s for due_s, _ in bench.ledger.fired] == list(range(1, 50))


def test_old_and_duplicate_ticks_change_nothing() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(7, 8)
    bench.tick(7)
    bench.fire()
    before, commits = bench.state, len(bench.ledger.commits)
    for second in (7, 7.5, 6, 5.5):
        bench.tick(second)
        assert not bench.machine.held
        bench.fire()
    assert (bench.state, len(bench.ledger.commits)) == (before, commits)
    bench.accept(7)
    assert bench.ledger.tick == Tick(7500), "the newest time known"


def test_without_a_tick_nothing_fires_and_nothing_new_is_accepted() -> None:
    bench = Bench()
    assert not bench.machine.may_accept
    assert not bench.machine.fire_chunk()
    assert not bench.machine.commit_progress(even_if_idle=True)
    bench.tick(0)
    assert bench.machine.may_accept


# ---- a backlog ------------------------------------------------------------------------------------------------------

PACED = replace(LIMITS, catch_up_per_s=2, overdue_s=10)


def test_of_a_backlog_so_many_fire_each_second_and_the_rest_is_asked_for_anew() -> None:
    bench = Bench(limits=PACED)
    bench.tick(0)
    bench.accept(1, 2, 3, 4, 5)
    bench.tick(100)
    bench.fire()
    assert bench.ledger.fired == [(1, 0), (2, 1)]
    assert bench.ledger.postponed == [((3, 2), 101), ((4, 3), 101), ((5, 4), 102)]
    assert (bench.machine.pending, bench.machine.progress.fired_through) == (0, (100, MAX_OFFSET))


def test_a_backlog_that_is_read_late_keeps_to_the_same_pace() -> None:
    bench = Bench(limits=PACED)
    bench.tick(100)
    bench.fire()
    bench.accept(1, 1, 1, 200)
    assert bench.ledger.fired == [(1, 0), (1, 1)]
    assert bench.ledger.postponed == [((1, 2), 101)]
    assert bench.state[2] == [(200, 3)], "acceptance goes on"


def test_what_is_on_time_overtakes_a_backlog_and_does_not_count_against_it() -> None:
    bench = Bench(limits=PACED)
    bench.tick(0)
    bench.accept(1, 1, 1, 90, 91, 99, 100, 100, 100)
    bench.tick(100)
    bench.fire()
    assert bench.ledger.fired == [(1, 0), (1, 1), (90, 3), (91, 4), (99, 5), (100, 6), (100, 7), (100, 8)]
    assert bench.ledger.postponed == [((1, 2), 101)]


def test_room_given_away_for_later_seconds_is_not_given_again() -> None:
    bench = Bench(limits=PACED)
    bench.tick(100)
    bench.fire()
    bench.accept(1, 1, 1, 1, 1)  # seconds 100 and 101 are full, 102 has room for one
    bench.tick(101)
    bench.accept(1, 1)
    assert bench.ledger.postponed[-2:] == [((1, 5), 102), ((1, 6), 103)]


def test_without_a_bound_a_backlog_fires_as_fast_as_it_goes() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(*[1] * 50)
    bench.tick(100)
    bench.fire()
    assert (len(bench.ledger.fired), bench.ledger.postponed) == (50, [])


# ---- late requests, [I2] --------------------------------------------------------------------------------------------


def test_a_late_request_fires_at_once() -> None:
    bench = Bench()
    bench.tick(10)
    bench.fire()
    bench.accept(3, 11, 10, 2)
    assert bench.ledger.fired == [(2, 3), (3, 0), (10, 2)]
    assert bench.state[2] == [(11, 1)]
    assert bench.ledger.progress.next_offset == 4
    assert (bench.machine.counters.late, bench.machine.counters.accepted) == (3, 4)


def test_within_the_second_last_fired_the_offset_decides() -> None:
    """After a chunk that ended inside second 5, its later offsets are still to come; nothing before is."""
    bench = Bench(limits=Limits(1, 10**6, 100), group=1)
    bench.tick(0)
    bench.accept(5, 5, 5)
    bench.tick(5)
    assert bench.machine.fire_chunk()
    assert bench.machine.progress.fired_through == (5, 0)
    bench.accept(5, 4)
    assert bench.ledger.fired == [(5, 0), (4, 4)]
    bench.fire()
    assert bench.ledger.fired == [(5, 0), (4, 4), (5, 1), (5, 2), (5, 3)]


def test_a_request_that_cannot_be_read_is_answered_and_passed() -> None:
    bench = Bench()
    bench.tick(0)
    bench.log.append(TOPIC, b"soon", b"", partition=0)
    bench.accept(5)
    assert bench.ledger.rejected == [(0, "topic-missing")]
    assert bench.state[1:] == (2, [(5, 1)])
    assert bench.machine.counters.accepted == 1


def test_output_is_committed_before_the_batch_is_stored() -> None:
    bench = Bench()
    bench.tick(10)
    bench.fire()
    bench.ask(20, 3)
    before = bench.state
    bench.ledger.failing = 1
    with pytest.raises(Lost):
        bench.machine.accept(bench.fetch())
    assert bench.state == before
    bench.machine.accept(bench.fetch())
    assert (bench.ledger.fired, bench.state[2]) == ([(3, 1)], [(20, 0)])


def test_a_batch_that_emits_nothing_needs_no_transaction() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(5)
    commits = len(bench.ledger.commits)
    bench.accept(6)
    assert len(bench.ledger.commits) == commits
    assert bench.machine.commit_progress()
    assert bench.ledger.progress.next_offset == 2
    assert not bench.machine.commit_progress()


# ---- chunks, [I3] ---------------------------------------------------------------------------------------------------


def test_a_chunk_ends_at_its_limit_and_says_exactly_how_far_it_came() -> None:
    bench = Bench(limits=Limits(chunk_timers=2, chunk_bytes=10**6, max_request_bytes=100), group=2)
    bench.tick(0)
    bench.accept(5, 5, 5, 6, 6)
    bench.tick(6)
    through = []
    more = True
    while more:
        more = bench.machine.fire_chunk()
        through.append(bench.machine.progress.fired_through)
    assert through == [(5, 1), (6, MAX_OFFSET)]
    assert [len(fired) for fired, _, _ in bench.ledger.commits if fired] == [2, 3], "give or take one group"
    assert bench.machine.pending == 0


def test_a_chunk_is_bounded_by_bytes_too() -> None:
    bench = Bench(limits=Limits(chunk_timers=1000, chunk_bytes=100, max_request_bytes=100), group=1)
    bench.tick(0)
    bench.ask(*[5] * 6, value=bytes(49))
    bench.machine.accept(bench.fetch())
    bench.tick(5)
    bench.fire()
    assert [len(fired) for fired, _, _ in bench.ledger.commits if fired] == [2, 2, 2]


def test_a_scan_that_ends_with_its_last_group_at_the_limit_is_complete() -> None:
    bench = Bench(limits=Limits(chunk_timers=3, chunk_bytes=10**6, max_request_bytes=100), group=3)
    bench.tick(0)
    bench.accept(5, 5, 5)
    bench.tick(7)
    assert not bench.machine.fire_chunk()
    assert bench.machine.progress.fired_through == (7, MAX_OFFSET)


def test_a_failed_chunk_moves_nothing() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(5, 6)
    bench.tick(5)
    before = bench.state
    bench.ledger.failing = 1
    with pytest.raises(Lost):
        bench.machine.fire_chunk()
    assert bench.state == before
    bench.open()
    bench.tick(5)
    bench.fire()
    assert bench.ledger.fired == [(5, 0)]


# ---- gaps, [I7] -----------------------------------------------------------------------------------------------------


def test_a_gap_is_noticed_and_names_where_to_read_on() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(5)
    bench.ask(6, 7)
    before = bench.state
    with pytest.raises(OutOfPlace) as gap:
        bench.machine.accept(bench.fetch(from_offset=2))
    assert gap.value.position == 1
    assert bench.state == before
    with pytest.raises(OutOfPlace):
        bench.machine.accept(Fetched(3, 3, []))  # an empty range shows a gap as well


def test_what_was_read_before_is_not_read_twice() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(5, 6)
    bench.ask(7)
    bench.machine.accept(bench.fetch(from_offset=0))
    bench.machine.accept(bench.fetch(from_offset=0, count=2))
    assert bench.state[1:] == (3, [(5, 0), (6, 1), (7, 2)])


def test_holes_in_offsets_are_no_gaps() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(5)
    bench.machine.accept(Fetched(1, 4, []))  # markers, or aborted records
    assert bench.machine.position == 4
    assert bench.machine.progress.next_offset == 4


# ---- opening and recovery -------------------------------------------------------------------------------------------


def test_recovery_fires_nothing_and_emits_nothing() -> None:
    bench = Bench(Progress(next_offset=4, fired_through=(6, 1)))
    bench.ask(6, 6, 6, 3)
    bench.log.append(TOPIC, b"9", None, partition=0)
    bench.tick(100)
    assert bench.machine.recovering
    assert bench.machine.may_accept, "a replay needs no clock, and here there is one"
    bench.machine.accept(bench.fetch(count=2))
    bench.fire()
    assert not bench.machine.commit_progress(even_if_idle=True)
    assert bench.ledger.commits == []
    bench.machine.accept(bench.fetch(count=2))
    assert not bench.machine.recovering
    assert bench.ledger.commits == []
    assert bench.state[2] == [(6, 2)], "what was fired, or was late then, is not pending"
    bench.fire()
    assert bench.ledger.fired == [(6, 2)]


def test_a_fetch_may_span_the_end_of_the_replay() -> None:
    bench = Bench(Progress(next_offset=2, fired_through=(6, MAX_OFFSET)))
    bench.ask(5, 7, 5, 8)
    with pytest.raises(OutOfPlace) as wait:
        bench.machine.accept(bench.fetch())
    assert wait.value.position == 2, "the new part waits for a tick"
    assert bench.state[1:] == (2, [(7, 1)])
    bench.tick(6)
    bench.machine.accept(bench.fetch())
    assert (bench.ledger.fired, bench.state[2]) == ([(5, 2)], [(7, 1), (8, 3)])


def test_a_store_ahead_of_its_progress_is_covered_by_the_next_commit() -> None:
    """[I1]: what the store holds may fire, so next_offset on open covers it."""
    bench = Bench()
    bench.tick(0)
    bench.accept(5)
    bench.accept(6)
    assert bench.ledger.progress.next_offset == 1
    bench.open()
    assert not bench.machine.recovering
    bench.tick(6)
    bench.fire()
    assert bench.ledger.progress == Progress(2, (6, MAX_OFFSET), bench.machine.progress.settings)


def test_what_another_owner_passed_over_is_read_again_and_fires_late() -> None:
    """Accepted here and never committed; then somebody else let time pass without having read it."""
    bench = Bench()
    bench.tick(0)
    bench.accept(50)
    bench.accept(5, 60)
    assert bench.ledger.progress.next_offset == 1
    bench.ledger.progress = Progress(1, (10, MAX_OFFSET), bench.ledger.progress.settings)
    bench.open()
    assert bench.state[1:] == (1, [(50, 0)])
    bench.tick(10)
    bench.machine.accept(bench.fetch())
    assert (bench.ledger.fired, bench.state[2]) == ([(5, 1)], [(50, 0), (60, 2)])


def test_an_index_that_was_passed_over_is_read_anew() -> None:
    """It holds the last version of each id, and so cannot go back to the one before."""
    bench = Bench()
    bench.tick(0)
    bench.accept(50)
    bench.accept(5, 60)
    progress = Progress(1, (10, MAX_OFFSET), bench.ledger.progress.settings)
    assert catch_up(bench.store, replace(progress, next_offset=3), indexed=True)
    assert not catch_up(bench.store, replace(progress, next_offset=1, fired_through=(60, MAX_OFFSET)), indexed=True)


# ---- settings, [I4] -------------------------------------------------------------------------------------------------


def test_a_changed_setting_holds_from_the_first_request_accepted_under_it_and_is_committed_before() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(5)
    bench.limits = Limits(1000, 10**6, max_request_bytes=10)
    bench.open()
    bench.tick(0)
    bench.accept(5)
    history = (SettingChange(MAX_REQUEST_BYTES, 0, 100), SettingChange(MAX_REQUEST_BYTES, 1, 10))
    assert bench.ledger.progress.settings == history, "durable, although the batch itself emitted nothing"
    bench.ask(5, value=bytes(20))
    bench.machine.accept(bench.fetch())
    assert bench.ledger.rejected == [(2, "value-too-large")]


def test_a_replay_reads_each_record_under_the_setting_of_then() -> None:
    settings = (SettingChange(MAX_REQUEST_BYTES, 0, 100), SettingChange(MAX_REQUEST_BYTES, 1, 10))
    bench = Bench(Progress(2, NEVER, settings))
    bench.ask(5, 5, value=bytes(20))
    bench.machine.accept(bench.fetch())
    assert bench.state[2] == [(5, 0)]


# ---- the broker's clock, [I10] --------------------------------------------------------------------------------------


def test_a_clock_that_went_back_more_than_two_seconds_holds_acceptance_until_it_has_caught_up() -> None:
    bench = Bench()
    bench.tick(100)
    bench.fire()
    for second, held in [(98, False), (97, True), (98, True), (99, True), (100, False), (98.5, False), (3, True)]:
        bench.tick(second)
        assert (bench.machine.held, bench.machine.may_accept) == (held, not held), second


def test_after_a_step_back_the_present_decides_what_is_due() -> None:
    """The clock showed 100 for a moment; what was asked for since, for second 60, waits for 60."""
    bench = Bench(limits=Limits(1, 10**6, 100), group=1)
    bench.tick(10)
    bench.accept(11, 12)
    bench.tick(100)
    assert bench.machine.fire_chunk()
    bench.tick(50)
    assert not bench.machine.held, "only second 11 has fired"
    bench.accept(60)
    bench.fire()
    assert bench.ledger.fired == [(11, 0), (12, 1)]
    bench.tick(60)
    bench.fire()
    assert bench.ledger.fired[2:] == [(60, 2)]


# ---- progress -------------------------------------------------------------------------------------------------------


def test_time_alone_is_committed_only_when_asked() -> None:
    bench = Bench()
    bench.tick(0)
    bench.accept(50)
    bench.tick(40)
    bench.fire()
    assert not bench.machine.commit_progress()
    assert bench.machine.commit_progress(even_if_idle=True)
    assert bench.ledger.progress.fired_through == (40, MAX_OFFSET)
    assert not bench.machine.commit_progress(even_if_idle=True)


def test_what_another_worker_rejected_meanwhile_under_its_own_limit_does_not_fire_here() -> None:
    """Both keep a store; the first has accepted more than it committed when the second takes over."""
    bench = Bench()
    bench.tick(10)
    bench.accept(20)
    bench.ask(30)
    bench.ask(31, value=b"x" * 60)
    bench.machine.accept(bench.fetch())
    assert bench.machine.pending == 3
    ours = bench.store

    bench.store, bench.limits = MemoryStore(), replace(LIMITS, max_request_bytes=50)
    bench.open()
    bench.tick(11)
    while bench.machine.position < 3:
        bench.machine.accept(bench.fetch())
    assert bench.ledger.rejected == [(2, "value-too-large")]

    bench.store, bench.limits = ours, LIMITS
    bench.open()
    while bench.machine.recovering:
        bench.machine.accept(bench.fetch())
    assert bench.machine.pending == 2
