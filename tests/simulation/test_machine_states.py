"""Simulated machines make the transitions of :data:`timers.core.steps.STEPS`, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, TypeAlias

from tests.simulation.kit import Parts
from tests.simulation.level_mutations import UpgradedWorker
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.simulator import Simulator
from timers.core.machine import Machine
from timers.core.steps import STEPS, State

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


def test_machines_make_the_transitions_of_the_table() -> None:
    table = {(state, name, after) for state, steps in STEPS.items() for name, many in steps.items() for after in many}
    for seed in SEEDS:
        Simulator(seed, parts=Parts(machine=WatchedMachine)).run()
        Simulator(seed, parts=Parts(machine=WatchedMachine), worker=UpgradedWorker).run()
        LossSimulator(seed, parts=Parts(machine=WatchedMachine)).run()
    has_effect = {each for each in WatchedMachine.made if each[1] in STEPS[each[0]] or each[0] is not each[2]}
    assert has_effect == table
