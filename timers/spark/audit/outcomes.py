"""The outcome of each version: compares requests with firings and dead letters.

A firing belongs to the version with its ``timer-id``, ``timer-due`` and topic (its *slot*). Receivers copy headers, so
a firing of the same id on another topic is a copy. If an id was set several times for one second and topic, the firings
are assigned to those versions by rank: first to versions that must fire, in the order of the log, last to versions that
must not fire."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark.audit.versions import MAY, MUST, NEVER

FIRED, DEAD_LETTERED, PENDING, COLD, LOST = "fired", "dead-lettered", "pending", "cold", "lost"
GONE = "evidence-gone"
"""Statuses, besides ``cancelled`` and ``replaced``. ``cold``: pending in the cold tier. ``evidence-gone``: not known,
because the callback topic has lost records since the timer was due."""

DUPLICATE, EARLY, REVOKED = "duplicate", "early", "revoked"
"""Faults, besides ``lost``. ``revoked``: fired although a verdict says that it was cancelled or replaced."""

SLOT = ["timer_id", "due_s", "callback_topic"]

OUTCOME = (
    *("request", "topic", "partition", "offset", "accepted_ms", "bytes", "timer_id", "due_s", "callback_topic"),
    *("code", "status", "faults", "firings", "letters", "letter_code", "moved", "fired_ms", "append_ms", "lag_ms"),
    "cold",
)
"""``firings`` and ``letters``: numbers of them. ``fired_ms`` and ``append_ms``: the earliest. ``lag_ms``: from the
start of the due second, or from acceptance if that was later, to ``append_ms`` (``fired_ms`` if the callback topic has
the producer's time); null for timers that were on the retry topic (``moved``). ``cold``: the timer is in the cold tier.
A row without ``request`` is a firing that belongs to no request that was read."""


@dataclass(frozen=True)
class Moment:
    """The time that an audit refers to."""

    as_of_ms: int
    """The audit reads all records up to this time, and perhaps newer ones."""
    grace_s: int
    """A timer that is overdue by at most this many seconds counts as pending."""


def ranked(versions: DataFrame, letters: DataFrame, moved: DataFrame, ids: bool) -> DataFrame:
    """Versions with their dead letters and retries, and with ``rank``, their position among the versions of their slot
    (``versions_in_slot``).

    Args:
        versions: in the shape of :data:`timers.spark.audit.versions.VERSION`.
        letters: the result of :func:`timers.spark.audit.evidence.letters`.
        moved: the result of :func:`timers.spark.audit.evidence.moved`.
        ids: whether a slot may have several versions.
    """
    known = versions.join(letters, "request", "left").join(moved, "request", "left").fillna(0, ["letters"])
    if not ids:
        return known.withColumns({"rank": F.lit(1), "versions_in_slot": F.lit(1)})
    order = (
        F.when((F.col("expected") == MUST) & (F.col("letters") == 0), 0)
        .when(F.col("expected") == MAY, 1)
        .when(F.col("expected") == MUST, 2)
        .otherwise(3)
    )
    slot = Window.partitionBy(*SLOT)
    return known.withColumns(
        {
            "rank": F.row_number().over(slot.orderBy(order, "offset")),
            "versions_in_slot": F.count(F.lit(1)).over(slot).cast("int"),
        }
    )


def outcomes(
    ranked: DataFrame, firings: DataFrame, whole_since: DataFrame, moment: Moment, waiting: DataFrame | None = None
) -> DataFrame:
    """The outcome of each version, and the firings that belong to none.

    Args:
        ranked: the result of :func:`ranked`.
        firings: the result of :func:`timers.spark.audit.evidence.firings`.
        whole_since: ``callback_topic``, ``whole_since_ms``: the topic has all records since this time; null: now.
        waiting: requests that are in the cold tier: ``request``; None without a cold tier.

    Returns:
        In the shape of :data:`OUTCOME`.
    """
    if waiting is None:
        ranked = ranked.withColumn("cold", F.lit(False))
    else:
        ranked = ranked.join(waiting.withColumn("cold", F.lit(True)), "request", "left").fillna(False, ["cold"])
    fired = firings.groupBy(*SLOT).agg(
        F.count(F.lit(1)).alias("found"), F.min("fired_ms").alias("fired_ms"), F.min("append_ms").alias("append_ms")
    )
    joined = ranked.join(fired, SLOT, "full").join(F.broadcast(whole_since), "callback_topic", "left")
    found = F.coalesce("found", F.lit(0))
    surplus = F.when(F.col("rank") == 1, F.greatest(found - F.col("versions_in_slot"), F.lit(0))).otherwise(0)
    assigned = F.when(found >= F.col("rank"), 1).otherwise(0) + surplus
    counted = joined.withColumn("firings", F.when(F.col("request").isNull(), found).otherwise(assigned))
    has_fired = F.col("firings") > 0
    return (
        counted.withColumns({name: F.when(has_fired, F.col(name)) for name in ("fired_ms", "append_ms")})
        .withColumn("moved", F.col("wait_s").isNotNull())
        .withColumn("status", _status(moment))
        .withColumn("faults", _faults())
        .withColumn("lag_ms", _lag_ms())
        .select(*OUTCOME)
    )


def _status(moment: Moment) -> Column:
    accepted_s = F.ceil(F.col("accepted_ms") / 1000)
    expected_s = F.greatest("due_s", accepted_s, "wait_s")  # ignores nulls
    gone = F.col("whole_since_ms") > F.col("due_s") * 1000
    return (
        F.when(F.col("request").isNull(), F.lit(None))
        .when(F.col("firings") > 0, FIRED)
        .when(F.col("letters") > 0, DEAD_LETTERED)
        .when(F.col("expected") != MUST, F.col("closed_as"))
        .when((expected_s + moment.grace_s) * 1000 > moment.as_of_ms, F.when(F.col("cold"), COLD).otherwise(PENDING))
        .when(gone, GONE)
        .otherwise(LOST)
    )


def _faults() -> Column:
    start_ms = F.col("due_s") * 1000
    early = (F.col("fired_ms") < start_ms) | (F.col("append_ms") < start_ms)
    matched = F.col("request").isNotNull()  # the request of an unmatched firing may be out of scope
    fired = matched & (F.col("firings") > 0)
    return F.array_compact(
        F.array(
            F.when(F.col("status") == LOST, LOST),
            F.when(matched & (F.col("firings") + F.col("letters") > 1), DUPLICATE),
            F.when(fired & early, EARLY),
            F.when(fired & (F.col("expected") == NEVER), REVOKED),
        )
    )


def _lag_ms() -> Column:
    seen_ms = F.coalesce("append_ms", "fired_ms")
    start_ms = F.greatest(F.col("due_s") * 1000, F.col("accepted_ms"))
    has_lag = F.col("request").isNotNull() & (F.col("firings") > 0) & ~F.col("moved")
    return F.when(has_lag, seen_ms - start_ms)
