"""Workers that restore snapshots lose no timer and fire none twice in simulated runs, and each broken rule is found."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.simulation import quick_seeds
from tests.simulation.snapshot_mutations import LOSS_MUTATIONS, MUTATIONS
from tests.simulation.snapshot_simulator import SnapshotLossSimulator, SnapshotSimulator

SEEDS = 8
"""Later seeds run in ``make test-all``."""


@pytest.mark.slow
def test_no_run_with_snapshots_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulator = SnapshotSimulator(seed)
        simulator.run()
        counts += simulator.checkers.counts
        counts["restores"] += sum(getattr(worker, "restores", 0) for worker in simulator.workers)
    assert counts["restores"] > 16
    assert counts["snapshots restored"] > 32
    assert counts["losses noticed"] > 3
    assert counts["fired"] > 100


@pytest.mark.slow
def test_no_run_with_snapshots_and_losses_breaks_a_promise() -> None:
    restores = 0
    for seed in range(SEEDS):
        simulator = SnapshotLossSimulator(seed)
        simulator.run()
        restores += sum(getattr(worker, "restores", 0) for worker in simulator.workers)
    assert restores > 3


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 4000, 360))
def test_no_later_run_with_snapshots_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 360):
        SnapshotSimulator(seed).run()
        SnapshotLossSimulator(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [*MUTATIONS, *LOSS_MUTATIONS])
def test_a_broken_rule_of_snapshots_is_found(rule: str) -> None:
    assert quick_seeds.is_found(f"snapshots: {rule}", partial(quick_seeds.snapshots_find, rule), 150), "no run found it"
