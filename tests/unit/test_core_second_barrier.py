"""Seconds are released when the log before them is read, and an end that says nothing releases none [I17]."""

from dataclasses import replace

from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import BY_ID, LIMITS, MachineRig
from timers.core.loop import Loop
from timers.core.second_barrier import SecondBarrier
from timers.core.timer import Tick
from timers.wire import future
from timers.wire.formats import future_by_id


def test_an_end_that_an_own_transaction_held_back_releases_no_second() -> None:
    barrier = SecondBarrier()
    held_from = {7}
    assert not barrier.tick(10, end=7, position=7, held_from=held_from)
    assert barrier.through(10) is None
    assert barrier.tick(10, end=9, position=8, held_from=held_from)
    assert held_from == set(), "this end is above it"
    assert barrier.through(10) is None, "a cancel may be at offset 8"
    barrier.read(9)
    assert barrier.through(10) == 10


def test_an_end_that_another_transaction_holds_back_releases_its_second() -> None:
    """A producer's transaction may be open for 15 minutes, and must not delay the timers."""
    barrier = SecondBarrier()
    assert barrier.tick(10, end=5, position=5, held_from={7})
    assert barrier.through(10) == 10


def test_an_end_that_an_earlier_own_transaction_held_back_releases_no_second() -> None:
    """The answer came while the machine had begun its next transaction, which is in this log too."""
    barrier, held_from = SecondBarrier(), {7, 12}
    assert not barrier.tick(10, end=7, position=7, held_from=held_from)
    assert not barrier.tick(10, end=12, position=7, held_from=held_from)
    assert barrier.tick(10, end=10, position=7, held_from=held_from)
    assert barrier.through(10) is None
    assert held_from == {12}


def test_a_loop_says_that_an_end_must_be_asked_again() -> None:
    """A cancel that was acknowledged before the second is read before the timer fires."""
    outbox = ListOutbox()
    rig = MachineRig(BY_ID, LIMITS, topic="ids", outbox=outbox)
    rig.log.append("ids", b"a", future.encode("t", "k", b"v"), future_by_id.encode_headers(1000), partition=0)
    rig.observe(999)
    rig.read_all()
    rig.log.append("ids", b"a", None, [], partition=0)
    loop, outbox.held_from = Loop(rig.machine), {1}
    loop.add_tick(Tick(1_000_000), 1)
    assert loop.step().must_ask_end
    assert loop.step() == (False, None, False, False, False), "once for each tick"
    assert outbox.fired == []
    loop.add_tick(Tick(1_000_000), 2)
    loop.add_fetch(rig.fetch())
    while not loop.idle:
        assert not loop.step().must_ask_end
    assert outbox.fired == []
    assert [each.verdict for each in outbox.verdicts] == ["cancelled"]


def test_an_end_is_asked_again_when_no_more_timers_are_due_whose_transactions_would_hold_it_back() -> None:
    """Each answer during a drain would come too early, and the pause before the next question is twice as long."""
    outbox = ListOutbox()
    rig = MachineRig(BY_ID, replace(LIMITS, chunk_timers=1), topic="ids", outbox=outbox, group=1)
    for n in range(3):
        value, headers = future.encode("t", "k", b"v"), future_by_id.encode_headers(1000)
        rig.log.append("ids", b"%d" % n, value, headers, partition=0)
    rig.observe(999)
    rig.read_all()
    loop = Loop(rig.machine)
    loop.add_tick(Tick(1_000_000), 3)
    assert not loop.step().must_ask_end
    outbox.held_from = {4}
    loop.add_tick(Tick(1_001_000), 4)
    asked = []
    while not loop.idle:
        asked.append((loop.step().must_ask_end, len(outbox.fired)))
    assert asked == [(False, 2), (True, 3)]
