"""The engine as one streaming query: it reads topics and runs the buckets, which send messages themselves."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.spark import jvm, kafka
from timers.spark.engine import packing, processor
from timers.spark.engine.machines import Read
from timers.spark.engine.openings import Openings, Places
from timers.spark.engine.processor import TOLD, Said, TimerProcessor, Told
from timers.spark.engine.retries import Retries
from timers.wire.formats import LOG_APPEND_TIME

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
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition -> first offset that a query with a new checkpoint reads. Its machine reads the log below it by itself,
    if it needs this."""
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    """Progress of each partition: the committed one, or that of a new machine."""
    run: int = 0
    """Number of this run of the engine."""
    is_new: bool = True
    """Whether the checkpoint is new. If not, its query began at other starts."""


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


def ticks_of(oscillator: DataFrame, buckets: Sequence[int]) -> DataFrame:
    """Each tick (:data:`timers.spark.columns.RECORD`) as one row for each bucket.

    Only records with a time from the broker are ticks [I10].
    """
    return oscillator.where(F.col("timestamp_type") == LOG_APPEND_TIME).select(
        F.explode(F.array(*[F.lit(bucket) for bucket in buckets])).alias("bucket"),
        F.col("partition").alias("tick_partition"),
        F.col("offset").alias("tick_offset"),
        F.col("timestamp_ms").alias("tick_ms"),
    )


def processed(
    spark: SparkSession, settings: Settings, plan: Plan, partitions: Callable[[Places], Openings]
) -> DataFrame:
    """What the buckets do with the topics that the engine reads: ``processor.OUTPUT``."""
    keys = bucket_keys(spark, plan.buckets)
    starts: Offsets = {}
    for (topic, partition), start in plan.starts.items():
        starts.setdefault(topic, {})[partition] = start
    requests = kafka.stream(
        spark,
        settings,
        request_topics(settings),
        startingOffsets=kafka.as_json(starts),
        maxOffsetsPerTrigger=str(plan.max_requests),
        # If retention deleted unread requests, their timers are lost, so the query fails.
        failOnDataLoss="true",
    )
    # Old ticks have no effect, so a new query starts at the newest one, and ticks deleted by retention do not matter.
    ticks = kafka.stream(spark, settings, [settings.oscillator_topic], startingOffsets="latest", failOnDataLoss="false")
    # Spark asks the sources for their ends in this order: the end of the requests is asked for after that of the ticks,
    # so a timer with an id need not wait for another micro-batch [I17]. As many tasks as buckets: each task costs a
    # start in Python, even if it reads little.
    arrivals = requests.coalesce(plan.buckets).mapInArrow(packing.packing(keys), packing.SCHEMA)
    arriving = ticks_of(ticks, keys).unionByName(arrivals, allowMissingColumns=True)
    fired_s = max((each.fired_s for each in plan.progress.values() if each.fired_s is not None), default=None)
    cuts = {tp: each.cuts for tp, each in plan.progress.items() if each.cuts}
    places = Places(settings, plan.cluster, plan.run)
    began = plan.starts if plan.is_new else {}
    run = TimerProcessor(settings, keys, partial(partitions, places), began, cuts, fired_s)
    buckets = arriving.groupBy("bucket")
    return buckets.transformWithStateInPandas(run, processor.OUTPUT, outputMode="append", timeMode="none")


def request_topics(settings: Settings) -> list[str]:
    """The topics that the query reads: those of all formats. The driver reads the retry topic."""
    return [topic for topic in enabled_formats(settings) if topic != settings.retry_topic]


def start(
    spark: SparkSession,
    settings: Settings,
    plan: Plan,
    retries: Retries,
    done: Callable[[int, Sequence[Said]], None],
    partitions: Callable[[Places], Openings] = Openings.of,
) -> StreamingQuery:
    """Start the query.

    Args:
        retries: has what the driver knows of callback topics, whose circuits the tasks get and report, and of the logs;
            and the questions of queries.
        done: gets the number of a micro-batch, and what its buckets say.
        partitions: returns what opens partitions in a process. Tests replace it.
    """
    formats, topics = enabled_formats(settings), request_topics(settings)
    with_ids = [topic for topic in topics if formats[topic].has_ids]
    targets, running = retries.openings.parts.targets, Future[StreamingQuery]()

    def run(frame: DataFrame, number: int) -> None:
        ends = {
            (topic, int(partition)): end
            for of_topics in jvm.planned_offsets(running.result(), number)
            for topic in topics
            for partition, end in of_topics.get(topic, {}).items()
        }
        lineages = retries.read_logs.through(ends)
        log_ends = retries.read_logs.log_ends(ends, with_ids, plan.max_requests)
        read = {tp: Read(end, log_ends.get(tp), lineages[tp]) for tp, end in ends.items()}
        circuits = [each._replace(new_from_s=each.new_from_s + TRIAL_S) for each in targets.circuit_breaker.circuits()]
        told = Told(read, circuits, retries.questions.told())
        frame.sparkSession.sparkContext.setLocalProperty(TOLD, told.encode())
        said: list[Said] = [pickle.loads(row["said"]) for row in frame.collect()]
        for bucket in said:
            targets.merge(bucket.failing.opened)
            targets.note_worked(bucket.failing.worked)
            retries.questions.note(bucket.total.answers)
        done(number, said)

    spark.conf.set(_BUCKETS, str(plan.buckets))
    retries.read_logs.begin(plan.progress)
    writer = processed(spark, settings, plan, partitions).writeStream.foreachBatch(run)
    running.set_result(writer.option("checkpointLocation", plan.checkpoint).queryName(NAME).start())
    return running.result()
