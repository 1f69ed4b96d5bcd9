"""``timers spark hold``: moves requests from the cold topic into the cold tables, each exactly once.

The job is a stream with a checkpoint. Each micro-batch is one commit of the table, and the commit contains the number
of the micro-batch: Delta ignores a micro-batch that Spark repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from timers.errors import SettingsError
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.process.counted import counted, per_second
from timers.spark import kafka
from timers.spark.cold import ColdTables, hold
from timers.spark.storage import COMMIT_TRIES, is_conflict

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
    held = Held(say)
    stop, failed = stop or Event(), 0
    while not stop.is_set():
        query, before = start(spark, settings, tables, every_s), held.total
        try:
            held.follow(query, topic, stop)
            break
        except StreamingQueryException as error:
            failed = failed + 1 if held.total == before else 1
            if not is_conflict(error) or failed == COMMIT_TRIES:
                raise
            say("hold: another program changed the table at the same moment; the micro-batch is repeated")
        finally:
            query.stop()
    return held.total


class Held:
    """Says what the stream has held.

    Attributes:
        total: requests since the start of the job.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._reported, self.total = say, -1, 0

    def follow(self, query: StreamingQuery, topic: str, stop: Event) -> None:
        """Report each micro-batch until ``stop`` is set or the stream ends."""
        ended, seen = False, None
        while not ended and not stop.is_set():
            ended = bool(query.awaitTermination(1))
            last = query.lastProgress
            if last is None or last.timestamp == seen:
                continue  # each use of recentProgress costs hundreds of calls into the JVM
            seen = last.timestamp
            for progress in query.recentProgress:
                if progress.batchId > self._reported and progress.numInputRows:
                    self._report(progress, topic)

    def _report(self, progress: StreamingQueryProgress, topic: str) -> None:
        foreign = progress.observedMetrics[_OBSERVED][_FOREIGN]
        held = progress.numInputRows - foreign
        self._reported, self.total = progress.batchId, self.total + held
        rate = per_second(progress.processedRowsPerSecond)
        self._say(f"hold: {held:,} held, {rate}, {self.total:,} since the start")
        if foreign:
            what = counted(foreign, "record")
            self._say(f"hold: {what} of {topic} will not be promoted: the headers of a cold request are missing")


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
    held = held.repartition(1)  # a micro-batch writes one file
    writer = held.writeStream.queryName("timers-hold").format("delta").outputMode("append")
    writer = writer.option("checkpointLocation", tables.checkpoint)
    if every_s is None:
        return writer.trigger(availableNow=True).start(tables.held)
    return writer.trigger(processingTime=f"{every_s} seconds").start(tables.held)
