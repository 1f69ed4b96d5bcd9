"""What the page of the cluster and that of changes read from a broker: open transactions, topics, levels, changes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.harness.constants import Constants
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.console import history
from timers.console.history import read_changes
from timers.kafka.aiokafka_internals.open_transactions import OpenTransaction
from timers.offline import app_state
from timers.offline.app_state import AppState

pytestmark = pytest.mark.broker


def test_a_transaction_that_is_open_is_named_until_it_ends(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=f"by-id-{time.time_ns()}")
    try:
        target = system.target(2)
        worker = system.worker()
        worker.start()
        worker.ready()
        producer = Producer({"bootstrap.servers": broker_address, "transactional.id": f"of-{target}"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(target, b"held back", partition=1)
        producer.flush()

        def look(later_s: float) -> AppState:
            return app_state.look(system.settings, lambda name: name == target, time.time() + later_s)

        def opened(later_s: float) -> list[OpenTransaction]:
            return [each for each in look(later_s).transactions if each.topic == target]

        assert opened(0) == [], "it is not open for long"
        (found,) = opened(60)
        assert (found.partition, found.start_offset, found.id, found.state) == (1, 0, f"of-{target}", "Ongoing")
        assert abs(found.since_ms / 1000 - time.time()) < 60 and found.timeout_ms == 60_000
        producer.abort_transaction()
        wait_until(lambda: opened(60) == [], "the transaction has ended")
        state = look(0)
        assert state.unknown == {}
        assert {each.name for each in state.topics} >= {system.request_topic, system.settings.progress_topic}
        assert all(each.partitions and each.is_read and not each.leaderless for each in state.topics)
        assert state.levels is not None and list(state.levels.workers) == [worker.worker_id]
    finally:
        system.close()


def test_the_newest_changes_are_read_backwards(broker_address: str, tmp_path: Path, constants: Constants) -> None:
    system = System(broker_address, tmp_path)
    topic = system.settings.console_log_topic
    try:
        assert read_changes(system.settings, "", "") == ([], ""), "there is no topic yet"
        system.create_topic(topic, 1)
        producer = Producer({"bootstrap.servers": broker_address})
        for number in range(25):
            user = ("ann", "bob")[number % 2]
            entry = f'"at_ms": {number}, "user": "{user}", "address": "::1", "operation": "cancelTimer"'
            producer.produce(topic, f'{{{entry}, "parameters": {{"id": "t{number}"}}, "body": {{}}}}'.encode())
            producer.produce(topic, b"no entry")
        producer.flush()
        constants(history, _CHANGES_AT_ONCE=7, MAX_CHANGES=4)
        found = read_changes(system.settings, "", "bob")
        assert [each.about for each in found.found] == ["id=t23", "id=t21", "id=t19", "id=t17"]
        assert "entries were looked at" in found.more
        assert [each.user for each in read_changes(system.settings, "t2", "").found] == ["ann"]
        assert read_changes(system.settings, "t2", "bob") == ([], "")
    finally:
        system.close()
