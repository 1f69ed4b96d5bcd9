"""``timers spark hold``: moves requests from the cold topic into the cold tables, each exactly once.

The job is a stream with a checkpoint. Each micro-batch is one commit of the table, and the commit contains the number
of the micro-batch: Delta ignores a micro-batch that Spark repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.errors import SettingsError
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.process.counted import counted, per_second
from timers.spark import kafka
from timers.spark.cold import CLUSTERED_BY, ColdTables, hold

_OBSERVED, _FOREIGN = "hold", "foreign"
"""Names of what Spark counts in each micro-batch: records that are no cold requests."""

MAX_RECORDS = 500_000
"""Records of one micro-batch: limits its duration after a long downtime."""


def run(
    spark: SparkSession,
    settings: Settings,
    tables: ColdTables,
    say: Callable[[str], None],
    every_s: int | None = None,
    stop: Event | None = None,
) -> int:
    """Run until ``stop`` is set, or once, and return the number of requests that were held.

    Args:
        every_s: seconds between micro-batches; None: read all existing records, then end.
        stop: ends the job. The next run repeats a micro-batch that is not committed by then.

    Raises:
        SettingsError: the topic of cold timers does not exist.
    """
    topic = settings.cold_topic
    if topic not in TopicOffsets(settings).existing([topic]):
        raise SettingsError(
            f"topic TIMERS_COLD_TOPIC={topic!r} does not exist at {settings.brokers}: start a worker (or "
            "the engine on Spark) with TIMERS_HOT_HORIZON_S, which creates it"
        )
    tables.create(spark)
    query = start(spark, settings, tables, every_s)
    reported, total, seen = -1, 0, None
    stop = stop or Event()
    try:
        ended = False
        while not ended and not stop.is_set():
            ended = bool(query.awaitTermination(1))
            last = query.lastProgress
            if last is None or last.timestamp == seen:
                continue  # each use of recentProgress costs hundreds of calls into the JVM
            seen = last.timestamp
            for progress in query.recentProgress:
                if progress.batchId > reported and progress.numInputRows:
                    foreign = progress.observedMetrics[_OBSERVED][_FOREIGN]
                    held = progress.numInputRows - foreign
                    reported, total = progress.batchId, total + held
                    rate = per_second(progress.processedRowsPerSecond)
                    say(f"hold: {held:,} held, {rate}, {total:,} since the start")
                    if foreign:
                        what = counted(foreign, "record")
                        say(f"hold: {what} of {topic} will not be promoted: the headers of a cold request are missing")
    finally:
        query.stop()
    return total


def start(spark: SparkSession, settings: Settings, tables: ColdTables, every_s: int | None) -> StreamingQuery:
    records = kafka.stream(
        spark,
        settings,
        [settings.cold_topic],
        startingOffsets="earliest",
        # If retention deleted records before they were held, their timers are lost: the job fails.
        failOnDataLoss="true",
        maxOffsetsPerTrigger=str(MAX_RECORDS),
    )
    held = hold(records, F.unix_millis(F.current_timestamp()))
    held = held.observe(_OBSERVED, F.count_if(F.col("source").isNull()).alias(_FOREIGN))
    # A micro-batch writes one file, sorted: a search reads only the pages of the seconds that it needs.
    held = held.repartition(1).sortWithinPartitions(CLUSTERED_BY)
    writer = held.writeStream.queryName("timers-hold").format("delta").outputMode("append")
    writer = writer.option("checkpointLocation", tables.checkpoint)
    if every_s is None:
        return writer.trigger(availableNow=True).start(tables.held)
    return writer.trigger(processingTime=f"{every_s} seconds").start(tables.held)
