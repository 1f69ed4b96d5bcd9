"""What an audit found, small enough for one machine and one page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.core import operation
from timers.spark.audit import figures
from timers.spark.audit.figures import UNASKED
from timers.spark.audit.outcomes import (
    COLD,
    DEAD_LETTERED,
    DUPLICATE,
    EARLY,
    FIRED,
    GONE,
    LOST,
    PENDING,
    REVOKED,
    Moment,
)

STATUSES = (FIRED, DEAD_LETTERED, operation.CANCELLED, operation.REPLACED, PENDING, COLD, GONE, LOST)
FAULTS = (LOST, DUPLICATE, EARLY, REVOKED, UNASKED)

MAX_LISTED = 200
"""Offenders of each fault that findings hold; the table holds all."""

MAX_POINTS = 240
"""Of a chart."""

BUSIEST = 20

_SPANS_S = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)


class Counted(NamedTuple):
    """Records of a request topic, of one kind and for one callback topic."""

    topic: str
    callback_topic: str | None
    kind: str
    records: int
    bytes: int
    first_ms: int
    last_ms: int


class PartitionRead(NamedTuple):
    """Offsets read of a partition of requests, and the second that the engine says it has fired through."""

    topic: str
    partition: int
    start: int
    end: int
    fired_through_s: int | None


class Lag(NamedTuple):
    """Of timers due in one span, or sent to one topic: milliseconds."""

    of: Any
    fired: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


class Due(NamedTuple):
    """Pending timers that are due in one span of seconds, or in one second."""

    due_s: int
    timers: int
    bytes: int


@dataclass
class Findings:
    """All there is to say."""

    moment: Moment
    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    late: int = 0
    """Requests accepted when their second had begun."""
    listed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Fault -> the first offenders, as the table has them."""
    lag_span_s: int = 60
    lags: list[Lag] = field(default_factory=list)
    lags_by_topic: list[Lag] = field(default_factory=list)
    ahead_span_s: int = 60
    ahead: list[Due] = field(default_factory=list)
    busiest: list[Due] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    from_cold: int | None = None
    """Requests that only the cold tier holds; None where that was not looked at."""
    read: list[PartitionRead] = field(default_factory=list)
    disks: dict[str, int] | str = field(default_factory=dict)
    """Bytes on the disk of one replica, by topic of requests; or why nobody knows."""
    callback_topics: list[str] = field(default_factory=list)
    stages: list[tuple[str, int, float]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Requests of timers that the brokers acknowledged."""
        return self.statuses.total()

    @property
    def clean(self) -> bool:
        """Whether no timer was lost, doubled, early, or fired although it should not have been."""
        return not self.faults.total()

    def left_cold(self) -> int:
        """Of the lost that are listed, those that are in the cold tier still."""
        return sum(row["cold"] for row in self.listed.get(LOST, []))

    def behind(self) -> int:
        """Of the lost that are listed, those that the engine's own progress has not come to."""
        reached = {(each.topic, each.partition): each.fired_through_s for each in self.read}
        return sum(not row["cold"] and not is_reached(row, reached) for row in self.listed.get(LOST, []))


def is_reached(row: Mapping[str, Any], reached: Mapping[tuple[str, int], int | None]) -> bool:
    """Whether the engine says that it has fired past an offender."""
    through_s = reached.get((row["topic"], row["partition"]))
    return through_s is not None and row["due_s"] is not None and row["due_s"] <= through_s


def collect(tables: Mapping[str, DataFrame], outcomes: DataFrame, moment: Moment) -> Findings:
    """Bring together what a page shows.

    Args:
        tables: ``totals``, ``offenders``, ``lags`` and ``forecast``.
        outcomes: in the shape of :data:`timers.spark.audit.outcomes.OUTCOME`.
        moment: the moment that the audit speaks of.
    """
    findings = Findings(moment)
    due: dict[str, list[int]] = defaultdict(list)
    for row in tables["totals"].collect():
        findings.statuses[row["status"]] += row["count"]
        findings.late += row["late"]
        due[row["status"]] += [second for second in (row["first_due_s"], row["last_due_s"]) if second is not None]
    for row in _first(tables["offenders"]).collect():
        findings.faults[row["fault"]] = row["of_fault"]
        findings.listed.setdefault(row["fault"], []).append(row.asDict())
    if due[FIRED]:
        findings.lag_span_s = span_for(min(due[FIRED]), max(due[FIRED]))
        by_span = figures.lags(outcomes, figures.span_s(findings.lag_span_s)).orderBy("span_s")
        findings.lags = [Lag(*row) for row in by_span.collect()]
        by_topic = figures.lags(outcomes, "callback_topic").orderBy(F.desc("fired"))
        findings.lags_by_topic = [Lag(*row) for row in by_topic.limit(MAX_LISTED).collect()]
    ahead = due[PENDING] + due[COLD]
    if ahead:
        findings.ahead_span_s = span_for(min(ahead), max(ahead))
        findings.ahead = _due(tables["forecast"], figures.span_s(findings.ahead_span_s), "span_s", 10 * MAX_POINTS)
        findings.busiest = _due(tables["forecast"], F.col("due_s"), F.desc("timers"), BUSIEST)
    return findings


def _first(offenders: DataFrame) -> DataFrame:
    """The first :data:`MAX_LISTED` of each fault, and how many there are of it."""
    fault = Window.partitionBy("fault")
    order = fault.orderBy("due_s", "accepted_ms", "offset")
    numbered = offenders.withColumns({"number": F.row_number().over(order), "of_fault": F.count(F.lit(1)).over(fault)})
    return numbered.where(F.col("number") <= MAX_LISTED).orderBy("fault", "number")


def _due(forecast: DataFrame, by: Column, order: Column | str, limit: int) -> list[Due]:
    sums = (F.sum("timers").alias("timers"), F.sum("bytes").alias("bytes"))
    return [Due(*row) for row in forecast.groupBy(by).agg(*sums).orderBy(order).limit(limit).collect()]


def span_for(first_s: int, last_s: int) -> int:
    """Seconds of a chart's step, so that it has at most :data:`MAX_POINTS`."""
    return next((span for span in _SPANS_S if (last_s - first_s) / span <= MAX_POINTS), _SPANS_S[-1])
