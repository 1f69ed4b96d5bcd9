"""``timers spark pending``: what is pending of an app, as a DataFrame, from snapshots and the logs after them.

A task reads some partitions, each with its newest committed progress, in stores of its own. So it does not matter which
engine fires the timers, and no engine notices it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.core.repeating import target_of
from timers.core.timer import TopicPartition, key_bytes, origin_of
from timers.kafka.topics import Cluster
from timers.offline.pending import PendingReader, exported_topics
from timers.process.config.settings import Settings
from timers.spark.columns import record_batch, schema
from timers.spark.session import described
from timers.spark.storage import Kept
from timers.wire.topics import source

PENDING = schema("topic string, due_s bigint, id string, key binary, attempts int, source string")
"""One timer: its callback topic, the second in which it fires, its id (null if the sender gave none), the key of its
callback, how often it has failed, and the record of its request."""

BATCH_ROWS = 10_000


def pending(spark: SparkSession, settings: Settings, cluster: Cluster) -> DataFrame:
    """What is pending: :data:`PENDING`, with ``due`` and ``hour`` (timestamps) after ``topic``.

    It is read anew whenever it is used.
    """
    tps = [(topic, number) for topic in exported_topics(settings) for number in range(cluster.partitions.get(topic, 0))]
    places = spark.createDataFrame(tps, schema("topic string, partition int")).repartition(len(tps), *PLACE)
    due = F.timestamp_seconds("due_s")
    timers = places.mapInArrow(_reader(settings, cluster), PENDING)
    return timers.select("topic", due.alias("due"), F.date_trunc("hour", due).alias("hour"), *PENDING.names[1:])


PLACE = ("topic", "partition")


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


def _reader(settings: Settings, cluster: Cluster) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over places; it yields rows of :data:`PENDING`."""

    def read(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with (
            tempfile.TemporaryDirectory(prefix="timers-pending-") as name,
            PendingReader(settings, cluster, Path(name), lambda: None) as reader,
        ):
            for batch in places:
                for tp in zip(*(batch.column(each).to_pylist() for each in PLACE), strict=True):
                    yield from _batches(settings, reader, tp)

    return read


def _batches(settings: Settings, reader: PendingReader, tp: TopicPartition) -> Iterator[pa.RecordBatch]:
    progress, found = reader.progress([tp])[tp], []
    for due_s, rows in reader.pending(tp, progress):
        for row in rows:
            topic, key = target_of(row), row[2]
            if topic == settings.canary_topic:
                continue
            origin = origin_of(row, due_s, source(*tp, row[0], progress.cuts))
            id = origin.timer_id if origin.has_id else None
            found.append((topic, due_s, id, key_bytes(key), origin.attempt, origin.request))
        if len(found) >= BATCH_ROWS:
            yield record_batch(found, PENDING)
            found = []
    yield record_batch(found, PENDING)
