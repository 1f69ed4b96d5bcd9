"""The requested timers: one row for each request that needs an outcome.

A timer is identified by the record that requested it, its *request*. Ids can be used again, so for timers with an id
each record that sets a timer is a *version*. The next record of the id in the partition closes the version: an update
or a cancel. The verdict on that record says whether it was in time. Without a verdict (its topic was deleted or is
newer), the append time decides: before the start of the due second it was in time; after that, the version may have
fired or not.

A record with a dead letter that rejects it on arrival counts as one that cannot be decoded, even if the audit can
decode it: its partition may have had another limit or another feature level.

A record with a condition counts only if its verdict does not refuse it. Without its verdict, its version may have fired
or not, and so may the version before it.

In a topic of schedules (:mod:`timers.wire.formats.schedule`) any next record of the id closes a version, also one that
cannot be decoded, and also a tombstone of the engine. A tombstone that names the version says that the version fired or
became a dead letter. A tombstone that names another version was written at the same time as this one; the engine then
appends this version again, and only the copy counts. Compaction may have deleted any record except the newest of an id,
so the outcome of a version depends only on the records after it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.core import operation
from timers.kafka.topic_offsets import PRODUCERS_CLOCKS_MS
from timers.spark.requests import CANCEL, COPY, ENDED, REJECTED, TIMER
from timers.wire.dead_letter import ACCEPTED_CODES, CODES

MUST, MAY, NEVER = "must", "may", "never"
"""Whether a version fires: it must fire once its second has begun; it may fire or not; it must not fire."""

CANCELLED, REPLACED, REFUSED = operation.CANCELLED, operation.REPLACED, "refused"
NO_VERDICT = "verdict-not-visible"
"""How a version ends: ``refused`` if its condition was not true; ``verdict-not-visible`` if it is not known."""

CLOCKS_MS = PRODUCERS_CLOCKS_MS
"""Accepted error of a producer's clock: most topics of schedules have the producer's time, not the broker's."""

_CODES_ON_ARRIVAL = sorted({*CODES} - ACCEPTED_CODES)

VERSION = (
    *("request", "topic", "partition", "offset", "accepted_ms", "timestamp_type", "bytes", "record_key"),
    *("timer_id", "due_s", "callback_topic", "callback_key", "content", "code", "expected", "closed_as"),
)
"""``accepted_ms``: when the broker appended the request, or the time of its producer (``timestamp_type``, as in
:data:`timers.spark.columns.RECORD`). ``code``: why it cannot be decoded, or null; a request with a
code has no timer. ``expected``: must, may or never. ``closed_as``: the outcome of a version that has not fired and need
not: ``cancelled``, ``replaced``, ``refused`` or ``verdict-not-visible``."""


def without_ids(requests: DataFrame) -> DataFrame:
    """Versions of topics whose timers have no ids: each request is a version."""
    return _versions(requests.where(F.col("kind") != COPY), F.lit(MUST), F.lit(None).cast("string"))


def with_ids(requests: DataFrame, verdicts: DataFrame, letters: DataFrame) -> DataFrame:
    """Versions of topics whose timers have ids.

    Args:
        requests: in the shape of :data:`timers.spark.requests.REQUEST`, with the complete history of each id.
        verdicts: the result of :func:`timers.spark.audit.evidence.verdicts`.
        letters: the result of :func:`timers.spark.audit.evidence.letters`.
    """
    on_arrival = letters.where(F.col("letter_code").isin(*_CODES_ON_ARRIVAL)).select(
        "request", F.lit(REJECTED).alias("as")
    )
    known = requests.where(F.col("kind").isin(TIMER, CANCEL, REJECTED)).join(on_arrival, "request", "left")
    requests = known.withColumn("kind", F.coalesce("as", "kind")).drop("as")
    rejected = _versions(requests.where(F.col("kind") == REJECTED), F.lit(MUST), F.lit(None).cast("string"))
    history = Window.partitionBy("topic", "partition", "timer_id").orderBy("offset")
    told = verdicts.select(F.col("asked_by").alias("request"), F.col("verdict").alias("own_verdict"))
    is_refused = F.coalesce(F.col("own_verdict").isin(*operation.REFUSED), F.lit(False))
    judged = requests.where(F.col("kind").isin(TIMER, CANCEL)).join(told, "request", "left")
    refused = _versions(judged.where(is_refused & (F.col("kind") == TIMER)), F.lit(NEVER), F.lit(REFUSED))
    closed = (
        judged.where(~is_refused)
        .withColumn("undecided", F.col("conditional") & F.col("own_verdict").isNull())
        .withColumn("closed_by", F.lead("kind").over(history))
        .withColumn("closed_ms", F.lead("timestamp_ms").over(history))
        .withColumn("verdict", F.lead("own_verdict").over(history))
        .withColumn("closed_undecided", F.lead("undecided").over(history))
        .where(F.col("kind") == TIMER)
    )
    in_time = F.col("closed_ms") < F.col("due_s") * 1000
    expected = (
        F.when(F.col("undecided") | F.coalesce(F.col("closed_undecided"), F.lit(False)), MAY)
        .when(F.col("closed_by").isNull(), MUST)
        .when(F.col("verdict").isin(operation.CANCELLED, operation.REPLACED), NEVER)
        .when(F.col("verdict").isin(operation.ALREADY_FIRED, operation.UNKNOWN, operation.SET), MUST)
        .when(in_time, NEVER)
        .otherwise(MAY)
    )
    closed_as = (
        F.when(F.col("undecided") | F.coalesce(F.col("closed_undecided"), F.lit(False)), NO_VERDICT)
        .when(F.col("closed_by") == CANCEL, CANCELLED)
        .when(F.col("closed_by") == TIMER, REPLACED)
    )
    return _versions(closed, expected, closed_as).unionByName(refused).unionByName(rejected)


def of_schedules(requests: DataFrame) -> DataFrame:
    """Versions of topics of schedules.

    Args:
        requests: in the shape of :data:`timers.spark.requests.REQUEST`, with the remaining history of each id.
    """
    id = ("topic", "partition", "timer_id")
    history = Window.partitionBy(*id).orderBy("offset")
    alike = Window.partitionBy(*id, "due_s", "callback_topic", "bytes")
    left = requests.where(F.col("kind") == ENDED).select("request", F.lit(True).alias("left")).distinct()
    history_of_timers = (
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
    alive = history_of_timers.where(~(superseded & (F.col("last_alike") > F.col("offset"))))
    rejected = _versions(requests.where(F.col("kind") == REJECTED), F.lit(MUST), F.lit(None).cast("string"))
    return _versions(alive, expected, closed_as).unionByName(rejected)


def _versions(requests: DataFrame, expected: Column, closed_as: Column) -> DataFrame:
    named = {"accepted_ms": F.col("timestamp_ms"), "expected": expected, "closed_as": closed_as}
    return requests.withColumns(named).select(*VERSION)
