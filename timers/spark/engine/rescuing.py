"""Dead letters of the timers that only a checkpoint holds, after a loss of records was accepted [I28].

The driver writes them while no query runs: from a checkpoint whose log was cut, a query cannot go on. So it reads the
state with Spark's own reader of states. The checkpoint is deleted after that, never before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.core.limits import Limits
from timers.core.progress import Progress
from timers.errors import CheckpointMismatch, LogMismatch
from timers.spark.columns import record_batch
from timers.spark.engine import timer_batches
from timers.spark.engine.bucket import HELD, BucketState
from timers.spark.engine.machines import Partitions, write_dead_letters
from timers.spark.engine.timer_batches import Group

_PACKED = pa.schema([("groups", pa.binary())])


def rescue(
    spark: SparkSession, checkpoint: str, progress: Mapping[int, Progress], partitions: Partitions, limits: Limits
) -> bool:
    """Write the dead letters of what only a checkpoint holds. Returns whether it was written before a cut.

    The timers of the lost range are in the driver's memory, compressed.

    Args:
        progress: partition -> its progress, from which the loss is known.

    Raises:
        LogMismatch: the checkpoint cannot be read. Nothing was deleted.
    """
    try:
        memory = _variable(spark, checkpoint, "memory").select("value.data").collect()
        states = [BucketState.decode(bytes(row["data"])) for row in memory]
        pending = {number: each for number, each in progress.items() if each.rescues}
        known = [(number, state) for state in states for number in state.known.keys() & pending.keys()]
        lost = {number: state for number, state in known if state.known[number].holds_lost(pending[number])}
        cuts = {number: progress[number].rescues[-1].from_offset for number in lost}
        groups = _groups(spark, checkpoint, cuts) if lost else []
    except (PySparkException, CheckpointMismatch) as error:
        raise LogMismatch(
            f"{checkpoint} cannot be read, and may be all that holds timers which a request log has lost: {error}. "
            "To go on without them, delete this directory"
        ) from error
    for number, state in lost.items():
        assert state.tick is not None, "requests are accepted with a tick"
        held = [group for group in groups if group.partition == number]
        write_dead_letters(partitions, number, state.known[number], held, limits, state.tick)
    return any(state.known[number].progress.cuts != pending[number].cuts for number, state in known)


def _variable(spark: SparkSession, checkpoint: str, name: str) -> DataFrame:
    return spark.read.format("statestore").option("stateVarName", name).load(checkpoint)


def _groups(spark: SparkSession, checkpoint: str, cuts: Mapping[int, int]) -> list[Group]:
    """The groups of timers in a state with requests at or above the cuts of their partitions."""
    pieces = F.array_sort(F.collect_list(F.struct("piece", "data"))).getField("data")
    chunks = (
        _variable(spark, checkpoint, "chunks")
        .select("key.bucket", "user_map_key.*", "user_map_value.data")
        .where(F.col("level") != HELD)
        .groupBy("bucket", "level", "slot", "number")
        .agg(pieces.alias("pieces"))
    )
    found = chunks.select("pieces").mapInArrow(partial(_above, cuts), "groups binary").collect()
    return [group for row in found for group in timer_batches.unpack(bytes(row["groups"]))]


def _above(cuts: Mapping[int, int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for pieces in batch["pieces"].to_pylist():
            groups = timer_batches.unpack(b"".join(pieces))
            found = [each for each in groups if each.partition in cuts and each.rows[-1][0] >= cuts[each.partition]]
            rows += [(timer_batches.pack(found),)] if found else []
        yield record_batch(rows, _PACKED)
