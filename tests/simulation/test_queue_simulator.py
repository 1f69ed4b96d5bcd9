"""The ledgers and settlers of a queue keep their promises in simulated runs, and each broken rule is found."""

from __future__ import annotations

import pytest

from tests.simulation.queue_brokers import Violation
from tests.simulation.queue_mutations import MUTATIONS
from tests.simulation.queue_simulator import QueueSimulator

MOST_SEEDS = 400


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_no_promise_is_broken(first: int) -> None:
    for seed in range(first, first + 15):
        QueueSimulator(seed).run()


@pytest.mark.long
@pytest.mark.parametrize("first", range(60, 3060, 300))
def test_no_promise_is_broken_in_many_runs(first: int) -> None:
    for seed in range(first, first + 300):
        QueueSimulator(seed).run()


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_is_found(rule: str) -> None:
    for seed in range(MOST_SEEDS):
        try:
            QueueSimulator(seed, MUTATIONS[rule]).run()
        except Violation:
            return
    pytest.fail(f"no run of {MOST_SEEDS} seeds finds {rule!r}")
