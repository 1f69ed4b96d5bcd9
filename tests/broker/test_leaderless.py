"""A partition without a leader stops only itself: three brokers, one replica, one broker dead."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.harness.cluster import client_settings
from tests.harness.records import Request
from tests.harness.scrape import health, scrape
from tests.harness.system import MAX_LAG_MS, System, timers
from tests.harness.three_brokers import ThreeBrokers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.kafka.own_topics import own_topics

pytestmark = [pytest.mark.broker, pytest.mark.long]

MORTAL = 3
"""The broker that dies."""

REQUEST_LEADERS = (1, 2, 1, 2, 1, 2, 1, MORTAL)
OTHER_LEADERS = (1, 2, 1, 2, 1, 2, 1, 2)
OSCILLATOR_LEADERS = (MORTAL, MORTAL, 1)
"""Two of three ticks would go to the dead broker."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """Three brokers; each test leaves all of them alive."""
    brokers = ThreeBrokers(tmp_path_factory.mktemp("three"))
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


@pytest.fixture
def system(brokers: ThreeBrokers, tmp_path: Path) -> Iterator[System]:
    """A system with the last request partition and two oscillator partitions on the broker that dies."""
    system = System(brokers.address, tmp_path, TIMERS_PARTITIONS="8")
    settings = system.settings
    leaders = {settings.request_topic: REQUEST_LEADERS, settings.oscillator_topic: OSCILLATOR_LEADERS}
    for topic in own_topics(settings):
        brokers.create(topic.name, leaders.get(topic.name, OTHER_LEADERS), topic.config)
    yield system
    system.close()


def spread(target: str, partitions: int, first_s: int, seconds: int) -> list[Request]:
    """One timer for each of the first ``partitions`` request partitions and each second."""
    requests = timers(target, partitions * seconds, first_s, seconds)
    for index, request in enumerate(requests):
        request.partition = index // seconds
    return requests


def tick_seconds(system: System) -> set[int]:
    """Seconds of the ticks on the oscillator partition that always has a leader."""
    consumer = Consumer({**client_settings(system.address), "group.id": "ticks", "auto.offset.reset": "earliest"})
    place = TopicPartition(system.settings.oscillator_topic, OSCILLATOR_LEADERS.index(1), 0)
    try:
        _, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
        consumer.assign([place])
        seconds = set()
        while True:
            message = consumer.poll(DEADLINE_S)
            assert message is not None and message.error() is None
            seconds.add(message.timestamp()[1] // 1000)
            offset = message.offset()
            assert offset is not None
            if offset + 1 >= end:
                return seconds
    finally:
        consumer.close()


def test_a_dead_broker_stops_only_its_partitions_and_they_go_on_when_it_is_back(
    brokers: ThreeBrokers, system: System
) -> None:
    """One worker runs when the broker dies, and another starts while it is dead."""
    worker = system.worker().start().ready()
    target = brokers.create(system.app_id + "-target", [1])
    before = list(system.send(*spread(target, 8, due_in(15), 5)))
    brokers.kill(MORTAL)
    killed_s = time.time()
    try:
        first_s = due_in(3)
        system.send(*(running := spread(target, 7, first_s, 4)))
        reader = system.reader(target)
        fired = reader.take(len(running))
        stopped_s = int(time.time())
        worker.kill()
        worker.start().ready()
        ready_s = int(time.time())
        name = f"{system.request_topic}/7"
        status, page = health(worker.port, "partitions")
        assert (status, set(page["red"])) == (503, {name})
        assert "has no leader" in page["red"][name]
        assert scrape(worker.port).by("timers_partitions_waiting", "reason") == {"brokers": 1}
        wait_until(lambda: time.time() > before[-1].due_s + 1, "the timers of all partitions are due")
        system.send(*(restarted := spread(target, 7, due_in(2), 4)))
        healthy = [request for request in before if request.partition != 7]
        fired += reader.take(len(healthy) + len(restarted))
        until_s = int(time.time())
    finally:
        brokers.start_again(MORTAL)
    fired += reader.take(5)
    wait_until(lambda: health(worker.port, "partitions")[0] == 200, "all partitions are open")
    requests = {request.source: request for request in (*running, *restarted, *before)}
    assert sorted(record.timer_id for record in fired) == sorted(requests)
    assert reader.rest() == []
    assert all(record.append_ms >= requests[record.timer_id].due_s * 1000 for record in fired)
    punctual = {request.source for request in (*running, *restarted)}
    assert max(record.lag_ms for record in fired if record.timer_id in punctual) < MAX_LAG_MS
    ticks = tick_seconds(system)
    ticking = {*range(int(killed_s) + 3, stopped_s), *range(ready_s + 3, until_s)}
    assert len(ticks & ticking) >= 0.7 * len(ticking), "while a worker ran, nearly each second had a tick"
