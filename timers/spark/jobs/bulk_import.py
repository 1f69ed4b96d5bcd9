"""``timers spark import``: timers from files, each once, however often the same files are imported.

The id of a timer is made of its row, so it is the same in every run. What was sent is in a ledger, a Delta table: an id
that stands there is not sent again, whether it has fired or not. A run says in the ledger that it begins, and where the
topic ended then; it says that it is done when it has written down its ids. One that broke in between has sent nobody
knows what: the next run reads that from the topic itself, before anything else.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from timers.config.settings import Settings
from timers.errors import SettingsError
from timers.kafka.topic_offsets import Places, Topics
from timers.spark import kafka, rows
from timers.wire.dead_letter import OVERHEAD_BYTES

Console = Callable[[str], None]

LEDGER = StructType(
    [StructField("id", StringType()), StructField("due_s", LongType()), StructField("run", StringType())]
)
"""One row for each timer that was sent. ``due_s`` is null where a broken run sent it."""

RUNS = StructType(
    [StructField("run", StringType()), StructField("state", StringType()), StructField("starts", StringType())]
)
"""Two rows for each run that was not broken. ``state``: ``begun`` or ``done``; ``starts``: where the topic ended when
it began, as JSON."""

BEGUN, DONE = "begun", "done"


@dataclass(frozen=True)
class Import:
    """What to import.

    Attributes:
        settings: where the brokers are, who we are, and the topic of timers with an id.
        paths: files or directories.
        format: ``parquet``, ``csv`` or ``json`` (an object a line).
        name: of the import; part of every id.
        ledger: where the ledger is: a path that this and all later runs share.
        rejects: where rows go that ask for nothing that can be done.
        as_base64: values are base64.
    """

    settings: Settings
    paths: tuple[str, ...]
    format: str
    name: str
    ledger: str
    rejects: str
    as_base64: bool = False


@dataclass(frozen=True)
class Imported:
    """What came of it: how many."""

    rows: int
    rejected: int
    known: int
    """Sent by a former run."""
    sent: int


def run(spark: SparkSession, job: Import, say: Console) -> Imported:
    """Import what was not imported before.

    Raises:
        SettingsError: there is no request format of timers with an id, or the files have not the columns.
    """
    topic = _topic(job.settings)
    topics = Topics(job.settings)
    if topic not in topics.existing([topic]):
        raise SettingsError(f"topic TIMERS_ID_TOPIC={topic!r} does not exist at {job.settings.brokers}: start a worker")
    ledger = Ledger(spark, job.ledger)
    for broken, starts in ledger.broken():
        found = ledger.add(broken, _in_topic(spark, job, starts, topics.ends([topic])))
        ledger.end(broken)
        say(f"a run that was broken had sent {found:,} timers")
    read = rows.entries(_read(spark, job), job.settings.max_request_bytes, as_base64=job.as_base64)
    read = read.persist(StorageLevel.DISK_ONLY)
    total, rejected = read.agg(F.count(F.lit(1)), F.count("reason")).collect()[0]
    say(f"{total:,} rows read, {rejected:,} of them rejected")
    _reject(read, job.rejects)
    requests = numbered(read, job.name)
    fresh = requests.join(ledger.sent(), "id", "left_anti").persist(StorageLevel.DISK_ONLY)
    count = fresh.count()
    if count:
        name = uuid.uuid4().hex
        ledger.begin(name, topics.ends([topic]))
        _send(fresh, job.settings, topic)
        ledger.add(name, fresh)
        ledger.end(name)
    say(f"{count:,} timers sent, {total - rejected - count:,} were sent before")
    return Imported(total, rejected, total - rejected - count, count)


def numbered(entries: DataFrame, name: str) -> DataFrame:
    """Good rows with their ids; equal ones are numbered, for they are timers of their own.

    Args:
        entries: in the shape of :data:`timers.spark.rows.ENTRY`.
        name: of the import.

    Returns:
        ``id``, ``due_s``, ``value``, ``headers``.
    """
    alike = (
        entries.where("reason is null")
        .groupBy("content")
        .agg(F.count(F.lit(1)).alias("times"), *(F.first(each).alias(each) for each in ("due_s", "value", "headers")))
    )
    each = alike.withColumn("number", F.explode(F.sequence(F.lit(1), F.col("times"))))
    id = F.concat_ws("-", F.lit(name), "content", F.col("number").cast("string"))
    return each.select(id.alias("id"), "due_s", "value", "headers")


# ---- read ------------------------------------------------------------------------------------------------------------


def _read(spark: SparkSession, job: Import) -> DataFrame:
    if job.format == "parquet":
        return spark.read.parquet(*job.paths)
    reader = spark.read.option("columnNameOfCorruptRecord", rows.BROKEN)
    if job.format == "json":
        return reader.schema(_texts(rows.FIELDS)).json(list(job.paths))
    reader = reader.options(header="true", multiLine="true", escape='"')
    named = reader.csv(list(job.paths)).columns  # the order of the file is all that CSV goes by
    return reader.schema(_texts(named)).csv(list(job.paths))


def _texts(names: Sequence[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in (*names, rows.BROKEN)])


def _in_topic(spark: SparkSession, job: Import, starts: Places, ends: Places) -> DataFrame:
    """Ids of this import in a range of the topic: ``id``, ``due_s`` (null: it is not looked at)."""
    key = F.col("key").cast("string")
    records = kafka.read(spark, job.settings, starts, {topic: ends[topic] for topic in starts})
    ours = records.where(key.startswith(f"{job.name}-"))
    return ours.select(key.alias("id"), F.lit(None).cast("long").alias("due_s")).distinct()


def _topic(settings: Settings) -> str:
    if not settings.id_topic:
        raise SettingsError(
            "TIMERS_ID_TOPIC is not set: timers are imported by the request format of timers with an id"
        )
    return settings.id_topic


# ---- write -----------------------------------------------------------------------------------------------------------


def _send(requests: DataFrame, settings: Settings, topic: str) -> None:
    """Publish requests. Their partition is that of Java's producer, which is our client's rule for ids, too."""
    options = {
        **kafka.sink_options(settings, settings.max_request_bytes + OVERHEAD_BYTES),
        "includeHeaders": "true",
        "topic": topic,
    }
    requests.select(F.col("id").alias("key"), "value", "headers").write.format("kafka").options(**options).save()


def _reject(entries: DataFrame, target: str) -> None:
    bad = entries.where("reason is not null").select("reason", "row")
    bad.write.mode("overwrite").json(target)


class Ledger:
    """What was sent, in two Delta tables below one path. One import at a time."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._sent, self._runs = f"{path.rstrip('/')}/sent", f"{path.rstrip('/')}/runs"
        for table, schema in ((self._sent, LEDGER), (self._runs, RUNS)):
            DeltaTable.createIfNotExists(spark).location(table).addColumns(schema).execute()

    def sent(self) -> DataFrame:
        """Ids that were sent."""
        return self._spark.read.format("delta").load(self._sent).select("id")

    def broken(self) -> list[tuple[str, Places]]:
        """Runs that began and did not end, with where the topic ended when they began."""
        runs = self._spark.read.format("delta").load(self._runs)
        done = runs.where(F.col("state") == DONE).select("run")
        begun = runs.where(F.col("state") == BEGUN).join(done, "run", "left_anti").collect()
        return [(row.run, _places(row.starts)) for row in begun]

    def begin(self, run: str, starts: Places) -> None:
        """Note that a run begins."""
        self._note(run, BEGUN, kafka.as_json(starts))

    def end(self, run: str) -> None:
        """Note that all that a run has sent stands in the ledger."""
        self._note(run, DONE, None)

    def add(self, run: str, ids: DataFrame) -> int:
        """Write down what was sent, and return how many that are; what stands there already stays as it is."""
        fresh = ids.select("id", "due_s").join(self.sent(), "id", "left_anti").withColumn("run", F.lit(run))
        fresh = fresh.persist(StorageLevel.DISK_ONLY)
        count = fresh.count()
        fresh.write.format("delta").mode("append").save(self._sent)
        return count

    def _note(self, run: str, state: str, starts: str | None) -> None:
        self._spark.createDataFrame([(run, state, starts)], RUNS).write.format("delta").mode("append").save(self._runs)


def _places(text: str) -> Places:
    return {topic: {int(p): offset for p, offset in of.items()} for topic, of in json.loads(text).items()}
