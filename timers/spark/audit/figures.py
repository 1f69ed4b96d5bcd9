"""Sums of outcomes: totals, offenders, lags, and pending timers by second."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark.audit.outcomes import COLD, PENDING, PLACE, UNDECIDED

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
    wanted = offenders.where("firings > 0").select(*PLACE).distinct()
    found = firings.join(wanted, PLACE, "left_semi").select(*PLACE, where.alias("record"))
    number = F.row_number().over(Window.partitionBy(*PLACE).orderBy("record"))
    positions = (
        found.withColumn("number", number)
        .where(F.col("number") <= MAX_POSITIONS)
        .groupBy(*PLACE)
        .agg(F.sort_array(F.collect_list("record"))["position"].alias("positions"))
    )
    return offenders.join(positions, PLACE, "left")


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
