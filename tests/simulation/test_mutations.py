"""The simulator finds each mutation by the run of its seed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.simulation import mutation_table, search
from tests.simulation.mutation_table import MUTATIONS
from tests.simulation.test_simulator import SEEDS as TRIED
from timers.testing import Simulator

MODULES = [module for module in vars(mutation_table).values() if isinstance(module, ModuleType)]
SEEDS = search.load()


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_is_found(rule: str) -> None:
    assert rule in SEEDS, f"{rule!r} has no seed: {search.HOW}"
    found = search.events_until_found(MUTATIONS[rule], SEEDS[rule]) is not None
    assert found, f"the run of seed {SEEDS[rule]} does not find {rule!r}: {search.HOW}"


def test_each_seed_belongs_to_a_mutation() -> None:
    assert SEEDS.keys() <= MUTATIONS.keys(), f"mutations that do not exist have seeds: {search.HOW}"


def test_the_correct_worker_passes_the_run_of_each_seed() -> None:
    for seed in set(SEEDS.values()) - set(range(TRIED)):
        Simulator(seed).run()


def changed(kind: type) -> Iterator[str]:
    """Names of the methods that a mutation defines and its base class does not have."""
    for name, member in vars(kind).items():
        if isinstance(member, type) and len(member.__mro__) > 2:
            yield from changed(member)
        elif callable(member) and not hasattr(super(kind, kind), name):
            yield f"{kind.__name__}.{name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_mutation_overrides_methods_that_exist(module: ModuleType) -> None:
    """A method that was renamed in the base class would make its mutation an ordinary machine."""
    kinds = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    assert kinds
    assert [name for kind in kinds if kind.__mro__[1] is not object for name in changed(kind)] == []
