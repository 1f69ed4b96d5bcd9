"""A paused target gets nothing, and afterwards each timer once, at the speed that was asked for [I33] to [I36]."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.held import RAISED, DiskRig, Rig, pause, resume
from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import BY_ID, LIMITS, MachineRig, NativeRig
from timers.core import chunk as core_chunk
from timers.core import held as core_held
from timers.core import timer as core_timer
from timers.core.counters import TopicCounters
from timers.core.fired import MAX_PAUSES, NOISY, PAUSE, Hold, Holds, Moment
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED
from timers.core.levels import HOLDS_LEVEL
from timers.core.loop import Loop
from timers.core.operation import CANCELLED, REPLACED
from timers.core.ports import NO_OUTPUT, Output, Unanswered
from timers.core.progress import Progress
from timers.core.timer import Row, Tick
from timers.machines.store import layout, one_target, rocks
from timers.wire import future
from timers.wire import progress as progress_record
from timers.wire.formats import future_by_id


@pytest.mark.parametrize("wipe", [None, False, True])
def test_a_paused_target_gets_nothing_and_the_others_theirs(wipe: bool | None) -> None:
    rig = Rig()
    rig.at(10)
    rig.set("mail", 11, 11, 12)
    rig.set("sms", 11, 12)
    assert rig.at(11) == [(11, 0), (11, 1), (11, 3)]
    assert rig.at(12, pause()) == [(12, 4)]
    rig.set("mail", 11, 12, 13)
    assert rig.at(13, pause()) == []
    if wipe is not None:
        rig.open(wipe=wipe)
        rig.read_all()
    assert rig.at(14, pause()) == []
    assert rig.keys == [(11, 5), (12, 2), (12, 6), (13, 7)]
    assert rig.machine.held.count(rig.machine.progress, rig.machine.progress.holds[0]) == 4
    assert rig.at(15, pause(), resume()) == [(11, 5), (12, 2), (12, 6), (13, 7)]
    assert (rig.keys, rig.holds) == ([], [])
    rig.set("mail", 15)
    assert rig.outbox.fired[-1] == (15, 8), "late, and not held"


def test_a_slow_release_is_even_also_after_a_restart() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", *[11] * 10)
    assert rig.at(12) == []
    assert [offset for _, offset in rig.at(13, resume(over_s=5))] == [0, 1]
    rig.open()
    assert [offset for _, offset in rig.at(15)] == [2, 3, 4, 5]
    rig.open(wipe=True)
    rig.read_all()
    assert [offset for _, offset in rig.at(16)] == [6, 7]
    assert [offset for _, offset in rig.at(17)] == [8, 9]
    assert rig.holds == []


def test_what_came_due_while_no_worker_ran_is_released_slowly_too() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", *range(11, 21))
    rig.open()
    assert [offset for _, offset in rig.at(100, resume(over_s=5))] == [0, 1]


def test_a_release_says_when_more_may_be_sent() -> None:
    for over_s, rows, gone in itertools.product((0, 1, 2, 7, 60), (0, 1, 3, 7, 100), (0, 1, 2, 6, 99, 100)):
        begun = Hold("mail", PAUSE, 1, RAISED.moment, 5, RAISED.moment)
        hold = begun._replace(over_s=over_s, resumed_s=10, rows=rows, gone=gone)
        assert next(second for second in range(10, 99) if hold.quota(second) != 0) == hold.next_s


def test_a_pause_ends_by_itself() -> None:
    rig = Rig()
    rig.at(10, pause(until_s=13, over_s=2))
    rig.set("mail", 11, 11)
    assert rig.at(12) == []
    assert rig.at(13) == [(11, 0)]
    assert rig.at(14) == [(11, 1)]
    assert rig.at(15, pause(until_s=13)) == []
    assert rig.holds == [], "its command is not taken again"


def test_a_pause_in_a_release_holds_what_is_left() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", *[11] * 4)
    assert rig.at(12, resume(over_s=4)) == [(11, 0)]
    rig.set("mail", 13)
    assert rig.at(13, pause(3)) == []
    assert rig.at(20) == []
    assert rig.holds == [("mail", PAUSE)] * 2
    rig.open(wipe=True)
    rig.read_all()
    fired = rig.at(21, resume(4))
    assert sorted(fired) == [(11, 1), (11, 2), (11, 3), (13, 4)]
    assert (rig.keys, rig.holds) == ([], [])


def test_below_the_level_nothing_is_held() -> None:
    rig = NativeRig(progress=Progress.first(HOLDS_LEVEL - 1), now_s=10)
    assert not rig.machine.take([pause()])
    assert rig.machine.progress.taken == 0


def test_a_store_of_before_the_pause_is_caught_up() -> None:
    rig = Rig()
    rig.at(10)
    rig.set("mail", 11, 12)
    rig.set("sms", 12)
    old = rig.store
    rig.store = type(old)()
    rig.open(wipe=True)
    rig.read_all()
    rig.at(11)
    rig.at(12, pause())
    rig.store = old
    rig.open()
    assert rig.keys == [(12, 1)], "one has fired before the pause, one is held, one is of another target"


def test_a_machine_takes_each_command_once_and_keeps_what_it_took() -> None:
    rig = Rig()
    rig.at(10, pause(5))
    rig.at(11, pause(4, "sms"))
    assert rig.holds == [("mail", PAUSE)], "an older command, as if the topic had lost its end"
    rig.at(12)
    assert rig.holds == [("mail", PAUSE)]
    rig.open(wipe=True)
    assert rig.machine.progress.taken == 5


def test_a_cancel_counts_until_the_release() -> None:
    rig = MachineRig(BY_ID, progress=RAISED, retention_s=100)

    def ask(id: bytes, due_s: int | None) -> None:
        value = None if due_s is None else future.encode("mail", "k", b"")
        headers = [] if due_s is None else future_by_id.encode_headers(due_s)
        rig.log.append(rig.topic, id, value, headers, partition=0)

    rig.observe(10)
    for id in (b"a", b"b", b"c"):
        ask(id, 12)
    rig.read_all()
    rig.machine.take([pause()])
    rig.second(13)
    rig.second(14)
    assert rig.outbox.fired == []
    ask(b"a", None)
    ask(b"b", 20)
    rig.read_all()
    said = [(each.verdict, each.held) for each in rig.outbox.verdicts]
    assert said == [(CANCELLED, (PAUSE, 1, 10)), (REPLACED, (PAUSE, 1, 10))]
    rig.second(15)
    rig.machine.take([resume()])
    while rig.machine.release_chunk():
        pass
    assert rig.outbox.fired == [(12, 2)], "the one that was neither cancelled nor moved"
    assert rig.keys == [(20, 4)]


def test_a_pause_ends_the_noisy_hold_of_its_target_where_it_begins() -> None:
    """What a noisy hold holds is sent when no other timer is due: of a paused target nothing may be."""
    noisy = Holds().with_noisy("mail", Moment(5, (11, 4), 0), 11)
    now = Moment(9, (12, 8), 0)
    held = noisy.paused(pause(), now, 12)
    assert [(hold.reason, hold.end) for hold in held] == [(NOISY, now), (PAUSE, None)]
    assert [hold.end for hold in noisy.paused(pause(target="sms"), now, 12)] == [None, None]


@pytest.mark.parametrize("disk", ["lost", "kept", "of before"])
def test_what_is_pending_beside_held_rows_of_its_second_fires(tmp_path: Path, disk: str) -> None:
    """No entry of the store may begin below ``fired_through`` and end above it: a scan would miss its end."""
    rig = DiskRig(tmp_path, limits=replace(LIMITS, chunk_timers=2))
    rig.at(10, pause())
    for target in ("mail", "mail", "sms", "sms", "mail", "sms", "mail", "sms"):
        rig.log.append(rig.topic, b"11", future.encode(target, "k", b""), partition=0)
    if disk == "of before":
        rig.read_all()
        before = rig.store
        rig.open(wipe=True)
        rig.observe(10)
    for _ in range(4):
        rig.machine.accept(rig.fetch(2))
    rig.observe(11)
    assert rig.machine.fire_chunk()
    assert rig.outbox.fired == [(11, 2), (11, 3)], "the second has begun to fire"
    if disk == "of before":
        rig.store = before
    rig.open(wipe=disk == "lost")
    rig.read_all()
    rig.at(12)
    assert sorted(rig.outbox.fired) == [(11, 2), (11, 3), (11, 5), (11, 7)]
    rig.at(13, resume())
    assert sorted(rig.outbox.fired) == [(11, offset) for offset in range(8)]
    assert rig.machine.pending == 0


def test_a_split_group_of_held_rows_loses_nothing(tmp_path: Path) -> None:
    rig = DiskRig(tmp_path)
    rig.at(10, pause())
    for target in ("mail", "mail", "sms", "sms"):
        rig.log.append(rig.topic, b"11", future.encode(target, "k", b""), partition=0)
    rig.read_all()
    rig.outbox.chunk.timers = 2  # brokers are slow
    assert rig.at(11) == [(11, 2), (11, 3)]


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_chunk_passes_over_what_is_held_in_few_steps(tmp_path: Path, is_mixed: bool) -> None:
    """Also while chunks are small, since brokers did not answer: what is held is not sent."""
    rig = DiskRig(tmp_path)
    rig.at(10, pause())
    rig.set("mail", *[11] * 1000)
    for number in range(400):
        target = "sms" if is_mixed and number % 20 == 0 else "mail"
        rig.log.append(rig.topic, b"11", future.encode(target, "k", b""), partition=0)
    rig.read_all()
    rig.set("sms", 11, 11)
    steps, fired = 0, 20 * is_mixed + 2
    rig.observe(11)
    rig.outbox.chunk.timers = 2
    while rig.machine.fire_chunk():
        rig.outbox.chunk.timers = 2
        steps += 1
    assert len(rig.outbox.fired) == fired
    assert steps <= fired // 2
    assert rig.machine.held.known(rig.machine.progress.holds[0]) == rig.machine.pending == 1400 - 20 * is_mixed


def test_a_chunk_ends_after_very_many_held_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So requests are accepted, and ticks are read, in between."""
    monkeypatch.setattr(core_chunk, "MOST_PASSED", 1000)
    rig = DiskRig(tmp_path)
    rig.at(10, pause())
    for _ in range(9):
        rig.set("mail", *[11] * 500)
    rig.observe(11)
    steps = 0
    while rig.machine.fire_chunk():
        steps += 1
    assert 2 <= steps <= 4
    assert rig.machine.held.known(rig.machine.progress.holds[0]) == 4500
    assert len(rig.at(12, resume())) == 4500


def test_a_step_of_a_release_reads_few_groups_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_held, "MOST_READ", 100)
    rig = DiskRig(tmp_path)
    rig.at(10, pause(1), pause(2, "sms"))
    rig.set("mail", 11)
    for due_s in range(12, 1000):
        rig.set("sms", due_s)
    rig.set("mail", 1000)
    rig.at(1001)
    rig.observe(1002)
    rig.machine.take([resume(3)])
    rig.fire()
    rig.machine.take([resume(3)])
    steps, before = 0, rig.store.applied
    while rig.machine.release_chunk():
        rig.set("push", 2000)  # is accepted in between
        steps += 1
    assert rig.outbox.fired == [(11, 0), (1000, 989)]
    assert 5 <= steps <= 20 and rig.store.applied == before + steps
    assert rig.holds == [("sms", PAUSE)]


@pytest.mark.parametrize("most", [2, 100])
def test_a_release_that_was_rolled_back_begins_with_the_same_timer_in_the_same_second(most: int) -> None:
    class Outbox(ListOutbox):
        silent = 0

        def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
            if output.due and self.silent:
                self.silent -= 1
                raise Unanswered([("mail", 0)], rolled_back=True)
            super().commit(progress, output)

    rig = Rig(outbox=(outbox := Outbox()))
    rig.at(10, pause(1), pause(2, "sms"))
    rig.set("mail", 11, 12, 13, 14)
    rig.set("sms", 11)
    rig.at(15)
    outbox.silent, outbox.chunk.timers = 2, most
    assert rig.at(16, resume(3)) == [(11, 0), (12, 1), (13, 2), (14, 3)]
    assert rig.holds == [("sms", PAUSE)]


def test_a_late_timer_behind_what_was_released_is_released_too() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", *[11] * 4, *[12] * 4)
    assert rig.at(13, resume(over_s=4)) == [(11, 0), (11, 1)]
    rig.machine.take([pause(3)])
    rig.set("mail", 11, 12)
    assert len(rig.at(14)) == 0
    fired = rig.at(15, resume(4))
    assert sorted(fired) == [(11, 2), (11, 3), (11, 8), *[(12, each) for each in (4, 5, 6, 7, 9)]]
    assert rig.machine.pending == 0


def test_a_resume_is_taken_although_a_second_waits_for_its_requests() -> None:
    rig = MachineRig(BY_ID, progress=RAISED, retention_s=100, now_s=10)
    rig.read()
    loop = Loop(rig.machine)
    loop.commands = [pause()]
    loop.add_tick(Tick(11_000), 0)
    loop.step()
    assert [hold.is_paused for hold in rig.machine.progress.holds] == [True]
    rig.log.append(rig.topic, b"a", future.encode("sms", "k", b""), future_by_id.encode_headers(50), partition=0)
    loop.commands = [resume()]
    loop.add_tick(Tick(12_000), rig.log.last_stable(rig.topic, 0))
    loop.step()
    loop.add_fetch(rig.fetch())
    while not loop.idle:
        loop.step()
    assert (rig.machine.progress.taken, len(rig.machine.progress.holds)) == (2, 0)


def test_a_release_leaves_what_a_wrong_clock_has_passed() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", 12, 900)
    rig.at(1000)
    rig.outbox.progress = rig.outbox.progress.without_time()
    rig.open()
    assert rig.at(20, resume()) == [(12, 0)]
    assert rig.at(21) == []
    assert rig.at(900) == [(900, 1)]


def test_a_release_takes_its_own_rows_although_others_name_its_target(tmp_path: Path) -> None:
    """A store looks for the name of the target in whole groups, where it may stand in another field."""
    rig = DiskRig(tmp_path)
    rig.at(10, pause(1), pause(2, "sms"))
    for target, value in (("sms", b"mail"), ("mail", b"")):
        rig.log.append(rig.topic, b"11", future.encode(target, "k", value), partition=0)
        rig.read()
    rig.at(11)
    assert rig.at(12, resume(3)) == [(11, 1)]
    assert rig.at(13, resume(4, "sms")) == [(11, 0)]


def test_a_pause_is_taken_before_what_is_new_behind_a_replay() -> None:
    rig = Rig()
    rig.at(10)
    rig.set("mail", 11)
    rig.at(30)
    rig.log.append(rig.topic, b"12", future.encode("mail", "k", b""), partition=0)
    rig.open(wipe=True)
    loop = Loop(rig.machine)
    loop.commands = [pause()]
    loop.add_tick(Tick(31_000))
    loop.step()
    loop.add_fetch(rig.fetch())
    while not loop.idle:
        loop.step()
    assert rig.keys == [(12, 1)], "late, and held"
    assert rig.outbox.fired == [(11, 0)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_release_that_began_at_a_wrong_time_goes_on(at_once: bool) -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", *[11] * 10)
    rig.at(12)
    rig.observe(9000)
    rig.machine.take([resume(over_s=5)])
    rig.fire()
    rig.machine.take([resume(over_s=5)])
    assert rig.machine.release_chunk() is False
    assert len(rig.outbox.fired) == 2
    if at_once:
        rig.machine.take([resume(3)])
    rig.machine.commit_progress(even_if_idle=True)
    rig.outbox.progress = rig.outbox.progress.without_time()
    rig.open()
    assert len(rig.at(13)) == (8 if at_once else 8 // 5)
    assert len(rig.at(30)) == (0 if at_once else 7)


def test_a_newer_command_wins_and_a_release_gets_another_speed() -> None:
    rig = Rig()
    rig.at(10, pause(1))
    rig.set("mail", *[11] * 9)
    rig.at(12, resume(6), pause(7))
    assert rig.at(13) == [], "the pause is newer"
    assert len(rig.at(14, resume(8, over_s=9))) == 1
    assert len(rig.at(15, resume(9))) == 8, "at once"


def test_a_pause_without_room_is_taken_when_there_is_some() -> None:
    rig = Rig()
    rig.at(10, *[pause(number, f"t{number}") for number in range(1, MAX_PAUSES + 2)])
    assert (len(rig.holds), rig.machine.progress.taken) == (MAX_PAUSES, MAX_PAUSES)
    ends = [*[pause(number, f"t{number}") for number in range(2, MAX_PAUSES + 2)], resume(90, "t1")]
    rig.at(11, *ends)
    rig.at(12, *ends)
    rig.at(13, *ends)
    assert (rig.holds[-1], rig.machine.progress.taken) == ((f"t{MAX_PAUSES + 1}", PAUSE), 90)


def test_a_pause_without_room_is_not_taken_because_its_target_is_noisy() -> None:
    """The number of a noisy hold is a second: it is above that of each command."""
    holds = Holds(
        Hold(f"t{number}", PAUSE, number, Moment(0, NOTHING_FIRED, 0), 10) for number in range(1, MAX_PAUSES + 1)
    )
    progress = replace(RAISED, holds=holds.with_noisy("mail", Moment(0, NOTHING_FIRED, 0), 1_700_000_000))
    after = progress.with_commands([pause(MAX_PAUSES + 1)], 11, lambda hold: 0, is_drained=True)
    assert (after.taken, after.holds) == (0, progress.holds)


def test_what_is_moved_is_not_held_and_the_pause_goes_on() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", 11, 20)
    rig.at(12)
    rig.outbox.progress = rig.outbox.progress.moved(1)
    rig.open()
    rig.read_all()
    assert rig.keys == []
    rig.at(13)
    rig.set("mail", 14)
    assert rig.at(15) == []
    assert rig.at(16, resume()) == [(14, 2)]


def test_a_lost_pause_costs_no_timer() -> None:
    before = replace(RAISED, next_offset=9, fired_through=(100, MAX_OFFSET))
    paused = before.with_commands([pause()], 100, lambda hold: 0, is_drained=True)
    after = replace(paused, fired_through=(500, MAX_OFFSET), next_offset=12)
    witness, topic_id = progress_record.decode_witness(progress_record.encode_witness(after, b"t" * 16)) or (None, b"")
    assert (witness, topic_id) == (after.witness, b"t" * 16)
    assert before.is_behind(after.witness)
    assert before.at_least(after.witness).fired_through == (100, MAX_OFFSET), "what was held fires, others again"


def test_machines_do_not_release_the_same_target_at_the_same_time() -> None:
    first = []
    for others in (0, 1):
        rig = Rig()
        rig.at(10, pause(1, "mail"), pause(2, "sms"))
        rig.set("other", *[11] * others)
        rig.set("mail", 11)
        rig.set("sms", 11)
        rig.open()
        held = rig.at(12, pause(1, "mail"), pause(2, "sms"))
        released = rig.at(13, pause(1, "mail"), pause(2, "sms"), resume(3, "mail"), resume(4, "sms"))
        assert (len(held), len(released)) == (others, 2)
        first.append(released[0][1] - others)
    assert sorted(first) == [0, 1]


def test_a_burst_of_the_only_target_is_not_held() -> None:
    rig = Rig(limits=LIMITS)
    rig.at(10)
    rig.set("mail", *[11] * 3000)
    rig.observe(11)
    assert rig.machine.fire_chunk()
    assert rig.holds == []


def test_a_burst_of_which_the_first_timers_were_cancelled_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is begun holds the compute lock of all machines until its commit."""
    monkeypatch.setattr(core_timer, "RUN_ROWS", 10)
    limits = replace(LIMITS, chunk_timers=60, noisy_rows=10)
    rig = MachineRig(BY_ID, progress=RAISED, retention_s=100, limits=limits)
    begun: list[Tick] = []
    monkeypatch.setattr(rig.outbox, "begin", begun.append)
    rig.machine.counters.topics["sms"] = TopicCounters()
    targets = [*["mail"] * 90, *["sms"] * 10]
    rig.observe(10)
    for number, target in enumerate(targets):
        headers = future_by_id.encode_headers(12)
        rig.log.append(rig.topic, b"%d" % number, future.encode(target, "k", b""), headers, partition=0)
    for number in range(25):
        rig.log.append(rig.topic, b"%d" % number, None, [], partition=0)
    rig.read_all()
    rig.observe(12)
    rig.read()
    rig.observe(13)
    begun.clear()
    while True:
        commits = len(rig.outbox.commits)
        more = rig.machine.fire_chunk()
        assert len(rig.outbox.commits) - commits == len(begun)
        assert rig.outbox.progress == rig.machine.committed
        begun.clear()
        if not more:
            break
    assert len(rig.outbox.fired) >= 10


def test_after_a_wrong_time_what_is_held_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DiskRig(tmp_path)
    rig.at(10, pause())
    rig.set("mail", *[11] * 400, *[30] * 400)
    assert rig.at(40) == []
    rig.outbox.progress = rig.machine.progress.without_time()
    rig.open()
    rig.set("mail", *[13] * 400)
    hold = rig.machine.progress.holds[0]
    assert rig.machine.held.count(rig.machine.progress, hold) == 800
    unpacked = []

    def counted(value: bytes) -> list[Row]:
        unpacked.append(value)
        return layout.unpack(value)

    monkeypatch.setattr(rocks, "unpack", counted)
    assert rig.at(12) == rig.at(35) == []
    assert rig.machine.held.count(rig.machine.progress, hold) == 1200
    assert not unpacked or not one_target.IS_COMPILED
    assert len(rig.at(36, resume())) == 1200


def test_holds_are_in_the_progress_record() -> None:
    begin, end = Moment(5, (900, MAX_OFFSET), 0), Moment(9, (1000, 3), 1)
    holds = Holds(
        [
            Hold("mail", PAUSE, 7, begin, 901, end, (950, 4), 0, 600, 1001, 12, 3),
            Hold("sms", NOISY, 1001, end, 1001),
        ]
    )
    progress = replace(RAISED.with_holds(holds), next_offset=9, taken=8)
    shortened = progress.shortened(6)
    for each in (progress, shortened):
        assert progress_record.decode(progress_record.encode(each, b"t" * 16))[0] == each
    assert shortened.rescues[0].holds == tuple(holds)
    assert [hold.begin.next_offset for hold in progress.shortened(6).holds] == [5, 6]


def test_a_pause_that_got_an_end_which_is_over_ends() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", 11)
    assert rig.at(20) == []
    assert rig.at(21, pause(2, until_s=15)) == [(11, 0)]
    assert rig.holds == []


def test_commands_are_taken_when_a_replay_has_ended() -> None:
    rig = Rig()
    rig.at(9)
    rig.set("mail", 10)
    rig.machine.commit_progress()
    rig.open(wipe=True)
    loop = Loop(rig.machine)
    loop.commands = (pause(),)
    loop.add_tick(Tick(10_000))
    loop.step()
    assert rig.machine.recovering
    loop.add_fetch(rig.fetch())
    while not loop.idle:
        loop.step()
    assert rig.outbox.fired == []
    assert rig.holds == [("mail", PAUSE)]


def test_after_a_wrong_time_held_timers_are_counted_once_and_none_is_early() -> None:
    rig = Rig()
    rig.at(10, pause())
    rig.set("mail", 11, 30, 31)
    assert rig.at(40) == []
    rig.outbox.progress = rig.machine.progress.without_time()
    rig.open()
    hold = rig.machine.progress.holds[0]
    assert rig.machine.held.count(rig.machine.progress, hold) == 3
    assert rig.at(12) == []
    assert rig.machine.held.count(rig.machine.progress, hold) == 3
    assert rig.at(13, resume()) == [(11, 0)]
    assert rig.at(29) == []
    assert rig.at(30) == [(30, 1)]
    assert rig.at(31) == [(31, 2)]
    rig.at(41)
    assert rig.holds == []
