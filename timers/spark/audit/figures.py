"""What outcomes add up to: totals, offenders, lags, and what lies ahead."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.spark.audit.outcomes import COLD, PENDING
from timers.spark.kafka import Offsets

UNASKED = "unasked"
"""A fault of a firing whose request no committed reader ever saw, such as one that was aborted."""

MAX_POSITIONS = 10
"""Of the firings of one offender."""

_PERCENTILES = (0.5, 0.9, 0.99)


def totals(outcomes: DataFrame) -> DataFrame:
    """How many requests came to what, by request topic: ``topic``, ``status``, ``count``, ``bytes``, ``late``,
    ``first_due_s``, ``last_due_s``.

    ``late`` are those that were accepted when their second had begun.
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
    """Offenders with ``positions``: the first records in which each fired, oldest first."""
    slot = ["timer_id", "due_s", "callback_topic"]
    where = F.struct(F.coalesce("append_ms", "fired_ms").alias("at"), "position")
    wanted = offenders.where("firings > 0").select(*slot).distinct()
    positions = (
        firings.join(wanted, slot, "left_semi")
        .groupBy(*slot)
        .agg(F.sort_array(F.collect_list(where)).alias("records"))
        .select(*slot, F.slice("records.position", 1, MAX_POSITIONS).alias("positions"))
    )
    return offenders.join(positions, slot, "left")


def strangers(outcomes: DataFrame) -> DataFrame:
    """Firings that answer no request that was read."""
    return outcomes.where("request is null")


def unasked(strangers: DataFrame, versions: DataFrame, read: Mapping[str, Mapping[int, range]]) -> DataFrame:
    """Of strangers, those whose request should have been among those read, and is not: offenders in their own right.

    Args:
        strangers: as :func:`strangers` gives them.
        versions: what was asked for.
        read: topics whose timers carry the name of their request as id -> partition -> offsets read of it.
    """
    name = F.split("timer_id", "/")
    ranges = [
        (name[0] == topic)
        & (name[1] == str(partition))
        & F.expr("try_cast(split(timer_id, '/')[2] as long)").between(offsets.start, offsets.stop - 1)
        for topic, partitions in read.items()
        for partition, offsets in partitions.items()
    ]
    inside: Column = F.lit(False)
    for each in ranges:
        inside = inside | each
    candidates = strangers.where((F.size(name) == 3) & inside)
    known = versions.select(F.col("request").alias("timer_id"))
    return candidates.join(known, "timer_id", "left_anti").withColumn("fault", F.lit(UNASKED)).drop("faults")


def lags(outcomes: DataFrame, *by: Column | str) -> DataFrame:
    """Lag of what fired, in milliseconds, for each of ``by``: ``fired`` (how many), ``p50_ms``, ``p90_ms``, ``p99_ms``,
    ``max_ms``."""
    p50, p90, p99 = (F.col("p")[index].alias(f"p{round(p * 100)}_ms") for index, p in enumerate(_PERCENTILES))
    grouped = outcomes.where("lag_ms is not null").groupBy(*by)
    found = grouped.agg(
        F.count(F.lit(1)).alias("fired"),
        F.percentile_approx("lag_ms", list(_PERCENTILES), 1000).alias("p"),
        F.max("lag_ms").alias("max_ms"),
    )
    return found.select(*found.columns[: len(by)], "fired", p50, p90, p99, "max_ms")


def minute_s() -> Column:
    """First second of the minute that a timer is due in."""
    return span_s(60).alias("minute_s")


def span_s(seconds: int) -> Column:
    """First second of the span that a timer is due in."""
    return (F.floor(F.col("due_s") / seconds) * seconds).alias("span_s")


def forecast(outcomes: DataFrame) -> DataFrame:
    """What is pending, by second: ``due_s``, ``callback_topic``, ``timers``, ``bytes``."""
    return (
        outcomes.where(F.col("status").isin(PENDING, COLD))
        .groupBy("due_s", "callback_topic")
        .agg(F.count(F.lit(1)).alias("timers"), F.sum("bytes").alias("bytes"))
    )


def ranges(starting: Offsets, ending: Offsets) -> dict[str, dict[int, range]]:
    """Offsets read of each partition."""
    return {
        topic: {partition: range(offset, ending[topic][partition]) for partition, offset in partitions.items()}
        for topic, partitions in starting.items()
    }
