"""The engine as one streaming query: read, select, transform, select, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.config.settings import Settings
from timers.core.progress import Progress
from timers.spark import kafka
from timers.spark.columns import HEADERS, LOG_APPEND_TIME, records
from timers.spark.engine import accepting, firing, processor
from timers.spark.engine.accepting import Accepting
from timers.spark.engine.firing import Firing
from timers.spark.engine.processor import TimerProcessor
from timers.wire import headers as h
from timers.wire.dead_letter import OVERHEAD_BYTES

NAME = "timers-engine"

STATE = "state"
SENT = "sent"
"""Names of what is observed on the way: how buckets stand, and what was sent."""

_BUCKETS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Plan:
    """What a query is made of.

    A checkpoint belongs to the number of buckets that it was begun with: Spark keeps that in it.
    """

    checkpoint: str
    """Directory, on storage that all executors share."""
    buckets: int
    """Parts that the state is kept in: as many tasks work on it at once."""
    max_requests: int
    """Most requests read in one micro-batch."""
    workers: Mapping[str, Progress] = field(default_factory=dict)
    """How far workers of the same app came before this engine, by ``<topic>/<partition>``."""


def session_settings(buckets: int) -> dict[str, str]:
    """Settings of Spark that the query needs."""
    state = "spark.sql.streaming.stateStore"
    return {
        _BUCKETS: str(buckets),
        f"{state}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        # Each micro-batch writes what it changed, not all that there is.
        f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{state}.rocksdb.trackTotalNumberOfRows": "false",
        # Of a checkpoint on this machine: offsets, commits and changes without a second file of checksums for each.
        # To make a file costs more than what is in it, since Hadoop starts a process for each one's permissions.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Micro-batches that one can go back to; each is a few files.
        "spark.sql.streaming.minBatchesToRetain": "10",
        # Has no meaning for streams, and Spark says so at each start.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # Off: with a limit, Spark 4.0 adds up a batch's bytes anew with each of its rows, most of what a request cost.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.python.daemon.module": "timers.spark.daemon",
        # Spark's own work is little for each timer and much code for each micro-batch: Java's second compiler, which
        # takes minutes of CPU to make that faster, costs more than it brings.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # A busy machine may take longer than 15 s to start a Python process: no reason to stop an engine.
        "spark.python.authenticate.socketTimeout": "60s",
    }


def buckets_of(spark: SparkSession, checkpoint: str) -> int | None:
    """How many buckets a checkpoint was begun with; None if there is nothing in it yet."""
    try:
        lines = spark.read.text(f"{checkpoint}/offsets")
    except AnalysisException:
        return None
    found = lines.select(F.get_json_object("value", f"$.conf['{_BUCKETS}']").cast("int").alias("buckets"))
    first = found.where("buckets is not null").first()
    return None if first is None else int(first["buckets"])


def bucket_keys(spark: SparkSession, count: int) -> list[int]:
    """One key for each partition of the state: Spark puts a key where its hash says, so numbers 0, 1, 2 would share."""
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


def parcels_of(requests: DataFrame, accept: Accepting) -> DataFrame:
    """Requests (:data:`timers.spark.columns.RECORD`) as timer batches (``processor.INPUT``)."""
    packed = requests.select(*accepting.COLUMNS).mapInArrow(accept, accepting.SCHEMA)
    return packed.select(
        "bucket",
        "timer_batch",
        F.lit(None).cast("int").alias("tick_partition"),
        F.lit(None).cast("bigint").alias("tick_offset"),
        F.lit(None).cast("bigint").alias("tick_ms"),
    )


def ticks_of(oscillator: DataFrame, buckets: Sequence[int]) -> DataFrame:
    """Each tick (:data:`timers.spark.columns.RECORD`) for every bucket (``processor.INPUT``).

    A tick's time is the broker's, never its producer's.
    """
    return oscillator.where(F.col("timestamp_type") == LOG_APPEND_TIME).select(
        F.explode(F.array(*[F.lit(bucket) for bucket in buckets])).alias("bucket"),
        F.lit(None).cast("binary").alias("timer_batch"),
        F.col("partition").alias("tick_partition"),
        F.col("offset").alias("tick_offset"),
        F.col("timestamp_ms").alias("tick_ms"),
    )


def turns_of(arriving: DataFrame) -> DataFrame:
    """Each bucket's turn: ``processor.INPUT`` to ``processor.OUTPUT``."""
    turns = arriving.groupBy("bucket").transformWithStateInPandas(
        TimerProcessor(), processor.OUTPUT, outputMode="append", timeMode="none"
    )
    return turns.observe(
        STATE,
        F.sum("pending").alias("pending"),
        F.count("pending").alias("buckets"),
        F.max("tick_ms").alias("tick_ms"),
    )


def messages_of(turns: DataFrame, fire: Firing) -> DataFrame:
    """What is sent, from ``processor.OUTPUT``: topic, key, value, headers."""
    due = turns.where(F.col("timer_batch").isNotNull()).select("tick_ms", "timer_batch")
    messages = due.mapInArrow(fire, firing.MESSAGE).observe(
        SENT,
        F.count("place").alias("fired"),
        F.count_if(F.col("place").isNull()).alias("dead_lettered"),
    )
    return messages.select("topic", "key", "value", _headers().alias("headers"))


def _headers() -> Column:
    """The request's own, then ours; of a dead letter just what it has."""
    timer_id = F.concat_ws("/", "place", F.col("offset").cast("string"))
    ours = F.array(
        _header(h.TIMER_ID, timer_id),
        _header(h.TIMER_DUE, F.col("due_s").cast("string")),
        _header(h.TIMER_FIRED, F.col("tick_ms").cast("string")),
    )
    own = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
    return F.when(F.col("place").isNull(), F.col("headers")).otherwise(F.concat(own, ours))


def _header(name: str, text: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))


def messages(spark: SparkSession, settings: Settings, plan: Plan) -> DataFrame:
    """All between the topics that are read and those that are written."""
    keys = bucket_keys(spark, plan.buckets)
    max_message_bytes = settings.max_request_bytes + OVERHEAD_BYTES
    requests = _stream(
        spark,
        settings,
        settings.request_topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(plan.max_requests),
        # A request that retention took is a timer lost: better no engine than one that does not say so.
        failOnDataLoss="true",
    )
    # From the newest: what time it was does not matter. Nor do ticks that retention took while the engine was down.
    ticks = _stream(spark, settings, settings.oscillator_topic, startingOffsets="latest", failOnDataLoss="false")
    accept = Accepting(tuple(keys), settings.max_request_bytes, max_message_bytes, plan.workers)
    # As many tasks as buckets: each more costs a process in Python its start, however little it reads.
    arriving = parcels_of(requests.coalesce(plan.buckets), accept).unionByName(ticks_of(ticks, keys))
    return messages_of(turns_of(arriving), Firing(settings, max_message_bytes))


def _stream(spark: SparkSession, settings: Settings, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**kafka.source_options(settings, [topic]))
    return records(reader.options(**options).load())


def start(spark: SparkSession, settings: Settings, plan: Plan) -> StreamingQuery:
    """Run the engine."""
    sink = {
        **kafka.client_options(settings),
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        # What fits in a topic was judged before, by that topic's own limit.
        "kafka.max.request.size": str(2**31 - 1),
        "checkpointLocation": plan.checkpoint,
    }
    return messages(spark, settings, plan).writeStream.format("kafka").options(**sink).queryName(NAME).start()
