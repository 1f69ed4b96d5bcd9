"""Engines on Spark that are broken on purpose; the simulator must find each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.simulation.spark_simulator import SimPartitions, SimSpark
from timers.core.lineage import Lineage
from timers.core.progress import Progress
from timers.spark.engine.machines import Known, PartitionRun
from timers.spark.engine.timer_batches import Arrivals, Group


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

    def accept(self, arrivals: Sequence[Arrivals], end: int, lineage: Lineage) -> None:
        super().accept([each._replace(rejected=[]) for each in arrivals], end, lineage)


class SkipsAhead(PartitionRun):
    """Notes one request more than it has accepted."""

    def known(self) -> Known:
        known = super().known()
        return known._replace(applied=known.applied + 1)


KINDS: tuple[type[SimPartitions] | type[PartitionRun], ...] = (
    Trusting,
    NeverLate,
    WithoutCommit,
    IgnoresTheClock,
    AloneForEver,
    TrustsTheDecoder,
    ForgetsRejected,
    SkipsAhead,
)
MUTATIONS = {kind.__name__: kind for kind in KINDS}


def spark_finds(rule: str, seed: int) -> bool:
    """Whether a simulated run of the engine finds a mutation."""
    kind = MUTATIONS[rule]
    try:
        if issubclass(kind, SimPartitions):
            SimSpark(seed, kind).go()
        else:
            SimSpark(seed, SimPartitions, kind).go()
    except Exception:
        return True
    return False
