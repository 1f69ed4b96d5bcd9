"""Sums of outcomes: totals, offenders, lags, and pending timers by second."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.spark.audit.outcomes import COLD, PENDING, SLOT
from timers.spark.audit.scope import Ranges, inside

UNASKED = "unasked"
"""Fault of a firing whose request no committed reader ever saw, such as an aborted one."""

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
        outcomes.where("request is not null")
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
    """One row for each fault of each timer: ``fault``, and the columns of the outcome."""
    return outcomes.where(F.size("faults") > 0).select(F.explode("faults").alias("fault"), "*").drop("faults")


def with_positions(offenders: DataFrame, firings: DataFrame) -> DataFrame:
    """Offenders with ``positions``: the first records in which each of them fired, oldest first."""
    where = F.struct(F.coalesce("append_ms", "fired_ms").alias("at"), "position")
    wanted = offenders.where("firings > 0").select(*SLOT).distinct()
    positions = (
        firings.join(wanted, SLOT, "left_semi")
        .groupBy(*SLOT)
        .agg(F.sort_array(F.collect_list(where)).alias("records"))
        .select(*SLOT, F.slice("records.position", 1, MAX_POSITIONS).alias("positions"))
    )
    return offenders.join(positions, SLOT, "left")


def unmatched(outcomes: DataFrame) -> DataFrame:
    """Firings that belong to none of the requests that were read."""
    return outcomes.where("request is null")


def unasked(unmatched: DataFrame, versions: DataFrame, read: Ranges) -> DataFrame:
    """The unmatched firings whose request should be among those that were read. They are offenders too.

    Args:
        read: offsets that were read of the topics whose timers have the name of their request as ``timer-id``.
    """
    name = F.split("timer_id", "/")
    offset = F.expr("try_cast(split(timer_id, '/')[2] as long)")
    candidates = unmatched.where((F.size(name) == 3) & inside(read, name[0], name[1], offset))
    known = versions.select(F.col("request").alias("timer_id"))
    return candidates.join(known, "timer_id", "left_anti").withColumn("fault", F.lit(UNASKED)).drop("faults")


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


def minute_s() -> Column:
    """First second of the minute that contains the due second."""
    return span_s(60).alias("minute_s")


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
