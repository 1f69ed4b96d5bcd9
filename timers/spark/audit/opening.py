"""The opening balance of an audit: what was pending of requests that their logs no longer have, from snapshots.

A trimmed log begins at or before the offset of each named snapshot. What was pending at the older one, and was
requested before the log begins, is counted as if its request were still there. What had fired, or was cancelled, before
that offset is not counted. So the sum is right from there on.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from timers.config.settings import Settings
from timers.core.timer import Origin, Row, TopicPartition, origin_of
from timers.errors import TimersError
from timers.kafka.clients import admin_client
from timers.kafka.connection import ErrorReports
from timers.kafka.topic_offsets import Offsets
from timers.kafka.topics import existing_topics
from timers.pending.reading import PendingReader
from timers.spark.columns import LOG_APPEND_TIME, RECORD, record_batch
from timers.wire.formats import RequestFormat
from timers.wire.topics import parse_source, source

logger = logging.getLogger(__name__)

BATCH_ROWS = 10_000

_ARROW = to_arrow_schema(RECORD)


class Begin(NamedTuple):
    """Where the counting of a partition begins that has lost its first requests."""

    topic: str
    partition: int
    start: int
    """The first offset of its log."""
    offset: int
    """What was pending at this offset is in the opening balance."""
    timers: int
    """Number of timers in it whose requests are deleted."""


class Opening(NamedTuple):
    """The opening balance."""

    records: DataFrame
    """Their requests: as :data:`timers.spark.columns.RECORD`, later decoded."""
    begins: dict[TopicPartition, Begin]
    unknown: dict[TopicPartition, str]
    """Partition without an opening balance -> why."""


def read(spark: SparkSession, settings: Settings, starts: Offsets, formats: Mapping[str, RequestFormat]) -> Opening:
    """Read the opening balance of the partitions whose logs do not begin at 0. Nothing is written to Kafka.

    Args:
        starts: the first offset of each partition.
    """
    late = [(topic, partition) for topic, of in starts.items() for partition, start in of.items() if start > 0]
    # Topics of their users are not trimmed, and a schedule is not rebuilt as it was published.
    late = [tp for tp in late if tp[0] in (settings.request_topic, settings.id_topic, settings.retry_topic)]
    batches = [record_batch((), _ARROW)]  # Spark takes no table without batches
    begins: dict[TopicPartition, Begin] = {}
    unknown: dict[TopicPartition, str] = {}
    if late:
        reports = ErrorReports(settings)
        cluster = existing_topics(admin_client(settings, reports), settings)
        with (
            tempfile.TemporaryDirectory(prefix="timers-audit-") as name,
            PendingReader(settings, cluster, Path(name), lambda: None) as reader,
        ):
            for tp in late:
                try:
                    found = reader.opening(tp, reader.progress([tp])[tp])
                    if found is None:
                        unknown[tp] = "no snapshot says what was pending"
                        continue
                    records = [each for due in found[1] for each in _records(tp, due, starts, formats)]
                except (TimersError, KafkaException) as error:
                    unknown[tp] = f"its snapshot cannot be read ({error})"
                    continue
                begins[tp] = Begin(*tp, starts[tp[0]][tp[1]], found[0], len(records))
                batches += [
                    record_batch(records[first : first + BATCH_ROWS], _ARROW)
                    for first in range(0, len(records), BATCH_ROWS)
                ]
    table = pa.Table.from_batches(batches, schema=_ARROW)
    rows = spark.createDataFrame(table, RECORD)
    # Request formats decode the records of a partition in the order of their offsets.
    rows = rows.dropDuplicates(["topic", "partition", "offset"]).repartition("topic", "partition")
    return Opening(rows.sortWithinPartitions("topic", "partition", "offset"), begins, unknown)


def _records(
    tp: TopicPartition, due: tuple[int, list[Row]], starts: Offsets, formats: Mapping[str, RequestFormat]
) -> Iterator[tuple[object, ...]]:
    """The requests of pending timers, as rows of :data:`RECORD`, if their own log no longer has them."""
    due_s, rows = due
    for row in rows:
        origin = Origin(*origin_of(row, due_s, source(*tp, row[0])))
        place = parse_source(origin.request)
        if place is None or place[0] not in formats or place[2] >= starts.get(place[0], {}).get(place[1], 0):
            continue
        key, value, headers = formats[place[0]].rebuild_request(row, origin)
        # When it was appended is not known any more.
        yield (*place, 0, LOG_APPEND_TIME, key, value, headers or None)
