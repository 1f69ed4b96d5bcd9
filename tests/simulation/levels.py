"""The versions of the workers of a simulation, and the raises of its machines."""

from collections.abc import Sequence
from random import Random

from tests.simulation.checkers import Checkers
from tests.simulation.kit.next_level import LEVEL
from tests.simulation.kit.worker import SimWorker
from timers.core import levels


class SimLevels:
    """Restarts workers as other versions, and raises machines one by one.

    Args:
        workers: the workers of the app.
        checkers: they know which machines were raised.
        random: random source.
    """

    def __init__(self, workers: Sequence[SimWorker], checkers: Checkers, random: Random) -> None:
        self._workers = workers
        self._checkers = checkers
        self._random = random

    def begin_upgrade(self) -> None:
        """Begin with any versions, or with the next one only."""
        versions = self._random.choice([[LEVEL - 1, LEVEL], [LEVEL]])
        for worker in self._workers:
            worker.use_version(self._random.choice(versions))

    @property
    def raised(self) -> int:
        """The highest level of a machine."""
        return max(log.progress.level for log in self._checkers.logs.values())

    @property
    def members(self) -> dict[str, int]:
        """Member of the group -> the level that it supports."""
        return {worker.name: worker.supports for worker in self._workers if worker.alive}

    def change_version(self) -> str:
        """Restart a worker as the next version or the one before, also after the raise. It may not know the stores."""
        worker = self._random.choice(self._workers)
        worker.crash()
        if self._random.random() < 0.6:
            worker.disk.wipe()
        worker.use_version(self._random.choice([LEVEL - 1, LEVEL, LEVEL]))
        return f"{worker.name} supports {worker.supports}"

    def raise_level(self) -> str:
        """Let a worker raise its machines, if it may."""
        worker = self._random.choice(self._workers)
        level = levels.level_to_raise_to(LEVEL, list(self.members.values()))
        for machine in list(worker.runners):
            if machine in worker.runners:  # one that was fenced is closed
                worker.raise_level(machine, level)
        return f"{worker.name} to {level}"

    def able_workers(self) -> list[SimWorker]:
        """The running workers to which the leader of the group gives partitions.

        A leader that does not know yet that a machine was raised gives partitions to all.
        """
        names = levels.able_members(self.members, levels.FIRST_LEVEL if self._random.random() < 0.5 else self.raised)
        return [worker for worker in self._workers if worker.name in names]

    def upgrade_all(self) -> None:
        """Run the next version on all workers."""
        for worker in self._workers:
            if worker.supports < LEVEL:
                worker.crash()
                worker.use_version(LEVEL)
            if not worker.alive:
                worker.start()

    def finish_upgrade(self) -> None:
        """Restart the workers that do not support the level of the app."""
        for worker in self._workers:
            if worker.supports < self.raised:
                worker.crash()
                worker.use_version(LEVEL)
