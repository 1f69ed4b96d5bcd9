"""Cold requests for an audit: those that their topics no longer contain, and those that were not promoted."""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from timers.errors import SettingsError
from timers.kafka.topic_offsets import Offsets
from timers.spark import cold
from timers.spark.audit.scope import Scope, before, inside
from timers.spark.cold import HELD, ColdTables
from timers.spark.columns import LOG_APPEND_TIME, RECORD


def check(spark: SparkSession, tables: ColdTables) -> None:
    """Check that the tables exist."""
    for path in (tables.held, tables.promoted):
        if not DeltaTable.isDeltaTable(spark, path):
            raise SettingsError(
                f"--cold-table {tables.root!r} is not the directory of a cold tier: there is no Delta table {path!r} "
                "(use the value of --tables of `timers spark hold` and `promote`)"
            )


def requests(spark: SparkSession, tables: ColdTables, sent: DataFrame) -> DataFrame:
    """Each request that went cold, once, in the shape of :data:`timers.spark.cold.HELD`.

    Args:
        sent: records of the cold topic, in the shape of :data:`timers.spark.columns.RECORD`: `hold` may be behind.
    """
    held = spark.read.format("delta").load(tables.held).where(F.col("source").isNotNull())
    rest = cold.hold(sent, F.lit(None).cast(LongType())).where(F.col("source").isNotNull())
    both = held.unionByName(rest.join(held.select("source"), "source", "left_anti"))
    return both.dropDuplicates(["source"]).select(HELD.names)


def waiting(spark: SparkSession, tables: ColdTables, requests: DataFrame) -> DataFrame:
    """The requests without a recorded promotion: ``request``."""
    promoted = spark.read.format("delta").load(tables.promoted).select("source")
    return requests.select("source").join(promoted, "source", "left_anti").withColumnRenamed("source", "request")


def deleted_by_retention(requests: DataFrame, starts: Offsets, scope: Scope) -> DataFrame:
    """The records of requests that retention deleted from their topics, as :data:`timers.spark.columns.RECORD`.

    Args:
        requests: in the shape of :data:`timers.spark.cold.HELD`.
        starts: the first offset that each partition still contains.
        scope: which requests are audited.
    """
    records = requests.withColumns(
        {
            "offset": F.substring_index("source", "/", -1).cast("long"),
            "timestamp_ms": F.col("append_ms"),
            "timestamp_type": F.lit(LOG_APPEND_TIME),
        }
    )
    place = F.col("topic"), F.col("partition"), F.col("offset")
    gone = records.where(inside(before(starts), *place)).where(_in_scope(scope, *place))
    # Request formats decode the records of a partition in the order of their offsets.
    return gone.select(RECORD.names).sortWithinPartitions("topic", "partition", "offset")


def _in_scope(scope: Scope, topic: Column, partition: Column, offset: Column) -> Column:
    condition = F.lit(True)
    if scope.from_ms is not None:
        condition &= F.col("timestamp_ms") >= scope.from_ms
    if scope.to_ms is not None:
        condition &= F.col("timestamp_ms") < scope.to_ms
    return condition & (~topic.isin(list(scope.ranges)) | inside(scope.ranges, topic, partition, offset))
