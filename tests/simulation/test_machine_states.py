"""Simulated machines make the transitions of :data:`timers.core.steps.STEPS`, and no others; simulated workers those of
:data:`timers.machines.life.LIFE`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, TypeAlias

import pytest

from tests.simulation.kit import SimWorker
from tests.simulation.kit import worker as workers
from tests.simulation.life_mutations import SlowWorker
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.machine_mutations import UpgradedWorker
from tests.simulation.simulator import Simulator
from tests.simulation.snapshot_simulator import SnapshotSimulator
from tests.simulation.snapshots import SnapshotWorker
from timers.core.machine import Machine
from timers.core.steps import STEPS, State
from timers.machines import partition
from timers.machines.life import FACTS, LIFE, Command, Event, Life, Waiting

Transition: TypeAlias = tuple[State, str, State]

METHODS = {name for steps in STEPS.values() for name in steps}

SEEDS = range(8)


class WatchedMachine(Machine):
    """Notes its transitions."""

    made: ClassVar[set[Transition]] = set()


def watched(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def watch(self: WatchedMachine, *arguments: Any, **others: Any) -> Any:
        before = self.state
        result = method(self, *arguments, **others)  # after an exception the machine is opened again
        self.made.add((before, method.__name__, self.state))
        return result

    return watch


for name in METHODS:
    setattr(WatchedMachine, name, watched(getattr(Machine, name)))


@pytest.mark.slow
def test_machines_make_the_transitions_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {(state, name, after) for state, steps in STEPS.items() for name, many in steps.items() for after in many}
    monkeypatch.setattr(partition, "Machine", WatchedMachine)
    for seed in SEEDS:
        Simulator(seed).run()
        Simulator(seed, worker=UpgradedWorker).run()
        LossSimulator(seed).run()
    has_effect = {each for each in WatchedMachine.made if each[1] in STEPS[each[0]] or each[0] is not each[2]}
    assert has_effect == table


LIVES: list[tuple[Any, type[SimWorker], int]] = [
    *((Simulator, SlowWorker, seed) for seed in (44, 34, 2, 45, 15)),
    (LossSimulator, SimWorker, 3),
    (SnapshotSimulator, SnapshotWorker, 4),
]
"""Quick runs in which lives take unusual ways."""

MOST_SEEDS = 200
"""So many seeds are tried if these do not suffice any longer."""


@pytest.mark.slow
def test_lives_make_the_transitions_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {(state, event) for state, steps in LIFE.items() for event in steps}

    class WatchedLife(Life):
        def on(self, event: Event, waiting: Waiting | None = None) -> Command | None:
            before = self.state
            command = super().on(event, waiting)
            missing.discard((before, event if event in LIFE[before] or event in FACTS else Event.RELEASED))
            return command

    monkeypatch.setattr(workers, "Life", WatchedLife)
    others = [(kind, worker, seed) for seed in range(MOST_SEEDS) for kind, worker, _ in LIVES[-3:]]
    for kind, worker, seed in (*LIVES, *others):
        if missing:
            kind(seed, worker=worker).run()
    assert not missing, sorted((state.value, event.value) for state, event in missing)
