"""The outputs of an engine: firings with their requests, dead letters, verdicts, and timers on the retry topic."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark import columns
from timers.spark.audit.outcomes import MAY, MUST
from timers.spark.columns import schema
from timers.wire import headers as h
from timers.wire.checks import PRODUCERS_CLOCKS_MS
from timers.wire.topics import SOURCE_PATTERN

FIRING = schema(
    "request string, timer_id string, due_s bigint, callback_topic string, fired_ms bigint, append_ms bigint, "
    "position string, content bigint"
)
"""A fired message. ``request`` is the header ``timer-source``, or else ``timer-id``. ``due_s`` is null if ``timer-id``
or a valid ``timer-due`` is missing: such a message belongs to no request. ``fired_ms`` is the time of the tick,
``append_ms`` is null if the topic has the producer's time, ``position`` is the name of the record, ``content``
its hash (:func:`timers.spark.columns.content`)."""


_LETTER_HEADERS = (h.TIMER_ERROR, h.TIMER_ERROR_MESSAGE, h.TIMER_SOURCE)
"""The last headers of a dead letter."""


def firings(records: DataFrame, request_topic: str) -> DataFrame:
    """The fired messages among the records of callback topics, which may have other records too: :data:`FIRING`.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`.
        request_topic: the topic of native requests.
    """
    append_ms = F.when(F.col("timestamp_type") == columns.LOG_APPEND_TIME, F.col("timestamp_ms"))
    return records.select(
        F.coalesce(columns.header_text(h.TIMER_SOURCE), columns.timer_id()).alias("request"),
        columns.timer_id().alias("timer_id"),
        F.when(columns.header(h.TIMER_ID).isNotNull(), columns.timer_due()).alias("due_s"),
        F.col("topic").alias("callback_topic"),
        columns.timer_fired().alias("fired_ms"),
        append_ms.alias("append_ms"),
        columns.source().alias("position"),
        columns.content(F.col("topic"), F.col("key"), F.col("value"), request_topic).alias("content"),
    ).where("timer_id is not null or fired_ms is not null")


def letters(records: DataFrame) -> DataFrame:
    """Dead letters by request: ``request``, ``letters`` (number of them), ``letter_code`` (of one of them).

    ``request`` is null for all records that are no dead letters, as :func:`timers.wire.dead_letter.decode` sees them.
    """
    last = F.transform(F.slice("headers", -len(_LETTER_HEADERS), len(_LETTER_HEADERS)), lambda each: each["key"])
    is_letter = (F.size("headers") >= len(_LETTER_HEADERS)) & (last == F.array(*map(F.lit, _LETTER_HEADERS)))
    named = records.select(
        F.when(is_letter, columns.header_text(h.TIMER_SOURCE)).alias("request"),
        F.when(is_letter, columns.header_text(h.TIMER_ERROR)).alias("code"),
    )
    return named.groupBy("request").agg(F.count(F.lit(1)).alias("letters"), F.min("code").alias("letter_code"))


def verdicts(records: DataFrame) -> DataFrame:
    """Verdicts on cancels and updates: ``asked_by`` (the record of the cancel or update), ``verdict``."""
    named = records.select(
        columns.header_text(h.TIMER_SOURCE).alias("asked_by"),
        F.get_json_object(F.col("value").cast("string"), "$.verdict").alias("verdict"),
    )
    return named.where("asked_by is not null").groupBy("asked_by").agg(F.min("verdict").alias("verdict"))


def moved(requests: DataFrame) -> DataFrame:
    """Timers that the engine moved to the retry topic, for a failing target or a backlog.

    Args:
        requests: requests of the retry topic, in the shape of :data:`timers.spark.requests.REQUEST`.

    Returns:
        ``request`` (the original request), ``wait_s`` (the last second to which it was postponed), ``attempts``.
    """
    return (
        requests.where("kind = 'timer'")
        .groupBy("request")
        .agg(F.max("wait_s").alias("wait_s"), F.max("attempt").alias("attempts"))
    )


SLOT = ["timer_id", "due_s", "callback_topic"]


def names_no_request() -> Column:
    """Condition: a firing (:data:`timers.spark.audit.evidence.FIRING`) has only an id."""
    return (F.col("request") == F.col("timer_id")) & ~F.col("timer_id").rlike(rf"^{SOURCE_PATTERN}\z")


def with_requests(firings: DataFrame, versions: DataFrame, letters: DataFrame) -> DataFrame:
    """The firings, each with the request that it is assigned to, if there is one.

    Other engines may write only ``timer-id``. Such a firing belongs to a version with its ``timer-id``, ``timer-due``
    and topic: its *slot*. If an id was set several times for one slot, the firings are assigned in their order: first
    to versions that must fire, in the order of the log, last to versions that must not.

    Args:
        firings: in the shape of :data:`timers.spark.audit.evidence.FIRING`.
        versions: of timers with ids, in the shape of :data:`timers.spark.audit.outcomes.VERSION`.
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
        schedules: in the shape of :data:`timers.spark.audit.outcomes.VERSION`.
    """
    since = schedules.groupBy(*SLOT).agg((F.min("accepted_ms") - PRODUCERS_CLOCKS_MS).alias("since_ms"))
    is_compacted = names_no_request() & (F.col("fired_ms") < F.col("since_ms"))
    known = firings.join(since, SLOT, "left").where(~F.coalesce(is_compacted, F.lit(False)))
    return known.select(firings.columns)
