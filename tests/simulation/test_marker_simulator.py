"""Messages with markers are delivered again as they should in simulated runs, and each broken rule is found."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.simulation import quick_seeds
from tests.simulation.marker_mutations import MUTATIONS
from tests.simulation.marker_simulator import MarkerSimulator

SEEDS = 20
"""Later seeds run in ``make test-all``."""


@pytest.mark.slow
def test_no_run_with_markers_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulator = MarkerSimulator(seed)
        simulator.run()
        counts += simulator.checkers.counts
    assert counts["markers"] > 150
    assert counts["fired"] > 100


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 3000, 300))
def test_no_later_run_with_markers_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 300):
        MarkerSimulator(seed).run()


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_of_markers_is_found(rule: str) -> None:
    assert quick_seeds.is_found(f"markers: {rule}", partial(quick_seeds.markers_find, rule), 100), "no run found it"
