"""Assigns firings without ``timer-source`` to versions of timers with ids.

Earlier versions of the worker write only ``timer-id``, as other engines may. Such a firing belongs to a version
with its ``timer-id``, ``timer-due`` and topic: its *slot*. If an id was set several times for one slot, the firings are
assigned in their order: first to versions that must fire, in the order of the log, last to versions that must not.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark.audit.versions import CLOCKS_MS, MAY, MUST
from timers.wire.topics import SOURCE_PATTERN

SLOT = ["timer_id", "due_s", "callback_topic"]


def names_no_request() -> Column:
    """Condition: a firing (:data:`timers.spark.audit.evidence.FIRING`) has only an id."""
    return (F.col("request") == F.col("timer_id")) & ~F.col("timer_id").rlike(rf"^{SOURCE_PATTERN}\z")


def with_requests(firings: DataFrame, versions: DataFrame, letters: DataFrame) -> DataFrame:
    """The firings, each with the request that it is assigned to, if there is one.

    Args:
        firings: in the shape of :data:`timers.spark.audit.evidence.FIRING`.
        versions: of timers with ids, in the shape of :data:`timers.spark.audit.versions.VERSION`.
        letters: the result of :func:`timers.spark.audit.evidence.letters`.
    """
    timers = versions.where(F.col("timer_id").isNotNull()).join(letters, "request", "left")
    order = (
        F.when((F.col("expected") == MUST) & F.col("letters").isNull(), 0)
        .when(F.col("expected") == MAY, 1)
        .when(F.col("expected") == MUST, 2)
        .otherwise(3)
    )
    slot = Window.partitionBy(*SLOT)
    ranked = timers.select(
        *SLOT,
        F.col("request").alias("version"),
        F.row_number().over(slot.orderBy(order, "offset")).alias("rank"),
        F.count(F.lit(1)).over(slot).alias("versions_in_slot"),
    )
    named = firings.where(~names_no_request())
    at = F.coalesce("append_ms", "fired_ms")
    numbered = firings.where(names_no_request()).withColumn("number", F.row_number().over(slot.orderBy(at, "position")))
    # Surplus firings belong to the first version.
    mine = F.when(F.col("number") <= F.col("versions_in_slot"), F.col("number")).otherwise(1)
    found = numbered.join(ranked, SLOT, "left").where(F.col("rank").isNull() | (F.col("rank") == mine))
    assigned = found.withColumn("request", F.coalesce("version", "request")).select(firings.columns)
    return named.unionByName(assigned)


def without_compacted(firings: DataFrame, schedules: DataFrame) -> DataFrame:
    """Firings without those of schedules that compaction deleted and that were set again for the same slot.

    Such a schedule fired before its present version was written, within the accuracy of a producer's clock.

    Args:
        firings: in the shape of :data:`timers.spark.audit.evidence.FIRING`.
        schedules: in the shape of :data:`timers.spark.audit.versions.VERSION`.
    """
    since = schedules.groupBy(*SLOT).agg((F.min("accepted_ms") - CLOCKS_MS).alias("since_ms"))
    is_compacted = names_no_request() & (F.col("fired_ms") < F.col("since_ms"))
    known = firings.join(since, SLOT, "left").where(~F.coalesce(is_compacted, F.lit(False)))
    return known.select(firings.columns)
