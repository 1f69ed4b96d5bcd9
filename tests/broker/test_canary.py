"""Canary timers: off by default; they return on each partition that works, and are missing where one does not."""

import pytest

from tests.harness.records import Headers, Request
from tests.harness.scrape import Scrape, scrape
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.broker

HANGS = "1"
"""The partition whose requests are held back."""


def ages(found: Scrape) -> dict[str, float]:
    """Canary age by partition."""
    return found.by("timers_canary_age_seconds", "partition")


def test_a_canary_returns_on_each_partition_except_where_requests_are_held_back(system: System) -> None:
    worker = system.worker().start(TIMERS_CANARY_INTERVAL_S="1").ready()
    # Other records on the canary topic are ignored.
    wait_until(lambda: "timers_canary_lag_seconds" in scrape(worker.port).names, "the first canary")
    system.send(*(Request(system.settings.canary_topic, 1, key) for key in (worker.worker_id, "stranger")))
    publisher = system.publisher().producer
    long: Headers = [("timer-id", b"a/0/1"), ("timer-due", b"9" * 5000)]
    for headers in ([], [("timer-id", None)], [("timer-id", b"a/b/c"), ("timer-due", b"x")], long):
        publisher.produce(system.settings.canary_topic, b"", worker.worker_id.encode(), headers=[*headers])
    publisher.flush(DEADLINE_S)

    partitions = {str(partition) for partition in range(PARTITIONS)}
    wait_until(
        lambda: scrape(worker.port).by("timers_canary_lag_seconds", "partition").keys() == partitions, "all back"
    )
    found = scrape(worker.port)
    assert found.total("timers_canary_interval_seconds") == 1
    assert all(0 < lag_s < DEADLINE_S for lag_s in found.by("timers_canary_lag_seconds", "partition").values())

    hanging = system.publisher(transactional_id=f"hanging-{system.app_id}", transaction_timeout_ms=600_000).producer
    hanging.init_transactions(DEADLINE_S)
    hanging.begin_transaction()
    hanging.produce(system.request_topic, b"", b"1", partition=int(HANGS))
    hanging.flush(DEADLINE_S)

    def only_one_misses() -> bool:
        age_s = ages(scrape(worker.port))
        missing_s = age_s.pop(HANGS)
        return missing_s > 5 and missing_s > 2 * max(age_s.values())

    wait_until(only_one_misses, "the others come, this one does not")
    hanging.abort_transaction(DEADLINE_S)
    wait_until(lambda: ages(scrape(worker.port))[HANGS] < 4, "it comes back")
    assert worker.running and "Traceback" not in worker.log


def test_no_canary_is_sent_by_default(running: System) -> None:
    assert not {name for name in scrape(running.workers[0].port).names if "canary" in name}
    assert running.settings.canary_topic not in running.admin.list_topics(timeout=DEADLINE_S).topics
