"""The engine on Spark keeps its promises in random runs, and the simulator finds engines that break a rule."""

from functools import cache

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.simulation.spark_simulator import SimSpark
from timers.core.operation import CANCELLED, EXISTS, REPLACED, TOO_LATE

SEEDS = 8
"""Runs that together do all that such runs are for. Later seeds run in ``make test-all``."""


@cache
def run_of(seed: int) -> SimSpark:
    """A run that has ended; tests that look at the same one share it."""
    run = SimSpark(seed)
    run.run()
    return run


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_runs(seed: int) -> None:
    run_of(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000547, 1002246, 1003157])
def test_ticks_a_little_behind_the_second_that_others_have_fired(seed: int) -> None:
    SimSpark(seed).run()


def test_the_runs_do_what_they_are_for() -> None:
    """Requests fire, are rejected and retried; tasks fail; clocks go back; workers run."""
    runs = [run_of(seed) for seed in range(SEEDS)]
    for name in ("fired", "rejected", "retried", "dead-lettered", CANCELLED, REPLACED, EXISTS, TOO_LATE):
        assert sum(run.checkers.counts[name] for run in runs) > 10, name
    for name in (
        "failed tasks",
        "takeovers",
        "lost checkpoints",
        "lost disks",
        "steps back",
        "owners between",
        "read again",
        "limited",
    ):
        assert sum(run.happened[name] for run in runs), name
