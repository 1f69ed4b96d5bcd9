"""The engine on Spark keeps its promises in random runs, and the simulator finds engines that break a rule."""

from __future__ import annotations

from functools import cache, partial

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.simulation import quick_seeds, spark_losses, spark_mutations, spark_snapshots
from tests.simulation.spark_losses import LosingSpark
from tests.simulation.spark_simulator import SchedulingSpark, SimSpark
from tests.simulation.spark_snapshots import SnapshotSpark
from timers.core.operation import CANCELLED, EXISTS, REPLACED, TOO_LATE

SEEDS = 8
"""Runs that together do all that such runs are for. Later seeds run in ``make test-all``."""


@cache
def run_of(kind: type[SimSpark], seed: int) -> SimSpark:
    """A run that has ended; tests that look at the same one share it."""
    run = kind(seed)
    run.go()
    return run


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_runs(seed: int) -> None:
    run_of(SimSpark, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000547, 1002246, 1003157])
def test_ticks_a_little_behind_the_second_that_others_have_fired(seed: int) -> None:
    SimSpark(seed).go()


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 420, 40))
def test_later_random_runs(first: int) -> None:
    for seed in range(first, first + 40):
        SimSpark(seed).go()


def test_the_runs_do_what_they_are_for() -> None:
    """Requests fire, are rejected and retried; tasks fail; clocks go back; workers run."""
    runs = [run_of(SimSpark, seed) for seed in range(SEEDS)]
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


def test_runs_whose_machines_hold_back_the_ends_of_their_logs() -> None:
    runs = [run_of(SchedulingSpark, seed) for seed in range(2)]
    assert sum(run.happened["ends asked again"] for run in runs) > 10
    assert sum(run.checkers.counts["tombstones"] for run in runs) > 10


@pytest.mark.long
@pytest.mark.parametrize("first", range(2, 322, 40))
def test_later_runs_whose_machines_hold_back_the_ends_of_their_logs(first: int) -> None:
    for seed in range(first, first + 40):
        SchedulingSpark(seed).go()


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 820, 80))
def test_later_runs_in_which_logs_lose_their_end(first: int) -> None:
    for seed in range(first, first + 80):
        LosingSpark(seed).go()


@pytest.mark.slow
def test_runs_in_which_logs_lose_their_end_notice_and_accept_it() -> None:
    runs = [run_of(LosingSpark, seed) for seed in range(SEEDS)]
    for name in ("cuts", "stopped", "accepted", "letters", "lost checkpoints"):
        assert sum(run.happened[name] for run in runs), name


@pytest.mark.slow
def test_the_runs_take_and_restore_snapshots() -> None:
    runs = [run_of(SnapshotSpark, seed) for seed in range(SEEDS // 2)]
    for name in ("snapshots restored", "snapshots compared", "logs trimmed"):
        assert sum(run.checkers.counts[name] for run in runs) > 10, name
    assert sum(run.happened["takeovers"] for run in runs)


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 420, 40))
def test_later_runs_that_take_snapshots(first: int) -> None:
    for seed in range(first, first + 40):
        SnapshotSpark(seed).go()


@pytest.mark.parametrize("rule", spark_snapshots.BROKEN)
def test_an_engine_that_breaks_a_rule_of_snapshots_is_found(rule: str) -> None:
    assert quick_seeds.is_found(f"spark snapshots: {rule}", partial(spark_snapshots.snapshots_find, rule))


@pytest.mark.slow
@pytest.mark.parametrize("rule", spark_losses.BROKEN)
def test_an_engine_that_breaks_a_rule_of_losses_is_found(rule: str) -> None:
    assert quick_seeds.is_found(f"spark losses: {rule}", partial(spark_losses.losses_find, rule)), "no run found it"


@pytest.mark.slow
@pytest.mark.parametrize("rule", spark_mutations.MUTATIONS)
def test_a_broken_engine_is_found(rule: str) -> None:
    assert quick_seeds.is_found(f"spark: {rule}", partial(spark_mutations.spark_finds, rule), 60), "no run found it"
