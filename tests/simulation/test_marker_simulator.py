"""Messages with markers are delivered again as they should in simulated runs, and each broken rule is found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.marker_mutations import MUTATIONS
from tests.simulation.marker_simulator import MarkerSimulator
from timers.testing import SimulationFailed, Violation

SEEDS = 30
"""Later seeds run in ``make test-all``."""

MOST_SEEDS = 100


def test_no_run_with_markers_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulator = MarkerSimulator(seed)
        simulator.run()
        counts += simulator.checkers.counts
    assert counts["markers"] > 200
    assert counts["fired"] > 100


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 3000, 300))
def test_no_later_run_with_markers_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 300):
        MarkerSimulator(seed).run()


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_of_markers_is_found(rule: str) -> None:
    for seed in range(MOST_SEEDS):
        try:
            MarkerSimulator(seed, parts=MUTATIONS[rule]).run()
        except SimulationFailed as failure:
            if isinstance(failure.__cause__, Violation):
                return
            raise
    pytest.fail(f"no run of {MOST_SEEDS} seeds finds {rule!r}")
