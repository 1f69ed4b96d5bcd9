"""Logs that lose their end in simulated runs lose no timer in silence, and each broken rule is found."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.simulation import quick_seeds
from tests.simulation.loss_mutations import MUTATIONS
from tests.simulation.loss_simulator import LossSimulator

SEEDS = 14
"""Later seeds run in ``make test-all``."""


@pytest.mark.slow
def test_no_run_with_losses_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulator = LossSimulator(seed)
        simulator.run()
        counts += simulator.counts
    assert counts["cuts"] > 14
    assert counts["accepted"] > 7
    assert counts["letters"] > 3
    assert counts["fired"] > 100


def test_a_second_loss_before_the_dead_letters_of_the_first_are_written() -> None:
    LossSimulator(574).run()


def test_a_worker_that_crashes_while_it_compares_its_logs_has_no_more_of_them() -> None:
    LossSimulator(2119).run()


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 4000, 360))
def test_no_later_run_with_losses_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 360):
        LossSimulator(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_of_losses_is_found(rule: str) -> None:
    assert quick_seeds.is_found(f"losses: {rule}", partial(quick_seeds.losses_find, rule), 150), "no run found it"
