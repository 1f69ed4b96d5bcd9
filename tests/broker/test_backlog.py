"""A backlog fires at the configured rate, and does not delay timers that are on time."""

import itertools
from collections import Counter

import pytest

from tests.harness.records import Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import due_in

pytestmark = pytest.mark.broker

PER_S = 100


def test_a_backlog_fires_at_the_configured_rate_and_does_not_delay_other_timers(system: System) -> None:
    system.create_own_topics()
    overdue, on_time = system.target(), system.target()
    backlog = timers(overdue, 7 * PER_S, due_in(-1000), 500, b"late")
    for index, request in enumerate(backlog):
        request.partition = index % PARTITIONS
        request.headers = [("who", b"%d" % index)]
    system.send(*backlog)
    present = system.send(*(Request(on_time, due_in(8), f"{index}") for index in range(200)))
    worker = system.worker().start(TIMERS_CATCH_UP_PER_S=str(PER_S)).ready()

    # These are behind the backlog in the log and due while it fires.
    most_ms = MAX_LAG_MS + 1000 * worker.ready_s  # they are due from before its start on
    assert all(record.lag_ms < most_ms for record in system.fired(present).values())
    records = system.reader(overdue).take(len(backlog))
    by_source = {request.source: request for request in backlog}
    assert {record.timer_id for record in records} == by_source.keys()
    for record in records:
        asked = by_source[record.timer_id]
        assert (record.key, record.value, record.due_s) == (asked.key.encode(), b"late", asked.due_s)
        assert record.headers[0] == asked.headers[0]
    # The worker may miss a second; the next one then has the callbacks of both.
    by_second = Counter(int(record.text("timer-fired")) // 1000 for record in records)
    seconds = sorted(by_second)
    so_far = itertools.accumulate(by_second[second] for second in seconds)
    for second, fired in zip(seconds, so_far, strict=True):
        assert fired <= PER_S * (second - seconds[0] + 1), by_second
    assert len(system.reader(overdue).rest()) == len(records), "something fired twice"
