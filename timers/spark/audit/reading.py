"""Reads the topics of an audit as a committed reader: requests, and what an engine has written."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.config.settings import Settings
from timers.core.progress import FEATURE_LEVEL, MOVED_S, Progress
from timers.core.timer import TopicPartition
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.request_formats import enabled_formats
from timers.spark import jvm, kafka, requests
from timers.spark.audit import cold_tier, opening
from timers.spark.audit.findings import Counted, PartitionRead
from timers.spark.audit.opening import Opening
from timers.spark.audit.scope import Scope
from timers.spark.cold import ColdTables
from timers.spark.requests import OTHER
from timers.spark.storage import Kept
from timers.wire import progress

_NO_LIMIT = 2**31 - 1
"""The audit accepts requests of any size. Their partitions judged them by the limit of that time, which may have been
another one: a request that was rejected has a dead letter."""

SETTLING_S = 15.0
"""How long an audit waits for transactions that are open when it starts. Those of workers end within 10 s."""


class Requests(NamedTuple):
    """The requests that were read."""

    rows: DataFrame
    """In the shape of :data:`timers.spark.requests.REQUEST`, on disk."""
    counted: list[Counted]


class Cold(NamedTuple):
    """Requests in the cold tier."""

    deleted: DataFrame
    """Requests that retention deleted from their topics, in the shape of :data:`timers.spark.requests.REQUEST`."""
    waiting: DataFrame
    """Requests that were not promoted: ``request``."""


class Reading:
    """The topics of an audit, and the offsets up to which they are read.

    Ends of all topics are chosen first. An end is where a topic ended then, as soon as the transactions that were open
    have ended. Ends of outputs come before those of requests, so that the requests of all outputs are read.

    Attributes:
        formats: request topic -> its format.
        span: offsets of the request topics.
        starts: first offsets that the request topics still contain.
        high_watermarks: ends of all topics, with the records of open transactions.
        ends: offsets up to which topics were read.
    """

    def __init__(self, spark: SparkSession, settings: Settings, scope: Scope, topics: TopicOffsets, kept: Kept) -> None:
        self._spark = spark
        self._settings = settings
        self._scope = scope
        self._topics = topics
        self._kept = kept
        # A KeepAlive of a message holds no timer of its own, which the rules of the audit cannot express.
        self.formats = {topic: each for topic, each in enabled_formats(settings).items() if not each.has_markers}
        request_topics = topics.existing(self.formats)
        everything = topics.all()
        self._output_ends = topics.high_watermarks(everything)
        self.high_watermarks = self._output_ends | topics.high_watermarks(request_topics)
        ends = self._settle(request_topics)
        since_ms = scope.evidence_from_ms
        self._output_starts = topics.starts(everything) if since_ms is None else topics.at_time(everything, since_ms)
        whole = {t for t in request_topics if self.formats[t].has_ids or t == settings.retry_topic}
        self.span = scope.span(topics, request_topics, ends, whole)
        self.starts = topics.starts(request_topics)
        self.ends: Offsets = dict(ends)

    def request_topics(self, *, ids: bool, compacted: bool = False) -> list[str]:
        """Existing request topics without the retry topic, by the kind of their format."""
        kind = (ids, compacted)
        return [
            topic
            for topic in self.span.starts
            if topic != self._settings.retry_topic
            and (self.formats[topic].has_ids, self.formats[topic].topic_is_compacted) == kind
        ]

    def _settle(self, topics: Iterable[str]) -> Offsets:
        high_watermarks = {topic: self.high_watermarks[topic] for topic in topics}
        return self._topics.settled(high_watermarks, SETTLING_S) if high_watermarks else {}

    # ---- requests ---------------------------------------------------------------------------------------------------

    def requests(self) -> Requests:
        """The decoded requests."""
        native = self._settings.request_topic
        others = {topic: of for topic, of in self.span.starts.items() if topic != native}
        rows = self._decode(self._read(others, self.span.ends))
        if native in self.span.starts:
            records = self._read({native: self.span.starts[native]}, self.span.ends)
            rows = rows.unionByName(requests.decode_native(records, _NO_LIMIT, native))
        rows = self._kept.on_disk(rows)
        counted = self._counted(rows)
        if any(each.kind == OTHER for each in counted):
            unusual = rows.where(F.col("kind") == OTHER).groupBy("partition").agg(F.min("offset"), F.max("offset"))
            ranges = {partition: range(first, last + 1) for partition, first, last in unusual.collect()}
            records = self._read(
                {native: {partition: each.start for partition, each in ranges.items()}},
                {native: {partition: each.stop for partition, each in ranges.items()}},
            )
            left = self._kept.on_disk(self._decode(requests.unusual_native(records, _NO_LIMIT)))
            rows = rows.where(F.col("kind") != OTHER).unionByName(left)
            counted = [each for each in counted if each.kind != OTHER] + self._counted(left)
        return Requests(rows, counted)

    def cold(self, tables: ColdTables) -> Cold:
        """The requests in the cold tier."""
        sent = self.outputs([self._settings.cold_topic])
        requested = cold_tier.requests(self._spark, tables, sent)
        gone = self._decode(cold_tier.deleted_by_retention(requested, self.starts, self._scope))
        return Cold(self._kept.on_disk(gone), cold_tier.waiting(self._spark, tables, requested))

    def opening(self) -> Opening | None:
        """What was pending of requests that trimmed logs no longer have; None: no log of the scope begins late."""
        starts = {topic: of for topic, of in self.starts.items() if topic not in self._scope.ranges}
        if self._scope.from_ms is not None or not any(start for of in starts.values() for start in of.values()):
            return None
        found = opening.read(self._spark, self._settings, starts, self.formats)
        return found._replace(records=self._kept.on_disk(self._decode(found.records)))

    def _decode(self, records: DataFrame) -> DataFrame:
        levels = {
            tp: [(each.from_offset, each.value) for each in known.settings if each.name == FEATURE_LEVEL]
            for tp, known in self._progress.items()
        }
        return requests.decode(records, self.formats, _NO_LIMIT, self._settings.request_topic, levels)

    def with_existing(self, rows: DataFrame) -> DataFrame:
        """Rows with null instead of a callback topic that does not exist: requests may name any number of those."""
        names = [(name, name) for name in self._topics.all()]
        existing = self._spark.createDataFrame(names, "callback_topic string, existing string")
        joined = rows.join(F.broadcast(existing), "callback_topic", "left")
        return joined.withColumn("callback_topic", F.col("existing")).select(rows.columns)

    def _counted(self, rows: DataFrame) -> list[Counted]:
        numbers = F.count(F.lit(1)), F.sum("bytes"), F.min("timestamp_ms"), F.max("timestamp_ms")
        groups = self.with_existing(rows).groupBy("topic", "callback_topic", "kind").agg(*numbers)
        return [Counted(*group) for group in groups.collect()]

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def outputs(self, topics: Iterable[str]) -> DataFrame:
        """The records of those topics that exist, in the shape of :data:`timers.spark.columns.RECORD`."""
        known = [topic for topic in topics if topic in self._output_starts]
        self.ends |= self._settle(topic for topic in known if topic not in self.ends)
        # A callback topic may be a request topic, whose end is that of its requests.
        ends = {t: {p: min(end, self._output_ends[t][p]) for p, end in self.ends[t].items()} for t in known}
        return self._read({topic: self._output_starts[topic] for topic in known}, ends)

    def partitions(self) -> list[PartitionRead]:
        """The partitions of requests that were read, with the progress of the engine. It is only shown."""
        reached = {tp: each.fired_through[0] for tp, each in self._progress.items()}
        return [
            PartitionRead(topic, partition, start, self.span.ends[topic][partition], reached.get((topic, partition)))
            for topic, partitions in sorted(self.span.starts.items())
            for partition, start in sorted(partitions.items())
        ]

    def moved(self) -> dict[TopicPartition, int]:
        """Partition -> what was pending of the requests below this offset was moved to another app."""
        return {
            tp: max(hole.before_offset for hole in each.holes if hole.through[0] == MOVED_S)
            for tp, each in self._progress.items()
            if each.moves
        }

    @cached_property
    def _progress(self) -> dict[TopicPartition, Progress]:
        records = self.outputs([self._settings.progress_topic])
        latest = records.where("value is not null").groupBy("key").agg(F.max_by("value", "offset").alias("value"))
        found: dict[TopicPartition, Progress] = {}
        for key, value in latest.collect():
            with contextlib.suppress(ValueError, TimersError):  # another program wrote it, or a newer version
                found[progress.decode_key(bytes(key))] = progress.decode(bytes(value))[0]
        return found

    def _read(self, starts: Offsets, ends: Offsets) -> DataFrame:
        """The records of a range."""
        tasks = self._spark.sparkContext.defaultParallelism
        ends = {topic: {p: ends[topic][p] for p in of} for topic, of in starts.items()}
        return kafka.read(self._spark, self._settings, starts, ends, min_partitions=tasks)


def topic_bytes(spark: SparkSession, settings: Settings, topics: Collection[str]) -> dict[str, int] | str:
    """Bytes of the largest replica of each topic, or the reason why they are not known."""
    sizes = jvm.replica_bytes(spark, connection.java(settings))
    if isinstance(sizes, str):
        return sizes
    by_topic: dict[str, int] = defaultdict(int)
    for (topic, _), size in sizes.items():
        if topic in topics:
            by_topic[topic] += size
    return dict(by_topic)
