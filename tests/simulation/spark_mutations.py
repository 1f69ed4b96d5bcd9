"""Engines on Spark that are broken on purpose; the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar

from tests.simulation.spark_simulator import SchedulingSpark, SimExecutor, SimRun, SimSpark
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.spark.engine.machines import Known, Opened, Openings, Producer, Read


class Trusting(SimExecutor):
    """Uses the progress that a bucket knows, although others may have committed since."""

    trusts_any_opening: ClassVar[bool] = True


class WithoutBarrier(SimRun):
    """Fires timers with ids as soon as their second begins [I17]."""

    def __init__(self, tp: TopicPartition, known: Known | None, read: Read, tick: Tick, partitions: Openings) -> None:
        super().__init__(tp, known, read._replace(log_end=0), tick, partitions)


class SkipsTheGap(SimRun):
    """Accepts what Spark has read now as if the requests before it had been accepted."""

    def _fetches(self, position: int) -> Iterator[Fetched]:
        for each in super()._fetches(max(position, self._read.start)):
            yield each._replace(from_offset=min(position, each.from_offset))


class ForgetsARead(SimRun):
    """Notes one request more than the machine has read."""

    def _known(self, opened: Opened) -> Known:
        known = super()._known(opened)
        return known._replace(applied=known.applied + 1, oldest_due_s=None, committed_s=1 << 40)


class PromotesSeconds(SimRun):
    """Gives the next machine the seconds that wait as if they were released [I17]."""

    def _later_seconds(self, released_s: int | None, position: int) -> tuple[tuple[int, int], ...]:
        return tuple((second, 0) for second, _ in super()._later_seconds(released_s, position))


class IgnoresLateMarkers(SimRun):
    """Asks an end of the log again after a takeover only: the own last transaction may have held it back [I17]."""

    def _ask_end_again(self, opened: Opened) -> None:
        if self.known is not None:
            self.known = self.known._replace(held_from=None)
        super()._ask_end_again(opened)


class BelievesTheEndBeforeATakeover(SimRun):
    """Asks no end of the log again after a takeover: the former owner's transaction may have held it back [I17]."""

    def _ask_end_again(self, opened: Opened) -> None:
        if self.known is not None:
            id, epoch = self.known.producer
            super()._ask_end_again(opened._replace(producer=Producer(id, epoch + 1)))


class EndsWithThePlan(SimSpark):
    """Takes the end of a micro-batch for the end of the log, although it may have no more requests [I17]."""

    def _log_ends(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict(ends)


class AsksForRequestsFirst(SimSpark):
    """Asks for the ends of the requests before that of the ticks [I17]."""

    def _plan_micro_batch(self, meanwhile: Callable[[], None]) -> tuple[dict[TopicPartition, int], int]:
        ends = self._ends_of_requests()
        self._pass_time()
        meanwhile()
        self._pass_time()
        return ends, self._ticks_end


MUTATIONS: dict[str, Callable[[int], SimSpark]] = {
    "Trusting": partial(SimSpark, executor=Trusting),
    "WithoutBarrier": partial(SimSpark, run=WithoutBarrier),
    "SkipsTheGap": partial(SimSpark, run=SkipsTheGap),
    "ForgetsARead": partial(SimSpark, run=ForgetsARead),
    "PromotesSeconds": partial(SimSpark, run=PromotesSeconds),
    "IgnoresLateMarkers": partial(SchedulingSpark, run=IgnoresLateMarkers),
    "BelievesTheEndBeforeATakeover": partial(SchedulingSpark, run=BelievesTheEndBeforeATakeover),
    "EndsWithThePlan": EndsWithThePlan,
    "AsksForRequestsFirst": AsksForRequestsFirst,
}


def spark_finds(rule: str, seed: int) -> bool:
    """Whether a simulated run of the engine finds a mutation."""
    try:
        MUTATIONS[rule](seed).go()
    except Exception:
        return True
    return False
