"""Large requests cost their own timers time and memory, and other timers nothing."""

from __future__ import annotations

import statistics

import pytest

from tests.harness.records import Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import due_in

pytestmark = pytest.mark.broker


def test_huge_keys_do_not_delay_small_timers(running: System) -> None:
    target, huge_target = running.target(partitions=4), running.target(partitions=4)
    due_s = due_in(4)
    small = timers(target, 2000, due_s, 4)
    huge = [
        Request(huge_target, due_s + index % 4, "k" * (900_000 + index), partition=index % PARTITIONS)
        for index in range(20)
    ]
    running.send(*huge, *small)
    lags = [record.lag_ms for record in running.fired(small).values()]
    assert statistics.quantiles(lags, n=100)[98] < MAX_LAG_MS
    fired = running.fired(huge)
    assert {source: record.key for source, record in fired.items()} == {each.source: each.key.encode() for each in huge}
