"""A paused target gets nothing, and afterwards each timer once, at the speed that was asked for [I33] to [I36]."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.harness.machines import BY_ID, LIMITS, MachineRig, NativeRig
from timers.core.fired import NOISY, PAUSE, Command, Hold, Holds, Moment
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.levels import HOLDS
from timers.core.operation import CANCELLED, REPLACED
from timers.core.progress import Progress
from timers.wire import future
from timers.wire import progress as progress_record
from timers.wire.formats import future_by_id

RAISED = Progress.first(HOLDS)


class Rig(NativeRig):
    """Timers of two targets, whose keys say which one."""

    def __init__(self, **options: object) -> None:
        super().__init__(progress=RAISED, **options)  # type: ignore[arg-type]

    def set(self, target: str, *due: int) -> None:
        for due_s in due:
            self.log.append(self.topic, b"%d" % due_s, future.encode(target, "k", b""), partition=0)
        self.read_all()

    def at(self, second: int, *commands: Command) -> list[OrderKey]:
        """Let a second begin. Returns what fires."""
        before = len(self.outbox.fired)
        self.observe(second)
        self.machine.take(commands)
        self.fire()
        self.machine.take(commands)
        while self.machine.fire_chunk() or self.machine.release_chunk():
            pass
        self.machine.commit_progress()
        fired: list[OrderKey] = self.outbox.fired[before:]
        return fired

    @property
    def holds(self) -> list[tuple[str, str]]:
        return [(hold.target, hold.reason) for hold in self.machine.progress.holds]


def pause(number: int = 1, target: str = "mail", **fields: int) -> Command:
    return Command(number, target, True, **fields)


def resume(number: int = 2, target: str = "mail", **fields: int) -> Command:
    return Command(number, target, False, **fields)


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
    rig = NativeRig(progress=Progress.first(HOLDS - 1))
    rig.observe(10)
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
    rig.observe(13)
    rig.fire()
    rig.observe(14)
    rig.fire()
    assert rig.outbox.fired == []
    ask(b"a", None)
    ask(b"b", 20)
    rig.read_all()
    assert [each.verdict for each in rig.outbox.verdicts] == [CANCELLED, REPLACED]
    rig.observe(15)
    rig.fire()
    rig.machine.take([resume()])
    while rig.machine.release_chunk():
        pass
    assert rig.outbox.fired == [(12, 2)], "the one that was neither cancelled nor moved"
    assert rig.keys == [(20, 4)]


def test_a_noisy_target_waits_for_the_others() -> None:
    rig = Rig(limits=LIMITS)
    rig.at(10)
    rig.set("mail", *[11] * 3000)
    rig.set("sms", 11, 11)
    fired = rig.at(11)
    assert sorted(fired) == [(11, offset) for offset in range(3002)]
    assert {fired.index((11, 3000)), fired.index((11, 3001))} < set(range(1100)), "before most of them"
    assert rig.holds == []
    rig.set("mail", 12)
    assert rig.at(12) == [(12, 3002)]


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
