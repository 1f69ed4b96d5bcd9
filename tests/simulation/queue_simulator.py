"""Simulates the processes of a queue: they receive, settle, crash, sleep, and lose partitions between any two steps.

The real ledgers and settlers run over a simulated group coordinator (:mod:`tests.simulation.queue_brokers`).
"""

import random
from collections import Counter

from tests.simulation.kit.faults import Violation
from tests.simulation.queue_brokers import PARTITIONS, Brokers
from tests.simulation.queue_process import SimProcess
from timers.errors import QueueError


class QueueSimulator:
    """One run. The same seed repeats the same steps.

    Args:
        restores: restore old disks in most runs; else few runs find what breaks only then.
        is_idle: all is read when a log loses its end.
        is_stable: the brokers answer what is committed when no transaction is undecided.
    """

    def __init__(self, seed: int, *, restores: bool = False, is_stable: bool = True, is_idle: bool = False) -> None:
        self.rng = random.Random(seed)
        self.restores = restores
        self.is_stable = is_stable
        self.is_idle = is_idle
        self.brokers = Brokers(self.rng)
        self.ordered = self.rng.random() < 0.5
        self.loss_share = self.rng.choice((0, 0, 0.02, 0.05))
        self.rebalance_share = self.rng.choice((0.005, 0.02, 0.06))
        self.processes = [self._process(name) for name in ("a", "b")]
        second = self.rng.choice((None, 3, 9))  # the number of its key, if both find none at the same time
        for process, number in zip(self.processes, (7, second), strict=True):
            process.open(number)
        self.brokers.running = lambda name: next(each for each in self.processes if each.name == name).running()
        self.rebalance()

    @property
    def counts(self) -> Counter[str]:
        """What happened."""
        brokers = self.brokers
        done = {"acknowledged": brokers.acked, "guarded": brokers.guarded, "returned": brokers.origins}
        return Counter({name: len(each) for name, each in done.items()} | {"generations": brokers.generation})

    def _process(self, name: str) -> SimProcess:
        return SimProcess(name, self.brokers, self.rng, ordered=self.ordered, is_stable=self.is_stable)

    def rebalance(self) -> None:
        """Every member gets a new generation at once, and serves its callback later; some give up partitions before."""
        names = [each.name for each in self.processes]
        owners = {each: self.rng.choice(names) for each in PARTITIONS}
        for process in self.processes if self.rng.random() < 0.5 else ():
            process.give_up(owners)
        self._note_running()
        self.brokers.generation += 1
        self.brokers.owners = owners
        for process in self.processes:
            owned = {each for each, owner in self.brokers.owners.items() if owner == process.name}
            process.rebalances.append((self.brokers.generation, owned))

    def _note_running(self) -> None:
        for process in self.processes:
            for partition in process.ledgers:
                owns = process.name == self.brokers.owners.get(partition) == self.brokers.committers.get(partition)
                if owns and self.brokers.committed_at(partition) != process.loaded_at[partition]:
                    self.brokers.ran[partition] = process.running()

    def crash(self, index: int) -> None:
        self._note_running()
        name = self.processes[index].name
        self.processes[index] = self._process(name)
        self.processes[index].open(None)
        self.rebalance()

    def step(self, process: SimProcess) -> bool:
        polls = (process.poll, process.poll) if process.rebalances else ()
        actions = (*polls, process.read, process.take, process.take, process.answer, process.settle, process.settle)
        rare = (process.pass_time, process.port.land_late, process.look, process.answer_unsure)
        others = (lambda: self.brokers.fire(self.rng), self._forge)
        return bool(self.rng.choice((*rare, *others) if self.rng.random() < 0.2 else actions)())

    def _forge(self) -> bool:
        return self.rng.random() < 0.2 and self.brokers.forge(self.rng)

    def lose(self) -> None:
        """A log loses its end, or its leader changes. A process whose broker has an old disk joins the group again."""
        choice = self.rng.random()
        if self.restores:
            choice = 0.9 if choice > 0.2 else 0.1
        for process in self.processes:
            process.verify_all()
            if self.is_idle:
                process.read_to_end()
        ledgers = [each for process in self.processes for each in process.ledgers.items()]
        if choice < 0.4:
            self.brokers.elect(self.rng)
        elif choice < 0.75:
            self.brokers.lose(self.rng, ledgers, is_restored=False)
        elif choice < 0.93:
            for process in self.processes:
                process.leave()
            self.brokers.lose(self.rng, [], is_restored=True)
            self.rebalance()
        else:
            for process in self.processes:
                process.leave()
            self.brokers.expire(self.rng)
            self.rebalance()

    def run(self, steps: int = 600) -> None:
        """Run with faults, then without, until all messages are done.

        Raises:
            Violation: a promise was broken.
        """
        try:
            self._run(steps)
        except QueueError as error:
            raise Violation(f"a queue ends, although a loss is accepted: {error}") from error

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            choice = self.rng.random()
            if choice < self.rebalance_share:
                self.rebalance()
            elif choice < self.rebalance_share + self.loss_share:
                self.lose()
            elif choice > 0.997:
                self.crash(self.rng.randrange(len(self.processes)))
            else:
                self._step_one()
        for _ in range(20_000):
            self._step_one()
            if self.brokers.all_done:
                return
        raise Violation("messages stay open")

    def _step_one(self) -> None:
        index = self.rng.randrange(len(self.processes))
        self.step(self.processes[index])
        if self.processes[index].is_dead:
            self.crash(index)
