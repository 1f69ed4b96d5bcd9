"""The tables of the cold tier: cold requests, and which of them were promoted.

Three Delta tables in one directory. Rows are only appended; requests that were promoted days ago are deleted::

    held      the cold requests
    promoted  which requests were promoted
    batches   begin and end of each batch of copies; after a crash they show the interrupted batch

They are ordinary tables, without partitions: each append writes one file, and upkeep clusters the rows by due second,
so that a search for timers that are due soon opens few files (docs/adr/0046). Other programs may read and maintain
them: what conflicts with a commit of theirs is tried again.

Nothing here uses Kafka: transforms take and return DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import reduce
from itertools import pairwise
from operator import and_, or_

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from timers.errors import SettingsError
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.spark.columns import digits, due_second, payload_bytes, schema
from timers.spark.session import having
from timers.spark.storage import KNOWN_LAYOUT, LAYOUT_PROPERTY, Kept, Steps, properties_of, retried, table_at
from timers.wire import headers as h
from timers.wire.cold import COLD_HEADERS, MAX_APPEND_DIGITS
from timers.wire.topics import SOURCE_PATTERN


def _commented(comments: dict[str, str]) -> StructType:
    """The schema of a table, from ``name type`` -> comment."""
    columns = schema(", ".join(comments))
    commented = zip(columns, comments.values(), strict=True)
    return StructType([StructField(of.name, of.dataType, True, {"comment": said}) for of, said in commented])


_SOURCE_COMMENT = "Name of the request: topic/partition/offset of its record"

HELD_SCHEMA = _commented(
    {
        "due timestamp": "When the timer is due. Null: a record of the cold topic that is no cold request",
        "due_s bigint": "The same in epoch seconds",
        "source string": _SOURCE_COMMENT,
        "topic string": "Request topic to which the timer is written back",
        "partition int": "Partition to which the timer is written back",
        "append_ms bigint": "When the broker appended the request, in epoch milliseconds",
        "held_ms bigint": "When `timers spark hold` read it, in epoch milliseconds",
        "seal binary": "Proves that the worker of the partition sent this request away: 32 hex digits",
        "key binary": "Key of the request as it was sent; the id of a timer with an id",
        "value binary": "Value of the request as it was sent",
        "headers headers": "Headers of the request as they were sent",
        "due_day date": "Day (UTC) of due",
    }
)
"""A cold request, with the key, value and headers that were sent. A record of the cold topic that is no cold request is
never promoted: its ``due`` and ``source`` are null. Earlier versions look for timers by ``due_day``."""

PROMOTED_SCHEMA = _commented(
    {
        "due_day date": "Day (UTC) on which the timer is due",
        "due_s bigint": "When the timer is due, in epoch seconds",
        "source string": _SOURCE_COMMENT,
        "batch string": "Batch of copies in which it was written back",
    }
)
"""A request that was promoted."""

BATCHES = _commented(
    {
        "batch string": "Name of the batch",
        "state string": "begun: before its copies are written; done: after they are recorded",
        "until_s bigint": "All its timers were due by this epoch second",
        "starts string": "Where the request logs ended when it began, as JSON",
    }
)
"""A batch of copies: a row for its begin and one for its end (:class:`timers.spark.storage.Steps`)."""

DAY_S = 86_400

_LOG_RETENTION = "interval 7 days"

CLUSTERED_BY = "due_s"

TOPIC_ID_PROPERTY = "timers.cold-topic-id"
"""Property of the held table: the id of the cold topic from which its checkpoint reads, 32 hex digits."""

WENT_ON_PROPERTY = "timers.went-on-after."
"""Begins a property of the held table, and the id of a query ends it: the micro-batch of another query after which this
one goes on."""

_STEP_ROWS = 200_000
"""Rows that upkeep deletes in one commit, about: it takes a few seconds."""

_FILE_BYTES = 64 << 20
"""Target size of a clustered file: a search that finds its second in it opens the whole file."""

_RUN_BYTES = 1 << 30
"""Clustered files of one run do not overlap, so a second is in one file of each run. Upkeep merges what is new with the
runs that are smaller than a file. Only if there are more than :data:`_MOST_RUNS`, it merges larger ones too, in steps
up to this size, or up to a third of the table: so each row is rewritten a few times while its table grows, and a new
file costs no more than a few others."""

_MOST_RUNS = 4

_STEP = 4
"""How much larger the runs of the next step are."""


def cold_sources(settings: Settings) -> list[str]:
    """The topics whose requests may go to the cold tier."""
    return [topic for topic, request_format in enabled_formats(settings).items() if request_format.allows_cold_tier]


class ColdTables:
    """Paths of the tables.

    Args:
        root: directory of the tables: a path or a URI that all executors can read and write.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.held, self.promoted, self.batches = (table_at(root, name) for name in ("held", "promoted", "batches"))
        self.checkpoint = f"{self.held}/_checkpoint"
        """That of `hold`: inside the held table, so that both are copied together. Delta ignores the name."""

    def steps(self, spark: SparkSession) -> Steps:
        return Steps(spark, self.batches, BATCHES)

    def create(self, spark: SparkSession) -> None:
        """Create the missing tables.

        Raises:
            SettingsError: a newer version has made them, or a table lacks columns.
        """
        for path, columns in ((self.held, HELD_SCHEMA), (self.promoted, PROMOTED_SCHEMA), (self.batches, BATCHES)):
            if not DeltaTable.isDeltaTable(spark, path):
                table = DeltaTable.createIfNotExists(spark).location(path).addColumns(columns)
                if CLUSTERED_BY in columns.names:
                    table = table.clusterBy(CLUSTERED_BY)
                table = table.property(LAYOUT_PROPERTY, str(KNOWN_LAYOUT))
                table.property("delta.logRetentionDuration", _LOG_RETENTION).execute()
                continue
            properties_of(spark, path)
            if lacks := sorted(set(columns.names) - set(spark.read.format("delta").load(path).columns)):
                raise SettingsError(
                    f"the table {path!r} has no column {lacks[0]!r}: if an earlier version of kafka-timers has made "
                    "it, start `timers spark hold` of commit aa3045c5 once, which adds it (UPGRADING.md)"
                )


def hold(records: DataFrame, held_ms: Column) -> DataFrame:
    """Records of the cold topic, as :data:`HELD_SCHEMA`. Decodes as :func:`timers.wire.cold.decode_cold` does.

    It does not matter here whether a setting names the topic of a request: another process, or a later one, may have
    other settings, and the table keeps what it needs (:func:`has_place`).

    These are column expressions, because it is slow to pass headers to Python: 400,000 records took 2 to 6 s this way,
    and 82 s with a function for ``mapInArrow``.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD_SCHEMA`.
        held_ms: epoch milliseconds now.
    """
    count = len(COLD_HEADERS)
    split = records.select(
        "key",
        "value",
        F.when(F.size("headers") >= count, F.slice("headers", -count, count)).alias("added"),
        F.expr(f"slice(headers, 1, greatest(size(headers) - {count}, 0))").alias("headers"),
    )
    source = _value(h.TIMER_SOURCE).cast("string")
    decoded = split.select(
        "key",
        "value",
        "headers",
        F.transform("added", lambda each: each["key"]).eqNullSafe(F.array(*map(F.lit, COLD_HEADERS))).alias("ours"),
        source.alias("source"),
        F.regexp_extract(source, _SOURCE, 1).alias("topic"),
        F.regexp_extract(source, _SOURCE, 2).try_cast("int").alias("partition"),
        due_second(_value(h.TIMER_DUE)).alias("due_s"),
        digits(_value(h.TIMER_APPENDED), MAX_APPEND_DIGITS).alias("append_ms"),
        _value(h.TIMER_SEAL).alias("seal"),
    )
    required = (F.col(name).isNotNull() for name in ("due_s", "append_ms", "seal", "partition"))
    valid = F.coalesce(reduce(and_, required, F.col("ours")), F.lit(False))
    names = ("due_s", "source", "topic", "partition", "append_ms", "seal")
    checked = decoded.withColumns({name: F.when(valid, F.col(name)) for name in names})
    due = {"due": F.timestamp_seconds("due_s"), "due_day": day_of(F.col("due_s"))}
    return checked.withColumns({**due, "held_ms": held_ms}).select(HELD_SCHEMA.names)


_SOURCE = rf"^{SOURCE_PATTERN}\z"


def _value(name: str) -> Column:
    return F.try_element_at("added", F.lit(COLD_HEADERS.index(name) + 1))["value"]


def day_of(due_s: Column) -> Column:
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(due_s / DAY_S).cast("int"))


def does_no_harm(retention_s: int, id_topics: Iterable[str], now_s: int, unsure_until_s: int = 0) -> Column:
    """Condition: without a recorded copy, a request has not been promoted, or its partition ignores a second copy.

    If the tables were lost, `hold` reads the cold topic again from its start. A request that it then holds after its
    partition may have forgotten an earlier copy could fire twice. So could one whose earlier copy was to be looked for
    in records that are deleted. A partition never forgets a timer with an id.

    Args:
        retention_s: ``TIMERS_VERDICT_RETENTION_S``.
        id_topics: topics of timers with an id.
        unsure_until_s: copies of timers due by this second may be in records that are deleted.
    """
    is_known = (F.col("due_s") > unsure_until_s) | (_forgotten_s(retention_s) > now_s)
    return F.col("topic").isin(*id_topics) | (_held_in_time(retention_s) & is_known)


def needs_its_copy(retention_s: int, id_topics: Iterable[str]) -> Column:
    """Condition: without a recorded copy, a request may be promoted now or later, and only its recorded copy keeps it
    from coming back twice. The arguments are those of :func:`does_no_harm`."""
    return ~F.col("topic").isin(*id_topics) & _held_in_time(retention_s)


def _held_in_time(retention_s: int) -> Column:
    return F.col("held_ms") <= _forgotten_s(retention_s) * 1000


def _forgotten_s(retention_s: int) -> Column:
    # Up to an hour before the partition forgets: epoch seconds of jobs and append times in its log are of different
    # clocks.
    return F.col("due_s") + retention_s - min(3600, retention_s // 2)


def has_place(ends: Offsets) -> Column:
    """Condition: the partition to which a request is promoted is in ``ends``, and its requests may go cold."""
    places = ((F.col("topic") == topic) & F.col("partition").isin(*of) for topic, of in ends.items())
    return reduce(or_, places, F.lit(False))


def unpromoted(spark: SparkSession, tables: ColdTables, until_s: int, condition: Column) -> DataFrame:
    """The requests that are due by ``until_s`` and not promoted: (due_day, due_s, source, size), one row for a source.

    The cost depends on the requests that are due by then and not yet deleted: Spark skips files whose first request is
    due later.

    Args:
        condition: further condition on rows of :data:`HELD_SCHEMA`.
    """
    is_due = F.col("due_s") <= until_s
    due = spark.read.format("delta").load(tables.held).where(is_due).where(condition)
    sized = due.select("due_day", "due_s", "source", payload_bytes().alias("size"))
    promoted = spark.read.format("delta").load(tables.promoted).where(is_due)
    return sized.join(promoted.select("source"), "source", "left_anti").dropDuplicates(["source"])


def files_scanned(frame: DataFrame, path: str) -> int:
    """Number of files of the table at ``path`` that the query of a DataFrame scans, after Delta has skipped files."""
    root = path.split(":", 1)[-1].strip("/")  # file:/a, file:///a and /a are one directory
    return sum(file.split(":", 1)[-1].strip("/").startswith(f"{root}/") for file in frame.inputFiles())


def whole_requests(spark: SparkSession, tables: ColdTables, chosen: pa.Table, *more: str) -> DataFrame:
    """The complete requests (:data:`HELD_SCHEMA`) of chosen rows (due_s, source, ...), with ``more`` of their columns.
    A request that was held twice comes twice."""
    seconds = pc.min_max(chosen.column("due_s")).as_py()
    held = spark.read.format("delta").load(tables.held).where(F.col("due_s").between(seconds["min"], seconds["max"]))
    wanted = F.broadcast(spark.createDataFrame(chosen.select(["source", *more])))
    return held.join(wanted, "source").select(*HELD_SCHEMA.names, *more)


def append(frame: DataFrame, path: str, columns: StructType) -> None:
    """Append rows to a table in one commit."""
    rows = frame.select(columns.names).write.format("delta").mode("append")
    retried(lambda: rows.save(path))


# ---- maintenance -----------------------------------------------------------------------------------------------------


def delete_promoted(spark: SparkSession, tables: ColdTables, before_s: int) -> int:
    """Delete the promoted requests that are due before ``before_s``, and what says that they were promoted; count them.

    Each deleted row has a record of its promotion. So a request that `hold` adds meanwhile stays, and a request that
    cannot be promoted does not keep the others. The record is deleted by the next call: a search that began before this
    one may still find the request, and must find the record too.
    """
    left, done = _sources(spark, tables.held, before_s), _sources(spark, tables.promoted, before_s)
    _delete(spark, tables.promoted, done.join(left, "source", "left_anti"), before_s)
    return _delete(spark, tables.held, _sources(spark, tables.promoted, before_s), before_s)


def _delete(spark: SparkSession, path: str, sources: DataFrame, before_s: int) -> int:
    """Delete the rows of some requests that are due before ``before_s``; count them. Other files are not rewritten.

    In a table without partitions each append conflicts with each deletion, also if they have no row in common. So the
    rows are found first, and deleted in steps that are short beside the time between two appends of `hold`: what a step
    has deleted stays deleted.
    """
    if sources.isEmpty():
        return 0
    with Kept() as kept:
        rows = spark.read.format("delta").load(path).where(F.col("due_s") < before_s)
        found = kept.on_disk(rows.join(sources, "source", "left_semi").select("source", "due_s").distinct())
        steps = -(-found.count() // _STEP_ROWS)
        if not steps:
            return 0
        parts = [part / steps for part in range(1, steps + 1)]
        (ends,) = found.agg(F.percentile_approx("due_s", parts, 100 * steps)).collect()[0]
        bounds = pairwise([-1, *sorted(set(ends))])
        return sum(_delete_due(spark, path, found, after_s, to_s) for after_s, to_s in bounds)


def _delete_due(spark: SparkSession, path: str, gone: DataFrame, after_s: int, to_s: int) -> int:
    """Delete those of some rows (source, due_s) that are due in a part of the time, in one commit; count them."""
    part = gone.where(F.col("due_s").between(after_s + 1, to_s)).select("source")
    is_near = F.col("kept.due_s").between(after_s + 1, to_s)
    merge = (
        DeltaTable.forPath(spark, path)
        .alias("kept")
        .merge(part.alias("gone"), (F.col("kept.source") == F.col("gone.source")) & is_near)
    )
    (merged,) = retried(lambda: merge.whenMatchedDelete().execute().collect())
    return int(merged.num_deleted_rows)


def _sources(spark: SparkSession, path: str, before_s: int) -> DataFrame:
    """The requests in a table that are due before a second: (source)."""
    rows = spark.read.format("delta").load(path).where(F.col("due_s") < before_s)
    return rows.select("source").distinct()


def compact(spark: SparkSession, tables: ColdTables, say: Callable[[str], None] = lambda line: None) -> int:
    """Merge small files and cluster them by due second, which may take minutes, and delete replaced files that readers
    no longer need. Returns how many files were merged."""
    replaced = 0
    for path in (tables.held, tables.promoted, tables.batches):
        table = DeltaTable.forPath(spark, path)
        (about,) = table.detail().select("numFiles", "sizeInBytes").collect()
        say(f"merging small files of {path}: {counted(about.numFiles, 'file')}, {about.sizeInBytes / 1e6:,.0f} MB")
        replaced += _merge(spark, table, about.sizeInBytes)
        table.vacuum()  # keeps replaced files for seven days
    return replaced


def _merge(spark: SparkSession, table: DeltaTable, table_bytes: int) -> int:
    """Merge small files, and runs of them if there are many; returns how many files were merged."""
    replaced: int = 0
    run = _FILE_BYTES
    while True:
        with _clustering(spark, table_bytes, run):
            (row,) = retried(table.optimize().executeCompaction).collect()
        replaced += row.metrics.numFilesRemoved
        about = row.metrics.clusteringStats  # None: the table is not clustered
        if about is None or about.inputNumZCubes <= _MOST_RUNS or run >= max(_RUN_BYTES, table_bytes // 3):
            return replaced
        run *= _STEP


def _clustering(spark: SparkSession, table_bytes: int, run_bytes: int) -> AbstractContextManager[None]:
    """Inside the block, OPTIMIZE of Delta's liquid clustering rewrites new files and runs below a size. Delta calls
    runs ZCubes. By default it rewrites those below 100 GB, and files have 1 GB."""
    optimize = "spark.databricks.delta.optimize"
    chosen = {
        f"{optimize}.maxFileSize": _FILE_BYTES,
        f"{optimize}.clustering.mergeStrategy.minCubeSize.threshold": run_bytes,
        f"{optimize}.clustering.mergeStrategy.minCubeSize.targetCubeSize": max(_RUN_BYTES, table_bytes // 2),
        "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    }
    return having(spark, chosen)
