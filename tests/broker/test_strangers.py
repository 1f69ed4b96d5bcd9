"""Members of other programs in the workers' group: kept out, or the worker says so, and goes on when they have gone."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.harness.records import Request
from tests.harness.scrape import get, scrape, wait_equal
from tests.harness.strangers import stranger, with_partitions
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import Worker

pytestmark = pytest.mark.broker

RED_S = 10.0
"""So long after the brokers name a stranger a worker may say that all is well."""

BACK_S = 15.0
"""So long after a stranger has gone a timer may be late."""

UNSEALED = "tests.harness.unsealed_app"


def reasons(worker: Worker) -> str:
    status, body = get(worker.port, "/health/ready")
    return "" if status == 200 else body


def is_taken(worker: Worker) -> bool:
    said = reasons(worker)
    return "client 'stranger' at 127.0.0.1" in said and "(protocol consumer)" in said


def fire_late(system: System, requests: list[Request], since_s: float) -> None:
    """Check that each request has fired once, and not later than :data:`BACK_S` after ``since_s`` or its due second."""
    fired = system.fired(requests)
    late = {each.timer_id: each for each in fired.values() if each.append_ms / 1000 > max(since_s, each.due_s) + BACK_S}
    assert not late


def test_a_stranger_that_would_let_the_brokers_deal_is_refused(system: System) -> None:
    worker = system.worker().start().ready()
    requests = [*system.send(*timers(system.target(), 200, due_in(2), 5))]
    with stranger(system.address, system.app_id, system.request_topic) as found:
        wait_until(lambda: found.errors, "the stranger was refused")
        assert reasons(worker) == ""
        fired = system.fired(requests)
    assert not found.partitions and not found.read
    assert max(each.lag_ms for each in fired.values()) < 5000


def test_a_worker_that_finds_a_stranger_says_so_and_begins_when_it_has_gone(system: System) -> None:
    system.create_own_topics()
    with with_partitions(system.address, system.app_id, system.request_topic):
        worker = system.worker().start()
        worker.wait_for(r"TimersWorker\]: Ready", RED_S)
        wait_until(lambda: is_taken(worker), "the stranger is named", RED_S)
        shown = scrape(worker.port)
        assert shown.total("timers_group_taken") == 1
        assert "timers_partitions_unowned" not in shown.names
        requests = [*system.send(*timers(system.target(), 200, due_in(1), 5))]
    since_s = time.time()
    fire_late(system, requests, since_s)
    wait_equal(lambda: reasons(worker), "")
    assert scrape(worker.port).total("timers_group_taken") == 0
    wait_equal(lambda: scrape(worker.port).total("timers_partitions_unowned"), 0)


def test_workers_keep_their_partitions_while_a_stranger_is_in_their_group(system: System) -> None:
    workers = [system.worker() for _ in range(2)]
    for worker in workers:
        worker.app = UNSEALED
        worker.start().ready()
    target = system.target()
    requests = [*system.send(*timers(target, 400, due_in(5), 20))]
    with with_partitions(system.address, system.app_id, system.request_topic):
        for worker in workers:
            wait_until(partial(is_taken, worker), "the stranger is named", RED_S)
        fired = system.fired(requests)
        assert max(each.lag_ms for each in fired.values()) < 5000, "the workers did not go on"
        requests = [*system.send(*timers(system.target(), 100, due_in(1), 2))]
    fire_late(system, requests, time.time())
    for worker in workers:
        wait_equal(partial(reasons, worker), "")
