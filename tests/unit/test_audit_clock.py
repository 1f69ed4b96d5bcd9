"""Which time an audit refers to, without Spark and Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from timers.spark.audit import clock

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("ticks", "expected", "waits"),
    [
        ([NOW_MS - 700], NOW_MS - 700, 0),
        ([NOW_MS + 2 * HOUR_MS, NOW_MS + 2 * HOUR_MS + 1000], NOW_MS + 2 * HOUR_MS + 1000, 1),
        ([NOW_MS + 2 * HOUR_MS], NOW_MS, 6),
        ([NOW_MS - HOUR_MS, NOW_MS - HOUR_MS, NOW_MS - HOUR_MS + 1000], NOW_MS - HOUR_MS + 1000, 2),
        ([NOW_MS - HOUR_MS], NOW_MS, 6),
        ([None], NOW_MS, 0),
    ],
    ids=[
        "fresh",
        "this clock is behind",
        "a tick of a clock that leapt",
        "this clock is ahead",
        "no ticks are written",
        "no ticks at all",
    ],
)
def test_an_audit_refers_to_the_clock_of_the_brokers(ticks: Sequence[int | None], expected: int, waits: int) -> None:
    left, slept = list(ticks), list[float]()

    def newest() -> int | None:
        return left.pop(0) if len(left) > 1 else left[0]

    assert clock.as_of_ms(NOW_MS, newest, slept.append) == expected
    assert len(slept) == waits
