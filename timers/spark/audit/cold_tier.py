"""What the cold tier says to an audit: requests that their topics no longer hold, and which ones still wait in it."""

from __future__ import annotations

from collections.abc import Iterable

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from timers.errors import SettingsError
from timers.kafka.topic_offsets import Places
from timers.spark import cold
from timers.spark.audit.scope import Scope
from timers.spark.cold import HELD, ColdTables
from timers.spark.columns import LOG_APPEND_TIME, RECORD

_STARTS = StructType([*(HELD[name] for name in ("topic", "partition")), RECORD["offset"]])


def check(spark: SparkSession, tables: ColdTables) -> None:
    """That the tables are there.

    Raises:
        SettingsError: they are not.
    """
    for path in (tables.held, tables.promoted):
        if not DeltaTable.isDeltaTable(spark, path):
            raise SettingsError(
                f"--cold-table {tables.root!r} holds no cold tier: there is no Delta table {path!r} (give what "
                "`timers spark hold` and `promote` have as --tables)"
            )


def requests(spark: SparkSession, tables: ColdTables, sent: DataFrame, topics: Iterable[str]) -> DataFrame:
    """Every request that went cold, once, in the shape of :data:`timers.spark.cold.HELD`.

    Args:
        spark: the session.
        tables: what `hold` has taken in.
        sent: records of the cold topic, in the shape of :data:`timers.spark.columns.RECORD`: `hold` may be behind.
        topics: that requests go cold from.
    """
    held = spark.read.format("delta").load(tables.held).where(F.col("source").isNotNull())
    rest = cold.hold(sent, topics, F.lit(None).cast(LongType())).where(F.col("source").isNotNull())
    both = held.unionByName(rest.join(held.select("source"), "source", "left_anti"))
    return both.dropDuplicates(["source"]).select(HELD.names)


def waiting(spark: SparkSession, tables: ColdTables, requests: DataFrame) -> DataFrame:
    """Those that were not written back, as far as `promote` has noted: ``request``."""
    promoted = spark.read.format("delta").load(tables.promoted).select("source")
    return requests.select("source").join(promoted, "source", "left_anti").withColumnRenamed("source", "request")


def no_longer_held(spark: SparkSession, requests: DataFrame, starts: Places, scope: Scope) -> DataFrame:
    """The records of requests that retention took from their topics, as they stood there, as
    :data:`timers.spark.columns.RECORD`.

    Args:
        spark: the session.
        requests: in the shape of :data:`timers.spark.cold.HELD`.
        starts: the first offset that each partition still holds.
        scope: which requests are asked about.
    """
    rows = [(topic, partition, at) for topic, places in starts.items() for partition, at in places.items()]
    first = F.broadcast(spark.createDataFrame(rows, _STARTS).withColumnRenamed("offset", "first"))
    offset = F.substring_index("source", "/", -1).cast("long")
    records = requests.withColumns(
        {
            "offset": offset,
            "timestamp_ms": F.col("append_ms"),
            "timestamp_type": F.lit(LOG_APPEND_TIME),
        }
    )
    gone = records.join(first, ["topic", "partition"]).where(F.col("offset") < F.col("first")).where(_inside(scope))
    # Those of a partition in the order of their offsets: request formats read them so.
    return gone.select(RECORD.names).sortWithinPartitions("topic", "partition", "offset")


def _inside(scope: Scope) -> Column:
    inside = F.lit(True)
    if scope.from_ms is not None:
        inside &= F.col("timestamp_ms") >= scope.from_ms
    if scope.to_ms is not None:
        inside &= F.col("timestamp_ms") < scope.to_ms
    for topic, partitions in scope.ranges.items():
        named = F.lit(False)
        for partition, (low, high) in partitions.items():
            named |= (F.col("partition") == partition) & F.col("offset").between(low, high - 1)
        inside &= (F.col("topic") != topic) | named
    return inside
