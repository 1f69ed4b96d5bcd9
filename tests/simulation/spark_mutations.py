"""Engines on Spark that are broken on purpose; the simulator must find each."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from tests.simulation.edits import Mutation, changed
from tests.simulation.spark_simulator import SchedulingSpark, SimExecutor, SimSpark
from timers.core.timer import TopicPartition


class Trusting(SimExecutor):
    """Uses the progress that a bucket knows, although others may have committed since."""

    trusts_any_opening: ClassVar[bool] = True


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


MAY_BE_HELD = "known is None or known.may_be_held(end, opened.producer)"
LATER = "tuple(dict.fromkeys(...))"

MUTATIONS: dict[str, Mutation] = {
    "Trusting": changed(executor=Trusting),
    # Timers with ids fire as soon as their second begins [I17].
    "WithoutBarrier": changed(("self._read = read", "self._read = read._replace(log_end=0)")),
    # What Spark has read now is accepted as if the requests before it had been accepted.
    "SkipsTheGap": changed(
        ("position < start", "False"),
        ("Fetched(first, end, rest)", "Fetched(min(position, first), end, rest)"),
    ),
    # One request more than the machine has read is noted.
    "ForgetsARead": changed(
        (
            "Known(machine.position, ..., ..., ..., ..., committed_s, ..., machine.oldest_due_s, ..., ...)",
            "Known(machine.position + 1, ..., ..., ..., ..., 1 << 40, ..., None, ..., ...)",
        ),
    ),
    # The next machine gets the seconds that wait as if they were released [I17].
    "PromotesSeconds": changed((LATER, f"tuple((second, 0) for second, _ in {LATER})")),
    # An end of the log is asked again after a takeover only: the own last transaction may have held it back [I17].
    "IgnoresLateMarkers": changed(
        (MAY_BE_HELD, "known is None or known._replace(held_from=None).may_be_held(end, opened.producer)"),
        simulator=SchedulingSpark,
    ),
    # No end of the log is asked again after a takeover: the former owner's transaction may have held it back [I17].
    "BelievesTheEndBeforeATakeover": changed(
        (
            MAY_BE_HELD,
            "known is not None and known.may_be_held(end, known.producer._replace(epoch=known.producer.epoch + 1))",
        ),
        simulator=SchedulingSpark,
    ),
    "EndsWithThePlan": changed(simulator=EndsWithThePlan),
    "AsksForRequestsFirst": changed(simulator=AsksForRequestsFirst),
}
