"""The engine as one streaming query: it reads topics and runs the buckets, which send messages themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.config.settings import Settings
from timers.core import levels
from timers.core.limits import Limits
from timers.core.progress import LOG_CUT, MAX_REQUEST_BYTES, Progress
from timers.kafka.topics import Cluster
from timers.partition import spec_of
from timers.request_formats import NATIVE
from timers.spark import kafka
from timers.spark.columns import LOG_APPEND_TIME
from timers.spark.engine import accepting, processor
from timers.spark.engine.accepting import Accepting
from timers.spark.engine.machines import Partitions
from timers.spark.engine.outboxes import Outboxes, Places
from timers.spark.engine.processor import TOLD, Buckets, TimerProcessor, Told, decode_failing
from timers.spark.engine.retries import Retries

NAME = "timers-engine"

TRIAL_S = 15.0
"""So much longer the tasks send nothing to a failing target. The driver tries it first with a timer of the retry topic,
and an attempt without an answer takes up to 12 s."""

_BUCKETS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Plan:
    """Parameters of a query."""

    checkpoint: str
    """Directory on storage that all executors share."""
    buckets: int
    """Number of parts of the state, which is also the number of parallel tasks. A checkpoint keeps its number."""
    max_requests: int
    """Largest number of requests that one micro-batch reads."""
    cluster: Cluster
    starts: Mapping[int, int] = field(default_factory=dict)
    """Partition -> first offset of the request topic, for a new checkpoint."""
    progress: Mapping[int, Progress] = field(default_factory=dict)
    """Progress of each partition of the request topic: the committed one, or that of a new machine."""
    run: int = 0
    """Number of this run of the engine."""
    first_level: int = levels.FIRST
    """Feature level of new machines."""

    def limits(self, settings: Settings) -> Limits:
        """Returns the limits of each machine."""
        topic = settings.request_topic
        return spec_of(settings, (topic, 0), NATIVE, 0, partitions=self.cluster.partitions[topic]).limits

    def places(self, settings: Settings) -> Places:
        """Returns what those need who open partitions."""
        cuts = tuple((number, each.largest(LOG_CUT)) for number, each in self.progress.items())
        return Places(settings, self.cluster, self.run, tuple(self.starts.items()), cuts, self.first_level)


def session_settings(buckets: int) -> dict[str, str]:
    state = "spark.sql.streaming.stateStore"
    return {
        _BUCKETS: str(buckets),
        f"{state}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        # Each micro-batch writes its changes to the checkpoint, not the whole state.
        f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{state}.rocksdb.trackTotalNumberOfRows": "false",
        # For a checkpoint on a local disk: no checksum file beside each file. Hadoop starts a process to set the
        # permissions of each new file, which costs more than writing its content.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Number of micro-batches kept for recovery; each has a few files.
        "spark.sql.streaming.minBatchesToRetain": "10",
        # The engine plans a first micro-batch again that has not ended. By default Spark 4.1 refuses this if there are
        # files of its state. Spark writes them again.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        # Of two attempts of one task, the later one fences the other.
        "spark.speculation": "false",
        # Spark ignores it for streams, and logs a warning at each start if it is on.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # No limit: with one, Spark 4.0 sums the bytes of the whole batch for each row, 24 of the 29 µs of a request.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.python.daemon.module": "timers.spark.daemon",
        # Without Java's second compiler: it took a third of the CPU of the first minutes and made requests no faster.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # A busy machine may need longer than the default of 15 s to start a Python process.
        "spark.python.authenticate.socketTimeout": "60s",
    }


def bucket_keys(spark: SparkSession, count: int) -> list[int]:
    """One key for each partition of the state. Spark assigns keys by hash, so keys 0, 1, 2 could share a partition."""
    place = F.pmod(F.hash("key"), F.lit(count))
    found = (
        spark.range(64 * count)
        .select(F.col("id").cast("int").alias("key"))
        .groupBy(place.alias("place"))
        .agg(F.min("key").alias("key"))
        .collect()
    )
    assert len(found) == count, f"{count - len(found)} partitions of the state have no key"
    return sorted(int(row["key"]) for row in found)


def arrivals_of(requests: DataFrame, accept: Accepting) -> DataFrame:
    """Requests (:data:`timers.spark.columns.RECORD`) as rows of ``processor.INPUT``."""
    packed = requests.select(*accepting.COLUMNS).mapInArrow(accept, accepting.SCHEMA)
    return packed.select(
        "bucket",
        "arrivals",
        F.lit(None).cast("int").alias("tick_partition"),
        F.lit(None).cast("bigint").alias("tick_offset"),
        F.lit(None).cast("bigint").alias("tick_ms"),
    )


def ticks_of(oscillator: DataFrame, buckets: Sequence[int]) -> DataFrame:
    """Each tick (:data:`timers.spark.columns.RECORD`) as one row for each bucket (``processor.INPUT``).

    Only records with a time from the broker are ticks [I10].
    """
    return oscillator.where(F.col("timestamp_type") == LOG_APPEND_TIME).select(
        F.explode(F.array(*[F.lit(bucket) for bucket in buckets])).alias("bucket"),
        F.lit(None).cast("binary").alias("arrivals"),
        F.col("partition").alias("tick_partition"),
        F.col("offset").alias("tick_offset"),
        F.col("timestamp_ms").alias("tick_ms"),
    )


def process(arriving: DataFrame, buckets: Buckets) -> DataFrame:
    """Run all buckets: ``processor.INPUT`` to ``processor.OUTPUT``."""
    return arriving.groupBy("bucket").transformWithStateInPandas(
        TimerProcessor(buckets), processor.OUTPUT, outputMode="append", timeMode="none"
    )


def processed(
    spark: SparkSession, settings: Settings, plan: Plan, partitions: Callable[[Places], Partitions]
) -> DataFrame:
    """What the buckets do with the topics that the engine reads."""
    topic = settings.request_topic
    keys = bucket_keys(spark, plan.buckets)
    requests = kafka.stream(
        spark,
        settings,
        [topic],
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(plan.max_requests),
        # If retention deleted unread requests, their timers are lost, so the query fails.
        failOnDataLoss="true",
    )
    # Old ticks have no effect, so a new query starts at the newest one, and ticks deleted by retention do not matter.
    ticks = kafka.stream(spark, settings, [settings.oscillator_topic], startingOffsets="latest", failOnDataLoss="false")
    limit = settings.max_request_bytes
    history = {number: each.with_setting(MAX_REQUEST_BYTES, limit) for number, each in plan.progress.items()}
    new = Progress.first(plan.first_level).with_setting(MAX_REQUEST_BYTES, limit)
    accept = Accepting(tuple(keys), limit, history, new)
    # As many tasks as buckets: each task costs a start in Python, even if it reads little.
    arriving = arrivals_of(requests.coalesce(plan.buckets), accept).unionByName(ticks_of(ticks, keys))
    fired_s = max((each.fired_s for each in plan.progress.values() if each.fired_s is not None), default=None)
    return process(
        arriving, Buckets(settings, plan.limits(settings), keys, partial(partitions, plan.places(settings)), fired_s)
    )


class MicroBatches:
    """Runs each micro-batch, as the function of ``foreachBatch``.

    Args:
        topic: the request topic.
        retries: has what the driver knows of callback topics, whose circuits the tasks get and report, and of the logs.
        done: gets the number of a micro-batch and the rows of its buckets (``processor.OUTPUT``).
    """

    def __init__(self, topic: str, retries: Retries, done: Callable[[int, Sequence[Any]], None]) -> None:
        self._topic = topic
        self._targets = retries.targets
        self._read_logs = retries.read_logs
        self._done = done
        self._query: Any = None
        self._has_query = threading.Event()

    def __call__(self, frame: DataFrame, number: int) -> None:
        self._has_query.wait()
        circuits = [
            circuit._replace(new_from_s=circuit.new_from_s + TRIAL_S)
            for circuit in self._targets.circuit_breaker.circuits()
        ]
        ends = self._ends(number)
        told = Told(ends, circuits, self._read_logs.through(ends))
        frame.sparkSession.sparkContext.setLocalProperty(TOLD, told.encode())
        done = frame.collect()
        for row in done:
            failing = decode_failing(row["failing"])
            self._targets.merge(failing.opened)
            self._targets.note_worked(failing.worked)
        self._done(number, done)

    def watch(self, running: StreamingQuery) -> None:
        """Set the query whose micro-batches these are."""
        self._query = running._jsq.streamingQuery()
        self._has_query.set()

    def _ends(self, number: int) -> dict[int, int]:
        """Partition -> offset up to which the query reads the request topic in a micro-batch."""
        sources = self._query.offsetLog().get(number).get().offsets()
        offsets = [sources.apply(index) for index in range(sources.size())]
        read = [json.loads(each.get().json()) for each in offsets if each.isDefined()]
        ends: dict[str, int] = next((each[self._topic] for each in read if self._topic in each), {})
        return {int(partition): end for partition, end in ends.items()}


def start(
    spark: SparkSession,
    settings: Settings,
    plan: Plan,
    retries: Retries,
    done: Callable[[int, Sequence[Any]], None],
    partitions: Callable[[Places], Partitions] = Outboxes.of,
) -> StreamingQuery:
    """Start the query.

    Args:
        retries, done: see :class:`MicroBatches`.
        partitions: returns what sends for a process. Tests replace it.
    """
    spark.conf.set(_BUCKETS, str(plan.buckets))
    retries.read_logs.begin(plan.progress)
    run = MicroBatches(settings.request_topic, retries, done)
    writer = processed(spark, settings, plan, partitions).writeStream.foreachBatch(run)
    running = writer.option("checkpointLocation", plan.checkpoint).queryName(NAME).start()
    run.watch(running)
    return running
