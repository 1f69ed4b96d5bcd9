"""Connects a bucket (:mod:`timers.spark.engine.bucket`) to Spark's state, through transformWithStateInPandas.

The state of a bucket is one variable, ``memory``: the encoded BucketState. A checkpoint contains this name.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState

from timers.core.clock_guard import ClockGuard
from timers.core.progress import Cuts
from timers.core.timer import TopicPartition
from timers.machines.firing.breaker import OpenCircuit
from timers.process.clock import Clock, boot_id
from timers.process.config.settings import Settings
from timers.spark.engine.bucket import Bucket, BucketState
from timers.spark.engine.machines import Failing, Read
from timers.spark.engine.packing import Arrivals
from timers.spark.engine.questions import Question
from timers.spark.totals import Total

if TYPE_CHECKING:
    from timers.spark.engine.openings import Openings

OUTPUT = "said binary"
"""The output row of a bucket: a pickled :class:`Said`."""

TOLD = "timers.told"
"""Local property of a micro-batch, by which the driver tells the tasks something: an encoded :class:`Told`."""


class Told(NamedTuple):
    """What the driver tells the tasks of a micro-batch."""

    read: dict[TopicPartition, Read]
    circuits: list[OpenCircuit]
    """Failing targets."""
    questions: Sequence[tuple[TopicPartition, Question]] = ()

    def encode(self) -> str:
        """Inverse: :meth:`decode`."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def decode(text: str) -> Told:
        told: Told = pickle.loads(base64.b64decode(text))
        return told


class Said(NamedTuple):
    """What a bucket tells the driver of a micro-batch."""

    bucket: int
    tick_ms: int | None
    """Its newest tick that counts."""
    held: str | None
    """Why a tick did not count."""
    had_others: bool
    """Whether partitions had other owners."""
    failing: Failing
    total: Total


@dataclass(eq=False)
class TimerProcessor(StatefulProcessor):
    """Runs the bucket of a key on the rows of a micro-batch.

    A row has ``arrivals`` (:mod:`timers.spark.engine.packing`), or ``tick_partition``, ``tick_offset`` and ``tick_ms``.

    Args:
        keys: of the buckets.
        partitions: returns what opens partitions in a process.
        starts: partition -> first offset that the query has read, if this is known.
        cuts: partition -> the cuts of its log when the query started.
        fired_s: second up to which the app had fired when the query started; None: nothing had.
    """

    settings: Settings
    keys: Sequence[int]
    partitions: Callable[[], Openings]
    starts: Mapping[TopicPartition, int]
    cuts: Mapping[TopicPartition, Cuts]
    fired_s: int | None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state: ValueState = handle.getValueState("memory", "data binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        arrivals: list[Arrivals] = []
        newest: dict[int, tuple[int, int]] = {}
        for frame in rows:
            arrivals += [Arrivals.unpack(data) for data in frame["arrivals"] if data is not None]
            ticks = frame[frame["tick_ms"].notna()]
            for partition, offset, tick_ms in zip(
                ticks["tick_partition"], ticks["tick_offset"], ticks["tick_ms"], strict=True
            ):
                newest[partition] = max(newest.get(partition, (-1, 0)), (int(offset), int(tick_ms)))
        (number,) = key
        told, partitions = _told(), self.partitions()
        read = {tp: each for tp, each in told.read.items() if self.keys[tp[1] % len(self.keys)] == number}
        value = self._state.get()
        state = BucketState() if value is None else BucketState.decode(bytes(value[0]))
        partitions.adopt(told.circuits, state.tick)
        bucket = Bucket(state, partitions, self.starts, self.cuts)
        # The last of each partition: had a clock gone back within a batch, an earlier record would show the old time.
        ticks_ms = [tick_ms for _, tick_ms in newest.values()]
        guard = ClockGuard(self.settings.max_clock_leap_s, self.settings.accept_time_s)
        clocks = Clock().read()
        tick = bucket.counted(ticks_ms, guard, clocks, boot_id(), self.fired_s)
        held = next((hold.sentence for hold in guard.holds(clocks.boot_s)), None)
        done = bucket.process(arrivals, read, tick, told.questions)
        self._state.update((bucket.state.encode(),))
        newest_ms = None if bucket.state.tick is None else bucket.state.tick.append_ms
        said = Said(int(number), newest_ms, held, partitions.had_others, partitions.failing(), done)
        yield pd.DataFrame({"said": [pickle.dumps(said)]})

    def close(self) -> None:
        """Do nothing: the producers serve the next micro-batch."""


def _told() -> Told:
    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(TOLD)
    return Told.decode(text) if text else Told({}, [])
