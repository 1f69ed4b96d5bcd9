"""The simulators find each mutation by the run of its seed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulation import edits, loss_mutations, marker_mutations, mutation_table, search
from tests.simulation.kinds import KINDS
from tests.simulation.kit import SimWorker
from tests.simulation.life_mutations import SlowWorker
from tests.simulation.simulator import Simulator
from timers.core.loop import Loop

MODULES = [module for module in vars(mutation_table).values() if isinstance(module, ModuleType)]
FILES = [*map(Path, map(str, [module.__file__ for module in (*MODULES, loss_mutations, marker_mutations)]))]
SEEDS = search.load()["machines"]


MUTATIONS = [
    pytest.param(kind, rule, marks=[] if of.are_mutations_quick else pytest.mark.slow, id=f"{kind}: {rule}")
    for kind, of in KINDS.items()
    for rule in of.mutations
]


@pytest.mark.parametrize(("kind", "rule"), MUTATIONS)
def test_a_broken_rule_is_found(kind: str, rule: str) -> None:
    assert search.is_found(kind, rule), f"no run found it: {search.HOW}"


def test_each_mutation_has_a_seed() -> None:
    known = {kind: set(rules) for kind, rules in search.load().items()}
    assert known == {kind: set(of.mutations) for kind, of in KINDS.items() if of.mutations}, search.HOW


@pytest.mark.long
def test_the_correct_worker_passes_the_run_of_each_seed() -> None:
    machines = KINDS["machines"]
    slow = {seed for rule, seed in SEEDS.items() if is_slow(machines.mutations[rule])}
    for seed in set(SEEDS.values()) - slow - set(range(machines.later.start)):
        Simulator(seed).run()
    for seed in slow:
        Simulator(seed, worker=SlowWorker).run()


def is_slow(mutation: edits.Mutation) -> bool:
    """Whether openings take a while in the run of a mutation."""
    return bool(mutation.options.get("worker", SimWorker).is_slow)


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
    assert kinds or vars(module)["CHANGED"]
    assert [name for kind in kinds if kind.__mro__[1] is not object for name in changed(kind)] == []


def private_functions() -> set[str]:
    """Names of the private functions and methods of the rooms whose rules mutations break."""
    nodes = [node for tree in edits.trees().values() for node in ast.walk(tree)]
    named = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return {name for name in named if re.match("_[a-z]", name)}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_mutation_names_a_private_method_of_the_core(path: Path) -> None:
    """So code may move, and private methods may get other names, without a change of the mutations."""
    assert len(private_functions()) > 50
    assert set(re.findall(r"\b_[a-z]\w*", path.read_text())) & private_functions() == set()


def test_a_change_must_fit_the_code_once_and_have_an_effect() -> None:
    twice, nowhere, outside = ("self.position", "0"), ("nothing.like(this)", "0"), ("MAX_BACKOFF_S = 300", "pass")
    same = ("bool(self.fetches) and self.machine.takes(...)",) * 2
    for change, why in (
        (twice, "times"),
        (nowhere, "nowhere"),
        (outside, "not inside a function"),
        (same, "no effect"),
    ):
        with pytest.raises(LookupError, match=why), edits.applied([change]):
            pass


def test_a_change_ends_with_its_run() -> None:
    code = Loop.step.__code__
    with edits.applied([("self.firing and self.machine.fire_chunk()", "False")]):
        assert Loop.step.__code__ != code
    assert Loop.step.__code__ is code
