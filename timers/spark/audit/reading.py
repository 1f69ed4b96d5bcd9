"""Reads what an audit compares, as a committed reader: requests, the cold tier, snapshots, and the engine's outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaException
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from timers.core.fired import MOVED_HOLE_S
from timers.core.progress import Progress
from timers.core.repeating import is_occurrence
from timers.core.timer import Origin, Row, TopicPartition, origin_of
from timers.errors import SettingsError, TimersError
from timers.kafka.clients import admin_client
from timers.kafka.connection import ErrorReports
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.kafka.topics import existing_topics
from timers.machines.store.database import scratch_directory
from timers.offline.pending import PendingReader
from timers.process.config.settings import Settings
from timers.spark import cold, kafka, requests
from timers.spark.audit.findings import Begin, Counted, PartitionRead
from timers.spark.audit.gaps import OUTPUT_MARGIN_MS, Scope, before, inside
from timers.spark.cold import HELD_SCHEMA, ColdTables
from timers.spark.columns import RECORD_SCHEMA, record_batch, record_batches, schema
from timers.spark.storage import Kept
from timers.wire import progress as progress_record
from timers.wire.formats import LOG_APPEND_TIME, RequestFormat, future_by_id
from timers.wire.topics import SOURCE_PATTERN, parse_source, source


def check_cold_tables(spark: SparkSession, tables: ColdTables) -> None:
    for path in (tables.held, tables.promoted):
        if not DeltaTable.isDeltaTable(spark, path):
            raise SettingsError(
                f"--cold-table {tables.root!r} is not the directory of a cold tier: there is no Delta table {path!r} "
                "(use the value of --tables of `timers spark hold` and `promote`)"
            )


def cold_requests(spark: SparkSession, tables: ColdTables, sent: DataFrame) -> DataFrame:
    """Each request that went cold, once (:data:`timers.spark.cold.HELD_SCHEMA`), also the last ones that were ``sent``
    to the
    cold topic: `hold` may be behind."""
    held = spark.read.format("delta").load(tables.held).where(F.col("source").isNotNull()).select(HELD_SCHEMA.names)
    rest = cold.hold(sent, F.lit(None).cast(LongType())).where(F.col("source").isNotNull())
    both = held.unionByName(rest.join(held.select("source"), "source", "left_anti"))
    return both.dropDuplicates(["source"]).select(HELD_SCHEMA.names)


def deleted_by_retention(requests: DataFrame, starts: Offsets, scope: Scope) -> DataFrame:
    """The records of audited requests (:data:`timers.spark.cold.HELD_SCHEMA`) that retention deleted, as :data:`NAMED`.
    ``starts``: the first offset that each partition still contains."""
    records = requests.withColumns(
        {
            "offset": F.regexp_extract("source", SOURCE_PATTERN, 3).cast("long"),
            "timestamp_ms": F.col("append_ms"),
            "timestamp_type": F.lit(LOG_APPEND_TIME),
        }
    )
    place = F.col("topic"), F.col("partition"), F.col("offset")
    gone = records.where(inside(before(starts), *place))
    if scope.from_ms is not None:
        gone = gone.where(F.col("timestamp_ms") >= scope.from_ms)
    if scope.to_ms is not None:
        gone = gone.where(F.col("timestamp_ms") < scope.to_ms)
    gone = gone.where(~F.col("topic").isin(list(scope.ranges)) | inside(scope.ranges, *place))
    # Request formats decode the records of a partition in the order of their offsets.
    return gone.select(NAMED.names).sortWithinPartitions("topic", "partition", "offset")


NAMED = StructType([*RECORD_SCHEMA, *schema("source string")])
"""A record (:data:`timers.spark.columns.RECORD_SCHEMA`) and its name. A later record may have its offset, after a
cut."""


class Opening(NamedTuple):
    """The opening balance: what was pending of requests that their logs no longer have, from snapshots.

    A trimmed log begins at or before the offset of each named snapshot. What was pending at the older one, and was
    requested before the log begins, is counted as if its request were still there. What had fired, or was cancelled,
    before that offset is not counted. So the sum is right from there on.
    """

    records: DataFrame
    """Their requests: as :data:`NAMED`, later decoded."""
    begins: dict[TopicPartition, Begin]
    unknown: dict[TopicPartition, str]
    """Partition without an opening balance -> why."""


def read_opening(
    spark: SparkSession, settings: Settings, starts: Offsets, formats: Mapping[str, RequestFormat]
) -> Opening:
    """Read the opening balance of the partitions whose logs do not begin at 0. Nothing is written to Kafka."""
    late = [(topic, partition) for topic, of in starts.items() for partition, start in of.items() if start > 0]
    # Topics of their users are not trimmed, and a schedule is not rebuilt as it was published.
    late = [tp for tp in late if tp[0] in (settings.request_topic, settings.id_topic, settings.retry_topic)]
    batches = [record_batch((), NAMED)]  # pyarrow makes no table from an empty list
    begins: dict[TopicPartition, Begin] = {}
    unknown: dict[TopicPartition, str] = {}
    if late:
        reports = ErrorReports(settings)
        cluster = existing_topics(admin_client(settings, reports), settings)
        with scratch_directory() as directory, PendingReader(settings, cluster, directory, lambda: None) as reader:
            for tp in late:
                try:
                    progress = reader.progress([tp])[tp]
                    found = reader.opening(tp, progress)
                    if found is None:
                        unknown[tp] = "no snapshot says what was pending"
                        continue
                    records = [each for due in found[1] for each in _records(tp, due, progress, starts, formats)]
                except (TimersError, KafkaException) as error:
                    unknown[tp] = f"its snapshot cannot be read ({error})"
                    continue
                begins[tp] = Begin(*tp, starts[tp[0]][tp[1]], found[0], len(records))
                batches += record_batches(records, NAMED, _size_of)
    rows = spark.createDataFrame(pa.Table.from_batches(batches), NAMED)
    # Request formats decode the records of a partition in the order of their offsets.
    rows = rows.dropDuplicates(["source"]).repartition("topic", "partition")
    return Opening(rows.sortWithinPartitions("topic", "partition", "offset"), begins, unknown)


def _size_of(record: tuple[Any, ...]) -> int:
    key, value, headers = record[5:8]
    return len(key or b"") + len(value or b"") + sum(len(content or b"") for _, content in headers or ())


def _records(
    tp: TopicPartition,
    due: tuple[int, list[Row]],
    progress: Progress,
    starts: Offsets,
    formats: Mapping[str, RequestFormat],
) -> Iterator[tuple[Any, ...]]:
    """The requests of pending timers, as rows of :data:`NAMED`, if their own log no longer has them."""
    due_s, rows = due
    for row in rows:
        origin = Origin(*origin_of(row, due_s, source(*tp, row[0], progress.cuts)))
        place = parse_source(origin.request)
        if place is None or place[0] not in formats or place[2] >= starts.get(place[0], {}).get(place[1], 0):
            continue
        request = formats[place[0]].rebuild_request(row, origin)
        if is_occurrence(row):
            request = future_by_id.rebuild_occurrence(row, due_s)
        # When it was appended is not known any more.
        yield (*place, 0, LOG_APPEND_TIME, *request[:2], request[2] or None, origin.request)


NO_LIMIT = 2**31 - 1
"""The audit accepts requests of any size. Their partitions judged them by the limit of that time, which may have been
another one: a request that was rejected has a dead letter."""

SETTLING_S = 15.0
"""How long an audit waits for transactions that are open when it starts. Those of workers end within 10 s."""


def moved_below(progress: Mapping[TopicPartition, Progress]) -> dict[TopicPartition, int]:
    """Partition -> what was pending of the requests below this offset was moved to another app."""
    return {
        tp: max(hole.before_offset for hole in each.holes if hole.through[0] == MOVED_HOLE_S)
        for tp, each in progress.items()
        if each.moves
    }


def with_holds(progress: Mapping[TopicPartition, Progress]) -> dict[TopicPartition, Progress]:
    """Partition -> progress of the engine, where it has holds."""
    return {tp: each for tp, each in progress.items() if each.holds}


class Cold(NamedTuple):
    """Requests in the cold tier."""

    deleted: DataFrame
    """Requests that retention deleted from their topics, in the shape of
    :data:`timers.spark.requests.REQUEST_SCHEMA`."""
    waiting: DataFrame
    """Requests that were not promoted: ``request``."""


class Reading:
    """The topics of an audit, and the offsets up to which they are read.

    Ends of all topics are chosen first. The end of a topic is its high watermark at that moment. It is used once the
    transactions that were open then have ended. Ends of outputs come before those of requests, so that the requests of
    all outputs are read.

    Attributes:
        formats: request topic -> its format.
        without_ids, with_ids, schedules: existing request topics of these kinds, without the retry topic.
        span: offsets of the request topics.
        starts: first offsets that the request topics still contain.
        high_watermarks: ends of all topics, with the records of open transactions.
        ends: offsets up to which topics were read.

    Args:
        others: asked for the topics that may be callback topics, which are all of the cluster: some of its partitions
            may have no leader, and matter only if requests name their topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        scope: Scope,
        topics: TopicOffsets,
        others: TopicOffsets,
        kept: Kept,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._scope = scope
        self._topics = topics
        self._kept = kept
        # A KeepAlive of a message holds no timer of its own, which the rules of the audit cannot express.
        self.formats = {topic: each for topic, each in enabled_formats(settings).items() if not each.has_markers}
        request_topics = topics.existing(self.formats)
        outputs = {settings.dead_letter_topic, settings.verdict_topic, settings.progress_topic, settings.cold_topic}
        self._own = topics.existing(outputs | {*request_topics})
        self._others = others
        self._output_ends = self._of_all(TopicOffsets.high_watermarks)
        self.high_watermarks = self._output_ends | topics.high_watermarks(request_topics)
        ends = self._settle(request_topics)
        since_ms = None if scope.from_ms is None else max(0, scope.from_ms - OUTPUT_MARGIN_MS)
        self._output_starts = self._of_all(
            TopicOffsets.starts if since_ms is None else lambda of, names: of.at_time(names, since_ms)
        )
        whole = {t for t in request_topics if self.formats[t].has_ids or t == settings.retry_topic}
        self.span = scope.span(topics, request_topics, ends, whole)
        self.starts = topics.starts(request_topics)
        kinds = {t: (self.formats[t].has_ids, self.formats[t].topic_is_compacted) for t in self.span.starts}
        kinds.pop(settings.retry_topic, None)
        self.without_ids, self.with_ids, self.schedules = (
            [t for t, kind in kinds.items() if kind == each] for each in ((False, False), (True, False), (True, True))
        )
        self.ends: Offsets = dict(ends)

    def _of_all(self, ask: Callable[[TopicOffsets, list[str]], Offsets]) -> Offsets:
        strangers = [topic for topic in self._others.all() if topic not in self._own]
        return ask(self._others, strangers) | ask(self._topics, self._own)

    def _settle(self, topics: Iterable[str]) -> Offsets:
        high_watermarks = {topic: self.high_watermarks[topic] for topic in topics}
        return self._topics.settled(high_watermarks, SETTLING_S) if high_watermarks else {}

    # ---- requests ---------------------------------------------------------------------------------------------------

    def requests(self) -> tuple[DataFrame, list[Counted]]:
        """The decoded requests, in the shape of :data:`timers.spark.requests.REQUEST_SCHEMA`, on disk; and their
        numbers."""
        passed_over = {tp: each.settings.passed_over for tp, each in self._progress.items()}
        rows = self._kept.on_disk(self._decode(self._read(self.span.starts, self.span.ends, passed_over)))
        numbers = F.count(F.lit(1)), F.sum("bytes"), F.min("timestamp_ms"), F.max("timestamp_ms"), F.count("follows")
        groups = self.with_existing(rows).groupBy("topic", "callback_topic", "kind").agg(*numbers)
        return rows, [Counted(*group) for group in groups.collect()]

    def cold(self, tables: ColdTables) -> Cold:
        """The requests in the cold tier."""
        sent = self.outputs([self._settings.cold_topic])
        requested = cold_requests(self._spark, tables, sent)
        gone = self._decode(deleted_by_retention(requested, self.starts, self._scope))
        promoted = self._spark.read.format("delta").load(tables.promoted).select("source")
        waiting = requested.select("source").join(promoted, "source", "left_anti")
        return Cold(self._kept.on_disk(gone), waiting.withColumnRenamed("source", "request"))

    def opening(self) -> Opening | None:
        """What was pending of requests that trimmed logs no longer have; None: no log of the scope begins late."""
        starts = {topic: of for topic, of in self.starts.items() if topic not in self._scope.ranges}
        if self._scope.from_ms is not None or not any(start for of in starts.values() for start in of.values()):
            return None
        found = read_opening(self._spark, self._settings, starts, self.formats)
        return found._replace(records=self._kept.on_disk(self._decode(found.records)))

    def _decode(self, records: DataFrame) -> DataFrame:
        return requests.decode(records, self.formats, NO_LIMIT, self._settings.request_topic, self._progress)

    def with_existing(self, rows: DataFrame) -> DataFrame:
        """Rows with null instead of a callback topic that does not exist: requests may name any number of those."""
        names = [(name, name) for name in self._topics.all()]
        existing = self._spark.createDataFrame(names, "callback_topic string, existing string")
        joined = rows.join(F.broadcast(existing), "callback_topic", "left")
        return joined.withColumn("callback_topic", F.col("existing")).select(rows.columns)

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def outputs(self, topics: Iterable[str]) -> DataFrame:
        """The records of those topics that exist, in the shape of :data:`timers.spark.columns.RECORD_SCHEMA`.

        Raises:
            TimersError: the leader of a partition does not answer.
        """
        known = [topic for topic in topics if topic in self._output_starts]
        self._others.check_known(known)
        self.ends |= self._settle(topic for topic in known if topic not in self.ends)
        known = [topic for topic in known if topic in self.ends]  # the others were deleted meanwhile
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
        """As :func:`moved_below`."""
        return moved_below(self._progress)

    def with_holds(self) -> dict[TopicPartition, Progress]:
        """As :func:`with_holds`."""
        return with_holds(self._progress)

    @cached_property
    def _progress(self) -> dict[TopicPartition, Progress]:
        records = self.outputs([self._settings.progress_topic])
        latest = records.where("value is not null").groupBy("key").agg(F.max_by("value", "offset").alias("value"))
        found: dict[TopicPartition, Progress] = {}
        for key, value in latest.collect():
            with contextlib.suppress(ValueError, TimersError):  # another program wrote it, or a newer version
                found[progress_record.decode_key(bytes(key))] = progress_record.decode(bytes(value))[0]
        return found

    def _read(
        self,
        starts: Offsets,
        ends: Offsets,
        passed_over: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None,
    ) -> DataFrame:
        """The records of a range, without what is passed over."""
        tasks = self._spark.sparkContext.defaultParallelism
        ends = {topic: {p: ends[topic][p] for p in of} for topic, of in starts.items()}
        return kafka.read(self._spark, self._settings, starts, ends, tasks, passed_over or {})
