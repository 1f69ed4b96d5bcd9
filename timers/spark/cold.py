"""The cold tier's tables, and what becomes of them: cold requests by due day, and which of them were promoted.

Three Delta tables in one directory, all only ever appended to, but for days that are over::

    held      the cold requests, one directory for each due day (UTC)
    promoted  which of them were written back, by due day
    batches   each writing-back, begun and done: what a crash left undone is found by it

Nothing here knows Kafka: transforms take and return DataFrames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from timers.config.project import project_dir
from timers.spark.columns import HEADERS, due_second
from timers.wire import headers as h
from timers.wire.cold import COLD_HEADERS
from timers.wire.topics import SOURCE_PATTERN

HELD = StructType(
    [
        StructField("due_day", DateType()),
        StructField("due_s", LongType()),
        StructField("source", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("append_ms", LongType()),
        StructField("held_ms", LongType()),
        StructField("seal", BinaryType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
    ]
)
"""A cold request. ``topic`` and ``partition`` say where it goes back to; key, value and headers are as they were sent.
``held_ms`` is when it was taken in.
What cannot go back (a record of the cold topic that no machine of this app wrote) has no ``due_day``, no ``source``."""

PROMOTED = StructType(
    [
        StructField("due_day", DateType()),
        StructField("due_s", LongType()),
        StructField("source", StringType()),
        StructField("batch", StringType()),
    ]
)
"""A request that was written back."""

BATCHES = StructType(
    [
        StructField("batch", StringType()),
        StructField("state", StringType()),
        StructField("until_s", LongType()),
        StructField("starts", StringType()),
    ]
)
"""A writing-back. ``state`` is ``begun`` or ``done``. All of it was due by ``until_s``; ``starts``, of a begun one, is
JSON: where the logs that it writes to ended before it."""

BEGUN, DONE = "begun", "done"

DAY_S = 86_400

_LOG_RETENTION = "interval 7 days"


def default_root() -> str:
    """In the project's directory, on this machine."""
    return (project_dir() / "cold").resolve().as_uri()


@dataclass(frozen=True)
class ColdTables:
    """Where the tables are.

    Args:
        root: directory of all of them: a path or a URI that all of Spark's executors can read and write.
    """

    root: str

    @property
    def held(self) -> str:
        """Cold requests."""
        return self._at("held")

    @property
    def promoted(self) -> str:
        """Which were written back."""
        return self._at("promoted")

    @property
    def batches(self) -> str:
        """Each writing-back."""
        return self._at("batches")

    def _at(self, name: str) -> str:
        # Of one place, Delta takes file:/a and file:///a for two.
        return f"{self.root.rstrip('/').replace('file:///', 'file:/', 1)}/{name}"

    @property
    def checkpoint(self) -> str:
        """How far the cold topic was read. Inside of the table that it speaks of: who loses one loses both. Delta
        leaves names with an underscore alone."""
        return f"{self.held}/_checkpoint"

    def create(self, spark: SparkSession) -> None:
        """Make the tables that are not there."""
        for path, schema, by_day in (
            (self.held, HELD, True),
            (self.promoted, PROMOTED, True),
            (self.batches, BATCHES, False),
        ):
            table = DeltaTable.createIfNotExists(spark).location(path).addColumns(schema)
            if by_day:
                table = table.partitionedBy("due_day")
            table.property("delta.logRetentionDuration", _LOG_RETENTION).execute()


def hold(records: DataFrame, topics: Iterable[str], held_ms: Column) -> DataFrame:
    """Records of the cold topic, as :data:`HELD`.

    As :func:`timers.wire.cold.decode_cold` reads them, without a row in Python.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`.
        topics: that cold requests may come from. Nothing is ever written to any other, whatever a record says.
        held_ms: epoch milliseconds now.
    """
    ours = len(COLD_HEADERS)
    names = F.array(*[F.lit(name) for name in COLD_HEADERS])
    tail = F.slice("headers", -ours, ours)
    told = records.select(
        "key",
        "value",
        F.when(F.size("headers") >= ours, tail).alias("tail"),
        F.expr(f"slice(headers, 1, greatest(size(headers) - {ours}, 0))").alias("headers"),
    )
    source = _text(h.TIMER_SOURCE)
    parts = told.select(
        "key",
        "value",
        "headers",
        F.transform("tail", lambda each: each["key"]).eqNullSafe(names).alias("ours"),
        source.alias("source"),
        F.regexp_extract(source, _SOURCE, 1).alias("topic"),
        F.regexp_extract(source, _SOURCE, 2).try_cast("int").alias("partition"),
        due_second(_value(h.TIMER_DUE)).alias("due_s"),
        _text(h.TIMER_APPENDED).try_cast("long").alias("append_ms"),
        _value(h.TIMER_SEAL).alias("seal"),
    )
    good = F.coalesce(
        F.col("ours")
        & F.col("topic").isin(*topics)
        & F.col("due_s").isNotNull()
        & F.col("append_ms").isNotNull()
        & F.col("seal").isNotNull(),
        F.lit(False),
    )
    names_told = ("due_s", "source", "topic", "partition", "append_ms", "seal")
    told_where = [F.when(good, F.col(name)).alias(name) for name in names_told]
    due_day = F.when(good, day_of(F.col("due_s"))).alias("due_day")
    frame = parts.select(due_day, *told_where, held_ms.alias("held_ms"), "key", "value", "headers")
    return frame.select(HELD.names)


_SOURCE = rf"^{SOURCE_PATTERN}\z"


def _value(name: str) -> Column:
    return F.try_element_at("tail", F.lit(COLD_HEADERS.index(name) + 1))["value"]


def _text(name: str) -> Column:
    return _value(name).cast("string")


def day_of(due_s: Column) -> Column:
    """Partition of a due second."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(due_s / DAY_S).cast("int"))


def was_held_in_time(retention_s: int, id_topics: Iterable[str]) -> Column:
    """Whether it is certain that a request which was not noted as written back has not come back.

    What is taken in so late that its partition may have forgotten it could have come back before: the tables were lost,
    and the cold topic is read from its beginning. A timer with an id is never forgotten.

    Args:
        retention_s: ``TIMERS_VERDICT_RETENTION_S``.
        id_topics: of timers with an id.
    """
    margin_s = min(3600, retention_s // 2)  # clocks differ
    in_time = F.col("held_ms") <= (F.col("due_s") + retention_s - margin_s) * 1000
    return F.col("topic").isin(*id_topics) | in_time


def near(spark: SparkSession, tables: ColdTables, until_s: int, which: Column) -> DataFrame:
    """What is due by ``until_s`` and was not written back: (due_day, due_s, source, size), of each source one.

    Costs what is due by then and was not yet retired: of all other days not a file is opened.

    Args:
        spark: the session.
        tables: where they are.
        until_s: epoch second.
        which: condition on rows of :data:`HELD`.
    """
    until = day_of(F.lit(until_s).cast("long"))
    held = spark.read.format("delta").load(tables.held)
    due = held.where((F.col("due_day") <= until) & (F.col("due_s") <= until_s)).where(which)
    sized = due.select("due_day", "due_s", "source", _size().alias("size"))
    promoted = spark.read.format("delta").load(tables.promoted).where(F.col("due_day") <= until)
    left = sized.join(promoted.select("due_day", "source"), ["due_day", "source"], "left_anti")
    return left.select("due_day", "due_s", "source", "size").dropDuplicates(["source"])


def _size() -> Column:
    return F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))


def payloads(spark: SparkSession, tables: ColdTables, chosen: DataFrame, days: Iterable[object]) -> DataFrame:
    """The requests of chosen sources, whole, as :data:`HELD`.

    Args:
        spark: the session.
        tables: where they are.
        chosen: (due_day, source) of each; small.
        days: all due days among them, so that no other day's files are opened.
    """
    held = spark.read.format("delta").load(tables.held).where(F.col("due_day").isin(*days))
    wanted = F.broadcast(chosen.select("due_day", "source").distinct())
    return held.join(wanted, ["due_day", "source"], "left_semi").select(HELD.names).dropDuplicates(["source"])


def append(frame: DataFrame, path: str, schema: StructType) -> None:
    """Add rows to a table: all of them or none."""
    frame.select(schema.names).write.format("delta").mode("append").save(path)


# ---- care ------------------------------------------------------------------------------------------------------------


def retire(spark: SparkSession, tables: ColdTables, before_s: int) -> int:
    """Forget the days before ``before_s`` of which all was written back. Drops their files without reading them.

    Returns:
        How many days.
    """
    before = day_of(F.lit(before_s).cast("long"))
    held = spark.read.format("delta").load(tables.held).where(F.col("due_day") < before)
    promoted = spark.read.format("delta").load(tables.promoted).where(F.col("due_day") < before)
    left = held.join(promoted, ["due_day", "source"], "left_anti").select("due_day").distinct()
    over = held.select("due_day").distinct().join(left, "due_day", "left_anti")
    days = [row.due_day for row in over.collect()]
    if days:
        for path in (tables.held, tables.promoted):
            DeltaTable.forPath(spark, path).delete(F.col("due_day").isin(*days))
    return len(days)


def compact(spark: SparkSession, tables: ColdTables, *, keep_hours: float | None = None) -> int:
    """Make few files of many, and delete what no reader needs any more.

    Args:
        spark: the session.
        tables: where they are.
        keep_hours: how long files stay that were replaced; Delta's seven days if None.

    Returns:
        Files that were replaced.
    """
    replaced = 0
    for path in (tables.held, tables.promoted, tables.batches):
        table = DeltaTable.forPath(spark, path)
        (row,) = table.optimize().executeCompaction().collect()
        replaced += row.metrics.numFilesRemoved
        table.vacuum() if keep_hours is None else table.vacuum(keep_hours)
    return replaced
