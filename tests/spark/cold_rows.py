"""Many cold timers at once, for what depends on how many there are."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timers.spark import cold
from timers.spark.cold import DAY_S, HELD_SCHEMA, ColdTables
from timers.spark.jobs.hold import MAX_RECORDS

NOW_S = 1_700_000_000


def fill(spark: SparkSession, tables: ColdTables, count: int, days: int, first: int = 0) -> None:
    """``count`` cold timers, spread evenly over ``days`` days from now on, in the files of `hold`.

    Args:
        first: offset of the first request.
    """
    due_s = (F.lit(NOW_S) + F.floor(F.col("id") * F.lit(days * DAY_S / count))).cast("long")
    rows = spark.range(count).select(
        F.timestamp_seconds(due_s).alias("due"),
        cold.day_of(due_s).alias("due_day"),
        due_s.alias("due_s"),
        F.concat(F.lit("timer-request/0/"), (F.col("id") + first).cast("string")).alias("source"),
        F.lit("timer-request").alias("topic"),
        F.lit(0).alias("partition"),
        F.lit(NOW_S * 1000).cast("long").alias("append_ms"),
        F.lit(NOW_S * 1000).cast("long").alias("held_ms"),
        F.lit("0" * 32).cast("binary").alias("seal"),
        F.lit("key").cast("binary").alias("key"),
        F.lit("x" * 100).cast("binary").alias("value"),
        F.lit(None).cast(HELD_SCHEMA["headers"].dataType).alias("headers"),
    )
    files = max(1, count // MAX_RECORDS)
    cold.append(rows.repartition(files), tables.held, HELD_SCHEMA)
