"""Pause and resumption of a runner, and queries on its thread."""

import threading
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.list_outbox import ListOutbox
from tests.harness.machines import NativeRig
from timers.core.lineage import Leader
from timers.core.loop import MAX_WAITING_FETCHES
from timers.core.machine import Machine
from timers.core.ports import NO_OUTPUT, Lost, Output
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick
from timers.errors import Fenced
from timers.machines.life import ReadAhead
from timers.machines.store.failures import StoreDamaged
from timers.process.partition_metrics import PartitionMetrics
from timers.worker.machines import runner as runner_module
from timers.worker.machines.runner import MAX_WAITING_BYTES, Ended, OpenMachine, Runner

PATIENCE_S = 30

NO_VIEW: Any = None


class SimPool:
    """A pool that keeps the reports of a runner."""

    def __init__(self) -> None:
        self.resumed = threading.Event()
        self.consumer = SimpleNamespace(wake=self.resumed.set)
        self.failure: BaseException | None = None

    def on_read_again(self, runner: Runner, position: int) -> None:
        raise AssertionError("nothing was lost on the way")

    def on_new_leader(self, runner: Runner, leader: Leader) -> None:
        raise AssertionError("nothing was read of another leader")

    def on_recovered(self, runner: Runner, seconds: float) -> None: ...

    def on_failed(self, runner: Runner, error: BaseException) -> None:
        self.failure = error


TOLD: Any = SimpleNamespace(has_old_witness=False)
"""Stands for the transaction of a machine whose group knows all that was committed."""


class Owing:
    """Stands for the transaction of a machine whose group lacks what was committed."""

    def __init__(self, outbox: ListOutbox) -> None:
        self._outbox = outbox
        self.has_old_witness = True
        self.fired_before_telling: list[int] = []
        self.told = threading.Event()

    def tell_group(self) -> None:
        self.fired_before_telling.append(len(self._outbox.fired))
        self.has_old_witness = False
        self.told.set()


def runner_of(
    pool: Any,
    machine: Machine,
    transaction: Any = TOLD,
    *,
    reads_ahead: bool = False,
    expect: Callable[[Collection[str]], None] = lambda topics: None,
) -> Runner:
    """A runner, not started, whose reports arrive at once."""
    opened = OpenMachine(machine, transaction, lambda: None, threading.Event(), NO_VIEW, expect, reads_ahead)
    return Runner(("timer-request", 0), opened, pool, lambda call, *args: call(*args), PartitionMetrics())


def started(pool: SimPool) -> Runner:
    runner = runner_of(pool, NativeRig().machine)
    runner.start()
    return runner


def test_a_runner_is_paused_while_large_fetches_wait() -> None:
    pool = SimPool()
    runner = started(pool)
    runner.deliver(Fetched(0, 1, (), 10 * MAX_WAITING_BYTES))
    assert not runner.paused, "a single one may have any size"
    runner.deliver(Fetched(1, 2, (), 1))
    assert runner.paused
    assert runner.waiting_bytes == 10 * MAX_WAITING_BYTES + 1
    runner.tick(Tick(1000))
    assert pool.resumed.wait(PATIENCE_S)
    runner.stop()
    assert runner.join(PATIENCE_S)
    assert runner.waiting_bytes == 0


def test_a_runner_is_paused_while_many_fetches_wait_and_reports_its_resumption() -> None:
    pool = SimPool()
    runner = started(pool)
    for offset in range(MAX_WAITING_FETCHES):
        assert not runner.paused
        runner.deliver(Fetched(offset, offset + 1, ()))
    assert runner.paused, "it accepts nothing before its first tick"
    runner.tick(Tick(1000))
    assert pool.resumed.wait(PATIENCE_S)
    assert not runner.paused
    runner.stop()
    assert runner.join(PATIENCE_S)
    assert pool.failure is None


def test_a_query_that_finds_a_damaged_store_ends_the_machine() -> None:
    pool = SimPool()
    runner = started(pool)

    def find_damage(machine: Machine) -> None:
        raise StoreDamaged("the store is damaged", 0)

    with pytest.raises(StoreDamaged):
        runner.ask(find_damage).result(PATIENCE_S)
    assert runner.join(PATIENCE_S)
    assert isinstance(pool.failure, StoreDamaged)


@pytest.mark.parametrize("error", [Fenced("another owner"), Lost("a time-out")])
def test_a_question_that_fails_as_a_transaction_does_ends_the_machine(error: Exception) -> None:
    """It has committed: to name a snapshot, to raise the level. No transaction may follow."""
    pool = SimPool()
    runner = started(pool)

    def commit(machine: Machine) -> None:
        raise error

    with pytest.raises(type(error)):
        runner.ask(commit).result(PATIENCE_S)
    assert runner.join(PATIENCE_S)
    assert pool.failure is error


def test_a_query_runs_on_the_thread_of_its_machine_and_its_error_goes_to_the_caller() -> None:
    pool = SimPool()
    runner = started(pool)
    assert runner.ask(lambda machine: (machine is runner.machine, threading.current_thread().name)).result(
        PATIENCE_S
    ) == (True, "timers-timer-request/0")
    with pytest.raises(ZeroDivisionError):
        runner.ask(lambda machine: machine.pending // 0).result(PATIENCE_S)
    assert runner.ask(lambda machine: machine.pending).result(PATIENCE_S) == 0, "it goes on"
    begun, go_on = threading.Event(), threading.Event()

    def hold(machine: Machine) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    held = runner.ask(hold)
    assert begun.wait(PATIENCE_S)
    too_late = [runner.ask(lambda machine: machine.pending) for _ in range(3)]
    too_late[0].cancel()
    runner.stop()
    go_on.set()
    assert runner.join(PATIENCE_S)
    assert held.result(PATIENCE_S) is None
    for question in too_late[1:]:
        with pytest.raises(Ended):
            question.result(PATIENCE_S)
    assert pool.failure is None


def test_the_group_is_told_after_the_due_timers_have_fired_and_no_item_is_needed_for_it(constants: Constants) -> None:
    constants(runner_module, TELLING_END_S=3600)
    pool, outbox = SimPool(), ListOutbox()
    rig = NativeRig(outbox=outbox)
    rig.ask(1)
    owing: Any = Owing(outbox)
    runner = runner_of(pool, rig.machine, owing)
    runner.tick(Tick(1000))
    runner.deliver(rig.fetch())
    runner.start()
    assert owing.told.wait(PATIENCE_S)
    runner.stop()
    assert runner.join(PATIENCE_S)
    assert owing.fired_before_telling == [1]
    assert pool.failure is None


def test_a_busy_machine_does_not_tell_the_group_shortly_before_a_tick(constants: Constants) -> None:
    constants(runner_module, QUIET_S=0, TELLING_END_S=0)
    pool, outbox = SimPool(), ListOutbox()
    rig = NativeRig(outbox=outbox)
    owing: Any = Owing(outbox)
    runner = runner_of(pool, rig.machine, owing)
    runner.start()
    for second in (1, 2):
        runner.tick(Tick(second * 1000))
        runner.ask(lambda _: None).result(PATIENCE_S)
    assert not owing.fired_before_telling
    constants(runner_module, TELLING_END_S=3600)
    runner.tick(Tick(3000))
    assert owing.told.wait(PATIENCE_S)
    runner.stop()
    assert runner.join(PATIENCE_S)


def test_a_machine_that_is_read_ahead_neither_fires_nor_accepts_what_its_owner_has_not() -> None:
    pool, outbox = SimPool(), ListOutbox()
    rig = NativeRig(outbox=outbox, now_s=1)
    for _ in range(3):
        rig.ask(5)
    rig.read_all()
    rig.machine.commit_progress()
    rig.ask(5)  # its owner has not accepted it
    machine = rig.open(wipe=True)
    assert machine.recovering
    runner = runner_of(pool, machine, reads_ahead=True)
    runner.tick(Tick(60_000))
    runner.deliver(rig.fetch())
    runner.start()
    assert runner.join(PATIENCE_S)
    assert isinstance(pool.failure, ReadAhead)
    assert (rig.store.applied, outbox.fired) == (3, [])
    assert not rig.open().recovering, "after the fence it is opened with the store that was read ahead"
    rig.finish()
    assert len(outbox.fired) == 4


def test_that_time_has_passed_is_committed_when_no_receiver_waits(constants: Constants) -> None:
    rig = NativeRig()
    runner = runner_of(SimPool(), rig.machine)
    constants(runner_module, QUIET_S=3600)
    runner.tick(Tick(1000))  # the first second is committed at once
    runner.start()
    assert runner.ask(lambda _: len(rig.outbox.commits)).result(PATIENCE_S) == 1
    runner.commit_soon()
    runner.tick(Tick(2000))
    assert runner.ask(lambda _: len(rig.outbox.commits)).result(PATIENCE_S) == 1, "other machines fire now"
    constants(runner_module, QUIET_S=0)
    runner.tick(Tick(3000))
    runner.ask(lambda _: None).result(PATIENCE_S)
    assert [progress.fired_through[0] for _, _, progress in rig.outbox.commits] == [1, 3]
    runner.tick(Tick(4000))
    assert runner.ask(lambda _: len(rig.outbox.commits)).result(PATIENCE_S) == 2, "once in a while is enough"
    runner.stop()
    assert runner.join(PATIENCE_S)


def test_callback_topics_are_asked_about_before_the_first_timers_are_due(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(runner_module, QUIET_S=0)
    rig = NativeRig()
    rig.machine.observe(Tick(9000))
    rig.accept(12, 13, 14)
    commit, asked = rig.outbox.commit, []

    def count(progress: Progress, output: Output = NO_OUTPUT) -> None:
        commit(progress, output)
        rig.machine.counters.fired += sum(len(rows) for _, rows in output.due)

    monkeypatch.setattr(rig.outbox, "commit", count)

    def expect(topics: Collection[str]) -> None:
        asked.append((rig.machine.progress.fired_through[0], {*topics}))

    runner = runner_of(SimPool(), rig.machine, expect=expect)
    runner.start()
    for second in range(9, 16):
        runner.tick(Tick(second * 1000))
        runner.ask(lambda _: None).result(PATIENCE_S)
    assert asked == [(10, {"t"}), (11, {"t"})], "while it fires, nothing has to be asked"
    assert [due_s for due_s, _ in rig.outbox.fired] == [12, 13, 14]
    runner.stop()
    assert runner.join(PATIENCE_S)
