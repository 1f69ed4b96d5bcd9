"""``timers spark pending``: what is pending of an app, as a DataFrame, from snapshots and the logs after them."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.spark.columns import schema
from timers.spark.frames.pending_rows import PENDING_SCHEMA, PLACE_COLUMNS, places, reader
from timers.spark.session import described
from timers.spark.storage import Kept


def pending(spark: SparkSession, settings: Settings, cluster: Cluster) -> DataFrame:
    """What is pending: :data:`timers.spark.frames.pending_rows.PENDING_SCHEMA`, with its ``hour``.

    It is read anew whenever it is used.
    """
    tps = places(settings, cluster)
    parts = spark.createDataFrame(tps, schema("topic string, partition int")).repartition(len(tps), *PLACE_COLUMNS)
    timers = parts.mapInArrow(reader(settings, cluster), PENDING_SCHEMA)
    return timers.withColumn("hour", F.date_trunc("hour", "due"))


def run(spark: SparkSession, settings: Settings, cluster: Cluster, table: str | None) -> list[tuple[int, str, int]]:
    """Read what is pending, replace the Delta table if one is named, and return the forecast: (epoch second of an hour,
    callback topic, timers)."""
    with Kept() as kept, described(spark, f"timers pending: what is pending of {settings.app_id}"):
        timers = kept.on_disk(pending(spark, settings, cluster))
        counts = timers.groupBy("hour", "topic").agg(F.count(F.lit(1)).alias("timers")).orderBy("hour", "topic")
        hours = counts.select(F.unix_seconds("hour"), "topic", "timers").collect()
        if table is not None:
            timers.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
        return [(hour, topic, count) for hour, topic, count in hours]
