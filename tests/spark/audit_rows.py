"""Requests and firings as rows, and what became of them: no Kafka."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from timers.spark.audit import outcomes
from timers.spark.audit.outcomes import FIRING, Moment
from timers.spark.requests import REQUEST_SCHEMA
from timers.wire.formats import LOG_APPEND_TIME

DUE = 1_700_000_000
MOMENT = Moment(as_of_ms=(DUE + 1000) * 1000, grace_s=60, max_lag_s=3600)
"""Everything due at DUE has had its time."""
BEFORE, AFTER = (DUE - 10) * 1000, (DUE + 10) * 1000


def request(
    offset: int,
    due_s: int | None = DUE,
    *,
    kind: str = "timer",
    id: str | None = None,
    target: str | None = "orders",
    accepted_ms: int = (DUE - 100) * 1000,
    topic: str = "timer-request",
    code: str | None = None,
    content: int = 7,
    parts: int = 7,
    conditional: bool = False,
    follows: int | None = None,
    nominal_s: int | None = None,
    decided_s: int | None = None,
    rule: bytes | None = None,
    version: str | None = None,
    is_last: bool = False,
) -> tuple[object, ...]:
    name = f"{topic}/0/{offset}"
    timer_id = id or (name if kind == "timer" else None)
    record = topic, 0, offset, accepted_ms, LOG_APPEND_TIME, 100, b"record", conditional
    chain = rule, nominal_s, decided_s, follows, version, is_last
    return *record, kind, timer_id, due_s, due_s, target, 0, name, code, b"callback", content, parts, *chain


def fired(
    timer_id: str,
    fired_ms: int = DUE * 1000 + 20,
    *,
    due_s: int = DUE,
    target: str = "orders",
    late_ms: int = 30,
    source: str | None = None,
    content: int = 7,
    parts: int = 7,
) -> dict[str, Any]:
    return {
        "request": source or timer_id,
        "timer_id": timer_id,
        "due_s": due_s,
        "callback_topic": target,
        "fired_ms": fired_ms,
        "append_ms": fired_ms + late_ms,
        "position": f"{target}/0/{fired_ms}",
        "content": content,
        "parts": parts,
    }


def firings_of(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame([tuple(each.values()) for each in rows], FIRING)


LETTERS = "request string, letters long, letter_code string"
MOVED = "request string, wait_s long"
VERDICTS = "asked_by string, verdict string"


def became(
    spark: SparkSession,
    asked: list[tuple[object, ...]],
    firings: list[dict[str, Any]],
    *,
    letters: list[tuple[str, int, str]] | None = None,
    moved: list[tuple[str, int]] | None = None,
    verdicts: list[tuple[str, str]] | None = None,
) -> DataFrame:
    """The outcomes of some requests; ``verdicts`` says that their timers have ids."""
    requests = spark.createDataFrame(asked, REQUEST_SCHEMA)
    ids = verdicts is not None
    if ids:
        told, dead = spark.createDataFrame(verdicts or [], VERDICTS), spark.createDataFrame(letters or [], LETTERS)
        of = outcomes.with_ids(requests, told, dead)
    else:
        of = outcomes.without_ids(requests)
    return outcomes_of(spark, of, firings, letters=letters, moved=moved, ids=ids)


def outcomes_of(
    spark: SparkSession,
    of: DataFrame,
    firings: list[dict[str, Any]],
    *,
    letters: list[tuple[str, int, str]] | None = None,
    moved: list[tuple[str, int]] | None = None,
    waiting: DataFrame | None = None,
    moment: Moment = MOMENT,
    ids: bool,
) -> DataFrame:
    """The outcomes of versions."""
    dead = spark.createDataFrame(letters or [], LETTERS)
    seen = firings_of(spark, firings)
    if ids:
        seen = outcomes.with_requests(seen, of, dead)
    put_off = spark.createDataFrame(moved or [], MOVED)
    return outcomes.outcomes(of, dead, put_off, seen, moment, waiting).localCheckpoint()


def said(found: DataFrame) -> dict[int, tuple[str, list[str]]]:
    """Offset -> status and faults."""
    rows = found.where("status is not null").collect()
    return {row.offset: (row.status, sorted(row.faults)) for row in rows}
