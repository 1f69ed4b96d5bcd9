"""Connects a bucket (:mod:`timers.spark.engine.bucket`) to Spark's state, through transformWithStateInPandas.

The state of a bucket has two variables: ``memory`` (the encoded BucketState) and ``chunks`` (its timer batches, cut
into pieces). A checkpoint contains these names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)

from timers.clock import Clock, boot_id
from timers.core.clock_guard import ClockGuard
from timers.core.timer import Tick
from timers.spark.engine.bucket import Bucket, BucketState, ChunkKey

INPUT = "bucket int, timer_batch binary, tick_partition int, tick_offset bigint, tick_ms bigint"
"""Input rows of a bucket: timer batches of requests, and ticks."""

OUTPUT = "tick_ms bigint, timer_batch binary, pending bigint"
"""Output rows of a bucket: timer batches to fire, with their tick; and one row with the number of pending timers."""

PIECE_BYTES = 16 * 1024
"""Bytes of one state value. Up to Spark 4.0.1 the state server may read only a part of a large message (SPARK-53870),
and the call fails. A message of this size arrives complete."""


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
        assert value is not None, f"no piece {piece} of a timer batch at {key}"
        self._state.removeKey(place)
        return bytes(value[0]), int(value[1])

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        pieces = -(-len(timer_batch) // PIECE_BYTES)
        for piece in range(pieces):
            data = timer_batch[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]
            self._state.updateValue((*key.slot, key.number, piece), (data, pieces))


class TimerProcessor(StatefulProcessor):
    """Runs the bucket of a key on the rows of a micro-batch.

    Args:
        max_leap_s: ``TIMERS_MAX_CLOCK_LEAP_S``.
        accept_s: ``TIMERS_ACCEPT_TIME``.
    """

    def __init__(self, max_leap_s: int, accept_s: int | None) -> None:
        self._max_leap_s = max_leap_s
        self._accept_s = accept_s

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state: ValueState = handle.getValueState("memory", "data binary")
        self._chunks: MapState = handle.getMapState(
            "chunks", "level int, slot bigint, number int, piece int", "data binary, pieces int"
        )

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        arriving: list[bytes] = []
        newest: dict[int, tuple[int, int]] = {}
        for frame in rows:
            arriving += [timer_batch for timer_batch in frame["timer_batch"] if timer_batch is not None]
            ticks = frame[frame["tick_ms"].notna()]
            for partition, offset, tick_ms in zip(
                ticks["tick_partition"], ticks["tick_offset"], ticks["tick_ms"], strict=True
            ):
                newest[partition] = max(newest.get(partition, (-1, 0)), (int(offset), int(tick_ms)))
        # The last of each partition: had a clock gone back within a batch, an earlier record would show the old time.
        bucket = Bucket(self._load(), _StateChunks(self._chunks))
        guard = ClockGuard(self._max_leap_s, self._accept_s)
        tick = bucket.counted([tick_ms for _, tick_ms in newest.values()], guard, Clock().read(), boot_id())
        for timer_batch in bucket.process(arriving, tick):
            yield _frame(bucket.state.tick, timer_batch, None)
        self._state.update((bucket.state.encode(),))
        yield _frame(bucket.state.tick, None, bucket.state.pending)

    def _load(self) -> BucketState:
        value = self._state.get()
        return BucketState() if value is None else BucketState.decode(bytes(value[0]))

    def close(self) -> None:
        """Do nothing: no resource is open."""


def _frame(tick: Tick | None, timer_batch: bytes | None, pending: int | None) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "tick_ms": pd.array([None if tick is None else tick.append_ms], dtype="Int64"),
            "timer_batch": pd.Series([timer_batch], dtype=object),
            "pending": pd.array([pending], dtype="Int64"),
        }
    )
