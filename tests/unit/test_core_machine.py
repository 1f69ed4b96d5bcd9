"""The rules of a machine, with one example each."""

from dataclasses import replace

import pytest

from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import LIMITS, NativeRig
from timers.core.keys import MAX_OFFSET
from timers.core.limits import Limits
from timers.core.ports import NO_OUTPUT, Lost, Output, ReadAgain
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick

# ---- time -----------------------------------------------------------------------------------------------------------


def test_due_timers_fire_in_key_order_and_not_early() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(9, 7, 8, 7)
    rig.second(6.999)
    assert rig.outbox.fired == []
    rig.second(8)
    assert rig.outbox.fired == [(7, 1), (7, 3), (8, 2)]
    assert rig.machine.progress.fired_through == (8, MAX_OFFSET)
    assert rig.outbox.tick == Tick(8000)
    assert (rig.machine.pending, rig.machine.oldest_due_s) == (1, 9)


def test_the_next_tick_fires_the_timers_of_a_missed_second() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(*range(1, 50))
    rig.second(49)
    assert [due_s for due_s, _ in rig.outbox.fired] == list(range(1, 50))


def test_old_and_duplicate_ticks_change_nothing() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(7, 8)
    rig.second(7)
    before, commits = rig.state, len(rig.outbox.commits)
    for second in (7, 7.5, 6, 5.5):
        rig.observe(second)
        assert not rig.machine.clock_is_behind
        rig.fire()
    assert (rig.state, len(rig.outbox.commits)) == (before, commits)
    rig.accept(7)
    assert rig.outbox.tick == Tick(7500), "the newest time known"


def test_without_a_tick_nothing_fires_and_nothing_new_is_accepted() -> None:
    rig = NativeRig()
    assert not rig.machine.may_accept
    assert not rig.machine.fire_chunk()
    assert not rig.machine.commit_progress(even_if_idle=True)
    rig.observe(0)
    assert rig.machine.may_accept


# ---- a backlog ------------------------------------------------------------------------------------------------------

PACED = replace(LIMITS, catch_up_per_s=2, overdue_s=10)


def test_a_backlog_fires_at_the_catch_up_limit_and_the_rest_is_postponed() -> None:
    rig = NativeRig(limits=PACED, now_s=0)
    rig.accept(1, 2, 3, 4, 5)
    rig.second(100)
    assert rig.outbox.fired == [(1, 0), (2, 1)]
    assert rig.outbox.postponed == [((3, 2), 101), ((4, 3), 101), ((5, 4), 102)]
    assert (rig.machine.pending, rig.machine.progress.fired_through) == (0, (100, MAX_OFFSET))


def test_overdue_requests_that_are_read_late_keep_the_catch_up_limit() -> None:
    rig = NativeRig(limits=PACED)
    rig.second(100)
    rig.accept(1, 1, 1, 200)
    assert rig.outbox.fired == [(1, 0), (1, 1)]
    assert rig.outbox.postponed == [((1, 2), 101)]
    assert rig.state[2] == [(200, 3)], "acceptance goes on"


def test_punctual_timers_do_not_count_for_the_catch_up_limit() -> None:
    rig = NativeRig(limits=PACED, now_s=0)
    rig.accept(1, 1, 1, 90, 91, 99, 100, 100, 100)
    rig.second(100)
    assert rig.outbox.fired == [(1, 0), (1, 1), (90, 3), (91, 4), (99, 5), (100, 6), (100, 7), (100, 8)]
    assert rig.outbox.postponed == [((1, 2), 101)]


def test_postponed_timers_use_the_limit_of_later_seconds() -> None:
    rig = NativeRig(limits=PACED)
    rig.second(100)
    rig.accept(1, 1, 1, 1, 1)  # seconds 100 and 101 are full, 102 has room for one
    rig.observe(101)
    rig.accept(1, 1)
    assert rig.outbox.postponed[-2:] == [((1, 5), 102), ((1, 6), 103)]


def test_without_a_limit_a_backlog_fires_at_once() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(*[1] * 50)
    rig.second(100)
    assert (len(rig.outbox.fired), rig.outbox.postponed) == (50, [])


# ---- late requests, [I2] --------------------------------------------------------------------------------------------


def test_a_late_request_fires_at_once() -> None:
    rig = NativeRig()
    rig.second(10)
    rig.accept(3, 11, 10, 2)
    assert rig.outbox.fired == [(2, 3), (3, 0), (10, 2)]
    assert rig.state[2] == [(11, 1)]
    assert rig.outbox.progress.next_offset == 4
    assert (rig.machine.counters.late, rig.machine.counters.accepted) == (3, 4)


def test_in_a_partly_fired_second_the_offset_decides() -> None:
    """After a chunk that ended inside second 5, only later offsets of that second are not late."""
    rig = NativeRig(limits=Limits(1, 10**6, 100), group=1, now_s=0)
    rig.accept(5, 5, 5)
    rig.observe(5)
    assert rig.machine.fire_chunk()
    assert rig.machine.progress.fired_through == (5, 0)
    rig.accept(5, 4)
    assert rig.outbox.fired == [(5, 0), (4, 4)]
    rig.fire()
    assert rig.outbox.fired == [(5, 0), (4, 4), (5, 1), (5, 2), (5, 3)]


def test_an_unreadable_request_becomes_a_dead_letter() -> None:
    rig = NativeRig(now_s=0)
    rig.log.append(rig.topic, b"soon", b"", partition=0)
    rig.accept(5)
    assert rig.outbox.rejected == [(0, "topic-missing")]
    assert rig.state[1:] == (2, [(5, 1)])
    assert rig.machine.counters.accepted == 1


def test_output_is_committed_before_the_batch_is_stored() -> None:
    rig = NativeRig()
    rig.second(10)
    rig.ask(20, 3)
    before = rig.state
    rig.outbox.failing = 1
    with pytest.raises(Lost):
        rig.machine.accept(rig.fetch())
    assert rig.state == before
    rig.machine.accept(rig.fetch())
    assert (rig.outbox.fired, rig.state[2]) == ([(3, 1)], [(20, 0)])


def test_a_batch_without_output_needs_no_transaction() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5)
    commits = len(rig.outbox.commits)
    rig.accept(6)
    assert len(rig.outbox.commits) == commits
    assert rig.machine.commit_progress()
    assert rig.outbox.progress.next_offset == 2
    assert not rig.machine.commit_progress()


# ---- chunks, [I3] ---------------------------------------------------------------------------------------------------


def test_a_chunk_ends_at_its_limit_and_commits_the_last_fired_key() -> None:
    rig = NativeRig(limits=Limits(chunk_timers=2, chunk_bytes=10**6, max_request_bytes=100), group=2, now_s=0)
    rig.accept(5, 5, 5, 6, 6)
    rig.observe(6)
    through = []
    more = True
    while more:
        more = rig.machine.fire_chunk()
        through.append(rig.machine.progress.fired_through)
    assert through == [(5, 1), (6, MAX_OFFSET)]
    assert [len(fired) for fired, _, _ in rig.outbox.commits if fired] == [2, 3], "give or take one group"
    assert rig.machine.pending == 0


def test_groups_of_many_seconds_are_fired_together() -> None:
    together: list[list[tuple[int, int]]] = []

    class Outbox(ListOutbox):
        def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
            if output.due:
                together.append([(due_s, len(rows)) for due_s, rows in output.due])
            super().commit(progress, output)

    limits = Limits(chunk_timers=5, chunk_bytes=10**6, max_request_bytes=100)
    rig = NativeRig(limits=limits, group=2, outbox=Outbox(), now_s=0)
    rig.accept(5, 5, 5, 5, 5, 5, 6, 6, 6)
    rig.second(6)
    assert together == [[(5, 2), (5, 2), (5, 2)], [(6, 2), (6, 1)]], "a chunk is at most one group larger"

    together.clear()
    rig.outbox.chunk.timers = 3
    rig.accept(7, 7, 7, 7)
    rig.second(7)
    assert together == [[(7, 2), (7, 1)], [(7, 1)]], "a reduced chunk splits one stored group"
    assert rig.machine.pending == 0


def test_a_chunk_is_also_limited_in_bytes() -> None:
    rig = NativeRig(limits=Limits(chunk_timers=1000, chunk_bytes=100, max_request_bytes=100), group=1, now_s=0)
    rig.ask(*[5] * 6, value=bytes(49))
    rig.machine.accept(rig.fetch())
    rig.second(5)
    assert [len(fired) for fired, _, _ in rig.outbox.commits if fired] == [2, 2, 2]


def test_the_parts_of_a_fetch_of_late_requests_grow_after_each_transaction() -> None:
    """Else each of thousands that arrive together after an outage would wait for hundreds of small transactions."""

    class Outbox(ListOutbox):
        def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
            super().commit(progress, output)
            self.chunk.committed(0.5, 0.5)

    rig = NativeRig(outbox=Outbox())
    rig.second(10)
    rig.outbox.chunk.timers = 2
    rig.accept(*[5] * 20)
    assert [len(fired) for fired, _, _ in rig.outbox.commits if fired] == [2, 4, 8, 6]
    assert len(set(rig.outbox.fired)) == 20


def test_a_scan_that_ends_exactly_at_the_limit_is_complete() -> None:
    rig = NativeRig(limits=Limits(chunk_timers=3, chunk_bytes=10**6, max_request_bytes=100), group=3, now_s=0)
    rig.accept(5, 5, 5)
    rig.observe(7)
    assert not rig.machine.fire_chunk()
    assert rig.machine.progress.fired_through == (7, MAX_OFFSET)


def test_a_failed_chunk_changes_nothing() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5, 6)
    rig.observe(5)
    before = rig.state
    rig.outbox.failing = 1
    with pytest.raises(Lost):
        rig.machine.fire_chunk()
    assert rig.state == before
    rig.open()
    rig.second(5)
    assert rig.outbox.fired == [(5, 0)]


# ---- gaps, [I7] -----------------------------------------------------------------------------------------------------


def test_a_gap_raises_with_the_offset_to_read_from() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5)
    rig.ask(6, 7)
    before = rig.state
    with pytest.raises(ReadAgain) as gap:
        rig.machine.accept(rig.fetch(from_offset=2))
    assert gap.value.position == 1
    assert rig.state == before
    with pytest.raises(ReadAgain):
        rig.machine.accept(Fetched(3, 3, []))  # an empty range shows a gap as well


def test_requests_that_are_fetched_again_are_skipped() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5, 6)
    rig.ask(7)
    rig.machine.accept(rig.fetch(from_offset=0))
    rig.machine.accept(rig.fetch(2, from_offset=0))
    assert rig.state[1:] == (3, [(5, 0), (6, 1), (7, 2)])


def test_holes_in_offsets_are_no_gaps() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(5)
    rig.machine.accept(Fetched(1, 4, []))  # markers, or aborted records
    assert rig.machine.position == 4
    assert rig.machine.progress.next_offset == 4


# ---- the broker's clock, [I10] --------------------------------------------------------------------------------------


def test_acceptance_stops_while_the_clock_is_two_seconds_behind() -> None:
    rig = NativeRig()
    rig.second(100)
    for second, held in [(98, False), (97, True), (98, True), (99, True), (100, False), (98.5, False), (3, True)]:
        rig.observe(second)
        assert (rig.machine.clock_is_behind, rig.machine.may_accept) == (held, not held), second


def test_after_a_step_back_timers_fire_by_the_present_time() -> None:
    """The clock showed 100 for a moment. A later request for second 60 fires at 60."""
    rig = NativeRig(limits=Limits(1, 10**6, 100), group=1, now_s=10)
    rig.accept(11, 12)
    rig.observe(100)
    assert rig.machine.fire_chunk()
    rig.observe(50)
    assert not rig.machine.clock_is_behind, "only second 11 has fired"
    rig.accept(60)
    rig.fire()
    assert rig.outbox.fired == [(11, 0), (12, 1)]
    rig.second(60)
    assert rig.outbox.fired[2:] == [(60, 2)]


# ---- progress -------------------------------------------------------------------------------------------------------


def test_progress_of_time_alone_is_committed_only_on_request() -> None:
    rig = NativeRig(now_s=0)
    rig.accept(50)
    rig.fire()
    assert rig.machine.commit_progress(), "the first second"
    rig.second(40)
    assert not rig.machine.commit_progress()
    assert rig.machine.commit_progress(even_if_idle=True)
    assert rig.outbox.progress.fired_through == (40, MAX_OFFSET)
    assert not rig.machine.commit_progress(even_if_idle=True)
