"""What became of each version: asked for and let out, side by side.

A firing belongs to the version of its ``timer-id``, ``timer-due`` and topic: receivers copy headers, so the same id on
a topic that was not asked for is a copy. Where an id was set more than once for one second and topic, firings go to
those versions in turn: first to those that must fire, in the order of the log, last to those that must not.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark.audit.versions import MAY, MUST, NEVER

FIRED, DEAD_LETTERED, PENDING, COLD, LOST = "fired", "dead-lettered", "pending", "cold", "lost"
GONE = "evidence-gone"
"""Statuses, beside ``cancelled`` and ``replaced``. What the last means: its callback topic no longer holds what it held
when the timer was due, so that nobody can tell. Cold: pending, and in the cold tier."""

DUPLICATE, EARLY, REVOKED = "duplicate", "early", "revoked"
"""Faults, beside ``lost``. Revoked: fired although its owner was told that it is cancelled or replaced."""

_SLOT = ["timer_id", "due_s", "callback_topic"]

OUTCOME = (
    *("request", "topic", "partition", "offset", "accepted_ms", "bytes", "timer_id", "due_s", "callback_topic"),
    *("code", "status", "faults", "firings", "letters", "letter_code", "moved", "fired_ms", "append_ms", "lag_ms"),
    "cold",
)
"""``firings`` and ``letters``: how many of each. ``fired_ms`` and ``append_ms``: the earliest. ``lag_ms``: from the
start of the due second, or from acceptance if that was later, to ``append_ms`` (``fired_ms`` where the callback topic
carries its producer's time); null for timers that were moved. ``cold``: it is in the cold tier still. A row without
``request`` is a firing that answers none here."""


@dataclass(frozen=True)
class Moment:
    """The moment that the audit speaks of."""

    as_of_ms: int
    """Everything read is at least as new as this."""
    grace_s: int
    """What is overdue by no more than this is still pending."""


def slots(versions: DataFrame, letters: DataFrame, moved: DataFrame, ids: bool) -> DataFrame:
    """Versions with their dead letters and delays, and each one's turn among those of one id, second and topic.

    Args:
        versions: in the shape of :data:`timers.spark.audit.versions.VERSION`.
        letters: as :func:`timers.spark.audit.evidence.letters` gives them.
        moved: as :func:`timers.spark.audit.evidence.moved` does.
        ids: whether several versions may be of one id, second and topic.
    """
    known = versions.join(letters, "request", "left").join(moved, "request", "left").fillna(0, ["letters"])
    if not ids:
        return known.withColumns({"turn": F.lit(1), "turns": F.lit(1)})
    rank = (
        F.when((F.col("expected") == MUST) & (F.col("letters") == 0), 0)
        .when(F.col("expected") == MAY, 1)
        .when(F.col("expected") == MUST, 2)
        .otherwise(3)
    )
    slot = Window.partitionBy(*_SLOT)
    return known.withColumns(
        {"turn": F.row_number().over(slot.orderBy(rank, "offset")), "turns": F.count(F.lit(1)).over(slot).cast("int")}
    )


def outcomes(
    slots: DataFrame, firings: DataFrame, whole_since: DataFrame, moment: Moment, waiting: DataFrame | None = None
) -> DataFrame:
    """What became of each version, and the firings that answer none.

    Args:
        slots: as :func:`slots` gives them.
        firings: as :func:`timers.spark.audit.evidence.firings` gives them.
        whole_since: ``callback_topic``, ``whole_since_ms``: since when nothing was deleted from it; null for now.
        moment: the moment that the audit speaks of.
        waiting: requests that are in the cold tier still: ``request``. None where there is none.

    Returns:
        In the shape of :data:`OUTCOME`.
    """
    if waiting is None:
        slots = slots.withColumn("cold", F.lit(False))
    else:
        slots = slots.join(waiting.withColumn("cold", F.lit(True)), "request", "left").fillna(False, ["cold"])
    fired = firings.groupBy(*_SLOT).agg(
        F.count(F.lit(1)).alias("found"), F.min("fired_ms").alias("fired_ms"), F.min("append_ms").alias("append_ms")
    )
    joined = slots.join(fired, _SLOT, "full").join(F.broadcast(whole_since), "callback_topic", "left")
    found = F.coalesce("found", F.lit(0))
    surplus = F.when(F.col("turn") == 1, F.greatest(found - F.col("turns"), F.lit(0))).otherwise(0)
    allotted = F.when(found >= F.col("turn"), 1).otherwise(0) + surplus
    own = joined.withColumn("firings", F.when(F.col("request").isNull(), found).otherwise(allotted))
    mine = F.col("firings") > 0
    return (
        own.withColumns({name: F.when(mine, F.col(name)) for name in ("fired_ms", "append_ms")})
        .withColumn("moved", F.col("wait_s").isNotNull())
        .withColumn("status", _status(moment))
        .withColumn("faults", _faults())
        .withColumn("lag_ms", _lag_ms())
        .select(*OUTCOME)
    )


def _status(moment: Moment) -> Column:
    """The first that applies."""
    accepted_s = F.ceil(F.col("accepted_ms") / 1000)
    reached_s = F.greatest("due_s", accepted_s, "wait_s")  # of nulls it takes no notice
    gone = F.col("whole_since_ms") > F.col("due_s") * 1000
    return (
        F.when(F.col("request").isNull(), F.lit(None))
        .when(F.col("firings") > 0, FIRED)
        .when(F.col("letters") > 0, DEAD_LETTERED)
        .when(F.col("expected") != MUST, F.col("closed_as"))
        .when((reached_s + moment.grace_s) * 1000 > moment.as_of_ms, F.when(F.col("cold"), COLD).otherwise(PENDING))
        .when(gone, GONE)
        .otherwise(LOST)
    )


def _faults() -> Column:
    start_ms = F.col("due_s") * 1000
    early = (F.col("fired_ms") < start_ms) | (F.col("append_ms") < start_ms)
    asked = F.col("request").isNotNull()  # others may be out of scope
    fired = asked & (F.col("firings") > 0)
    return F.array_compact(
        F.array(
            F.when(F.col("status") == LOST, LOST),
            F.when(asked & (F.col("firings") + F.col("letters") > 1), DUPLICATE),
            F.when(fired & early, EARLY),
            F.when(fired & (F.col("expected") == NEVER), REVOKED),
        )
    )


def _lag_ms() -> Column:
    seen_ms = F.coalesce("append_ms", "fired_ms")
    owed_ms = F.greatest(F.col("due_s") * 1000, F.col("accepted_ms"))
    waited = F.col("request").isNotNull() & (F.col("firings") > 0) & ~F.col("moved")
    return F.when(waited, seen_ms - owed_ms)
