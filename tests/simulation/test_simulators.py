"""No simulated run breaks a promise, and the runs do often enough what they are for."""

from collections import Counter

import pytest

from tests.simulation.kinds import KINDS

RUNS = [
    pytest.param(kind, marks=[] if of.are_runs_quick else pytest.mark.slow)
    for kind, of in KINDS.items()
    if of.at_least is not None
]

LATER = [(kind, first) for kind, of in KINDS.items() for first in of.later]


@pytest.mark.parametrize("kind", RUNS)
def test_no_run_breaks_a_promise(kind: str) -> None:
    of, counts = KINDS[kind], Counter[str]()
    for seed in range(of.later.start):
        simulator = of.simulator(seed)
        simulator.run()
        counts += simulator.counts
    assert {name: counts[name] for name, least in (of.at_least or {}).items() if counts[name] <= least} == {}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "first"), LATER)
def test_no_later_run_breaks_a_promise(kind: str, first: int) -> None:
    of = KINDS[kind]
    for seed in range(first, first + of.later.step):
        of.simulator(seed).run()
