"""A wrong clock fired timers too early, and the time of the partition was taken back: nothing fires again."""

from typing import Any

import pytest

from tests.harness.machines import BY_ID, MachineRig, NativeRig
from timers.core.fired import Hole
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED
from timers.core.operation import ALREADY_FIRED, UNKNOWN
from timers.core.progress import Progress
from timers.core.store_validity import catch_up
from timers.core.timer import RowsByDue
from timers.machines.store.memory import MemoryStore
from timers.wire import future
from timers.wire import progress as progress_record
from timers.wire.formats import RequestFormat, future_by_id

WRONG_S = 1_000_000


def repair(rig: MachineRig, **options: Any) -> None:
    rig.outbox.progress = rig.outbox.progress.without_time()
    rig.open(**options)


@pytest.mark.parametrize("wipe", [False, True])
def test_nothing_fires_again_and_new_timers_fire_by_the_right_time(wipe: bool) -> None:
    rig = NativeRig(now_s=10)
    rig.accept(20, 500, WRONG_S + 500)
    rig.second(WRONG_S)
    rig.machine.commit_progress(even_if_idle=True)
    rig.observe(12)
    assert rig.machine.clock_is_behind, "nothing is accepted"
    repair(rig, wipe=wipe)
    assert not rig.machine.clock_is_behind
    rig.observe(13)
    rig.read_all()
    assert rig.keys == [(WRONG_S + 500, 2)], "only it is pending"
    rig.accept(15, 500)
    assert rig.keys == [(15, 3), (500, 4), (WRONG_S + 500, 2)]
    rig.second(15)
    assert rig.outbox.fired == [(20, 0), (500, 1), (15, 3)]
    rig.machine.commit_progress()
    rig.open(wipe=True)
    rig.observe(WRONG_S + 500)
    rig.read_all()
    rig.fire()
    assert rig.outbox.fired == [(20, 0), (500, 1), (15, 3), (500, 4), (WRONG_S + 500, 2)]


def test_a_second_repair_keeps_the_first_hole() -> None:
    first = Progress(7, (900, MAX_OFFSET)).without_time()
    second = Progress(9, (300, 8), first.settings).without_time()
    assert second.holes == (Hole(7, (900, MAX_OFFSET)), Hole(9, (300, 8)))
    assert [key for key in [(900, 6), (900, 7), (300, 8), (301, 8), (1, 9)] if second.is_past(key)] == [
        (900, 6),
        (300, 8),
    ]


def test_a_repair_of_a_partition_that_has_fired_nothing_changes_nothing() -> None:
    assert Progress(7).without_time() == Progress(7)
    repaired = Progress(7, (900, 3)).without_time()
    assert repaired.without_time() == repaired
    assert repaired.fired_through == NOTHING_FIRED


def test_an_app_whose_time_was_taken_back_is_not_new() -> None:
    """Else its first tick might differ from the worker's clock by a time zone."""
    assert Progress(7).fired_s is None
    assert Progress(7, (900, 3)).fired_s == 900
    assert Progress(7, (900, 3)).without_time().fired_s == 0


def test_a_log_that_lost_records_has_smaller_holes() -> None:
    """Its new requests at those offsets have not fired."""
    progress = Progress(7, (900, MAX_OFFSET)).without_time().shortened(4)
    assert progress.next_offset == 4
    assert progress.holes == (Hole(4, (900, MAX_OFFSET)),)


def test_an_old_store_forgets_what_has_fired() -> None:
    store = MemoryStore(3)
    rows: RowsByDue = {due_s: [(due_s, "t", "k", b"", None, None)] for due_s in (3, 4, 8)}
    store.write(rows, 9)
    assert catch_up(store, Progress(9, (4, MAX_OFFSET)).without_time())
    assert [due_s for due_s, _ in store.scan(NOTHING_FIRED, 100)] == [8]


@pytest.mark.parametrize("wipe", [False, True])
@pytest.mark.parametrize(
    ("request_format", "retention_s", "verdict"),
    [
        (BY_ID, 2 * WRONG_S, ALREADY_FIRED),
        (BY_ID, WRONG_S // 2, ALREADY_FIRED),  # the retention goes by append times
        (BY_ID._replace(has_conditions=False), 2 * WRONG_S, ALREADY_FIRED),
        (BY_ID._replace(has_conditions=False), WRONG_S // 2, UNKNOWN),
    ],
)
def test_a_cancel_of_a_timer_that_a_wrong_clock_fired_says_so(
    request_format: RequestFormat, retention_s: int, verdict: str, wipe: bool
) -> None:
    """As before the repair, also with an empty disk."""
    rig = MachineRig(request_format, retention_s=retention_s)
    record = future.encode("t", "k", b"")
    rig.log.append(rig.topic, b"id", record, future_by_id.encode_headers(500), partition=0)
    rig.observe(10)
    rig.read_all()
    rig.second(WRONG_S)
    rig.machine.commit_progress(even_if_idle=True)
    repair(rig, wipe=wipe)
    rig.observe(13)
    rig.read_all()
    rig.log.append(rig.topic, b"id", None, partition=0)
    rig.read_all()
    assert [each.verdict for each in rig.outbox.verdicts] == [verdict]


def test_a_progress_record_holds_the_hole() -> None:
    record = progress_record.encode(Progress(7, (900, 3)).without_time(), b"topic")
    assert progress_record.decode(record)[0].holes == (Hole(7, (900, 3)),)


@pytest.mark.parametrize("wipe", [False, True])
def test_what_was_moved_to_another_app_does_not_fire(wipe: bool) -> None:
    rig = NativeRig(now_s=10)
    rig.accept(20, 500, 11)
    rig.machine.commit_progress()
    rig.second(11)
    before = rig.outbox.progress
    rig.outbox.progress = before.moved(7)
    rig.open(wipe=wipe)
    rig.observe(12)
    rig.read_all()
    assert rig.keys == [], "all that was pending is elsewhere"
    rig.accept(15, 500)
    rig.second(600)
    assert rig.outbox.fired == [(11, 2), (15, 3), (500, 4)], "what comes after the move fires here"
    assert not before.was_moved(7)
    assert rig.outbox.progress.was_moved(7)
    assert not rig.outbox.progress.was_moved(8), "another export of the same requests"


def test_a_new_app_stays_new_after_a_move() -> None:
    """Its first tick is judged as that of a new app: no second says what the time was."""
    assert Progress(7).moved(3).fired_s is None
    assert Progress(7, (900, 3)).without_time().moved(3).fired_s == 0
