"""The broker restarts while the worker runs: timers that were due meanwhile fire afterwards, once."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.harness.records import Request
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import STOPPING
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

AWAY_S = 2
SENDING_S = 0.3


@pytest.fixture
def system(own_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[System]:
    """A system on that broker."""
    system = System(own_broker.start(), tmp_path)
    yield system
    system.close()


def spread(target: str, count: int, first_s: int, seconds: int) -> list[Request]:
    """Timers, spread evenly over the request partitions."""
    requests = timers(target, count, first_s, seconds)
    for index, request in enumerate(requests):
        request.partition = index // seconds % PARTITIONS
    return requests


def is_past(at_s: float) -> bool:
    return time.time() > at_s


@pytest.mark.long
def test_timers_that_were_due_while_the_broker_was_down_fire_once(own_broker: EmbeddedBroker, system: System) -> None:
    """The broker is first stopped and later killed."""
    worker = system.worker().start().ready()
    target = system.target()
    requests = system.send(*spread(target, 6_000, due_in(2), 15))
    reader = system.reader(target)
    for end in (own_broker.stop, own_broker.kill):
        reader.take(600, 2 * DEADLINE_S)
        end()
        wait_until(partial(is_past, time.time() + AWAY_S), "timers are due without a broker")
        own_broker.start()
    fired = system.fired(requests, 2 * DEADLINE_S)
    assert len(fired) == 6_000
    assert worker.running
    worker.stop()


@pytest.mark.long
def test_a_broker_that_dies_during_a_write_does_not_open_the_circuit_of_the_target(
    own_broker: EmbeddedBroker, system: System
) -> None:
    """Timers in flight fire when the broker is back; none goes to the slow retry topic."""
    target = system.target()
    worker = system.worker()
    worker.app = STOPPING
    worker.start(STOPS="sending", STOPS_AT=target).ready()
    requests = system.send(*spread(target, 60_000, due_in(4), 2))
    wait_until(lambda: worker.is_stopped, "the worker stops before it sends")
    assert own_broker.pid is not None
    os.kill(own_broker.pid, signal.SIGSTOP)
    worker.send(signal.SIGCONT)
    wait_until(partial(is_past, time.time() + SENDING_S), "the worker has sent what the broker does not read")
    own_broker.kill()
    wait_until(partial(is_past, time.time() + AWAY_S), "the broker is away")
    own_broker.start()
    fired = system.fired(requests, 2 * DEADLINE_S)
    assert len(fired) == 60_000
    assert system.end(system.settings.retry_topic) == 0
    assert worker.running


@pytest.mark.long
def test_a_worker_can_be_stopped_without_a_broker(own_broker: EmbeddedBroker, system: System) -> None:
    worker = system.worker().start().ready()
    system.fired(system.send(*timers(system.target(), 10, due_in(1), 1)))
    own_broker.kill()
    worker.wait_for("a tick was not delivered")
    worker.stop()
    assert not worker.left_processes
