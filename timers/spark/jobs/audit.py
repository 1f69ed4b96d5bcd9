"""``timers spark audit``: finds the outcome of each request from the topics alone.

The audit does not use an engine's store or progress. It only shows the progress beside its findings, so that a reader
can tell an engine that is behind from one that lost timers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.core.printable import utc_text
from timers.kafka import connection
from timers.kafka.topic_offsets import NewestRecord, TopicOffsets
from timers.process.config.settings import Settings
from timers.process.counted import per_second
from timers.spark import jvm
from timers.spark.audit import chains, gaps, outcomes
from timers.spark.audit import findings as figures
from timers.spark.audit.evidence import Evidence, Facts, RequestTopics
from timers.spark.audit.findings import DEFAULT_OBJECTIVE, Findings, Objective, collect
from timers.spark.audit.gaps import Scope, Unplaced, before, inside, ranges_between
from timers.spark.audit.outcomes import LOST, UNDECIDED, Moment
from timers.spark.audit.reading import Opening, Reading, check_cold_tables
from timers.spark.cold import ColdTables
from timers.spark.requests import DEFINITION
from timers.spark.session import described
from timers.spark.storage import Kept

BROKERS_CLOCKS_MS = 2000
"""Accepted difference between the clocks of two brokers."""


_ELECTED_S = 15.0
"""How long the leader of a topic that may be a callback topic is waited for, once. If a broker ends without notice, the
others miss it after 9 s (``broker.session.timeout.ms``), and then take over its partitions."""


@dataclass(frozen=True)
class Audit:
    """Parameters of an audit."""

    settings: Settings
    scope: Scope
    moment: Moment
    """At or before the start of reading."""
    callback_topics: tuple[str, ...] = ()
    """Patterns with ``*``: only timers of these topics are audited; empty: all timers."""
    tables: str | None = None
    """Directory for the tables; None: do not write them."""
    table_format: str = "delta"
    cold: ColdTables | None = None
    """Tables of the cold tier; None: do not read them."""
    objective: Objective = DEFAULT_OBJECTIVE


def run(spark: SparkSession, audit: Audit, say: Callable[[str], None]) -> Findings:
    """Read, transform, write the tables, and return the findings."""
    with Kept() as kept:
        return _run(spark, audit, say, kept)


def _run(spark: SparkSession, audit: Audit, say: Callable[[str], None], kept: Kept) -> Findings:
    if audit.cold is not None:
        check_cold_tables(spark, audit.cold)  # before the stages that take minutes
    topics = TopicOffsets(audit.settings)
    audit = replace(audit, moment=replace(audit.moment, clocks_ms=0 if topics.brokers == 1 else BROKERS_CLOCKS_MS))
    others = TopicOffsets(audit.settings, skips_leaderless=True, skip_s=_ELECTED_S)
    reading = Reading(spark, audit.settings, audit.scope, topics, others, kept)
    done: list[tuple[str, int, float]] = []
    stages = partial(measured, spark, say, done)
    with stages("requests read") as stage:
        request_rows, counted = reading.requests()
        stage.rows = sum(each.records for each in counted)
    named = {each.callback_topic for each in counted if each.callback_topic}
    cold, from_cold = None, None
    if audit.cold is not None:
        with stages("cold tier read") as stage:
            cold = reading.cold(audit.cold)
            deleted = reading.with_existing(cold.deleted).groupBy("callback_topic").count().collect()
            stage.rows = from_cold = sum(row["count"] for row in deleted)
        named |= {row.callback_topic for row in deleted if row.callback_topic}
        request_rows = request_rows.unionByName(cold.deleted)
    opening = reading.opening()
    if opening is not None:
        with stages("snapshots read") as stage:
            pending = opening.records.join(request_rows.select("request"), "request", "left_anti")
            found_topics = reading.with_existing(pending).groupBy("callback_topic").count().collect()
            stage.rows = sum(row["count"] for row in found_topics)
        named |= {row.callback_topic for row in found_topics if row.callback_topic}
        request_rows = request_rows.unionByName(pending)
    callback_topics = [
        topic for topic in topics.existing(named) if re.fullmatch(gaps.expression_of(audit.callback_topics), topic)
    ]
    repeats = any(each.followers or each.kind == DEFINITION for each in counted)
    repeats = repeats or (opening is not None and not opening.records.where("follows is not null").isEmpty())
    evidence = _evidence(audit, reading, request_rows, kept, repeats=repeats)
    with stages("callbacks read") as stage:
        records = reading.outputs(callback_topics)
        stage.rows = evidence.add_firings(outcomes.firings(records, audit.settings.request_topic))
    log, span, retry_topic = _log(reading), reading.span, audit.settings.retry_topic
    has_retries = span.starts.get(retry_topic) != span.ends.get(retry_topic)
    with stages("outcomes found") as stage:
        found = kept.on_disk(evidence.outcomes(None if cold is None else cold.waiting))
        counts = {row.status: row["count"] for row in found.groupBy("status").count().collect()}
        stage.rows = sum(counts.values())
        left_out: list[Unplaced] = []
        if counts.get(LOST):
            found, left_out = _decided(audit, topics, reading, found)
    findings = judged(audit, stages, evidence, found, log, kept, by_callbacks=bool(counts.get(None)))
    findings.unplaced += evidence.not_judged(log, has_retries=has_retries) + left_out
    findings.gaps = list(_reasons(audit, topics, reading, request_rows, opening))
    findings.begins = [] if opening is None else list(opening.begins.values())
    findings.counted = counted
    findings.from_cold = from_cold
    findings.read = reading.partitions()
    findings.callback_topics = callback_topics
    findings.disks = jvm.topic_bytes(spark, connection.java(audit.settings))
    findings.stages = done
    return findings


def judged(
    audit: Audit,
    stages: Callable[[str], AbstractContextManager[Stage]],
    evidence: Evidence,
    found: DataFrame,
    log: gaps.Log,
    kept: Kept,
    *,
    by_callbacks: bool,
) -> Findings:
    """Write the tables, and return the findings in outcomes.

    Args:
        by_callbacks: whether there are callbacks that belong to no request in scope.
    """
    with stages("tables written"):
        callbacks = evidence.unplaced_callbacks(found, log) if by_callbacks else None
        offenders = evidence.offenders(found, callbacks)
        tables = {
            "totals": figures.totals(found),
            "offenders": kept.on_disk(offenders),
            "lags": figures.lags(found, figures.span_s(60).alias("minute_s"), "callback_topic"),
            "forecast": figures.forecast(found),
        }
        findings = collect(tables, found, audit.moment, audit.objective)
        if audit.tables is not None:
            _write(tables, audit)
    findings.unplaced = [] if callbacks is None else gaps.count_unplaced_callbacks(callbacks)
    return findings


# ---- transform -------------------------------------------------------------------------------------------------------


def _evidence(audit: Audit, reading: Reading, request_rows: DataFrame, kept: Kept, *, repeats: bool) -> Evidence:
    settings = audit.settings
    topics = RequestTopics(reading.without_ids, reading.with_ids, reading.schedules, settings.retry_topic)
    told = reading.outputs([settings.verdict_topic] if reading.with_ids else [])
    missed = chains.missed(told) if repeats else None
    letters = outcomes.letters(reading.outputs([settings.dead_letter_topic]))
    facts = Facts(request_rows, letters, outcomes.verdicts(told), missed)
    is_in_scope = inside(before(reading.span.scope_ends), F.col("topic"), F.col("partition"), F.col("offset"))
    return Evidence(facts, topics, is_in_scope, _is_audited(audit), audit.moment, kept)


def _log(reading: Reading) -> gaps.Log:
    span = reading.span
    whole = [*reading.without_ids, *reading.with_ids]
    topics = [*whole, *reading.schedules]
    read = ranges_between({topic: span.starts[topic] for topic in whole}, span.ends)
    return gaps.Log(before({topic: reading.ends[topic] for topic in topics}), read)


def _decided(
    audit: Audit, topics: TopicOffsets, reading: Reading, found: DataFrame
) -> tuple[DataFrame, list[Unplaced]]:
    """The outcomes, with lost timers that are undecided; and how many canaries are left out of them."""
    settings = audit.settings
    lost = found.where(F.col("status") == LOST).select("callback_topic")
    rows = reading.with_existing(lost).distinct().collect()
    missing = gaps.find(
        topics,
        [row.callback_topic for row in rows if row.callback_topic is not None],
        settings.dead_letter_topic,
        settings.retry_topic,
        ends=reading.ends,
        high_watermarks=reading.high_watermarks,
        as_of_ms=audit.moment.as_of_ms,
        moved=reading.moved(),
        progress=reading.with_holds(),
    )
    decided = gaps.decide(found, missing)
    # The topic of canaries keeps their callbacks for an hour.
    is_canary = F.col("callback_topic").eqNullSafe(settings.canary_topic)
    is_gone = F.col("status").eqNullSafe(UNDECIDED) & is_canary
    gone = decided.where(is_gone).agg(F.count(F.lit(1)), F.min("request")).first()
    assert gone is not None
    left_out = [Unplaced(gaps.CANARIES, gaps.GONE, *gone)] if gone[0] else []
    return decided.where(~is_gone), left_out


def _reasons(
    audit: Audit, topics: TopicOffsets, reading: Reading, requests: DataFrame, opening: Opening | None
) -> Iterator[gaps.Reason]:
    """Why requests that were to be judged are not visible."""
    scope, span = audit.scope, reading.span
    yield from gaps.missing_topics(topics, reading.formats.keys() - {audit.settings.retry_topic})
    yield from gaps.unused_patterns(audit.callback_topics, requests)
    # The table of the cold tier has what retention has deleted.
    whole = [
        topic
        for topic in (*reading.without_ids, *reading.with_ids)
        if audit.cold is None or not reading.formats[topic].allows_cold_tier
    ]
    known = () if opening is None else (opening.begins, opening.unknown)
    yield from gaps.deleted_requests(scope, span, reading.starts, whole, *known)
    yield from gaps.open_requests(scope, span, reading.high_watermarks)


def _is_audited(audit: Audit) -> Column:
    """Condition: the callback topic is audited. Requests without one, which cannot be decoded, need a full audit."""
    return gaps.matches(audit.callback_topics) if audit.callback_topics else F.lit(True)


# ---- write -----------------------------------------------------------------------------------------------------------


def _write(tables: dict[str, DataFrame], audit: Audit) -> None:
    as_of = F.timestamp_millis(F.lit(audit.moment.as_of_ms)).alias("as_of")
    for name, table in tables.items():
        target = f"{(audit.tables or '').rstrip('/')}/{name}"
        writer = table.select(as_of, *table.columns).write.format(audit.table_format).mode("append")
        writer.option("mergeSchema", "true").save(target)  # a later version of the audit may have more columns


class Stage:
    """A stage of an audit."""

    rows = 0


@contextmanager
def measured(
    spark: SparkSession, say: Callable[[str], None], done: list[tuple[str, int, float]], name: str
) -> Iterator[Stage]:
    """Measure a stage and report it."""
    begun, stage = monotonic(), Stage()
    with described(spark, f"timers audit: {name}"):
        yield stage
    took_s = monotonic() - begun
    done.append((name, stage.rows, took_s))
    rows = f"{stage.rows:>14,} rows {per_second(stage.rows / took_s):>13}" if stage.rows else ""
    say(f"{name:<16}{took_s:>8.1f} s{rows}")


FRESH_MS = 5000
"""A tick that differs no more than this from this machine's clock shows that the brokers' clock agrees with it: ticks
come every second."""

_WAIT_S, _WAITS = 0.5, 6
"""If the newest tick of each partition differs more, this long and so often the audit waits for another one."""

_MORE_WAITS = 20
"""The same if another broker may show who is right: an oscillator writes each tick to a partition of its choice."""


def brokers_now(
    own_ms: int, newest: Callable[[], Mapping[int, NewestRecord]], max_leap_s: int, sleep: Callable[[float], object]
) -> tuple[int, str]:
    """The time now by the brokers' clock, or ``own_ms`` if no ticks are written; and why it is not known, or "".

    By a clock that is behind, timers that have not fired count as pending; by one that is ahead, pending timers count
    as lost. So a broker's clock must agree with a second one, another broker's or this machine's, within the limit that
    the engine has for its ticks [I20]. If it does not, the earliest clock counts: what is overdue by this one is
    overdue by all.

    Args:
        own_ms: the time by the clock of this machine.
        newest: partition -> its newest tick, by the brokers' clock.
        max_leap_s: how far two clocks may differ that agree.
    """
    first = newest()
    near = [tick.append_ms for tick in first.values() if abs(tick.append_ms - own_ms) <= FRESH_MS]
    if near:
        return max(near), ""
    if not first:
        return own_ms, ""
    shown: dict[int, int] = {}
    for number in range(_MORE_WAITS):
        if number >= _WAITS and (not shown or len({tick.broker for tick in first.values()}) == 1):
            break
        sleep(_WAIT_S)
        for partition, tick in newest().items():
            before = first.get(partition)
            # Ticks are written by this clock; a single tick of a clock that leapt would not be followed.
            if before is not None and tick.append_ms > before.append_ms:
                shown[tick.broker] = max(tick.append_ms, shown.get(tick.broker, 0))
        agreeing = _agreeing([*shown.values()], own_ms, max_leap_s * 1000)
        if agreeing:
            return max(agreeing), ""
    if not shown:
        return own_ms, ""
    return min(own_ms, *shown.values()), _doubt(shown, own_ms, max_leap_s)


def _agreeing(brokers_ms: Sequence[int], own_ms: int, limit_ms: int) -> list[int]:
    """The times of brokers with which a second clock agrees: this machine's if it agrees with any, else another's."""
    with_own = [each for each in brokers_ms if abs(each - own_ms) <= limit_ms]
    if with_own:
        return with_own
    return [
        each
        for index, each in enumerate(brokers_ms)
        if any(abs(each - other) <= limit_ms for other in (*brokers_ms[:index], *brokers_ms[index + 1 :]))
    ]


def _doubt(shown: Mapping[int, int], own_ms: int, max_leap_s: int) -> str:
    times = [f"broker {broker} shows {utc_text(append_ms / 1000)}" for broker, append_ms in sorted(shown.items())]
    return (
        f"no two clocks agree within {max_leap_s} s: {', '.join(times)}, this machine shows {utc_text(own_ms / 1000)}. "
        "Timers are judged by the earliest of them: correct the clock that is wrong, and audit again"
    )
