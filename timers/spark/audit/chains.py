"""Timers that repeat: whether each record of a chain has the one follower that its rule names [I37].

An occurrence says which record it follows. It counts if that is the latest record of its id that counts, as the index
of the engine decides. What follows it, and what a record about missed occurrences says, must account for each second
that the rule names: none left out, none twice. Zones are looked up with the zone data of the auditor.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.spark.columns import batchwise, header_text, record_batch, schema
from timers.spark.requests import DEFINITION
from timers.wire import headers as h
from timers.wire.repeat import Repeat, RepeatError
from timers.wire.zones import UnknownZone

CHAIN, ZONE = "broken-chain", "zone-differs"
"""What may be wrong with a chain: what follows is missing or doubled, or leaves seconds out; or it is at a second that
the rule does not name by the auditor's zone data."""

PLACE = ["topic", "partition"]

_LINK = schema(
    "request string, rule binary, nominal_s bigint, after_s bigint, due_s bigint, next_nominal_s bigint, "
    "next_decided_s bigint, next_is_last boolean, missed bigint, missed_last_s bigint"
)
"""A record and the one that follows it. ``after_s``: of a record that sends nothing, the nominal second up to which all
is decided. ``missed``: number of occurrences that are not sent, from this one on."""

_JUDGED = schema("request string, fault string, sends boolean, sent_due_s bigint")
"""``sends``: it sends one of the occurrences that are due. ``sent_due_s``: due second of this one."""


def missed(records: DataFrame) -> DataFrame:
    """Records about missed occurrences, on the topic of verdicts: ``version``, ``timer_id``, ``nominal_s`` (the first
    one), ``missed`` (number), ``missed_last_s``."""
    return missed_of(missed_records(records))


def missed_records(records: DataFrame) -> DataFrame:
    """The same columns of each such record, with its place."""
    fields = {"timer_id": "id", "nominal_s": "first", "missed": "missed", "missed_last_s": "last"}
    text = F.col("value").cast("string")
    read = {name: F.get_json_object(text, f"$.{field}") for name, field in fields.items()}
    named = records.where(header_text(h.TIMER_SOURCE).isNull()).select(
        *("topic", "partition", "offset", "timestamp_ms", "timestamp_type"),
        header_text(h.TIMER_VERSION).alias("version"),
        *((each if name == "timer_id" else each.try_cast("bigint")).alias(name) for name, each in read.items()),
    )
    return named.where("version is not null and nominal_s is not null and missed is not null")


def missed_of(records: DataFrame) -> DataFrame:
    """Results of :func:`missed_records`, as :func:`missed` returns them."""
    sums = F.sum("missed").alias("missed"), F.max("missed_last_s").alias("missed_last_s")
    return records.groupBy("version", "timer_id", "nominal_s").agg(*sums)


def linked(judged: DataFrame, missed: DataFrame) -> DataFrame:
    """Records of ids, with what follows them.

    Args:
        judged: cancels and requests that can be read, with ``own_verdict``, ``is_refused`` and ``is_lost``.
        missed: result of this function.

    Returns:
        The same, and of a timer that repeats: ``is_followed``; ``is_stale``: an occurrence that does not count;
        ``fault``: :data:`CHAIN`, :data:`ZONE` or null; ``sends`` and ``sent_due_s``, as :data:`_JUDGED`.
    """
    is_follower = F.col("follows").isNotNull()
    following = judged.where(is_follower).groupBy(*PLACE, F.col("follows").alias("offset"))
    nexts = [F.min_by(name, "offset").alias(f"next_{name}") for name in ("nominal_s", "decided_s", "is_last")]
    known = judged.join(following.agg(*nexts, F.lit(True).alias("is_followed")), [*PLACE, "offset"], "left")
    known = known.join(missed, ["version", "timer_id", "nominal_s"], "left")
    known = known.fillna(False, ["is_followed"]).fillna(0, ["missed"])
    after_s = F.coalesce("decided_s", "due_s")  # an earlier version has noted a definition without the first
    links = known.where(F.col("is_followed") & F.col("rule").isNotNull()).withColumn("after_s", after_s)
    judgements = links.select(_LINK.names).mapInArrow(batchwise(_judged), _JUDGED)
    known = known.join(judgements, "request", "left")
    # A definition whose verdict is not visible counts if an occurrence follows it.
    counts = ~is_follower & ~F.col("is_refused") & (~is_unanswered() | F.col("is_followed"))
    id = (*PLACE, "timer_id")
    before = Window.partitionBy(*id).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    latest = F.max(F.when(counts, F.col("offset"))).over(before)
    is_doubled = is_follower & (F.row_number().over(Window.partitionBy(*id, "follows").orderBy("offset")) > 1)
    known = known.withColumn("is_doubled", is_doubled).withColumn("latest", latest)
    is_replaced = is_follower & F.coalesce(F.col("latest") > F.col("follows"), F.lit(False))
    # The engine has ended it, with a dead letter: nothing is known of what came after it.
    is_ended = F.col("is_lost") & F.col("next_is_last") & F.col("next_nominal_s").isNull()
    fault = F.when(F.col("is_doubled"), CHAIN).when(is_ended, None).otherwise(F.col("fault"))
    return known.withColumns({"is_stale": F.col("is_doubled") | is_replaced, "fault": fault})


def is_unanswered() -> Column:
    """Condition: a definition whose verdict is not visible. Each one has a verdict."""
    return (F.col("kind") == DEFINITION) & F.col("own_verdict").isNull()


def _judged(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column(name).to_pylist() for name in _LINK.names]
    rows = []
    for request, rule, nominal_s, after_s, due_s, *said in zip(*columns, strict=True):
        fault, sends, sent_s = judge(rule, nominal_s, after_s, *said)
        sent_due_s = None if sent_s is None or nominal_s is None else sent_s + due_s - nominal_s
        rows.append((request, fault, sends, sent_due_s))
    return record_batch(rows, _JUDGED)


def judge(
    rule: bytes,
    nominal_s: int | None,
    after_s: int | None,
    next_nominal_s: int | None,
    next_decided_s: int | None,
    next_is_last: bool,
    missed: int,
    missed_last_s: int | None,
) -> tuple[str | None, bool, int | None]:
    """What is wrong with a record and its follower, if anything; whether the record sends one of the occurrences that
    are due; and which nominal second. Arguments as in :data:`_LINK`."""
    sends = nominal_s is not None
    try:
        repeat = Repeat.of_header(rule)
        for second in (nominal_s, next_nominal_s):
            if second is not None and repeat.next_nominal(second - 1, second) != second:
                return (CHAIN if repeat.zone is None else ZONE), sends, nominal_s
        first_s = nominal_s - 1 if nominal_s is not None else after_s
        through_s = next_nominal_s - 1 if next_nominal_s is not None else next_decided_s
        if first_s is None or through_s is None:
            return CHAIN, sends, nominal_s
        if next_is_last and (
            repeat.until_s is None or repeat.next_nominal(next_nominal_s or through_s, repeat.until_s) is not None
        ):
            return CHAIN, sends, nominal_s
        number = repeat.newest(first_s, through_s, 1)[1] - missed
        if nominal_s is None:
            return (None if number == 0 else CHAIN), False, None
        if missed and number in (0, 1):
            sent_s = repeat.next_nominal(missed_last_s, through_s) if number and missed_last_s is not None else None
            return None, bool(number), sent_s
        return (None if number == 1 else CHAIN), sends, nominal_s
    except (RepeatError, UnknownZone):
        return ZONE, sends, nominal_s
