"""``timers spark promote``: what comes near goes back to its own partition, ahead of time, at a bounded rate.

One round writes one chunk of what is due soonest. That it will is noted before (a batch is *begun*, with where the
request logs ended then), and what it has written after. A batch that was begun and not done is settled first: the
copies that it did write stand in those logs, and are noted; the others are chosen anew. So a crash at any point repeats
nothing; and if something repeats a copy all the same, the partition ignores it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.config.settings import Settings
from timers.errors import SparkError
from timers.kafka.topic_offsets import Places, Topics
from timers.spark import cold, kafka
from timers.spark.cold import BATCHES, BEGUN, DONE, PROMOTED, ColdTables, day_of
from timers.spark.columns import header_text
from timers.spark.promoter import SENT, KafkaPort, Port, writer
from timers.spark.scans import files_read
from timers.wire import headers as h
from timers.wire import topics

Console = Callable[[str], None]

CHUNK = 20_000
"""Most copies in one round."""

CHUNK_BYTES = 256 * 1024 * 1024
"""Most bytes of keys and values in one round, give or take one request."""

CARE_S = 6 * 3600
"""Between two looks after the tables."""

RETIRE_AFTER_S = 2 * cold.DAY_S
"""A day is forgotten so long after it began, once all of it was written back."""


class Logs:
    """Where copies go, and where they are looked for: Kafka. Tests bring their own."""

    def __init__(self, spark: SparkSession, settings: Settings, config: dict[str, Any]) -> None:
        self._spark = spark
        self._settings = settings
        self._config = config

    @property
    def _topics(self) -> list[str]:
        return [topic for topic in (self._settings.request_topic, self._settings.id_topic) if topic]

    def ends(self) -> Places:
        """Where the logs of requests end now, for committed readers."""
        return Topics(self._settings).ends(self._topics)

    def in_time(self) -> Column:
        """Which cold requests have certainly not come back, if nothing was noted of them."""
        settings = self._settings
        return cold.was_held_in_time(settings.verdict_retention_s, [settings.id_topic])

    def fence(self) -> None:
        """Whatever a former promoter left open is rolled back, and it writes no more.

        Raises:
            TimersError: the brokers do not let us.
        """
        self.ends()  # says who does not answer, and why
        try:
            KafkaPort(self._config, self._id)
        except KafkaException as error:
            raise SparkError(f"transactional id {self._id!r} cannot be used: {error.args[0].str()}") from error

    def copies_since(self, starts: Places) -> DataFrame:
        """Sources of the copies that were written since: (source)."""
        ends = {topic: places for topic, places in self.ends().items() if topic in starts}
        read = kafka.read(self._spark, self._settings, {topic: starts[topic] for topic in ends}, ends)
        return read.select(header_text(h.TIMER_PROMOTED).alias("source")).where("source is not null")

    def port(self) -> Callable[[], Port]:
        """Opens what a task writes with; goes to an executor."""
        config, transactional_id = self._config, self._id
        return lambda: KafkaPort(config, transactional_id)

    @property
    def _id(self) -> str:
        return topics.promoter_id(self._settings.app_id)


@dataclass(frozen=True)
class Promote:
    """What to do.

    Attributes:
        tables: where cold requests are.
        lead_s: how far ahead of their due second they are written back.
        rate_per_s: most copies a second.
        chunk: most copies in one round.
        overdue: also what was taken in so late that it may have come back before.
    """

    tables: ColdTables
    lead_s: int = 3600
    rate_per_s: int = 5000
    chunk: int = CHUNK
    overdue: bool = False


class Clock(Protocol):
    """What time it is; a test's stands still."""

    def now_s(self) -> int: ...


class Round(NamedTuple):
    """What one round came to."""

    promoted: int
    more: bool
    """Whether more is due than it took."""
    files: int
    """Of the table of cold requests, opened to find what is near."""
    seconds: float

    def line(self, until_s: int) -> str:
        """For people."""
        more = ", more is due" if self.more else ""
        return (
            f"promote: {self.promoted:,} due by {until_s} written back{more}; {self.files} files looked at, "
            f"{self.seconds:.1f} s"
        )


def run(
    spark: SparkSession,
    job: Promote,
    logs: Logs,
    clock: Clock,
    say: Console,
    every_s: int | None = None,
    stop: Event | None = None,
) -> int:
    """Promote until told to end, or once.

    Args:
        spark: the session.
        job: what to do.
        logs: where to.
        clock: says what is near.
        say: takes a line on each round that did something.
        every_s: seconds between looks; None: one look, until nothing is near any more, and the tables are cared for.
        stop: set to end it, after the round that is under way.

    Returns:
        Copies that were written.
    """
    job.tables.create(spark)
    found = settle(spark, job.tables, logs)
    if found:
        say(f"promote: {found:,} had been written back when the run before ended")
    total, care_at_s = 0, clock.now_s()
    stop = stop or Event()
    while not stop.is_set():
        now_s = clock.now_s()
        done = round_of(spark, job, logs, now_s)
        total += done.promoted
        if done.promoted:
            say(done.line(now_s + job.lead_s))
        if done.more:
            continue
        if now_s >= care_at_s:
            care_at_s = now_s + CARE_S
            say(care(spark, job.tables, now_s))
            doubtful = cold.near(spark, job.tables, now_s, ~logs.in_time()).count()
            if doubtful:
                say(
                    f"promote: {doubtful:,} overdue timers were taken in so late that they may have fired before; they "
                    "stay where they are, unless you say --overdue"
                )
        if every_s is None:
            break
        stop.wait(every_s)
    return total


def settle(spark: SparkSession, tables: ColdTables, logs: Logs) -> int:
    """Find out what batches came to that were begun and not done. Before the first round.

    Returns:
        Copies that they had written.
    """
    batches = spark.read.format("delta").load(tables.batches)
    done = batches.where(F.col("state") == DONE).select("batch")
    begun = batches.where(F.col("state") == BEGUN).join(done, "batch", "left_anti").collect()
    logs.fence()
    found = 0
    for batch, _, until_s, starts in begun:
        held = spark.read.format("delta").load(tables.held).where(F.col("due_day") <= day_of(F.lit(until_s)))
        places = {topic: {int(p): at for p, at in of.items()} for topic, of in json.loads(starts).items()}
        sources = logs.copies_since(places).distinct()
        known = spark.read.format("delta").load(tables.promoted).select("due_day", "source")
        new = held.join(sources, "source", "left_semi").join(known, ["due_day", "source"], "left_anti")
        rows = new.select("due_day", "due_s", "source", F.lit(batch).alias("batch")).persist()
        found += rows.count()
        cold.append(rows, tables.promoted, PROMOTED)
        rows.unpersist()
        _note(spark, tables, batch, DONE, until_s)
    return found


def round_of(spark: SparkSession, job: Promote, logs: Logs, now_s: int) -> Round:
    """Write back one chunk of what is due within the lead, the earliest first.

    Args:
        spark: the session.
        job: what to do.
        logs: where to.
        now_s: epoch second. It only decides what is near: a timer never fires early or late by it, but if it is so far
            behind that the lead is used up.
    """
    began = monotonic()
    until_s = now_s + job.lead_s
    near = (
        cold.near(spark, job.tables, until_s, F.lit(job.overdue) | logs.in_time())
        .orderBy("due_s", "source")
        .limit(job.chunk + 1)
    )
    found = near.toArrow()
    files = files_read(near, job.tables.held)
    count = min(_fitting(found), job.chunk)
    if not count:
        return Round(0, False, files, monotonic() - began)
    batch = uuid.uuid4().hex
    chosen = spark.createDataFrame(found.slice(0, count).select(["due_day", "due_s", "source"]))
    _note(spark, job.tables, batch, BEGUN, until_s, kafka.as_json(logs.ends()))
    days = found.slice(0, count).column("due_day").unique().to_pylist()
    whole = cold.payloads(spark, job.tables, chosen, days).repartition(1)
    written = whole.mapInArrow(writer(logs.port(), job.rate_per_s), SENT).agg(F.sum("copies")).collect()[0][0]
    assert written == count, f"{written} copies of {count}"
    cold.append(chosen.withColumn("batch", F.lit(batch)), job.tables.promoted, PROMOTED)
    _note(spark, job.tables, batch, DONE, until_s)
    return Round(count, found.num_rows > count, files, monotonic() - began)


def _fitting(found: pa.Table) -> int:
    """How many of the first rows are within :data:`CHUNK_BYTES`; one at least."""
    size = 0
    sizes = found.column("size").to_pylist()
    for at, each in enumerate(sizes):
        size += each
        if size > CHUNK_BYTES and at:
            return at
    return len(sizes)


def _note(spark: SparkSession, tables: ColdTables, batch: str, state: str, until_s: int, starts: str = "") -> None:
    cold.append(spark.createDataFrame([(batch, state, until_s, starts)], BATCHES), tables.batches, BATCHES)


def care(spark: SparkSession, tables: ColdTables, now_s: int) -> str:
    """Forget days that are over, make few files of many, delete what no reader needs."""
    days = cold.retire(spark, tables, now_s - RETIRE_AFTER_S)
    replaced = cold.compact(spark, tables)
    return f"promote: {days} days forgotten, {replaced} files made larger ones"
