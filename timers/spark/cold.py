"""The tables of the cold tier: cold requests by due day, and which of them were promoted.

Three Delta tables in one directory. Rows are only appended; requests that were promoted days ago are deleted::

    held      the cold requests, one directory for each due day (UTC)
    promoted  which requests were promoted, by due day
    batches   begin and end of each batch of copies; after a crash they show the interrupted batch

Nothing here uses Kafka: transforms take and return DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from functools import reduce
from operator import and_, or_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.spark.columns import digits, due_second, payload_bytes, schema
from timers.spark.storage import Steps, table_at
from timers.wire import headers as h
from timers.wire.cold import COLD_HEADERS, MAX_APPEND_DIGITS
from timers.wire.topics import SOURCE_PATTERN

HELD = schema(
    "due_day date, due_s bigint, source string, topic string, partition int, append_ms bigint, held_ms bigint, "
    "seal binary, key binary, value binary, headers headers"
)
"""A cold request, with the key, value and headers that were sent. ``topic`` and ``partition`` are where it is promoted
to, ``held_ms`` is the time at which `hold` read it. A record of the cold topic that is no cold request is never
promoted: its ``due_day`` and ``source`` are null."""

PROMOTED = schema("due_day date, due_s bigint, source string, batch string")
"""A request that was promoted."""

BATCHES = schema("batch string, state string, until_s bigint, starts string")
"""A batch of copies: a row for its begin and one for its end (:class:`timers.spark.storage.Steps`). All its timers were
due by ``until_s``. ``starts``, in the row of the begin, is JSON: where the request logs ended then."""

DAY_S = 86_400

_LOG_RETENTION = "interval 7 days"


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
        """That of `hold`: inside the held table, so that both can only be lost together. Delta ignores the name."""

    def steps(self, spark: SparkSession) -> Steps:
        return Steps(spark, self.batches, BATCHES)

    def create(self, spark: SparkSession) -> None:
        """Create the missing tables."""
        for path, columns, by_day in (
            (self.held, HELD, True),
            (self.promoted, PROMOTED, True),
            (self.batches, BATCHES, False),
        ):
            table = DeltaTable.createIfNotExists(spark).location(path).addColumns(columns)
            if by_day:
                table = table.partitionedBy("due_day")
            table.property("delta.logRetentionDuration", _LOG_RETENTION).execute()


def hold(records: DataFrame, held_ms: Column) -> DataFrame:
    """Records of the cold topic, as :data:`HELD`. Decodes as :func:`timers.wire.cold.decode_cold` does.

    It does not matter here whether a setting names the topic of a request: another process, or a later one, may have
    other settings, and the table keeps what it needs (:func:`has_place`).

    These are column expressions, because it is slow to pass headers to Python: 400,000 records took 2 to 6 s this way,
    and 82 s with a function for ``mapInArrow``.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`.
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
    return checked.withColumns({"due_day": day_of(F.col("due_s")), "held_ms": held_ms}).select(HELD.names)


_SOURCE = rf"^{SOURCE_PATTERN}\z"


def _value(name: str) -> Column:
    return F.try_element_at("added", F.lit(COLD_HEADERS.index(name) + 1))["value"]


def day_of(due_s: Column) -> Column:
    """The due day of a due second, by which the tables are partitioned."""
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
    # Up to an hour before the partition forgets: ``now_s`` and the append times in its log are of different clocks.
    forgotten_s = F.col("due_s") + retention_s - min(3600, retention_s // 2)
    is_known = (F.col("due_s") > unsure_until_s) | (forgotten_s > now_s)
    return F.col("topic").isin(*id_topics) | ((F.col("held_ms") <= forgotten_s * 1000) & is_known)


def has_place(ends: Offsets) -> Column:
    """Condition: the partition to which a request is promoted is in ``ends``, and its requests may go cold."""
    places = ((F.col("topic") == topic) & F.col("partition").isin(*of) for topic, of in ends.items())
    return reduce(or_, places, F.lit(False))


def unpromoted(spark: SparkSession, tables: ColdTables, until_s: int, condition: Column) -> DataFrame:
    """The requests that are due by ``until_s`` and not promoted: (due_day, due_s, source, size), one row for a source.

    The cost depends on the requests that are due by then and not yet deleted. Spark opens no files of later days.

    Args:
        condition: further condition on rows of :data:`HELD`.
    """
    until = day_of(F.lit(until_s).cast("long"))
    held = spark.read.format("delta").load(tables.held)
    due = held.where((F.col("due_day") <= until) & (F.col("due_s") <= until_s)).where(condition)
    sized = due.select("due_day", "due_s", "source", payload_bytes().alias("size"))
    promoted = spark.read.format("delta").load(tables.promoted).where(F.col("due_day") <= until)
    left = sized.join(promoted.select("due_day", "source"), ["due_day", "source"], "left_anti")
    return left.select("due_day", "due_s", "source", "size").dropDuplicates(["source"])


def files_scanned(frame: DataFrame, path: str) -> int:
    """Number of files of the table at ``path`` that the query of a DataFrame scans, after Delta has skipped files."""
    root = path.split(":", 1)[-1].strip("/")  # file:/a, file:///a and /a are one directory
    return sum(file.split(":", 1)[-1].strip("/").startswith(f"{root}/") for file in frame.inputFiles())


def whole_requests(spark: SparkSession, tables: ColdTables, chosen: DataFrame, days: Iterable[object]) -> DataFrame:
    """The complete requests (:data:`HELD`) of chosen (due_day, source) of some days. Only files of these are opened."""
    held = spark.read.format("delta").load(tables.held).where(F.col("due_day").isin(*days))
    wanted = F.broadcast(chosen.select("due_day", "source").distinct())
    return held.join(wanted, ["due_day", "source"], "left_semi").select(HELD.names).dropDuplicates(["source"])


def append(frame: DataFrame, path: str, columns: StructType) -> None:
    """Append rows to a table in one commit."""
    frame.select(columns.names).write.format("delta").mode("append").save(path)


# ---- maintenance -----------------------------------------------------------------------------------------------------


def delete_promoted(spark: SparkSession, tables: ColdTables, before_s: int) -> int:
    """Delete the promoted requests of days before ``before_s``, and what says that they were promoted; count them.

    Each deleted row has a record of its promotion. So a request that `hold` adds meanwhile stays, and a request that
    cannot be promoted does not keep the others of its day.
    """
    day = F.lit(date(1970, 1, 1) + timedelta(before_s // DAY_S))  # a literal: Delta opens no files of later days
    done = _sources(spark, tables.promoted).where(F.col("due_day") < day).alias("done")
    if done.isEmpty():
        return 0
    same = (F.col("held.due_day") == F.col("done.due_day")) & (F.col("held.source") == F.col("done.source"))
    held = DeltaTable.forPath(spark, tables.held).alias("held")
    (merged,) = held.merge(done, same & (F.col("held.due_day") < day)).whenMatchedDelete().execute().collect()
    left = _sources(spark, tables.held).where(F.col("due_day") < day).alias("held")
    promoted = DeltaTable.forPath(spark, tables.promoted).alias("done")
    promoted.merge(left, same).whenNotMatchedBySourceDelete(F.col("done.due_day") < day).execute()
    return int(merged.num_deleted_rows)


def _sources(spark: SparkSession, path: str) -> DataFrame:
    """The requests in a table: (due_day, source)."""
    return spark.read.format("delta").load(path).select("due_day", "source").distinct()


def compact(spark: SparkSession, tables: ColdTables, say: Callable[[str], None] = lambda line: None) -> int:
    """Merge small files, which may take minutes, and delete replaced files that readers no longer need. Returns how
    many files were merged."""
    replaced = 0
    for path in (tables.held, tables.promoted, tables.batches):
        table = DeltaTable.forPath(spark, path)
        (about,) = table.detail().select("numFiles", "sizeInBytes").collect()
        say(f"merging small files of {path}: {counted(about.numFiles, 'file')}, {about.sizeInBytes / 1e6:,.0f} MB")
        (row,) = table.optimize().executeCompaction().collect()
        replaced += row.metrics.numFilesRemoved
        table.vacuum()  # keeps replaced files for seven days
    return replaced
