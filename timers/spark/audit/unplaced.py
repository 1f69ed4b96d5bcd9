"""Outputs of an engine that belong to no request in scope: which are faults, and why the others are not judged.

A callback is *unasked* if the log of its request topic shows that no request asked for it: the record that it names is
not there, is no timer, or asks the same topic for another second. The end of a log is where the topic ended for a
committed reader when the audit began, not the end of ``--to`` or ``--range``: no engine can have read a request at or
after it, because the ends of callback topics were asked for before.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.spark.audit.evidence import names_no_request
from timers.spark.audit.scope import Ranges, inside
from timers.spark.requests import TIMER
from timers.wire.topics import SOURCE_PATTERN

UNASKED = "unasked"
"""Fault of a callback whose request no committed reader ever saw, such as an aborted one."""

COPY, OTHER_TOPIC, NOT_IN_SCOPE = "copy", "other-topic", "not-in-scope"
NO_SOURCE, INCOMPLETE, NO_REQUEST, GONE = "no-source", "incomplete", "no-request", "canary-gone"

CALLBACKS, LETTERS, RETRIES, CANARIES = "callbacks", "dead letters", "timers on the retry topic", "canaries"
"""What is looked at."""

MEANING = {
    COPY: "name a request that asks for another callback topic (a receiver has copied the callback)",
    OTHER_TOPIC: "name a record of a topic that this audit does not read as a request topic",
    NOT_IN_SCOPE: "name a request that this audit does not judge, or that retention or compaction has deleted",
    NO_SOURCE: "have only an id that no request in scope has, or name no record",
    INCOMPLETE: "lack headers that the engine writes, or have them with another form",
    NO_REQUEST: "name a record of a request topic that is not there",
    GONE: "cannot be judged, because their topic keeps callbacks for an hour",
}


class Unplaced(NamedTuple):
    """A number of outputs that are not judged, the reason, and the request or timer that one of them names."""

    what: str
    reason: str
    records: int
    example: str | None


class Log(NamedTuple):
    """The request topics of an audit."""

    ends: Ranges
    """All offsets before the end of each log."""
    read: Ranges
    """The offsets that were read, of the topics that brokers do not compact."""


def callbacks(outcomes: DataFrame, requests: DataFrame, log: Log) -> DataFrame:
    """The callbacks that belong to no version, each with its ``reason``, which is :data:`UNASKED` if it is a fault.

    Args:
        outcomes: in the shape of :data:`timers.spark.audit.outcomes.OUTCOME`.
        requests: all that were read, without the retry topic, in the shape of :data:`timers.spark.requests.REQUEST`.
    """
    asked = requests.where(F.col("kind") == TIMER).select(
        "request", F.col("callback_topic").alias("asked_topic"), F.col("due_s").alias("asked_s")
    )
    reason = (
        F.when(F.col("due_s").isNull(), INCOMPLETE)
        .when(F.col("asked_topic") != F.col("callback_topic"), COPY)
        .when(F.col("asked_s") == F.col("due_s"), NOT_IN_SCOPE)
        .when(F.col("asked_topic").isNotNull(), UNASKED)
        .when(names_no_request(), NO_SOURCE)
        .otherwise(_reason(log, UNASKED))
    )
    unmatched = outcomes.where(F.col("status").isNull()).join(asked, "request", "left")
    return unmatched.withColumn("reason", reason).select(*outcomes.columns, "reason")


def others(outputs: DataFrame, requests: DataFrame, log: Log) -> DataFrame:
    """Outputs that are no callbacks and name no request that was read, each with its ``reason``.

    Args:
        outputs: ``what``, ``request`` (null if they lack a header), ``records`` (number of them).
        requests: all that were read: ``request``.
    """
    unmatched = outputs.join(requests.select("request"), "request", "left_anti")
    return unmatched.withColumn(
        "reason", F.when(F.col("request").isNull(), INCOMPLETE).otherwise(_reason(log, NO_REQUEST))
    )


def counted(outputs: DataFrame) -> list[Unplaced]:
    """The outputs that are not judged, by reason.

    Args:
        outputs: ``what``, ``reason``, ``records``, ``example``.
    """
    numbers = F.sum("records"), F.min("example")
    rows = outputs.where(F.col("reason") != UNASKED).groupBy("what", "reason").agg(*numbers)
    return [Unplaced(*row) for row in rows.orderBy("what", "reason").collect()]


def _reason(log: Log, missing: str) -> Column:
    """Why an output is not judged whose request was not read; ``missing`` if the log shows that there is none."""
    # The engine writes numbers without leading zeros.
    is_name = F.col("request").rlike(rf"^{SOURCE_PATTERN}\z") & ~F.col("request").rlike("/0[0-9]")
    topic, name = F.substring_index("request", "/", 1), F.split("request", "/")
    offset = F.when(is_name, F.get(name, F.lit(2)).try_cast("bigint"))
    place = topic, F.get(name, F.lit(1)), offset
    was_not_read = inside(log.ends, *place) & ~inside(log.read, *place)
    return (
        F.when(
            F.coalesce(topic.isin(list(log.ends)), F.lit(False)), F.when(was_not_read, NOT_IN_SCOPE).otherwise(missing)
        )
        .when(F.coalesce(is_name, F.lit(False)), OTHER_TOPIC)
        .otherwise(NO_SOURCE)
    )
