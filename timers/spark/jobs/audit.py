"""``timers spark audit``: finds the outcome of each request from the topics alone.

The audit does not use an engine's store or progress. It only shows the progress beside its findings, so that a reader
can tell an engine that is behind from one that lost timers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from time import monotonic
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.config.settings import Settings
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.request_formats import enabled_formats
from timers.spark import kafka, requests
from timers.spark.audit import cold_tier, disks, evidence, figures, outcomes, versions
from timers.spark.audit.findings import Counted, Findings, PartitionRead, collect
from timers.spark.audit.outcomes import Moment
from timers.spark.audit.scope import Scope, Span, before, inside, ranges_between
from timers.spark.cold import ColdTables
from timers.spark.columns import RECORD
from timers.wire import progress
from timers.wire.formats import RequestFormat

Console = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """Parameters of an audit.

    Attributes:
        moment: the time that the audit refers to, at or before the start of reading, and the grace period.
        callback_topics: patterns with ``*``: only timers of these topics are audited; empty: all timers.
        tables: directory for the tables; None: do not write them.
        table_format: ``delta`` or ``parquet``.
        cold: tables of the cold tier; None: do not read them.
    """

    settings: Settings
    scope: Scope
    moment: Moment
    callback_topics: tuple[str, ...] = ()
    tables: str | None = None
    table_format: str = "delta"
    cold: ColdTables | None = None


@dataclass(frozen=True)
class _Plan:
    """The topics and offsets to read."""

    formats: dict[str, RequestFormat]
    retry: str
    span: Span
    starts: Offsets
    """First offsets that the request topics still contain."""
    output_starts: Offsets
    output_ends: Offsets

    def topics(self, *, ids: bool, compacted: bool = False) -> list[str]:
        """Existing request topics without the retry topic, by the kind of their format."""
        kind = (ids, compacted)
        others = {topic: self.formats[topic] for topic in self.span.starts if topic != self.retry}
        return [
            topic
            for topic, request_format in others.items()
            if (request_format.has_ids, request_format.topic_is_compacted) == kind
        ]


def run(spark: SparkSession, audit: Audit, say: Console) -> Findings:
    """Read, transform, write the tables, and return the findings."""
    if audit.cold is not None:
        cold_tier.check(spark, audit.cold)  # before the stages that take minutes
    topics = TopicOffsets(audit.settings)
    plan = _plan(audit, topics)
    stages = _Stages(say)
    request_rows = _requests(spark, audit, plan).persist(StorageLevel.DISK_ONLY)
    with stages("requests read") as stage:
        counted = [Counted(*row) for row in _counted(request_rows).collect()]
        stage.rows = sum(each.records for each in counted)
    named = {each.callback_topic for each in counted if each.callback_topic}
    cold = None
    if audit.cold is not None:
        cold = _cold(spark, audit, audit.cold, plan)
        with stages("cold tier read") as stage:
            counted_cold = cold.deleted.groupBy("callback_topic").count().collect()
            stage.rows = sum(row["count"] for row in counted_cold)
        named |= {row.callback_topic for row in counted_cold if row.callback_topic}
        request_rows = request_rows.unionByName(cold.deleted)
    callback_topics = [topic for topic in topics.existing(named) if re.fullmatch(_pattern(audit), topic)]
    whole_since = topics.whole_since_ms(callback_topics, audit.moment.as_of_ms)
    fired = evidence.firings(_outputs(spark, audit, plan, callback_topics))
    if plan.topics(ids=True, compacted=True):
        fired = evidence.without_compacted(fired, _schedules(audit, plan, request_rows))
    waiting = cold.waiting if cold else None
    outcome_rows = _outcomes(spark, audit, plan, request_rows, fired, whole_since, waiting).persist(
        StorageLevel.DISK_ONLY
    )
    with stages("outcomes found") as stage:
        stage.rows = outcome_rows.count()
    with stages("tables written") as stage:
        tables = {
            "totals": figures.totals(outcome_rows),
            "offenders": _offenders(plan, request_rows, outcome_rows, fired).persist(StorageLevel.DISK_ONLY),
            "lags": figures.lags(outcome_rows, figures.minute_s(), "callback_topic"),
            "forecast": figures.forecast(outcome_rows),
        }
        findings = collect(tables, outcome_rows, audit.moment)
        if audit.tables is not None:
            _write(tables, audit)
    findings.counted = counted
    if cold is not None:
        findings.from_cold = sum(row["count"] for row in counted_cold)
    findings.read = _partitions_read(plan, _progress(spark, audit, plan))
    findings.callback_topics = callback_topics
    findings.disks = disks.topic_bytes(spark, audit.settings, set(plan.span.starts))
    findings.stages = stages.done
    return findings


# ---- read ------------------------------------------------------------------------------------------------------------


def _plan(audit: Audit, topics: TopicOffsets) -> _Plan:
    """Choose the offsets before reading. Ends of outputs come first, so that the requests of all outputs are read."""
    settings = audit.settings
    # A KeepAlive of a message holds no timer of its own, which the rules of the audit cannot express.
    formats = {topic: each for topic, each in enabled_formats(settings).items() if not each.has_markers}
    request_topics = topics.existing(formats)
    everything = topics.all()
    output_ends = topics.ends(everything)
    ends = topics.ends(request_topics)
    since_ms = audit.scope.evidence_from_ms
    output_starts = topics.starts(everything) if since_ms is None else topics.at_time(everything, since_ms)
    whole = {topic for topic in request_topics if formats[topic].has_ids or topic == settings.retry_topic}
    span = audit.scope.span(topics, request_topics, ends, whole)
    return _Plan(formats, settings.retry_topic, span, topics.starts(request_topics), output_starts, output_ends)


def _requests(spark: SparkSession, audit: Audit, plan: _Plan) -> DataFrame:
    span = plan.span
    records = _read(spark, audit.settings, span.starts, span.ends)
    return requests.decode(records, plan.formats, audit.settings.max_request_bytes)


class _Cold(NamedTuple):
    """Requests in the cold tier."""

    deleted: DataFrame
    """Requests that retention deleted from their topics, decoded."""
    waiting: DataFrame
    """Requests that were not promoted: ``request``."""


def _cold(spark: SparkSession, audit: Audit, tables: ColdTables, plan: _Plan) -> _Cold:
    sources = [topic for topic in plan.starts if plan.formats[topic].allows_cold_tier]
    requested = cold_tier.requests(spark, tables, _outputs(spark, audit, plan, [audit.settings.cold_topic]), sources)
    records = cold_tier.deleted_by_retention(requested, plan.starts, audit.scope)
    gone = requests.decode(records, plan.formats, audit.settings.max_request_bytes)
    return _Cold(gone.persist(StorageLevel.DISK_ONLY), cold_tier.waiting(spark, tables, requested))


def _outputs(spark: SparkSession, audit: Audit, plan: _Plan, topics: list[str]) -> DataFrame:
    """The records of topics that an engine writes to."""
    known = [topic for topic in topics if topic in plan.output_ends]
    starts = {topic: plan.output_starts[topic] for topic in known}
    ends = {topic: plan.output_ends[topic] for topic in known}
    return _read(spark, audit.settings, starts, ends)


def _read(spark: SparkSession, settings: Settings, starts: Offsets, ends: Offsets) -> DataFrame:
    """The records of a range. Spark's source does not accept an empty list of partitions."""
    if not starts:
        return spark.createDataFrame([], RECORD)
    return kafka.read(spark, settings, starts, ends, min_partitions=spark.sparkContext.defaultParallelism)


def _progress(spark: SparkSession, audit: Audit, plan: _Plan) -> dict[tuple[str, int], int]:
    """(topic, partition) -> due second of the last fired timer, from the progress of the engine. It is only shown."""
    records = _outputs(spark, audit, plan, [audit.settings.progress_topic])
    latest = records.where("value is not null").groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    return {
        progress.decode_key(bytes(key)): progress.decode(bytes(value))[0].fired_through[0]
        for key, value in latest.collect()
    }


# ---- transform -------------------------------------------------------------------------------------------------------


def _counted(request_rows: DataFrame) -> DataFrame:
    return request_rows.groupBy("topic", "callback_topic", "kind").agg(
        F.count(F.lit(1)), F.sum("bytes"), F.min("timestamp_ms"), F.max("timestamp_ms")
    )


def _outcomes(
    spark: SparkSession,
    audit: Audit,
    plan: _Plan,
    request_rows: DataFrame,
    fired: DataFrame,
    whole_since: dict[str, int],
    waiting: DataFrame | None,
) -> DataFrame:
    settings = audit.settings
    letters = evidence.letters(_outputs(spark, audit, plan, [settings.dead_letter_topic]))
    moved = evidence.moved(request_rows.where(F.col("topic") == plan.retry))
    plain = versions.without_ids(_of_topics(request_rows, plan.topics(ids=False))).where(_is_audited(audit))
    ranked = outcomes.ranked(plain, letters, moved, ids=False)
    named = []
    if plan.topics(ids=True):
        verdicts = evidence.verdicts(_outputs(spark, audit, plan, [settings.verdict_topic]))
        with_ids = versions.with_ids(_of_topics(request_rows, plan.topics(ids=True)), verdicts)
        named.append(with_ids.where(_is_audited(audit) & _in_scope(plan.span)))
    if plan.topics(ids=True, compacted=True):
        named.append(_schedules(audit, plan, request_rows))
    if named:
        all_named = reduce(DataFrame.unionByName, named)  # several topics may use the same id
        ranked = ranked.unionByName(outcomes.ranked(all_named, letters, moved, ids=True))
    since = spark.createDataFrame(list(whole_since.items()), "callback_topic string, whole_since_ms long")
    return outcomes.outcomes(ranked, fired, since, audit.moment, waiting)


def _of_topics(request_rows: DataFrame, topics: list[str]) -> DataFrame:
    return request_rows.where(F.col("topic").isin(topics))


def _schedules(audit: Audit, plan: _Plan, request_rows: DataFrame) -> DataFrame:
    """Versions of the topics of schedules, in scope."""
    found = versions.of_schedules(_of_topics(request_rows, plan.topics(ids=True, compacted=True)))
    return found.where(_is_audited(audit) & _in_scope(plan.span))


def _pattern(audit: Audit) -> str:
    """Regular expression of the audited callback topics, for Java and Python."""
    return "|".join(each.replace(".", "[.]").replace("*", ".*") for each in audit.callback_topics) or ".*"


def _is_audited(audit: Audit) -> Column:
    """Condition: the callback topic is audited. Requests without one, which cannot be decoded, need a full audit."""
    return F.col("callback_topic").rlike(f"^({_pattern(audit)})$") if audit.callback_topics else F.lit(True)


def _in_scope(span: Span) -> Column:
    """Condition: a request is in scope, and was not only read because it may close another one."""
    return inside(before(span.scope_ends), F.col("topic"), F.col("partition"), F.col("offset"))


def _offenders(plan: _Plan, request_rows: DataFrame, outcome_rows: DataFrame, fired: DataFrame) -> DataFrame:
    """Each fault of each timer, with the records that show it."""
    found = figures.offenders(outcome_rows)
    read = ranges_between({topic: plan.span.starts[topic] for topic in plan.topics(ids=False)}, plan.span.ends)
    known = request_rows.select("request")
    unasked = figures.unasked(figures.unmatched(outcome_rows), known, read)
    return figures.with_positions(found.unionByName(unasked), fired)


# ---- write -----------------------------------------------------------------------------------------------------------


def _write(tables: dict[str, DataFrame], audit: Audit) -> None:
    as_of = F.timestamp_millis(F.lit(audit.moment.as_of_ms)).alias("as_of")
    for name, table in tables.items():
        target = f"{(audit.tables or '').rstrip('/')}/{name}"
        writer = table.select(as_of, *table.columns).coalesce(1).write.format(audit.table_format).mode("append")
        writer.option("mergeSchema", "true").save(target)  # a later version of the audit may have more columns


def _partitions_read(plan: _Plan, reached: dict[tuple[str, int], int]) -> list[PartitionRead]:
    return [
        PartitionRead(topic, partition, start, plan.span.ends[topic][partition], reached.get((topic, partition)))
        for topic, partitions in sorted(plan.span.starts.items())
        for partition, start in sorted(partitions.items())
    ]


class _Stage:
    rows = 0


class _Stages:
    """Measures each stage and reports it."""

    def __init__(self, say: Console) -> None:
        self._say = say
        self.done: list[tuple[str, int, float]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[_Stage]:
        begun = monotonic()
        stage = _Stage()
        yield stage
        took_s = monotonic() - begun
        self.done.append((name, stage.rows, took_s))
        rows = f"{stage.rows:>14,} rows {stage.rows / took_s:>11,.0f}/s" if stage.rows else ""
        self._say(f"{name:<16}{took_s:>8.1f} s{rows}")
