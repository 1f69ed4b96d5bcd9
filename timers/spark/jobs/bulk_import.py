"""``timers spark import``: imports timers from files, each once, even if the same files are imported again.

The id of a timer is computed from its row, so it is the same in each run. A ledger of Delta tables contains the ids
that were sent: such an id is not sent again, whether its timer has fired or not. A run records its begin in the ledger,
with the end of the topic at that time, and its end once its ids are in the ledger. If a run was interrupted, the next
run first reads from the topic which ids it had sent. If Spark repeats a task within a run, as after the loss of an
executor, it sends ids again: their requests have a condition, so that workers ignore the second ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.errors import SettingsError
from timers.kafka.clients import max_message_bytes
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.spark import kafka, rows
from timers.spark.columns import schema
from timers.spark.rows import RowFiles
from timers.spark.session import described
from timers.spark.storage import BEGUN, DONE, Kept, Steps, table_at

LEDGER = schema("id string, due_s bigint, run string")
"""A timer that was sent. ``due_s`` is null if an interrupted run sent it."""

RUNS = schema("run string, state string, starts string")
"""A run: a row for its begin and one for its end (:class:`timers.spark.storage.Steps`). ``starts``, in the row of the
begin, is JSON: where the topic ended then."""


@dataclass(frozen=True)
class Import:
    """Parameters of the job."""

    settings: Settings
    files: RowFiles
    name: str
    """Part of each id."""
    ledger: str
    """Path of the ledger, the same for all runs of an import."""
    rejects: str
    """Path for the rows that are not valid timers."""
    as_base64: bool = False


@dataclass(frozen=True)
class Imported:
    """Result of a run: numbers of rows."""

    rows: int
    rejected: int
    known: int
    """Sent by an earlier run."""
    sent: int


def run(spark: SparkSession, job: Import, say: Callable[[str], None]) -> Imported:
    """Import the rows that no earlier run has imported.

    Raises:
        SettingsError: TIMERS_ID_TOPIC is empty or does not exist, or the files lack a column or have an unknown one.
    """
    with Kept() as kept, described(spark, f"timers import: {job.name}"):
        return _run(spark, job, say, kept)


def _run(spark: SparkSession, job: Import, say: Callable[[str], None], kept: Kept) -> Imported:
    topic = job.settings.id_topic
    if not topic:
        raise SettingsError("TIMERS_ID_TOPIC is empty: imported timers have ids; unset it, so that they have a topic")
    topics = TopicOffsets(job.settings)
    if topic not in topics.existing([topic]):
        raise SettingsError(
            f"topic TIMERS_ID_TOPIC={topic!r} does not exist at {job.settings.brokers}: start a worker (or the engine "
            "on Spark), which creates it"
        )
    ledger = ImportLedger(spark, job.ledger)
    for interrupted, _, starts in ledger.runs.unfinished():
        left = topics.remaining(kafka.from_json(starts))
        found = ledger.add(interrupted, _in_topic(spark, job, left.starts, left.ends))
        ledger.runs.add(interrupted, DONE, None)
        say(f"an interrupted run had sent {counted(found, 'timer')}")
        if left.deleted:
            say(f"its topic has lost {counted(left.deleted, 'record')} since; timers in these are sent again")
    limit_bytes, encoding = job.settings.max_request_bytes, job.files.encoding_read
    read = rows.entries(job.files.read(spark), limit_bytes, as_base64=job.as_base64, encoding=encoding)
    read = kept.on_disk(read)
    total, rejected = read.agg(F.count(F.lit(1)), F.count("reason")).collect()[0]
    say(f"{counted(total, 'row')} read, {rejected:,} of them rejected")
    read.where("reason is not null").select("reason", "row", "file").write.mode("overwrite").json(job.rejects)
    requests = numbered(read, job.name)
    fresh = kept.on_disk(requests.join(ledger.sent(), "id", "left_anti"))
    count = fresh.count()
    if count:
        name = uuid.uuid4().hex
        ledger.runs.add(name, BEGUN, kafka.as_json(topics.ends([topic])))
        _send(fresh, job.settings, topic)
        ledger.add(name, fresh)
        ledger.runs.add(name, DONE, None)
    say(f"{counted(count, 'timer')} sent, {total - rejected - count:,} were sent before")
    return Imported(total, rejected, total - rejected - count, count)


def numbered(entries: DataFrame, name: str) -> DataFrame:
    """Valid rows (:data:`timers.spark.rows.ENTRY`) with their ids: ``id``, ``due_s``, ``value``, ``headers``. Equal
    rows get different numbers, because each row is a timer."""
    alike = (
        entries.where("reason is null")
        .groupBy("content")
        .agg(F.count(F.lit(1)).alias("times"), *(F.first(each).alias(each) for each in ("due_s", "value", "headers")))
    )
    each = alike.withColumn("number", F.explode(F.sequence(F.lit(1), F.col("times"))))
    id = F.concat_ws("-", F.lit(name), "content", F.col("number").cast("string"))
    return each.select(id.alias("id"), "due_s", "value", "headers")


# ---- read ------------------------------------------------------------------------------------------------------------


def _in_topic(spark: SparkSession, job: Import, starts: Offsets, ends: Offsets) -> DataFrame:
    """Ids of imports in a range of the topic: ``id``, ``due_s`` (null). Also those of imports with another name: they
    may share the ledger, and the interrupted run may be one of them."""
    key = F.col("key").cast("string")
    records = kafka.read(spark, job.settings, starts, ends)
    ours = records.where(key.rlike(rf"^.+-[0-9a-f]{{{rows.HASH_DIGITS}}}-[0-9]+\z"))
    return ours.select(key.alias("id"), F.lit(None).cast("long").alias("due_s")).distinct()


# ---- write -----------------------------------------------------------------------------------------------------------


def _send(requests: DataFrame, settings: Settings, topic: str) -> None:
    """Publish requests. The partitioner of Java's producer chooses their partitions, as the client does for ids."""
    options = {
        **kafka.client_options(settings),
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.max.request.size": str(max_message_bytes(settings)),
        "includeHeaders": "true",
        "topic": topic,
    }
    requests.select(F.col("id").alias("key"), "value", "headers").write.format("kafka").options(**options).save()


class ImportLedger:
    """The timers that were sent and the runs that sent them, in two Delta tables below one path.

    Only one import may run at a time.

    Attributes:
        runs: in the shape of :data:`RUNS`. A run ends when the ledger contains all its ids.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._sent, runs = table_at(path, "sent"), table_at(path, "runs")
        for table, columns in ((self._sent, LEDGER), (runs, RUNS)):
            DeltaTable.createIfNotExists(spark).location(table).addColumns(columns).execute()
        self.runs = Steps(spark, runs, RUNS)

    def sent(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._sent).select("id")

    def add(self, run: str, ids: DataFrame) -> int:
        """Record sent ids that the ledger does not contain yet, and return their number."""
        fresh = ids.select("id", "due_s").join(self.sent(), "id", "left_anti").withColumn("run", F.lit(run))
        with Kept() as kept:
            fresh = kept.on_disk(fresh)
            count = fresh.count()
            fresh.write.format("delta").mode("append").save(self._sent)
        return count
