"""What a runner says of its waiting fetches when two threads say it at the same moment, and to whoever asks."""

from __future__ import annotations

import threading

import pytest

from timers.core.machine import Limits, Machine
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick
from timers.store.memory import MemoryStore
from timers.testing import SimLedger
from timers.wire import future
from timers.worker.machines.runner import MAX_WAITING, Ended, Runner
from timers.worker.partition_metrics import PartitionMetrics

PATIENCE_S = 30


class SlowToSpeak:
    """Hears of pressure at once from the runner's thread; the deliverer is held up before its word is heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.relieved = threading.Event()
        self.failure: BaseException | None = None

    def on_pause_changed(self, runner: Runner) -> None:
        if threading.current_thread() is threading.main_thread():
            runner.tick(Tick(1000))  # now the machine may accept, and all that waits is gone
            assert self.relieved.wait(PATIENCE_S)
            self.heard.append("deliverer")
        else:
            self.heard.append("runner")
            self.relieved.set()

    def on_out_of_place(self, runner: Runner, position: int) -> None:
        raise AssertionError("nothing was lost on the way")

    def on_recovered(self, runner: Runner, seconds: float) -> None:
        pass

    def on_failed(self, runner: Runner, error: BaseException) -> None:
        self.failure = error


def started(listener: SlowToSpeak) -> Runner:
    limits = Limits(chunk_timers=10, chunk_bytes=1000, max_request_bytes=100)
    machine = Machine(Progress(), future.decode, MemoryStore(), SimLedger(), limits)
    runner = Runner("timer-request/0", machine, lambda: None, threading.Event(), listener, PartitionMetrics())
    runner.start()
    return runner


def test_relief_that_overtakes_pressure_leaves_no_partition_paused() -> None:
    listener = SlowToSpeak()
    runner = started(listener)
    for offset in range(MAX_WAITING):
        runner.deliver(Fetched(offset, offset + 1, ()))
    assert listener.heard == ["runner", "deliverer"]
    assert not runner.paused, "whoever heard the last word would pause the partition for ever"
    runner.stop()
    assert runner.join(PATIENCE_S)
    assert listener.failure is None


def test_a_question_is_answered_on_the_machines_thread_and_its_failure_is_the_askers() -> None:
    listener = SlowToSpeak()
    runner = started(listener)
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
    assert listener.failure is None
