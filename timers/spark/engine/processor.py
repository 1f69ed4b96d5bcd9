"""Connects a bucket (:mod:`timers.spark.engine.bucket`) to Spark's state, through transformWithStateInPandas.

The state of a bucket is one variable, ``memory``: the encoded BucketState. A checkpoint contains this name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState

from timers.clock import Clock, boot_id
from timers.config.settings import Settings
from timers.core.clock_guard import ClockGuard
from timers.core.counters import dead_lettered_of
from timers.core.lineage import Batch, Lineage
from timers.core.progress import Cuts
from timers.core.timer import Tick, TopicPartition
from timers.firing.breaker import OpenCircuit
from timers.spark.engine.bucket import Bucket, BucketState, Read, Total
from timers.spark.engine.machines import Failing, Partitions, Snapshot
from timers.spark.engine.packing import Arrivals
from timers.spark.engine.questions import Question, pickled

INPUT = "bucket int, arrivals binary, tick_partition int, tick_offset bigint, tick_ms bigint"
"""Input rows of a bucket: requests, and ticks."""

OUTPUT = (
    "bucket int, fired bigint, dead_lettered bigint, retried bigint, pending bigint, is_complete boolean, "
    "tick_ms bigint, held string, had_others boolean, failing string, counted string, answers binary"
)
"""The output row of a bucket: what it did in the micro-batch. ``held`` is why a tick did not count, ``had_others``
whether partitions had other owners, ``failing`` an encoded :class:`Failing`, ``counted`` what
:func:`decode_counted` returns, and ``answers`` what :meth:`Questions.note` reads."""

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
        return json.dumps([list(self.read.items()), self.circuits, self.questions])

    @classmethod
    def decode(cls, text: str) -> Told:
        read, circuits, questions = json.loads(text)
        found = {
            (topic, partition): Read(
                end, log_end, Lineage(tuple(map(tuple, epochs)), batch and Batch(*batch), known_end)
            )
            for (topic, partition), (end, log_end, (epochs, batch, known_end, _)) in read
        }
        asked = [((topic, partition), Question(*question)) for (topic, partition), question in questions]
        return cls(found, [OpenCircuit(*circuit) for circuit in circuits], asked)


def decode_failing(text: str) -> Failing:
    """The value of the column ``failing``."""
    opened, worked = json.loads(text)
    return Failing([OpenCircuit(*circuit) for circuit in opened], worked)


@dataclass(frozen=True)
class Buckets:
    """What a query says of its buckets.

    Args:
        keys: of the buckets.
        partitions: returns what opens partitions in a process.
    """

    settings: Settings
    keys: Sequence[int]
    partitions: Callable[[], Partitions]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition -> first offset that the query has read, if this is known."""
    cuts: Mapping[TopicPartition, Cuts] = field(default_factory=dict)
    """Partition -> the cuts of its log when the query started."""
    fired_s: int | None = None
    """Second up to which the app had fired when the query started; None: nothing had."""

    def mine(self, read: Mapping[TopicPartition, Read], key: int) -> dict[TopicPartition, Read]:
        """The part of ``read`` for the partitions of a bucket."""
        return {tp: each for tp, each in read.items() if self.keys[tp[1] % len(self.keys)] == key}


class Counted(NamedTuple):
    """What a bucket says of its work and of its partitions. See :class:`timers.spark.engine.bucket.Total`."""

    numbers: dict[str, float]
    waiting: dict[TopicPartition, tuple[int, int | None]]
    snapshots: dict[TopicPartition, Snapshot]


def decode_counted(text: str) -> Counted:
    """The value of the column ``counted``."""
    numbers, waiting, snapshots = json.loads(text)
    found = {(topic, partition): Snapshot(*each) for topic, partition, *each in snapshots}
    return Counted(numbers, {(topic, partition): (some, due_s) for topic, partition, some, due_s in waiting}, found)


class TimerProcessor(StatefulProcessor):
    """Runs the bucket of a key on the rows of a micro-batch."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

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
        buckets, (number,) = self._buckets, key
        told, partitions = _told(), buckets.partitions()
        state = self._load()
        partitions.adopt(told.circuits, state.tick)
        bucket = Bucket(state, partitions, buckets.starts, buckets.cuts)
        # The last of each partition: had a clock gone back within a batch, an earlier record would show the old time.
        ticks_ms = [tick_ms for _, tick_ms in newest.values()]
        guard = ClockGuard(buckets.settings.max_clock_leap_s, buckets.settings.accept_time_s)
        clocks = Clock().read()
        tick = bucket.counted(ticks_ms, guard, clocks, boot_id(), buckets.fired_s)
        held = next((hold.sentence for hold in guard.holds(clocks.boot_s)), None)
        done = bucket.process(arrivals, buckets.mine(told.read, number), tick, told.questions)
        self._state.update((bucket.state.encode(),))
        yield _frame(number, done, bucket.state.tick, held, partitions)

    def _load(self) -> BucketState:
        value = self._state.get()
        return BucketState() if value is None else BucketState.decode(bytes(value[0]))

    def close(self) -> None:
        """Do nothing: the producers serve the next micro-batch."""


def _told() -> Told:
    context = TaskContext.get()
    assert context is not None
    return Told.decode(context.getLocalProperty(TOLD) or "[[], [], []]")


def _frame(bucket: int, done: Total, tick: Tick | None, held: str | None, partitions: Partitions) -> pd.DataFrame:
    tick_ms = pd.array([None if tick is None else tick.append_ms], dtype="Int64")
    numbers, of_partitions = done.numbers, (done.waiting, done.snapshots)
    columns = {
        "fired": [int(numbers.get("fired", 0))],
        "dead_lettered": [sum(dead_lettered_of(numbers).values())],
        "retried": [int(numbers.get("retried", 0))],
        "pending": [sum(pending for pending, _ in done.waiting.values())],
        "is_complete": [done.is_complete],
    }
    said = {
        "had_others": [partitions.had_others],
        "failing": [json.dumps(partitions.failing())],
        "counted": [json.dumps([numbers, *([(*tp, *each) for tp, each in found.items()] for found in of_partitions)])],
        "answers": [pickled(done.answers)],
    }
    held_text = pd.array([held], dtype="string")
    return pd.DataFrame({"bucket": [bucket], **columns, "tick_ms": tick_ms, "held": held_text, **said})
