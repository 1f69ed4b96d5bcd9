"""Batches that brokers take and no usual client writes are read by a worker as by Java's consumer."""

from __future__ import annotations

import pytest

from tests.harness import raw_batches
from tests.harness.java_consumer import consume_by_console
from tests.harness.system import System
from tests.harness.waiting import due_in

pytestmark = pytest.mark.broker


def test_worker_and_other_consumers_read_the_same_requests(system: System) -> None:
    system.worker().start().ready()
    target, due_s = system.target(), due_in(1)
    wanted = []
    for name, unusual in raw_batches.READABLE.items():
        values = [f"{name}/{index}" for index in range(10)]
        requests: list[raw_batches.Fields] = [
            (b"%d" % due_s, value.encode(), [("timer-topic", target.encode())]) for value in values
        ]
        batch = unusual.batch(requests, due_s * 1000)
        assert raw_batches.produce(system.address, system.request_topic, 0, batch) == 0, name
        wanted += [values[at] for at in unusual.read]
    fired = [(record.value or b"").decode() for record in system.reader(target).take(len(wanted))]
    assert sorted(fired) == sorted(wanted)
    by_java = consume_by_console(system.address, system.request_topic, 0, len(wanted))
    assert [value for _, value in by_java] == wanted
