"""``timers spark hold``: what is on the cold topic goes into the cold table, exactly once.

A stream with a checkpoint: each micro-batch is one commit of the table, which remembers which micro-batch it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.config.settings import Settings
from timers.spark import kafka
from timers.spark.cold import ColdTables, hold

Console = Callable[[str], None]

MAX_RECORDS = 500_000
"""In one micro-batch: bounds how long one takes after a long absence."""


@dataclass(frozen=True)
class Hold:
    """What to do.

    Attributes:
        settings: where the brokers are, and which topics are whose.
        tables: where cold requests go.
        every_s: seconds between micro-batches; None: take in what is there now, and end.
    """

    settings: Settings
    tables: ColdTables
    every_s: int | None = None


def run(spark: SparkSession, job: Hold, say: Console, stop: Event | None = None) -> int:
    """Hold until told to end, or once.

    Args:
        spark: the session.
        job: what to do.
        say: takes a line on each micro-batch.
        stop: set to end it. What a micro-batch has not committed by then, the next run takes in.

    Returns:
        Requests that were taken in.
    """
    job.tables.create(spark)
    query = start(spark, job)
    said, total = -1, 0
    stop = stop or Event()
    try:
        ended = False
        while not ended and not stop.is_set():
            ended = bool(query.awaitTermination(1))
            for progress in query.recentProgress:
                if progress.batchId > said and progress.numInputRows:
                    said, total = progress.batchId, total + progress.numInputRows
                    rate = progress.processedRowsPerSecond
                    say(f"hold: {progress.numInputRows:,} held, {rate:,.0f}/s, {total:,} since the start")
    finally:
        query.stop()
    return total


def start(spark: SparkSession, job: Hold) -> StreamingQuery:
    """The stream, running."""
    settings = job.settings
    read = kafka.stream(
        spark,
        settings,
        [settings.cold_topic],
        startingOffsets="earliest",
        # If retention deleted records before they were held, their timers are lost: the job fails.
        failOnDataLoss="true",
        maxOffsetsPerTrigger=str(MAX_RECORDS),
    )
    topics = [topic for topic in (settings.request_topic, settings.id_topic) if topic]
    # By due day, so that a micro-batch makes one file a day.
    held = hold(read, topics, F.unix_millis(F.current_timestamp())).repartition("due_day")
    writer = held.writeStream.format("delta").outputMode("append").option("checkpointLocation", job.tables.checkpoint)
    if job.every_s is None:
        return writer.trigger(availableNow=True).start(job.tables.held)
    return writer.trigger(processingTime=f"{job.every_s} seconds").start(job.tables.held)
