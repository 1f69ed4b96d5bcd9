"""The findings of an audit: its tables, and what is small enough for one machine and one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark.audit.gaps import Reason, Unplaced
from timers.spark.audit.outcomes import COLD, DEAD_LETTERED, FIRED, PENDING, PLACE_COLUMNS, UNDECIDED, Moment

FAULTY = "faulty"
"""Verdict, besides ``undecided``."""

MAX_POSITIONS = 10
"""Largest number of records that are listed for one offender."""

_PERCENTILES = (0.5, 0.9, 0.99)


def totals(outcomes: DataFrame) -> DataFrame:
    """Requests by topic and status: ``topic``, ``status``, ``count``, ``bytes``, ``late``, ``first_due_s``,
    ``last_due_s``.

    ``late`` counts the requests that were accepted after their due second had begun.
    """
    late = F.col("accepted_ms") > F.col("due_s") * 1000
    return (
        outcomes.where("status is not null")
        .groupBy("topic", "status")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("bytes").alias("bytes"),
            F.count(F.when(late, 1)).alias("late"),
            F.min("due_s").alias("first_due_s"),
            F.max("due_s").alias("last_due_s"),
        )
    )


def offenders(outcomes: DataFrame) -> DataFrame:
    """One row for each fault of each timer, and one for each timer whose outcome is not visible.

    Columns: ``verdict`` (``faulty`` or ``undecided``), ``fault`` (the fault, or why the outcome is not visible), and
    those of the outcome.
    """
    is_undecided = F.col("status") == UNDECIDED
    verdict = F.when(is_undecided, UNDECIDED).otherwise(FAULTY)
    faults = F.when(is_undecided, F.array("why")).otherwise(F.col("faults"))
    named = outcomes.select(verdict.alias("verdict"), F.explode(faults).alias("fault"), "*")
    return named.drop("faults", "why")


def with_positions(offenders: DataFrame, firings: DataFrame) -> DataFrame:
    """Offenders with ``positions``: the first records in which each of them fired, oldest first.

    A timer may have any number of records: each task keeps only the first ones, and no row has more.
    """
    where = F.struct(F.coalesce("append_ms", "fired_ms").alias("at"), "position")
    wanted = offenders.where("firings > 0").select(*PLACE_COLUMNS).distinct()
    found = firings.join(wanted, PLACE_COLUMNS, "left_semi").select(*PLACE_COLUMNS, where.alias("record"))
    number = F.row_number().over(Window.partitionBy(*PLACE_COLUMNS).orderBy("record"))
    positions = (
        found.withColumn("number", number)
        .where(F.col("number") <= MAX_POSITIONS)
        .groupBy(*PLACE_COLUMNS)
        .agg(F.sort_array(F.collect_list("record"))["position"].alias("positions"))
    )
    return offenders.join(positions, PLACE_COLUMNS, "left")


def lags(outcomes: DataFrame, *by: Column | str) -> DataFrame:
    """Lags of fired timers in milliseconds, for each group of ``by``: ``fired`` (number of timers), ``p50_ms``,
    ``p90_ms``, ``p99_ms``, ``max_ms``."""
    p50, p90, p99 = (F.col("p")[index].alias(f"p{round(p * 100)}_ms") for index, p in enumerate(_PERCENTILES))
    grouped = outcomes.where("lag_ms is not null").groupBy(*by)
    found = grouped.agg(
        F.count(F.lit(1)).alias("fired"),
        F.percentile_approx("lag_ms", list(_PERCENTILES), 1000).alias("p"),
        F.max("lag_ms").alias("max_ms"),
    )
    return found.select(*found.columns[: len(by)], "fired", p50, p90, p99, "max_ms")


def span_s(seconds: int) -> Column:
    """First second of the span of ``seconds`` that contains the due second."""
    return (F.floor(F.col("due_s") / seconds) * seconds).alias("span_s")


def forecast(outcomes: DataFrame) -> DataFrame:
    """Pending timers by second: ``due_s``, ``callback_topic``, ``timers``, ``bytes``."""
    return (
        outcomes.where(F.col("status").isin(PENDING, COLD))
        .groupBy("due_s", "callback_topic")
        .agg(F.count(F.lit(1)).alias("timers"), F.sum("bytes").alias("bytes"))
    )


def by_code(outcomes: DataFrame) -> DataFrame:
    """Dead-lettered timers: ``code``, ``timers``."""
    dead = outcomes.where(F.col("status") == DEAD_LETTERED)
    return dead.groupBy(F.coalesce("letter_code", "code").alias("code")).agg(F.count(F.lit(1)).alias("timers"))


CLEAN = "clean"
"""Verdict, besides ``faulty`` and ``undecided``. A fault counts more than what cannot be decided."""

MAX_OFFENDERS_LISTED = 200
"""Largest number of offenders of one fault in the findings. The table ``offenders`` has all."""

MAX_POINTS = 240
"""Largest number of points of a chart."""

MAX_HOURS_LISTED = 2400
"""Largest number of pairs of an hour and a callback topic in the findings. The tables have all."""

_HOUR_S = 3600

BUSIEST = 20
"""Number of listed seconds with the most pending timers."""

_SPANS_S = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)


class Counted(NamedTuple):
    """Numbers for the records of one request topic, kind and callback topic.

    ``callback_topic`` is None for records without one, and for all those that do not exist.
    """

    topic: str
    callback_topic: str | None
    kind: str
    records: int
    bytes: int
    first_ms: int
    last_ms: int
    followers: int = 0
    """Occurrences of timers that repeat."""


class PartitionRead(NamedTuple):
    """The offsets of a request partition that were read, and the last second fired by the engine's own progress."""

    topic: str
    partition: int
    start: int
    end: int
    fired_through_s: int | None


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


class Lag(NamedTuple):
    """Lags in milliseconds, for the timers of one time span or one callback topic (``of``)."""

    of: Any
    fired: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


class HourLag(NamedTuple):
    """Lags in milliseconds of the timers of one callback topic that were due in one hour."""

    hour_s: int
    topic: str
    fired: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


class Objective(NamedTuple):
    """What share of the timers of each callback topic is to fire within a time."""

    percent: Decimal
    within_ms: int

    def __str__(self) -> str:
        return f"{self.percent} % within {self.within_ms:,} ms"


DEFAULT_OBJECTIVE = Objective(Decimal("99.9"), 100)


class Reached(NamedTuple):
    """How the timers of one callback topic did by the objective."""

    topic: str
    fired: int
    within: int
    """Those that fired within the time."""

    def meets(self, objective: Objective) -> bool:
        return self.within * 100 >= objective.percent * self.fired


class HourDue(NamedTuple):
    """Pending timers of one callback topic that are due in one hour."""

    hour_s: int
    topic: str | None
    timers: int


class Shown(NamedTuple):
    """What a time axis shows: from the 1st to the 99th percentile of due seconds. One odd date would spoil it."""

    first_s: int
    last_s: int
    earlier: int = 0
    """Timers that are due before it, and are not in the picture."""
    later: int = 0


class Due(NamedTuple):
    """Pending timers that are due in one time span or in one second."""

    due_s: int
    timers: int
    bytes: int


@dataclass
class Findings:
    """All findings of an audit."""

    moment: Moment
    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    late: int = 0
    """Requests that were accepted after their due second had begun."""
    listed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Fault -> the first offenders, with the columns of the table ``offenders``."""
    undecided: Counter[str] = field(default_factory=Counter)
    """Reason -> number of timers whose outcome is not visible (:mod:`timers.spark.audit.gaps`)."""
    undecided_listed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Reason -> the first of these timers."""
    gaps: list[Reason] = field(default_factory=list)
    """Why requests that the audit was to judge are not visible."""
    accepted: list[str] = field(default_factory=list)
    """What is not visible, and is accepted by an operator: a sentence for each gap."""
    unplaced: list[Unplaced] = field(default_factory=list)
    """Outputs of the engine that belong to no request in scope, and are not judged."""
    objective: Objective = DEFAULT_OBJECTIVE
    reached: list[Reached] = field(default_factory=list)
    """Callback topics, those with the most timers that were not within the time first."""
    missed: list[dict[str, Any]] = field(default_factory=list)
    """The latest timers that were not within the time, with the columns of an outcome."""
    lag: Lag | None = None
    """Of all timers; None: none has fired."""
    lags_by_hour: list[HourLag] = field(default_factory=list)
    dead_letters: list[tuple[str, int]] = field(default_factory=list)
    """(code, timers), the most frequent first."""
    pending_by_hour: list[HourDue] = field(default_factory=list)
    lag_span_s: int = 60
    lags_shown: Shown | None = None
    ahead_shown: Shown | None = None
    lags: list[Lag] = field(default_factory=list)
    lags_by_topic: list[Lag] = field(default_factory=list)
    ahead_span_s: int = 60
    ahead: list[Due] = field(default_factory=list)
    busiest: list[Due] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    from_cold: int | None = None
    """Requests that only the cold tier still contains; None if the cold tier was not read."""
    begins: list[Begin] = field(default_factory=list)
    """Partitions whose counting begins with what was pending then, because their first requests are deleted."""
    read: list[PartitionRead] = field(default_factory=list)
    disks: dict[str, int] | str = field(default_factory=dict)
    """Bytes of one replica on disk, by request topic; or the reason why they are not known."""
    callback_topics: list[str] = field(default_factory=list)
    stages: list[tuple[str, int, float]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.statuses.total()

    @property
    def verdict(self) -> str:
        """``clean``, ``faulty`` or ``undecided``."""
        if self.faults.total():
            return FAULTY
        return UNDECIDED if self.gaps or self.undecided.total() or self.moment.doubt else CLEAN

    @property
    def clean(self) -> bool:
        return self.verdict == CLEAN

    def is_passed(self, row: Mapping[str, Any]) -> bool:
        """Whether the engine's own progress is at or after the due second of an offender."""
        due_s = row["due_s"]
        fired_through = {(each.topic, each.partition): each.fired_through_s for each in self.read}
        through_s = fired_through.get((row["topic"], row["partition"]))
        return through_s is not None and due_s is not None and due_s <= through_s


def collect(
    tables: Mapping[str, DataFrame], outcomes: DataFrame, moment: Moment, objective: Objective = DEFAULT_OBJECTIVE
) -> Findings:
    """Collect the findings from the tables ``totals``, ``offenders``, ``lags`` and ``forecast``."""
    findings = Findings(moment, objective=objective)
    has = set[str]()
    for row in tables["totals"].collect():
        findings.statuses[row["status"]] += row["count"]
        findings.late += row["late"]
        if row["first_due_s"] is not None:
            has.add(row["status"])
    for (verdict, fault), (count, rows) in _listed(tables["offenders"]).items():
        is_faulty = verdict == FAULTY
        (findings.faults if is_faulty else findings.undecided)[fault] = count
        (findings.listed if is_faulty else findings.undecided_listed)[fault] = rows
    if has & {FIRED, PENDING, COLD}:
        findings.lags_shown, findings.ahead_shown = _shown(outcomes)
    if findings.lags_shown is not None:
        _collect_lags(findings, outcomes, findings.lags_shown)
    if findings.ahead_shown is not None:
        shown = findings.ahead_shown
        findings.ahead_span_s = span_for(shown.first_s, shown.last_s)
        forecast = tables["forecast"]
        inside = forecast.where(F.col("due_s").between(shown.first_s, shown.last_s))
        findings.ahead = _due(inside, span_s(findings.ahead_span_s), "span_s", 10 * MAX_POINTS)
        findings.busiest = _due(forecast, F.col("due_s"), F.desc("timers"), BUSIEST)
        hours = forecast.groupBy(span_s(_HOUR_S), "callback_topic").agg(F.sum("timers").alias("timers"))
        found = hours.orderBy("span_s", "callback_topic").limit(MAX_HOURS_LISTED)
        findings.pending_by_hour = [HourDue(*row) for row in found.collect()]
    if DEAD_LETTERED in findings.statuses:
        codes = by_code(outcomes).orderBy(F.desc("timers"), "code").limit(MAX_OFFENDERS_LISTED)
        findings.dead_letters = [(row.code, row.timers) for row in codes.collect()]
    return findings


def _collect_lags(findings: Findings, outcomes: DataFrame, shown: Shown) -> None:
    findings.lag_span_s = span_for(shown.first_s, shown.last_s)
    inside = outcomes.where(F.col("due_s").between(shown.first_s, shown.last_s))
    by_span = lags(inside, span_s(findings.lag_span_s)).orderBy("span_s")
    findings.lags = [Lag(*row) for row in by_span.collect()]
    by_topic = lags(outcomes, "callback_topic").orderBy(F.desc("fired"))
    findings.lags_by_topic = [Lag(*row) for row in by_topic.limit(MAX_OFFENDERS_LISTED).collect()]
    (row,) = lags(outcomes, F.lit("all").alias("of")).collect()
    findings.lag = Lag(*row)
    by_hour = lags(outcomes, span_s(_HOUR_S), "callback_topic").orderBy("span_s", "callback_topic")
    findings.lags_by_hour = [HourLag(*row) for row in by_hour.limit(MAX_HOURS_LISTED).collect()]
    is_late = F.col("lag_ms") > findings.objective.within_ms
    reached = (
        outcomes.where("lag_ms is not null")
        .groupBy("callback_topic")
        .agg(F.count(F.lit(1)).alias("fired"), F.count_if(~is_late).alias("within"))
        .orderBy(F.desc(F.col("fired") - F.col("within")), "callback_topic")
    )
    findings.reached = [Reached(*row) for row in reached.limit(MAX_OFFENDERS_LISTED).collect()]
    if any(each.within < each.fired for each in findings.reached):
        latest = outcomes.where(is_late).orderBy(F.desc("lag_ms"), "due_s", "request").limit(MAX_OFFENDERS_LISTED)
        findings.missed = [row.asDict() for row in latest.collect()]


def _shown(outcomes: DataFrame) -> tuple[Shown | None, Shown | None]:
    """What the axes of lags and of pending timers show; None: there are none."""
    conditions = F.col("lag_ms").isNotNull(), F.col("status").isin(PENDING, COLD)
    due_s = [F.when(each, F.col("due_s")) for each in conditions]
    ends = outcomes.agg(*(F.percentile_approx(each, [0.01, 0.99], 1000) for each in due_s)).collect()[0]
    outside = [
        F.count_if(each < low) if is_low else F.count_if(each > high)
        for each, (low, high) in zip(due_s, (end or (0, 0) for end in ends), strict=True)
        for is_low in (True, False)
    ]
    counts = outcomes.agg(*outside).collect()[0]
    fired, ahead = (
        None if end is None else Shown(*end, *counts[2 * index : 2 * index + 2]) for index, end in enumerate(ends)
    )
    return fired, ahead


def _listed(offenders: DataFrame) -> dict[tuple[str, str], tuple[int, list[dict[str, Any]]]]:
    """(verdict, fault) -> the number of its offenders, and the first :data:`MAX_OFFENDERS_LISTED` of them.

    Each task keeps only its first rows of a fault, so that no task gets all of them.
    """
    counts = offenders.groupBy("verdict", "fault").count().collect()
    listed: dict[tuple[str, str], tuple[int, list[dict[str, Any]]]] = {
        (row["verdict"], row["fault"]): (row["count"], []) for row in counts
    }
    # Spark computes the limit in each task before the shuffle if the plan filters by the rank alone.
    fault = Window.partitionBy("verdict", "fault").orderBy("due_s", "accepted_ms", "offset")
    first = offenders.withColumn("number", F.row_number().over(fault)).where(F.col("number") <= MAX_OFFENDERS_LISTED)
    for row in first.orderBy("verdict", "fault", "number").collect() if counts else []:
        listed[row["verdict"], row["fault"]][1].append(row.asDict())
    return listed


def _due(forecast: DataFrame, by: Column, order: Column | str, limit: int) -> list[Due]:
    sums = (F.sum("timers").alias("timers"), F.sum("bytes").alias("bytes"))
    return [Due(*row) for row in forecast.groupBy(by).agg(*sums).orderBy(order).limit(limit).collect()]


def span_for(first_s: int, last_s: int) -> int:
    """Seconds between two points of a chart, so that it has at most :data:`MAX_POINTS`."""
    return next((span for span in _SPANS_S if (last_s - first_s) / span <= MAX_POINTS), _SPANS_S[-1])
