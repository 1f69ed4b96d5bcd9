"""The engine as one streaming query: reads topics, runs the buckets, writes messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.config.settings import Settings
from timers.core.progress import Progress
from timers.kafka.clients import max_message_bytes
from timers.spark import kafka
from timers.spark.columns import HEADERS, LOG_APPEND_TIME
from timers.spark.engine import accepting, firing, processor
from timers.spark.engine.accepting import Accepting
from timers.spark.engine.firing import Firing
from timers.spark.engine.processor import TimerProcessor
from timers.wire import headers as h

NAME = "timers-engine"

STATE = "state"
SENT = "sent"
"""Names of the observed metrics: the state of the buckets, and the messages that were sent."""

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
    workers: Mapping[str, Progress] = field(default_factory=dict)
    """Progress of the workers that ran this app before the engine, by ``<topic>/<partition>``."""


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
        # Spark ignores it for streams, and logs a warning at each start if it is on.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # No limit: with one, Spark 4.0 sums the bytes of the whole batch for each row, 24 of the 29 us of a request.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.python.daemon.module": "timers.spark.daemon",
        # Without Java's second compiler: it took a third of the CPU of the first minutes and made requests no faster.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # A busy machine may need longer than the default of 15 s to start a Python process.
        "spark.python.authenticate.socketTimeout": "60s",
    }


def buckets_of(spark: SparkSession, checkpoint: str) -> int | None:
    """Number of buckets of a checkpoint; None if the checkpoint is empty."""
    try:
        lines = spark.read.text(f"{checkpoint}/offsets")
    except AnalysisException:
        return None
    found = lines.select(F.get_json_object("value", f"$.conf['{_BUCKETS}']").cast("int").alias("buckets"))
    first = found.where("buckets is not null").first()
    return None if first is None else int(first["buckets"])


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


def timer_batches_of(requests: DataFrame, accept: Accepting) -> DataFrame:
    """Requests (:data:`timers.spark.columns.RECORD`) as rows with timer batches (``processor.INPUT``)."""
    packed = requests.select(*accepting.COLUMNS).mapInArrow(accept, accepting.SCHEMA)
    return packed.select(
        "bucket",
        "timer_batch",
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
        F.lit(None).cast("binary").alias("timer_batch"),
        F.col("partition").alias("tick_partition"),
        F.col("offset").alias("tick_offset"),
        F.col("timestamp_ms").alias("tick_ms"),
    )


def process(arriving: DataFrame, max_clock_leap_s: int, accept_time_s: int | None = None) -> DataFrame:
    """Run all buckets: ``processor.INPUT`` to ``processor.OUTPUT``. The other arguments are settings."""
    processed = arriving.groupBy("bucket").transformWithStateInPandas(
        TimerProcessor(max_clock_leap_s, accept_time_s), processor.OUTPUT, outputMode="append", timeMode="none"
    )
    return processed.observe(
        STATE,
        F.sum("pending").alias("pending"),
        F.count("pending").alias("buckets"),
        F.max("tick_ms").alias("tick_ms"),
    )


def messages_of(processed: DataFrame, fire: Firing) -> DataFrame:
    """The messages to send for ``processor.OUTPUT``: topic, key, value, headers."""
    due = processed.where(F.col("timer_batch").isNotNull()).select("tick_ms", "timer_batch")
    messages = due.mapInArrow(fire, firing.MESSAGE).observe(
        SENT,
        F.count("place").alias("fired"),
        F.count_if(F.col("place").isNull()).alias("dead_lettered"),
    )
    return messages.select("topic", "key", "value", _headers().alias("headers"))


def _headers() -> Column:
    """The headers of the request, then those of the engine. A dead letter has its headers already."""
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
    """The messages of the engine, from the topics that it reads."""
    keys = bucket_keys(spark, plan.buckets)
    max_bytes = max_message_bytes(settings)
    requests = kafka.stream(
        spark,
        settings,
        [settings.request_topic],
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(plan.max_requests),
        # If retention deleted unread requests, their timers are lost, so the query fails.
        failOnDataLoss="true",
    )
    # Old ticks have no effect, so a new query starts at the newest one, and ticks deleted by retention do not matter.
    ticks = kafka.stream(spark, settings, [settings.oscillator_topic], startingOffsets="latest", failOnDataLoss="false")
    accept = Accepting(tuple(keys), settings.max_request_bytes, max_bytes, plan.workers)
    # As many tasks as buckets: each task costs a start in Python, even if it reads little.
    arriving = timer_batches_of(requests.coalesce(plan.buckets), accept).unionByName(ticks_of(ticks, keys))
    processed = process(arriving, settings.max_clock_leap_s, settings.accept_time_s)
    return messages_of(processed, Firing(settings, max_bytes))


def start(spark: SparkSession, settings: Settings, plan: Plan) -> StreamingQuery:
    # No limit: FiringTask has compared each message with the limit of its topic.
    sink = {**kafka.sink_options(settings, 2**31 - 1), "checkpointLocation": plan.checkpoint}
    return messages(spark, settings, plan).writeStream.format("kafka").options(**sink).queryName(NAME).start()
