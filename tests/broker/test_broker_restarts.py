"""The broker goes away and comes back while the worker runs: what was due meanwhile fires afterwards, once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.patience import DEADLINE_S, due_in, wait_until
from tests.harness.system import PARTITIONS, System, timers
from timers.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

AWAY_S = 2


def test_what_was_due_while_the_broker_was_away_fires_once(tmp_path: Path) -> None:
    """It is stopped first, and killed later, in the same storm."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    system = System(broker.start(), tmp_path)
    try:
        worker = system.worker().start().ready()
        target = system.target()
        requests = timers(target, 6_000, due_in(2), 15)
        for index, request in enumerate(requests):
            request.partition = index // 15 % PARTITIONS
        system.send(*requests)
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
    finally:
        system.close()
        broker.stop()


def test_a_worker_told_to_stop_after_its_broker_has_gone_for_good_stops(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    system = System(broker.start(), tmp_path)
    try:
        worker = system.worker().start().ready()
        system.fired(system.send(*timers(system.target(), 10, due_in(1), 1)))
        broker.kill()
        worker.wait_for("a tick was not delivered")
        worker.stop()
        assert not worker.left_processes
    finally:
        system.close()
        broker.stop()
