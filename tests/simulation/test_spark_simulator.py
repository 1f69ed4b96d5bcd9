"""The engine on Spark keeps its promises in random runs, and the simulator finds engines that break a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.simulation.spark_simulator import SimPartitions, SimSpark
from timers.core.progress import Progress
from timers.spark.engine.machines import Known, PartitionRun
from timers.spark.engine.timer_batches import Arrivals, Group

SEEDS = 20
"""Later seeds run in ``make test-all``."""

MOST_SEEDS = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_runs(seed: int) -> None:
    SimSpark(seed).go()


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 420, 40))
def test_later_random_runs(first: int) -> None:
    for seed in range(first, first + 40):
        SimSpark(seed).go()


def test_the_runs_do_what_they_are_for() -> None:
    """Requests fire, are rejected and retried; tasks fail; clocks go back; workers run."""
    runs = [SimSpark(seed) for seed in range(8)]
    for run in runs:
        run.go()
    for name in ("fired", "rejected", "retried", "dead-lettered"):
        assert sum(run.checkers.counts[name] for run in runs) > 50, name
    for name in (
        "failed tasks",
        "takeovers",
        "lost checkpoints",
        "steps back",
        "held",
        "owners between",
        "old histories",
    ):
        assert sum(run.happened[name] for run in runs), name


class Trusting(SimPartitions):
    """Uses the progress that a bucket knows, although others may have committed since."""

    trusts_any_opening: ClassVar[bool] = True


class NeverLate(PartitionRun):
    """Stores late requests as if they were due later."""

    def _may_be_late(self, group: Group) -> bool:
        return False


class WithoutCommit(PartitionRun):
    """Stores what it has accepted without a commit."""

    def commit(self) -> None:
        pass


class IgnoresTheClock(PartitionRun):
    """Accepts requests while the brokers' clock is behind what has fired."""

    @property
    def may_accept(self) -> bool:
        return True


class AloneForEver(PartitionRun):
    """Goes on in the same micro-batch after others have owned the partition."""

    def _check_owner(self, found: Progress, own: tuple[Progress | None, ...]) -> None:
        pass


class TrustsTheDecoder(PartitionRun):
    """Accepts requests as they were decoded, although others have decided about them by other settings."""

    def was_decoded_alike(self, arrivals: Sequence[Arrivals]) -> bool:
        return True


class ForgetsRejected(PartitionRun):
    """Accepts requests that cannot be read without a dead letter."""

    def accept(self, arrivals: Sequence[Arrivals], end: int) -> None:
        super().accept([each._replace(rejected=[]) for each in arrivals], end)


class SkipsAhead(PartitionRun):
    """Notes one request more than it has accepted."""

    def known(self) -> Known:
        known = super().known()
        return known._replace(applied=known.applied + 1)


@pytest.mark.parametrize(
    ("partitions", "run"),
    [
        (Trusting, PartitionRun),
        (SimPartitions, NeverLate),
        (SimPartitions, WithoutCommit),
        (SimPartitions, IgnoresTheClock),
        (SimPartitions, AloneForEver),
        (SimPartitions, TrustsTheDecoder),
        (SimPartitions, ForgetsRejected),
        (SimPartitions, SkipsAhead),
    ],
    ids=lambda each: each.__name__,
)
def test_a_broken_engine_is_found(partitions: type[SimPartitions], run: type[PartitionRun]) -> None:
    for seed in range(MOST_SEEDS):
        try:
            SimSpark(seed, partitions, run).go()
        except Exception:
            return
    pytest.fail("no run found it")
