"""``timers spark hold``: moves requests from the cold topic into the cold tables, each exactly once.

The job is a stream with a checkpoint. Each micro-batch is one commit of the table, and the commit contains the number
of the micro-batch: Delta ignores a micro-batch that Spark repeats. It ignores one with another content, too. So before
the stream starts, checkpoint, table and topic must fit together (:func:`fit`): a part of them may have been lost, or
have come back from a backup.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event

from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from timers.errors import NameTakenError, SettingsError
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.process.config.settings import Settings
from timers.process.counted import counted, per_second
from timers.spark import jvm, kafka
from timers.spark.cold import TOPIC_ID_PROPERTY, WENT_ON_PROPERTY, ColdTables, hold
from timers.spark.storage import (
    COMMIT_TRIES,
    ENDED_DIRECTORY,
    PLANNED_DIRECTORY,
    is_conflict,
    numbers,
    properties_of,
    retried,
)

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
        NameTakenError: another process does the same.
    """
    topic = settings.cold_topic
    topic_id = TopicOffsets(settings).id_of(topic).hex()
    if not topic_id:
        raise SettingsError(
            f"topic TIMERS_COLD_TOPIC={topic!r} does not exist at {settings.brokers}: start a worker (or "
            "the engine on Spark) with TIMERS_HOT_HORIZON_S, which creates it"
        )
    tables.create(spark)
    fit(spark, tables, topic, topic_id, say)
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


def fit(spark: SparkSession, tables: ColdTables, topic: str, topic_id: str, say: Callable[[str], None]) -> None:
    """Let the stream read again what the table may lack. The jobs tell apart what the table has twice.

    Spark plans a micro-batch, Delta commits it, and Spark notes its end. So the last one in the table is the last
    planned one, or the one before while nothing has noted the end of the planned one.

    Raises:
        NameTakenError: another process writes to the checkpoint.
    """
    known, checkpoint = properties_of(spark, tables.held), tables.checkpoint
    query, (planned, ended) = _query(spark, checkpoint), _numbers(spark, checkpoint)
    last = _last(spark, tables, query, known, say)
    if _numbers(spark, checkpoint) != (planned, ended):
        raise NameTakenError(f"another `timers spark hold` uses the table {tables.held!r}: this one ends")
    if known.get(TOPIC_ID_PROPERTY, topic_id) != topic_id:
        _read_anew(spark, checkpoint, f"{topic} was made anew", topic, say)
    elif last is not None and 0 <= planned < last:
        anew = str(uuid.uuid4())  # Delta would skip micro-batches of the former query up to the last one
        _note(spark, tables, f"{WENT_ON_PROPERTY}{anew}", str(planned))
        jvm.write_text(spark, f"{checkpoint}/metadata", json.dumps({"id": anew}))
        say("hold: the checkpoint is older than the table: some requests are read once more")
    elif (
        (last is not None and not max(planned - 1, ended) <= last <= planned)
        or not query  # Spark refuses a checkpoint with damaged metadata
        or _was_restored(spark, tables, query)
    ):
        _read_anew(spark, checkpoint, "table and checkpoint do not fit together", topic, say)
    if known.get(TOPIC_ID_PROPERTY) != topic_id:
        _note(spark, tables, TOPIC_ID_PROPERTY, topic_id)


def _numbers(spark: SparkSession, checkpoint: str) -> tuple[int, int]:
    """The last planned and the last ended micro-batch of a checkpoint; -1: there is none."""
    planned, ended = (
        max(numbers(spark, f"{checkpoint}/{of}"), default=-1) for of in (PLANNED_DIRECTORY, ENDED_DIRECTORY)
    )
    return planned, ended


def read_to(spark: SparkSession, checkpoint: str) -> Offsets:
    """To where `hold` has read, by the last micro-batch that has ended; empty: none has, or its file is damaged."""
    _, ended = _numbers(spark, checkpoint)
    planned = dict(jvm.read_texts(spark, f"{checkpoint}/{PLANNED_DIRECTORY}")).get(str(ended)) or ""
    with suppress(ValueError, TypeError, AttributeError):
        return kafka.from_json(planned.rpartition("\n")[2])  # after lines with the version and properties
    return {}


def _last(
    spark: SparkSession, tables: ColdTables, query: str, known: Mapping[str, str], say: Callable[[str], None]
) -> int | None:
    """The last micro-batch of a query that the table has; -1: none. None: this Delta does not tell."""
    try:
        last = jvm.last_in_table(spark, tables.held, query)
    except NotImplementedError as error:
        say(f"hold: the checkpoint is not compared with the table: {error}")
        return None
    return int(known.get(f"{WENT_ON_PROPERTY}{query}", -1)) if last is None else last


def _note(spark: SparkSession, tables: ColdTables, name: str, value: str) -> None:
    path = tables.held.replace("`", "``")
    retried(lambda: spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = '{value}')"))


def _read_anew(spark: SparkSession, checkpoint: str, why: str, topic: str, say: Callable[[str], None]) -> None:
    if jvm.exists(spark, checkpoint):
        jvm.move(spark, checkpoint, f"{checkpoint}-{uuid.uuid4().hex}")
        say(f"hold: {why}, so {topic} is read from its start")


def _query(spark: SparkSession, checkpoint: str) -> str:
    """The id of the query of a checkpoint; empty: it is lost, and Spark chooses another one."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(dict(jvm.read_texts(spark, checkpoint))["metadata"] or "")["id"])
    return ""


_LOOK_BACK = 100
"""How many commits before the start of the job are looked at for a RESTORE: it is among the last ones if it was done
while the job was stopped."""


def _was_restored(spark: SparkSession, tables: ColdTables, query: str) -> bool:
    """Whether a user has set the table back (``RESTORE``) since the query of the checkpoint has written to it: it
    lacks rows then, but not the number of the last micro-batch."""
    commits = DeltaTable.forPath(spark, tables.held).history(_LOOK_BACK).select("operation", "operationParameters")
    newest_first = [
        "own" if (each.operationParameters or {}).get("queryId") == query else each.operation
        for each in commits.collect()
    ]
    return "RESTORE" in newest_first and "own" in newest_first[newest_first.index("RESTORE") :]


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
