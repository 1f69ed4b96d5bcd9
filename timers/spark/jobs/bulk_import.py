"""``timers spark import``: imports timers from files, each once, even if the same files are imported again.

The id of a timer is computed from its row, or is that of its row, so it is the same in each run. A ledger contains the
ids that were sent: such an id is not sent again, whether its timer has fired or not. A run leaves a mark in the ledger,
with the end of the topic at its begin, until its ids are in the ledger. If a run was interrupted, the next run first
reads from the topic which ids it had sent. If Spark repeats a task within a run, as after the loss of an executor, it
sends ids again: their requests have a condition, so that workers ignore the second ones.
"""

from __future__ import annotations

import fcntl
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from time import monotonic

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from timers.core.printable import quoted, utc_text
from timers.errors import SettingsError, TimersError
from timers.kafka.clients import max_message_bytes
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.spark import jvm, kafka
from timers.spark.columns import header, schema
from timers.spark.frames.rows import ENTRY_SCHEMA, RowFiles, local_path, opened, shown
from timers.spark.session import described
from timers.spark.storage import Kept, children, table_at
from timers.wire import headers as h

_PROGRESS_S = 10.0
_RUN = re.compile(r"[0-9a-f]{32}")
"""The name of a run."""
_NEW = ".new"
"""Ends the name of a mark that is being written."""
_LEFT_NS = 86_400 * 10**9
"""Age of such a mark after which its run was killed: to write it takes seconds."""


@dataclass(frozen=True)
class Import:
    """Parameters of the job."""

    settings: Settings
    files: RowFiles
    name: str
    """Part of each id that is computed."""
    ledger: str
    """Path of the ledger, the same for all runs of an import."""
    rejects: str
    """Path for the rows that are not valid timers: each run has a directory of its own there, and none is deleted."""
    dry_run: bool = False


@dataclass(frozen=True)
class Imported:
    """Result of a run: numbers of rows, and what is due."""

    rows: int
    rejected: int
    known: int
    """Sent by an earlier run."""
    sent: int
    """Or in a dry run what would be sent; the further fields are those of a dry run."""
    first_due_s: int | None = None
    last_due_s: int | None = None
    hours: tuple[tuple[int, int], ...] = ()
    """(epoch second of an hour, timers that are due in it)"""
    rejects: str | None = field(default=None, compare=False)
    """Directory of the rejected rows of this run, as JSON lines; None: there are none."""


def run(spark: SparkSession, job: Import, now_ns: int, say: Callable[[str], None]) -> Imported:
    """Import the rows that no earlier run has imported.

    Args:
        now_ns: epoch nanoseconds from which delays count, and before which a row is past: one that is past and was sent
            by an earlier run is not rejected.

    Raises:
        SettingsError: TIMERS_ID_TOPIC is empty or does not exist, or the files lack a column or have an unknown one, or
            an id comes twice.
    """
    with Kept() as kept, described(spark, f"timers import: {job.name}"), _alone(job.ledger, say):
        return _run(spark, job, now_ns, say, kept)


def _run(spark: SparkSession, job: Import, now_ns: int, say: Callable[[str], None], kept: Kept) -> Imported:
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
    if not job.dry_run:
        for interrupted, starts in ledger.unfinished(say, now_ns):
            left = topics.remaining(starts)
            in_topic, known = _in_topic(spark, job, left.starts, left.ends), ledger.sent()
            if known is not None:
                in_topic = in_topic.join(known, "id", "left_anti")
            in_topic = kept.on_disk(in_topic)
            number = in_topic.count()
            ledger.add(interrupted, in_topic)
            ledger.end(interrupted)
            say(f"an interrupted run had sent {counted(number, 'timer')}")
            if left.deleted:
                say(f"its topic has lost {counted(left.deleted, 'record')} since; timers in these are sent again")
    with _told(spark, say, "reading"):
        read = kept.on_disk(entries(spark, job.files, job.settings.max_request_bytes, now_ns))
        found_rows = _looked_at(read)
    requests = numbered(read, job.name, is_each_once=found_rows.is_each_once)
    timers, past = found_rows.timers, found_rows.past
    known = ledger.sent()
    if known is not None:
        requests = kept.on_disk(requests.join(known, "id", "left_anti"))
        timers, past = requests.agg(F.count("id"), F.count("row")).collect()[0]
    total, count = found_rows.rows, timers - past
    rejected = total - found_rows.timers + past
    say(f"{counted(total, 'row')} read, {rejected:,} of them rejected")
    name, rejects = uuid.uuid4().hex, None
    if rejected:
        rejects = f"{job.rejects.rstrip('/')}/{utc_text(now_ns // 10**9).replace(':', '')}-{name[:8]}"
        lines = read.where(~_is_timer()).select("row")
        if past:
            lines = lines.unionByName(requests.where("row is not null").select("row"))
        # One file to fix: of several, Spark may write the first one empty. With coalesce(1), one task reads all rows.
        lines.repartition(1).write.text(rejects)
    requests = requests.where("row is null")
    known_rows = found_rows.timers - timers
    result = Imported(total, rejected, known_rows, count, rejects=rejects and shown(rejects))
    if job.dry_run:
        first_s, last_s = requests.agg(F.min("due_s"), F.max("due_s")).collect()[0]
        hours = requests.groupBy((F.floor(F.col("due_s") / 3600) * 3600).alias("hour")).count().orderBy("hour")
        by_hour = tuple((hour, number) for hour, number in hours.collect())
        return replace(result, first_due_s=first_s, last_due_s=last_s, hours=by_hour)
    if count:
        begin = topics.ends([topic])
        ledger.begin(name, kafka.as_json(begin))
        with _told(spark, say, "sending", lambda: _sum(topics.ends([topic])) - _sum(begin)):
            _send(requests, job.settings, topic)
        ledger.add(name, requests)
        ledger.end(name)
    say(f"{counted(count, 'timer')} sent, {result.known:,} were sent before")
    return result


def _is_timer() -> Column:
    """Of rows (:data:`timers.spark.frames.rows.ENTRY_SCHEMA`): true also of one that is refused because it is past."""
    return F.col("content").isNotNull() | F.col("id").isNotNull()


@dataclass(frozen=True)
class _Found:
    rows: int
    timers: int
    """Of the rows, with those that are refused because they are past."""
    past: int
    is_each_once: bool
    """Whether no two rows are equal."""


def _looked_at(read: DataFrame) -> _Found:
    """Count the rows, and those that are equal.

    Raises:
        SettingsError: two rows have the same id.
    """
    is_past = _is_timer() & F.col("row").isNotNull()
    alike = read.groupBy("content", "id", is_past.alias("is_past")).agg(F.count(F.lit(1)).alias("times"))
    twice = F.when((F.col("times") > 1) & ~F.col("is_past"), F.col("id"))
    of_timers = F.when(_is_timer(), F.col("times"))
    of_past = F.when(F.col("is_past"), F.col("times"))
    row = alike.agg(F.sum("times"), F.sum(of_timers), F.sum(of_past), F.max(of_timers), F.min(twice)).collect()[0]
    total, timers, past, times, id = row
    if id is not None:
        raise SettingsError(f"the id {quoted(id)} is there twice: give each row an id of its own; nothing was sent")
    return _Found(total or 0, timers or 0, past or 0, (times or 0) <= 1)


def numbered(entries: DataFrame, name: str, *, is_each_once: bool) -> DataFrame:
    """Timers (:data:`timers.spark.frames.rows.ENTRY_SCHEMA`) with their ids: ``id``, ``due_s``, ``value``, ``headers``
    and ``row``. Equal rows get different numbers, because each row is a timer."""
    number = F.lit(1) if is_each_once else F.row_number().over(Window.partitionBy("content").orderBy("value"))
    id = F.coalesce("id", F.concat_ws("-", F.lit(name), "content", number.cast("string")))
    return entries.where(_is_timer()).select(id.alias("id"), "due_s", "value", "headers", "row")


# ---- read ------------------------------------------------------------------------------------------------------------


def entries(spark: SparkSession, files: RowFiles, most_bytes: int, now_ns: int) -> DataFrame:
    """The rows of files in the shape of :data:`timers.spark.frames.rows.ENTRY_SCHEMA`: a task reads whole files."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for url, content in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                with opened(url, content) as file:
                    yield from files.entries(url, file, now_ns, most_bytes)

    if files.urls is not None:
        places = [(url, None) for url in files.urls]
        found = spark.createDataFrame(places, schema("path string, content binary")).repartition(len(places))
    else:
        found = spark.read.format("binaryFile").load([*files.paths]).select("path", "content")
    return found.mapInArrow(read, ENTRY_SCHEMA)


def _in_topic(spark: SparkSession, job: Import, starts: Offsets, ends: Offsets) -> DataFrame:
    """Ids in a range of the topic: ``id``, ``due_s`` (null). Also those of other imports, which may share the ledger,
    and of other programs that send with a condition: an id that is there would not be set again."""
    records = kafka.read(spark, job.settings, starts, ends)
    ids = F.col("key").cast("string")
    return (
        records.where(header(h.TIMER_IF).isNotNull())
        .select(ids.alias("id"), F.lit(None).cast("long").alias("due_s"))
        .distinct()
    )


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
    """The timers that were sent, as files of Parquet, and a file for each run that has begun and not ended.

    The files have the columns ``id``, ``due_s`` (null if an interrupted run sent it) and ``run``. A run ends when they
    have all its ids; so no table with transactions is needed, whose start costs seconds. Earlier versions had one. Each
    addition has a directory of its own: Spark's commit takes all files that any writer has finished in its directory,
    and deletes those that are not finished.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._ids, self._table, self._begun = (table_at(path, name) for name in ("ids", "sent", "begun"))

    def unfinished(self, say: Callable[[str], None], now_ns: int) -> list[tuple[str, Offsets]]:
        """The runs that have begun and not ended: name, and where the topic ended at its begin.

        A mark that is not whole is named and deleted. Disks write files later: the machine lost its power soon after
        the run had begun to send. Files of others, and marks that are being written, are passed over; a mark that was
        not written to its end a day ago is deleted.

        Raises:
            Py4JJavaError: a mark is there and cannot be read.
        """
        found = []
        for name, status in children(self._spark, self._begun).items():
            if name.endswith(_NEW) and status.getModificationTime() * 10**6 < now_ns - _LEFT_NS:
                self.end(name)
        for run, text in jvm.read_texts(self._spark, self._begun):
            if not _RUN.fullmatch(run):
                continue
            try:
                found.append((run, kafka.from_json(text or "")))
            except (ValueError, TypeError, AttributeError):  # no JSON, or that of something else
                say(f"the mark of run {run} is not whole: if the machine lost its power, timers may be sent again")
                self.end(run)
        return found

    def begin(self, run: str, starts: str) -> None:
        """Write the mark of a run. An import on another machine may look meanwhile, and must see no part of it."""
        mark = f"{self._begun}/{run}"
        jvm.write_text(self._spark, f"{mark}{_NEW}", starts)
        jvm.move(self._spark, f"{mark}{_NEW}", mark)

    def end(self, run: str) -> None:
        jvm.delete(self._spark, f"{self._begun}/{run}")

    def sent(self) -> DataFrame | None:
        """The ids that were sent; None: none was."""
        parts = []
        if jvm.exists(self._spark, self._ids):
            files = self._spark.read.option("recursiveFileLookup", "true")
            parts.append(files.schema("id string").parquet(self._ids))
        if jvm.exists(self._spark, f"{self._table}/_delta_log"):
            parts.append(self._spark.read.format("delta").load(self._table).select("id"))
        return reduce(DataFrame.unionByName, parts) if parts else None

    def add(self, run: str, ids: DataFrame) -> None:
        """Record ids that were sent, and that the ledger does not contain."""
        fresh = ids.select("id", "due_s").withColumn("run", F.lit(run))
        fresh.write.parquet(f"{self._ids}/{uuid.uuid4().hex}")


@contextmanager
def _alone(ledger: str, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other import on this machine uses a ledger. One that is killed gives way at once.

    Imports on several machines send the same ids, so that workers ignore the second ones. If the other one of two is
    killed, the ledger may lack ids that it sent after this one has begun.
    """
    path = local_path(ledger)
    if path is None:
        yield
        return
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"another import uses the ledger {path}: waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _told(
    spark: SparkSession, say: Callable[[str], None], what: str, sent: Callable[[], int] | None = None
) -> Iterator[None]:
    """Say every 10 s how far the jobs in the block are.

    Args:
        sent: returns how many records are on the topic since the block began.
    """
    tracker, over, begin = spark.sparkContext.statusTracker(), threading.Event(), monotonic()

    def tell() -> None:
        while not over.wait(_PROGRESS_S):
            with suppress(*jvm.ERRORS, TimersError, OSError):  # the job itself reports what is wrong
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                tasks = [(each.numCompletedTasks, each.numTasks) for each in stages if each is not None]
                done = "" if not tasks else f", {sum(n for n, _ in tasks)} of {sum(n for _, n in tasks)} tasks done"
                number = "" if sent is None else f", {counted(sent(), 'timer')} on the topic"
                say(f"{what} for {monotonic() - begin:.0f} s{done}{number}")

    thread = threading.Thread(target=tell, name="timers-import-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _sum(offsets: Offsets) -> int:
    return sum(sum(of.values()) for of in offsets.values())
