"""The line of a micro-batch."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from timers.spark.engine.bucket import Said
from timers.spark.engine.machines import Failing
from timers.spark.engine.query import Reporter
from timers.spark.totals import Total

TICK_MS = 1_800_000_000_000
AT = "2027-01-15T08:00:00.500Z"  # half a second after the tick


def progress(requests: int = 0, number: int = 3) -> dict[str, Any]:
    return {
        "batchId": number,
        "timestamp": AT,
        "durationMs": {"triggerExecution": 1500},
        "sources": [
            {"description": "KafkaV2[Subscribe[timer-request-2]]", "numInputRows": 1000},
            {"description": "KafkaV2[Subscribe[timer-request]]", "numInputRows": requests},
        ],
    }


def done(
    bucket: int,
    *,
    pending: int = 3,
    is_complete: bool = True,
    tick_ms: int | None = TICK_MS,
    held: str | None = None,
    numbers: Mapping[str, float] = {},
) -> Said:
    total = Total({"fired": 600, **numbers}, {("r", bucket): (pending, None)}, is_complete, {}, [])
    return Said(bucket, tick_ms, held, False, Failing([], []), total)


def test_a_line_has_read_fired_and_pending_timers() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    reporter.note(3, [done(0), done(9, pending=4)])
    assert reporter.line(progress(requests=3000)) == (
        "micro-batch 3: 3,000 requests in (2,000/s), 1,200 fired, 7 pending, took 1.5 s, lag 2.0 s"
    )


def test_requests_of_all_topics_are_counted() -> None:
    reporter = Reporter(1, ["timer-request", "ids"], print)
    reporter.note(3, [done(0)])
    both = {"description": "KafkaV2[Subscribe[timer-request, ids]]", "numInputRows": 42}
    assert "42 requests in" in (reporter.line({**progress(), "sources": [both]}) or "")


def test_a_rate_below_one_a_second_is_shown() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    reporter.note(3, [done(0)])
    assert "1 requests in (0.67/s)" in (reporter.line(progress(requests=1)) or "")


def test_dead_letters_retries_and_a_backlog_are_shown() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    reporter.note(
        3, [done(0, numbers={"dead-lettered/too-large": 4}), done(9, numbers={"retried": 5}, is_complete=False)]
    )
    line = reporter.line(progress()) or ""
    assert "6 pending, 4 dead-lettered, 5 to be retried, more are due, took" in line


def test_pending_is_shown_when_all_buckets_have_reported() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    reporter.note(3, [done(0)])
    assert "pending" not in (reporter.line(progress()) or "")
    reporter.note(4, [done(9, pending=4)])
    assert "7 pending" in (reporter.line(progress(number=4)) or "")


def test_before_the_first_tick_there_is_no_lag() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    reporter.note(3, [done(0, tick_ms=None), done(9, tick_ms=None)])
    assert (reporter.line(progress()) or "").endswith("no tick yet")


def test_a_tick_that_does_not_count_is_shown() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    reporter.note(3, [done(0), done(9, held="ticks of a broker are held")])
    assert (reporter.line(progress()) or "").endswith("lag 2.0 s; ticks of a broker are held")


def test_a_micro_batch_without_buckets_has_no_line() -> None:
    reporter = Reporter(2, ["timer-request"], print)
    assert reporter.line(progress()) is None
    reporter.note(3, [])
    assert reporter.line(progress()) is None
    reporter.note(3, [done(0)])
    assert reporter.line(progress(number=4)) is None
