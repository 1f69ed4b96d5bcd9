"""The line of a micro-batch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from timers.spark.engine.report import Reporter

TICK_MS = 1_800_000_000_000
AT = "2027-01-15T08:00:00.500Z"  # half a second after the tick


def progress(requests: int = 0, pending: int | None = 7, buckets: int = 2, letters: int = 0) -> dict[str, Any]:
    return {
        "batchId": 3,
        "timestamp": AT,
        "durationMs": {"triggerExecution": 1500},
        "sources": [
            {"description": "KafkaV2[Subscribe[timer-request-2]]", "numInputRows": 1000},
            {"description": "KafkaV2[Subscribe[timer-request]]", "numInputRows": requests},
        ],
        "observedMetrics": {
            "sent": {"fired": 1200, "dead_lettered": letters},
            "state": {"pending": pending, "buckets": buckets, "tick_ms": TICK_MS},
        },
    }


def test_a_line_has_read_fired_and_pending_timers() -> None:
    line = Reporter(2, "timer-request").line(progress(requests=3000, letters=4))
    assert line == (
        "micro-batch 3: 3,000 requests in (2,000/s), 1,200 fired, 7 pending, 4 dead-lettered, took 1.5 s, lag 2.0 s"
    )


def test_pending_is_shown_when_all_buckets_have_reported() -> None:
    reporter = Reporter(2, "timer-request")
    assert "pending" not in (reporter.line(progress(pending=5, buckets=1)) or "")
    assert "7 pending" in (reporter.line(progress()) or "")
    assert "7 pending" in (reporter.line(progress(pending=5, buckets=1)) or "")


def test_before_the_first_tick_there_is_no_lag() -> None:
    early = progress()
    early["observedMetrics"]["state"]["tick_ms"] = None
    assert (Reporter(2, "timer-request").line(early) or "").endswith("no tick yet")


def test_a_micro_batch_that_read_nothing_has_no_line() -> None:
    assert Reporter(2, "timer-request").line({**progress(), "observedMetrics": {}}) is None
