"""``timers spark audit --history``: audits the timers of one due day, from the table of their history.

The table is brought up to the topics first, so only what is new is read from Kafka. The timers of the day are judged by
the code of the audit of topics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.kafka import connection
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.spark import jvm
from timers.spark.audit import gaps, history
from timers.spark.audit.anew import named
from timers.spark.audit.findings import Counted, Findings, PartitionRead
from timers.spark.audit.gaps import OPEN_TRANSACTION, RECORDS_DELETED, Reason
from timers.spark.audit.history import TOPIC_MADE_ANEW, Gap, History, Known
from timers.spark.audit.outcomes import LOST
from timers.spark.audit.reading import moved_below, with_holds
from timers.spark.cold import day_of
from timers.spark.jobs import history as job
from timers.spark.jobs.audit import BROKERS_CLOCKS_MS, Audit, judged, measured
from timers.spark.storage import Cut
from timers.wire.topics import partition_name

_NO_END = 2**63 - 1


def run(spark: SparkSession, audit: Audit, table: str, day: date, say: Callable[[str], None]) -> Findings:
    """Bring the table up to the topics, and audit the timers that are due on a day (UTC)."""
    settings, done = audit.settings, list[tuple[str, int, float]]()
    stages = partial(measured, spark, say, done)
    topics, progress = TopicOffsets(settings), job.progress_of(settings)
    with stages("history read") as stage:
        if not job.is_kept_up(spark, settings, table, audit.moment.as_of_ms, say):
            stage.rows = job.run(spark, settings, job.Params(table), say).records
    tables = History(spark, table)
    tables.pin()
    known, lacks = tables.known(), tables.gaps()
    made_anew = history.made_anew(lacks, job.told_apart_topics(settings))
    times = {topic: [*of.values()] for topic, of in made_anew.items()}
    clocks_ms = 0 if topics.brokers == 1 else BROKERS_CLOCKS_MS
    moment = replace(audit.moment, clocks_ms=clocks_ms, as_of_ms=min(audit.moment.as_of_ms, known.as_of_ms))
    audit = replace(audit, moment=moment)
    is_audited = gaps.matches(audit.callback_topics) if audit.callback_topics else F.lit(True)
    with Cut() as kept:
        with stages("requests read") as stage:
            rest = job.not_accepted(spark, settings, known, topics, progress, times)
            evidence, own = tables.of_day(day, job.topics_in(settings, known, times), moment, kept, rest)
            own = own.where(is_audited)
            numbers = F.count(F.lit(1)), F.sum("bytes"), F.min("timestamp_ms"), F.max("timestamp_ms")
            groups = own.groupBy("topic", "callback_topic", "kind").agg(*numbers, F.count("follows"))
            counted = [Counted(*row) for row in groups.collect()]
            stage.rows = sum(each.records for each in counted)
        with stages("outcomes found") as stage:
            found = evidence.outcomes()
            mine = found.where("status is not null").join(own.select("request"), "request", "left_semi")
            is_stray = F.col("status").isNull() & (day_of(F.col("due_s")) == F.lit(day)) & is_audited
            found = kept.on_disk(mine.select(found.columns).unionByName(found.where(is_stray)))
            counts = {row.status: row["count"] for row in found.groupBy("status").count().collect()}
            stage.rows = sum(counts.values())
            if counts.get(LOST):
                has_keys = not own.where("record_key is not null").isEmpty()
                missing = _missing(settings, known, lacks, progress, moment.as_of_ms, knows_keys=has_keys)
                found = gaps.decide(found, missing)
        if None in counts:
            evidence.also(tables.requests_of(found.where("status is null").select("request")))
        log = _log(known, lacks, made_anew)
        findings = judged(audit, stages, evidence, found, log, kept, by_callbacks=None in counts)
    findings.gaps = list(_reasons(known, lacks, topics))
    findings.accepted = [job.described_gap(gap) for gap in lacks if gap.is_accepted]
    findings.counted = counted
    findings.read = [
        PartitionRead(*tp, 0, offset, progress[tp].fired_through[0] if tp in progress else None)
        for tp, offset in sorted(_read_to(known, history.REQUEST).items())
    ]
    findings.callback_topics = sorted({each.callback_topic for each in counted if each.callback_topic})
    findings.disks = jvm.topic_bytes(spark, connection.java(settings))
    findings.stages = done
    return findings


def _read_to(known: Known, role: str) -> dict[TopicPartition, int]:
    return {(topic, p): each.offset for (of, topic, p), each in known.positions.items() if of == role}


def _log(known: Known, lacks: Sequence[Gap], made_anew: Mapping[str, Mapping[int, int]]) -> gaps.Log:
    """What was read of the logs of requests, by the names that their requests have
    (:mod:`timers.spark.audit.anew`).

    Args:
        lacks: in the order of :meth:`timers.spark.audit.history.History.gaps`.
        made_anew: result of :func:`timers.spark.audit.history.made_anew`.
    """
    starts = defaultdict[TopicPartition, int](int)
    ends, read = defaultdict[str, dict[int, range]](dict), defaultdict[str, dict[int, range]](dict)
    for gap in lacks:
        place, times = (gap.topic, gap.partition), list(made_anew.get(gap.topic, ()))
        if gap.role == history.OUTPUT:
            continue
        if gap.code == TOPIC_MADE_ANEW and gap.batch in times:
            # Where the former log ended is not known.
            name = named(gap.topic, times.index(gap.batch))
            ends[name][gap.partition] = range(_NO_END)
            read[name][gap.partition] = range(starts.pop(place, 0), gap.start)
        else:
            starts[place] = max(starts[place], gap.end)
    for (topic, partition), offset in _read_to(known, history.REQUEST).items():
        name = named(topic, len(made_anew.get(topic, ())))
        ends[name][partition], read[name][partition] = range(offset), range(starts[topic, partition], offset)
    return gaps.Log(ends, read)


def _missing(
    settings: Settings,
    known: Known,
    lacks: Sequence[Gap],
    progress: Mapping[TopicPartition, Progress],
    as_of_ms: int,
    *,
    knows_keys: bool,
) -> gaps.Gaps:
    """Where callbacks and dead letters may be that the table does not have."""
    topics: dict[str, tuple[int, dict[int, gaps.Gap]]] = {}
    retries = None
    for (role, topic, partition), each in known.positions.items():
        is_behind = each.offset < each.end
        if topic == settings.retry_topic and is_behind:
            retries = gaps.Gap(as_of_ms, OPEN_TRANSACTION)
        if role != history.OUTPUT:
            continue
        count, of = topics.get(topic, (0, {}))
        until_ms = max((gap.until_ms for gap in lacks if gap[:2] == (topic, partition)), default=0)
        if is_behind:
            of[partition] = gaps.Gap(as_of_ms, OPEN_TRANSACTION)
        elif until_ms:
            of[partition] = gaps.Gap(until_ms, RECORDS_DELETED)
        topics[topic] = max(count, partition + 1), of
    return gaps.Gaps(
        topics,
        settings.dead_letter_topic,
        retries,
        as_of_ms,
        moved_below(progress),
        with_holds(progress),
        settings.retry_topic,
        knows_keys,
    )


def _reasons(known: Known, lacks: Sequence[Gap], topics: TopicOffsets) -> Iterator[Reason]:
    """Why requests of the day may not be visible."""
    asked = _read_to(known, history.REQUEST)
    names = {topic for topic, _ in asked}
    stable = topics.ends(names)
    for topic, partition in asked:
        end, high = stable.get(topic, {}).get(partition), known.positions[history.REQUEST, topic, partition].end
        if end is not None and end < high:
            name = partition_name(topic, partition)
            yield Reason(
                OPEN_TRANSACTION, f"{name} has records from offset {end:,} on that are behind an open transaction"
            )
    for gap in lacks:
        if gap.topic in names and gap.role != history.OUTPUT and not gap.is_accepted:
            name = partition_name(gap.topic, gap.partition)
            lost = f"the requests of {name} at offsets {gap.offsets} are not in the table"
            yield Reason(RECORDS_DELETED, f"{lost}, until `timers spark history --accept-gaps` accepts this")
