"""Feature levels of one machine: the raise, and what a replay reads at which level."""

import pytest

from tests.harness.machines import NativeRig
from tests.simulation.kit.next_level import LEVEL, SHIFT, with_next_level
from timers.core.levels import FIRST_LEVEL
from timers.core.ports import Lost
from timers.core.progress import FEATURE_LEVEL, SettingChange
from timers.kafka.request_formats import NATIVE
from timers.wire import future


class Rig(NativeRig):
    """A machine of the next version, whose requests are due one second later at the next level."""

    def __init__(self) -> None:
        super().__init__(with_next_level(NATIVE))
        self.observe(0)

    def ask(self, *due: int, value: bytes = b"") -> None:
        for due_s in due:
            self.log.append(self.topic, b"%d" % due_s, future.encode("t", "k", value), [(SHIFT, b"1")], partition=0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_raise_is_a_commit_of_its_own_and_applies_to_later_requests(rig: Rig) -> None:
    rig.accept(5, 5)
    assert rig.machine.raise_level(LEVEL)
    fired, rejected, progress = rig.outbox.commits[-1]
    assert (fired, rejected, progress.level, progress.next_offset) == ([], [], LEVEL, 2)
    assert progress.settings[-1] == SettingChange(FEATURE_LEVEL, 2, LEVEL)
    rig.accept(5)
    assert rig.keys == [(5, 0), (5, 1), (6, 2)]


def test_a_replay_reads_each_offset_at_its_level_also_inside_one_fetch(rig: Rig) -> None:
    rig.accept(5, 7)
    rig.machine.raise_level(LEVEL)
    rig.accept(5, 7)
    rig.machine.commit_progress()
    before = rig.keys
    rig.open(wipe=True)
    rig.read_all()
    assert rig.keys == before == [(5, 0), (6, 2), (7, 1), (8, 3)]


def test_a_machine_is_raised_once(rig: Rig) -> None:
    assert rig.machine.raise_level(LEVEL)
    commits = len(rig.outbox.commits)
    assert rig.machine.raise_level(LEVEL) and rig.machine.raise_level(LEVEL - 1)
    assert (len(rig.outbox.commits), rig.machine.progress.level) == (commits, LEVEL)


def test_a_machine_is_raised_only_when_it_may_send() -> None:
    rig = Rig()
    rig.accept(5)
    rig.machine.commit_progress()
    rig.open(wipe=True)
    assert not rig.machine.raise_level(LEVEL), "it recovers"
    rig.read_all()
    assert not rig.machine.raise_level(LEVEL), "it has no tick"
    rig.observe(1)
    assert rig.machine.raise_level(LEVEL)


def test_after_a_failed_raise_the_level_is_the_former_one(rig: Rig) -> None:
    rig.accept(5)
    rig.outbox.failing = 1
    with pytest.raises(Lost):
        rig.machine.raise_level(LEVEL)
    assert rig.machine.progress.level == FIRST_LEVEL
    rig.open()
    rig.observe(1)
    rig.accept(5)
    assert rig.keys == [(5, 0), (5, 1)]


def test_a_store_keeps_its_rows_over_a_raise(rig: Rig) -> None:
    rig.accept(5)
    rig.machine.raise_level(LEVEL)
    rig.accept(5)
    rig.machine.commit_progress()
    assert rig.spec.catch_up(rig.store, rig.outbox.progress)
    rig.open()
    assert rig.keys == [(5, 0), (6, 1)]


def test_a_store_that_was_written_before_the_raise_of_another_owner_is_read_again(rig: Rig) -> None:
    """Another worker raised the machine at offset 1; this store has read offset 1 at the former level."""
    rig.accept(5)
    rig.machine.commit_progress()
    former, former_store = rig.machine, rig.store
    rig.open(wipe=True)
    rig.read_all()
    rig.observe(1)
    rig.machine.raise_level(LEVEL)
    rig.ask(5)
    rig.read_all()
    rig.machine.commit_progress()
    former.accept(rig.fetch(from_offset=1))  # not committed: another worker fences it
    assert not rig.spec.catch_up(former_store, rig.outbox.progress)
