"""Connects a bucket (:mod:`timers.spark.engine.bucket`) to Spark's state, through transformWithStateInPandas.

The state of a bucket has two variables: ``memory`` (the encoded BucketState) and ``chunks`` (its timer batches, cut
into pieces). A checkpoint contains these names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle, ValueState

from timers.clock import Clock, boot_id
from timers.config.settings import Settings
from timers.core.clock_guard import ClockGuard
from timers.core.limits import Limits
from timers.core.lineage import Batch, Lineage
from timers.core.timer import Tick
from timers.errors import CheckpointMismatch
from timers.firing.breaker import OpenCircuit
from timers.spark.engine import waiting
from timers.spark.engine.bucket import Bucket, BucketState, Done
from timers.spark.engine.machines import Failing, Partitions
from timers.spark.engine.timer_batches import Arrivals
from timers.spark.engine.waiting import PIECE_BYTES, ChunkKey

INPUT = "bucket int, arrivals binary, tick_partition int, tick_offset bigint, tick_ms bigint"
"""Input rows of a bucket: requests, and ticks."""

OUTPUT = (
    "bucket int, fired bigint, dead_lettered bigint, retried bigint, pending bigint, is_complete boolean, "
    "tick_ms bigint, held string, had_others boolean, failing string"
)
"""The output row of a bucket: what it did in the micro-batch. ``held`` is why a tick did not count, ``had_others``
whether partitions had other owners, and ``failing`` an encoded :class:`Failing`."""

TOLD = "timers.told"
"""Local property of a micro-batch, by which the driver tells the tasks something: an encoded :class:`Told`."""


class _StateChunks:
    """:class:`timers.spark.engine.bucket.Chunks` in Spark's state, cut into pieces."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def take(self, key: ChunkKey) -> bytes:
        first, pieces = self._take(key, 0)
        return b"".join([first, *(self._take(key, piece)[0] for piece in range(1, pieces))])

    def _take(self, key: ChunkKey, piece: int) -> tuple[bytes, int]:
        place = (*key.slot, key.number, piece)
        value = self._state.getValue(place)
        if value is None:
            raise CheckpointMismatch(f"the checkpoint has no piece {piece} of the timer batch {tuple(key)}")
        self._state.removeKey(place)
        return bytes(value[0]), int(value[1])

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        pieces = -(-len(timer_batch) // PIECE_BYTES)
        for piece in range(pieces):
            data = timer_batch[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]
            self._state.updateValue((*key.slot, key.number, piece), (data, pieces))


class Told(NamedTuple):
    """What the driver tells the tasks of a micro-batch."""

    ends: dict[int, int]
    """Partition -> offset up to which the query has read the request topic."""
    circuits: list[OpenCircuit]
    """Failing targets."""
    lineages: dict[int, Lineage]
    """Partition -> which log the query has read up to the end."""

    def encode(self) -> str:
        """Inverse: :meth:`decode`."""
        return json.dumps([list(self.ends.items()), self.circuits, list(self.lineages.items())])

    @classmethod
    def decode(cls, text: str) -> Told:
        ends, circuits, lineages = json.loads(text)
        read = {
            partition: Lineage(tuple(map(tuple, epochs)), batch and Batch(*batch), end)
            for partition, (epochs, batch, end) in lineages
        }
        return cls(dict(ends), [OpenCircuit(*circuit) for circuit in circuits], read)


def decode_failing(text: str) -> Failing:
    """The value of the column ``failing``."""
    opened, worked = json.loads(text)
    return Failing([OpenCircuit(*circuit) for circuit in opened], worked)


@dataclass(frozen=True)
class Buckets:
    """What a query says of its buckets.

    Args:
        limits: of each machine.
        keys: of the buckets.
        partitions: returns the partitions of a process, opened by its outboxes.
    """

    settings: Settings
    limits: Limits
    keys: Sequence[int]
    partitions: Callable[[], Partitions]
    fired_s: int | None = None
    """Second up to which the app had fired when the query started; None: nothing had."""

    def phase_s(self, key: int) -> int:
        """Seconds by which the slots of a bucket begin earlier than those of the first one."""
        return waiting.phase_s(self.keys.index(key), len(self.keys))

    def mine(self, ends: Mapping[int, int], key: int) -> dict[int, int]:
        """The part of ``ends`` for the partitions of a bucket."""
        return {number: end for number, end in ends.items() if self.keys[number % len(self.keys)] == key}


class TimerProcessor(StatefulProcessor):
    """Runs the bucket of a key on the rows of a micro-batch."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state: ValueState = handle.getValueState("memory", "data binary")
        self._chunks: MapState = handle.getMapState(
            "chunks", "level int, slot bigint, number int, piece int", "data binary, pieces int"
        )

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
        partitions.adopt(told.circuits)
        bucket = Bucket(
            buckets.settings.request_topic,
            self._load(),
            _StateChunks(self._chunks),
            partitions,
            buckets.limits,
            buckets.phase_s(number),
        )
        # The last of each partition: had a clock gone back within a batch, an earlier record would show the old time.
        ticks_ms = [tick_ms for _, tick_ms in newest.values()]
        guard = ClockGuard(buckets.settings.max_clock_leap_s, buckets.settings.accept_time_s)
        clocks = Clock().read()
        tick = bucket.counted(ticks_ms, guard, clocks, boot_id(), buckets.fired_s)
        held = next((hold.sentence for hold in guard.holds(clocks.boot_s)), None)
        done = bucket.process(arrivals, buckets.mine(told.ends, number), tick, told.lineages)
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


def _frame(bucket: int, done: Done, tick: Tick | None, held: str | None, partitions: Partitions) -> pd.DataFrame:
    tick_ms = pd.array([None if tick is None else tick.append_ms], dtype="Int64")
    columns = {name: [value] for name, value in done._asdict().items()}
    said = {"had_others": [partitions.had_others], "failing": [json.dumps(partitions.failing())]}
    held_text = pd.array([held], dtype="string")
    return pd.DataFrame({"bucket": [bucket], **columns, "tick_ms": tick_ms, "held": held_text, **said})
