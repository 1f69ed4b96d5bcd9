"""The engine on Spark takes snapshots in some micro-batches, names them in others, and trims its logs [I30].

A task begins a snapshot of a machine, and a later one in the same process names it. Other processes, workers and other
disks may have had the machine in between.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, ClassVar, NamedTuple

from tests.simulation.checkers import Checkers
from tests.simulation.edits import Mutation, changed
from tests.simulation.kit import SimWorker
from tests.simulation.kit.worker import SimRunner
from tests.simulation.snapshot_simulator import SnapshotCheckers, snapshot_workers
from tests.simulation.snapshots import GIVEN_UP, SnapshotWorker
from tests.simulation.spark_simulator import SimExecutor, SimSpark
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import may_name, may_take
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch


class Begun(NamedTuple):
    """A snapshot that was begun in a micro-batch."""

    writing: Iterator[NamedSnapshot | None]
    progress: Progress
    """With which it was begun."""


class SnapshotExecutor(SnapshotWorker, SimExecutor):
    """A process of Spark that takes snapshots."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.begun: dict[TopicPartition, Begun] = {}
        self.written: dict[TopicPartition, NamedSnapshot] = {}

    def start(self) -> None:
        super().start()
        self.begun, self.written = {}, {}

    def answer(self, runner: SimRunner) -> None:
        """Begin a snapshot, write some of it, or name it."""
        tp, machine = runner.name, runner.machine
        if tp in self.written:
            new, (_, begun) = self.written.pop(tp), self.begun.pop(tp)
            if self.may_name(machine.progress, begun) and self.has_same_log(runner):
                machine.commit_change(lambda progress: self.naming(runner, progress, new))
                self.faults.point("before a snapshot is deleted")
                self.delete(runner)
        elif tp in self.begun:
            for _ in range(self.numbers.choice([1, 5, 50])):
                named = next(self.begun[tp].writing, GIVEN_UP)
                if named is GIVEN_UP:
                    del self.begun[tp]
                    return
                if isinstance(named, NamedSnapshot):
                    self.written[tp] = named
                    return
        elif may_take(machine):
            assert machine.committed.next_offset == machine.position, "it is asked when nothing is left to do"
            self.begun[tp] = Begun(self.take(runner), machine.progress)

    def may_name(self, now: Progress, begun: Progress) -> bool:
        """Whether a snapshot may be named."""
        return may_name(now, begun)


class SnapshotSpark(SimSpark):
    """One random run."""

    checkers_of: ClassVar[type[Checkers]] = SnapshotCheckers
    worker_of: ClassVar[type[SimWorker]] = SnapshotWorker

    def __init__(self, seed: int, executor: type[SimExecutor] = SnapshotExecutor) -> None:
        super().__init__(seed, executor)
        self._snapshot_random = Random(f"{seed} snapshots")
        topics = snapshot_workers([*self._executors, self.worker], seed)
        topics.keep_s = self._snapshot_random.choice([0, 2, 5])
        assert isinstance(self.checkers, SnapshotCheckers)
        self.checkers.watch(self.worker, topics, self._snapshot_random)

    def asks(self) -> bool:
        return self._snapshot_random.random() < 0.3

    def answer(self, executor: SimExecutor, runner: SimRunner, record_bytes: float | None) -> None:
        assert isinstance(executor, SnapshotExecutor)
        if self._snapshot_random.random() < 0.7:
            self.happened["answers"] += 1
            executor.answer(runner)

    def _micro_batch(self, *, faults: bool = True) -> None:
        ends = self.checkpoint.ends
        if not self._workers_run and any(self.log.start(*tp) > end for tp, end in ends.items()):
            self.happened["trimmed checkpoints"] += 1  # Spark says that some data may have been lost
            self._lose_checkpoint()
        try:
            super()._micro_batch(faults=faults)
        except CheckpointMismatch:
            self._lose_checkpoint()


# ---- engines that are broken on purpose -----------------------------------------------------------------------------


class NamesTwo(SnapshotExecutor):
    """Names a snapshot although the progress has got another one since."""

    def may_name(self, now: Progress, begun: Progress) -> bool:
        return True


MUTATIONS: dict[str, Mutation] = {"S13 an older snapshot is named": changed(executor=NamesTwo)}
