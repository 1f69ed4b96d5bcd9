"""Pauses of callback topics in a simulation: the commands of operators, and what each worker knows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.simulation.kit.worker import SimRunner, SimWorker
from tests.simulation.workload import TARGETS
from timers.core.fired import Command
from timers.core.levels import FIRST_LEVEL, HOLDS_LEVEL
from timers.core.progress import Progress

FEW_PAUSES = 3
"""So many pauses have room in a machine of a simulation."""


class PausingWorker(SimWorker):
    """A worker of runs in which operators pause targets."""


class SimPauses:
    """The topic of commands, and how far each worker has read it.

    Args:
        workers: the workers of the app.
        random: random source.
        targets: callback topics that are paused.
        now_s: returns the second of the brokers' clock.

    Attributes:
        commands: all commands so far, ascending by number.
    """

    def __init__(
        self, workers: Sequence[SimWorker], random: Random, targets: Sequence[str], now_s: Callable[[], int]
    ) -> None:
        self.commands: list[Command] = []
        self._workers = workers
        self.random = self._random = random
        self._targets = targets
        self._now_s = now_s
        self._read: dict[str, int] = {}

    @classmethod
    def of(cls, workers: Sequence[SimWorker], random: Random, own: str, now_s: Callable[[], int]) -> SimPauses:
        """Returns the pauses of a run. Some machines begin below the level that pauses need.

        Args:
            own: a topic of the app that callbacks may be sent to.
        """
        for each in workers:
            each.first_level = max(
                each.first_level, random.choice([HOLDS_LEVEL, HOLDS_LEVEL, HOLDS_LEVEL, FIRST_LEVEL])
            )
        targets = random.choice([TARGETS[:1], TARGETS[:2], (*TARGETS, "missing", own)])
        return cls(workers, random, targets, now_s)

    @property
    def actions(self) -> list[tuple[Callable[[], str], float]]:
        """What may happen, with weights."""
        return [(self.pause, 5), (self.resume, 4), (self.read_commands, 4), (self.raise_to_holds, 1)]

    @property
    def newest(self) -> dict[str, Command]:
        """Target -> its newest command."""
        return {each.target: each for each in self.commands}

    def known_to(self, worker: SimWorker) -> tuple[Command, ...]:
        """What a worker has read: the newest command of each target, ascending by number."""
        newest = {each.target: each for each in self.commands[: self._read.get(worker.name, 0)]}
        return tuple(sorted(newest.values()))

    def tell(self, worker: SimWorker, runner: SimRunner) -> None:
        """Give the machine of a runner the commands that its worker knows."""
        runner.loop.commands = self.known_to(worker)

    def may_end(self, progress: Progress) -> bool:
        """Whether a hold of a machine may end without another command."""
        newest = self.newest
        return any(not (hold.is_paused and newest[hold.target].is_paused) for hold in progress.holds)

    # ---- actions ------------------------------------------------------------------------------------------------

    def pause(self) -> str:
        """An operator pauses a target, maybe for some seconds."""
        random = self._random
        until_s = random.choice([0, 0, self._now_s() + random.randint(-1, 9)])
        return self._command(random.choice(self._targets), is_paused=True, until_s=max(0, until_s))

    def resume(self) -> str:
        """An operator resumes a target, mostly one that is paused."""
        paused = [target for target, newest in self.newest.items() if newest.is_paused]
        return self._command(self._random.choice([*paused * 9, *self._targets]), is_paused=False)

    def read_commands(self) -> str:
        """A worker reads the commands, late, or after the topic has lost its end."""
        worker, count = self._random.choice(self._workers), len(self.commands)
        self._read[worker.name] = self._random.choice([count, count, count, self._random.randint(0, count)])
        return f"{worker.name} {self._read[worker.name]} of {count}"

    def raise_to_holds(self) -> str:
        """A worker raises its machines to the level that pauses need."""
        worker = self._random.choice(self._workers)
        for machine in list(worker.runners):
            if machine in worker.runners:  # one that was fenced is closed
                worker.raise_level(machine, HOLDS_LEVEL)
        return worker.name

    def tell_all(self) -> None:
        """Let all workers read all commands."""
        self._read = {each.name: len(self.commands) for each in self._workers}

    def resume_all(self) -> None:
        """Resume each target; all workers know it."""
        for target, newest in self.newest.items():
            if newest.is_paused:
                self._command(target, is_paused=False)
        self.tell_all()

    def _command(self, target: str, *, is_paused: bool, until_s: int = 0) -> str:
        number = self.commands[-1].number if self.commands else 0
        over_s = self._random.choice([0, 0, 2, 5, 12])
        command = Command(number + self._random.randint(1, 3), target, is_paused, until_s, over_s)
        self.commands.append(command)
        for each in self._workers:
            if self._random.random() < 0.6:
                self._read[each.name] = len(self.commands)
        return f"{command}"
