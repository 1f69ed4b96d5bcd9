"""The broker goes away and comes back while the worker runs: what was due meanwhile fires afterwards, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.records import Request
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

AWAY_S = 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, not started."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    yield broker
    broker.stop()


@pytest.fixture
def system(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[System]:
    """A system on that broker."""
    system = System(broker.start(), tmp_path)
    yield system
    system.close()


def spread(target: str, count: int, first_s: int, seconds: int) -> list[Request]:
    """Timers on all request partitions alike."""
    requests = timers(target, count, first_s, seconds)
    for index, request in enumerate(requests):
        request.partition = index // seconds % PARTITIONS
    return requests


def test_what_was_due_while_the_broker_was_away_fires_once(broker: EmbeddedBroker, system: System) -> None:
    """It is stopped first, and killed later, in the same storm."""
    worker = system.worker().start().ready()
    target = system.target()
    requests = system.send(*spread(target, 6_000, due_in(2), 15))
    reader = system.reader(target)
    for end in (broker.stop, broker.kill):
        reader.take(600, 2 * DEADLINE_S)
        end()
        ended_s = time.time()
        wait_until(lambda since_s=ended_s: time.time() > since_s + AWAY_S, "timers are due without a broker")
        broker.start()
    fired = system.fired(requests, 2 * DEADLINE_S)
    assert len(fired) == 6_000
    assert worker.running
    worker.stop()


def test_a_target_is_not_blamed_for_a_broker_that_dies_while_it_is_written_to(
    broker: EmbeddedBroker, system: System
) -> None:
    """What was in flight fires once the broker is back: nothing takes the way of the retry topic, which is slow."""
    worker = system.worker().start().ready()
    target = system.target()
    requests = system.send(*spread(target, 60_000, due_in(4), 2))
    wait_until(lambda: system.end(target, committed=True) < system.end(target), "a transaction is open on the target")
    broker.kill()
    killed_s = time.time()
    wait_until(lambda: time.time() > killed_s + AWAY_S, "the broker is away")
    broker.start()
    fired = system.fired(requests, 2 * DEADLINE_S)
    assert len(fired) == 60_000
    assert system.end(system.settings.retry_topic) == 0
    assert worker.running


def test_a_worker_told_to_stop_after_its_broker_has_gone_for_good_stops(broker: EmbeddedBroker, system: System) -> None:
    worker = system.worker().start().ready()
    system.fired(system.send(*timers(system.target(), 10, due_in(1), 1)))
    broker.kill()
    worker.wait_for("a tick was not delivered")
    worker.stop()
    assert not worker.left_processes
