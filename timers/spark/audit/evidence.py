"""What the engine has let out: firings, dead letters, verdicts, and timers put off on the retry topic."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timers.spark import columns
from timers.spark.audit.versions import CLOCKS_MS
from timers.wire import headers as h


def firings(records: DataFrame) -> DataFrame:
    """The fired messages among the records of callback topics, which may hold others.

    Args:
        records: in the shape of :data:`timers.spark.columns.RECORD`.

    Returns:
        ``timer_id``, ``due_s``, ``callback_topic``, ``fired_ms`` (of the tick), ``append_ms`` (null where the topic
        carries its producer's time), ``position`` (name of the record).
    """
    append_ms = F.when(F.col("timestamp_type") == columns.LOG_APPEND_TIME, F.col("timestamp_ms"))
    return records.select(
        columns.timer_id().alias("timer_id"),
        columns.timer_due().alias("due_s"),
        F.col("topic").alias("callback_topic"),
        columns.timer_fired().alias("fired_ms"),
        append_ms.alias("append_ms"),
        columns.source().alias("position"),
    ).where("timer_id is not null and due_s is not null")


def without_former(firings: DataFrame, schedules: DataFrame) -> DataFrame:
    """Firings, less those of schedules that compaction has taken and that were set again for the same second and topic.

    They came out before the version that is there was written, give or take what a producer's clock is off.

    Args:
        firings: as :func:`firings` gives them.
        schedules: in the shape of :data:`timers.spark.audit.versions.VERSION`.
    """
    slot = ["timer_id", "due_s", "callback_topic"]
    since = schedules.groupBy(*slot).agg((F.min("accepted_ms") - CLOCKS_MS).alias("since_ms"))
    known = firings.join(since, slot, "left").where("since_ms is null or fired_ms is null or fired_ms >= since_ms")
    return known.select(firings.columns)


def letters(records: DataFrame) -> DataFrame:
    """Dead letters of each request: ``request``, ``letters`` (how many), ``letter_code`` (of one of them)."""
    told = records.select(
        columns.header_text(h.TIMER_SOURCE).alias("request"), columns.header_text(h.TIMER_ERROR).alias("code")
    )
    return (
        told.where("request is not null")
        .groupBy("request")
        .agg(F.count(F.lit(1)).alias("letters"), F.min("code").alias("letter_code"))
    )


def verdicts(records: DataFrame) -> DataFrame:
    """What cancels and updates were told: ``asked_by`` (the record that asked), ``verdict``."""
    told = records.select(
        columns.header_text(h.TIMER_SOURCE).alias("asked_by"),
        F.get_json_object(F.col("value").cast("string"), "$.verdict").alias("verdict"),
    )
    return told.where("asked_by is not null").groupBy("asked_by").agg(F.min("verdict").alias("verdict"))


def moved(requests: DataFrame) -> DataFrame:
    """Timers that were put on the retry topic, since their target failed or a backlog was spread out.

    Args:
        requests: what the retry topic asks for, in the shape of :data:`timers.spark.requests.REQUEST`.

    Returns:
        ``request`` (the one that asked first), ``wait_s`` (the last second that it was put off to), ``attempts``.
    """
    return (
        requests.where("kind = 'timer'")
        .groupBy("request")
        .agg(F.max("wait_s").alias("wait_s"), F.max("attempt").alias("attempts"))
    )
