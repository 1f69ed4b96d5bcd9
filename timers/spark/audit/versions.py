"""What was asked for: one row for each request that must come to something.

The identity of a timer is the record that asked for it, its *request*. A timer without an id carries that as its
``timer-id``. Ids are used again, so with them each record that sets a timer is a *version*, and what closes it is the
next record of its id in the log of its partition: an update or a cancel. Whether it closed it in time is told by the
verdict of that record. Where there is none (the topic was deleted, or is older), its append time says it: before the
start of the due second it was in time; later, either is right.

In a topic of schedules (:mod:`timers.wire.formats.schedule`) whatever comes next closes a version: also what cannot be
read, and also a tombstone of the engine's. One that names the version says that it has left. One that names another was
written while the version came, which the engine then appends again: the copy stands for it. Compaction may have taken
any record but the newest of an id, so a version that is there is judged by what is behind it alone.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.core import operation
from timers.spark.requests import CANCEL, COPY, ENDED, REJECTED, TIMER

MUST, MAY, NEVER = "must", "may", "never"
"""Whether a version fires: it must, once its second has come; either is right; it must not."""

CANCELLED, REPLACED = operation.CANCELLED, operation.REPLACED

CLOCKS_MS = 60_000
"""What a producer's clock may be off: most schedules carry its time, not the broker's."""

VERSION = (
    *("request", "topic", "partition", "offset", "accepted_ms", "bytes"),
    *("timer_id", "due_s", "callback_topic", "code", "expected", "closed_as"),
)
"""``accepted_ms``: when the broker took the request. ``code``: why it cannot be read, or null; then it has no timer.
``expected``: one of must, may, never. ``closed_as``: ``cancelled`` or ``replaced`` where something came after it."""


def without_ids(requests: DataFrame) -> DataFrame:
    """Versions of topics whose timers have no ids: every request stands for itself."""
    return _versions(requests.where(F.col("kind") != COPY), F.lit(MUST), F.lit(None).cast("string"))


def with_ids(requests: DataFrame, verdicts: DataFrame) -> DataFrame:
    """Versions of topics whose timers have ids.

    Args:
        requests: in the shape of :data:`timers.spark.requests.REQUEST`, each id's history whole.
        verdicts: as :func:`timers.spark.audit.evidence.verdicts` gives them.
    """
    rejected = _versions(requests.where(F.col("kind") == REJECTED), F.lit(MUST), F.lit(None).cast("string"))
    history = Window.partitionBy("topic", "partition", "timer_id").orderBy("offset")
    closed = (
        requests.where(F.col("kind").isin(TIMER, CANCEL))
        .withColumn("asked_by", F.lead("request").over(history))
        .withColumn("closed_by", F.lead("kind").over(history))
        .withColumn("closed_ms", F.lead("timestamp_ms").over(history))
        .where(F.col("kind") == TIMER)
        .join(verdicts, "asked_by", "left")
    )
    in_time = F.col("closed_ms") < F.col("due_s") * 1000
    expected = (
        F.when(F.col("asked_by").isNull(), MUST)
        .when(F.col("verdict").isin(operation.CANCELLED, operation.REPLACED), NEVER)
        .when(F.col("verdict").isin(operation.ALREADY_FIRED, operation.UNKNOWN), MUST)
        .when(in_time, NEVER)
        .otherwise(MAY)
    )
    closed_as = F.when(F.col("closed_by") == CANCEL, CANCELLED).when(F.col("closed_by") == TIMER, REPLACED)
    return _versions(closed, expected, closed_as).unionByName(rejected)


def of_schedules(requests: DataFrame) -> DataFrame:
    """Versions of topics of schedules.

    Args:
        requests: in the shape of :data:`timers.spark.requests.REQUEST`, each id's history as far as it is there.
    """
    id = ("topic", "partition", "timer_id")
    history = Window.partitionBy(*id).orderBy("offset")
    alike = Window.partitionBy(*id, "due_s", "callback_topic", "bytes")
    left = requests.where(F.col("kind") == ENDED).select("request", F.lit(True).alias("left")).distinct()
    told = (
        requests.where(F.col("timer_id").isNotNull())
        .withColumn("closed_by", F.lead("kind").over(history))
        .withColumn("closed_ms", F.lead("timestamp_ms").over(history))
        .where(F.col("kind") == TIMER)
        .withColumn("last_alike", F.max("offset").over(alike))
        .join(left, "request", "left")
        .fillna(False, ["left"])
    )
    superseded = F.coalesce(F.col("closed_by") == ENDED, F.lit(False)) & ~F.col("left")
    by_users = F.col("closed_by").isin(CANCEL, TIMER, REJECTED)
    in_time = F.col("closed_ms") + CLOCKS_MS < F.col("due_s") * 1000
    expected = F.when(by_users & in_time, NEVER).when(by_users & ~F.col("left"), MAY).otherwise(MUST)
    closed_as = F.when(F.col("closed_by") == CANCEL, CANCELLED).when(by_users, REPLACED)
    alive = told.where(~(superseded & (F.col("last_alike") > F.col("offset"))))
    rejected = _versions(requests.where(F.col("kind") == REJECTED), F.lit(MUST), F.lit(None).cast("string"))
    return _versions(alive, expected, closed_as).unionByName(rejected)


def _versions(requests: DataFrame, expected: Column, closed_as: Column) -> DataFrame:
    return requests.select(
        *("request", "topic", "partition", "offset", F.col("timestamp_ms").alias("accepted_ms"), "bytes"),
        *("timer_id", "due_s", "callback_topic", "code"),
        *(expected.alias("expected"), closed_as.alias("closed_as")),
    ).select(*VERSION)
