"""Workers behind a network that cuts, delays and is silent from their first second on: each timer fires once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.bad_network import DistantBroker
from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, due_in
from tests.harness.worker import Worker

pytestmark = pytest.mark.broker

PARTITIONS = 12
STORM_S = 30.0
TOGETHER = 3
"""Apps that start behind one network at the same time."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantBroker]:
    broker = DistantBroker(tmp_path_factory.mktemp("distant") / "broker")
    try:
        yield broker
    finally:
        broker.stop()


def started(broker: DistantBroker, directory: Path) -> tuple[System, Worker, list[Request]]:
    """A new app with timers for the time of the storm, and a worker that has just been started."""
    system = System(broker.address, directory, TIMERS_PARTITIONS=str(PARTITIONS))
    system.create_own_topics()
    target = system.target()
    due_s = due_in(5)
    requests = [
        Request(target, due_s + index % int(STORM_S), f"key-{index}", b"%d" % index, partition=index % PARTITIONS)
        for index in range(40 * PARTITIONS)
    ]
    system.send(*requests)
    worker = system.worker().start(TIMERS_BROKERS=broker.distant_address)
    return system, worker, requests


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 30), marks=pytest.mark.long)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
def test_a_new_app_behind_a_bad_network_fires_each_timer_once_and_no_worker_ends(
    seeds: range, broker: DistantBroker, tmp_path: Path
) -> None:
    for first in seeds[::TOGETHER]:
        broker.network.begin(first)
        apps = [started(broker, tmp_path / f"{first + number}") for number in range(TOGETHER)]
        try:
            time.sleep(STORM_S)
            broker.network.end()
            for _, worker, _ in apps:
                assert worker.running, f"seed {first}: {worker.tail()}"
            for system, worker, requests in apps:
                worker.ready()
                system.fired(requests, 3 * DEADLINE_S)
                assert worker.running and "has it open" not in worker.log, f"seed {first}"
            for _, worker, _ in apps:
                worker.stop()
        finally:
            broker.network.end()
            for system, _, _ in apps:
                system.close()
                system.delete_topics()
    assert broker.network.troubles > len(seeds) // TOGETHER, "the network was bad, and more than once in each storm"
