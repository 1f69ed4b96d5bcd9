"""Topics that are deleted under a running worker: it creates them as it needs them, and no request does before."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.harness.records import Request
from tests.harness.scrape import health
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, soon, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker


def config_of(system: System, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = system.admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return {name: entry.value for name, entry in found.items()}


@pytest.fixture
def worker(system: System) -> Worker:
    return system.worker().start().ready()


@pytest.mark.long
def test_no_request_of_the_worker_creates_a_topic(tmp_path: Path) -> None:
    """On a broker with Kafka's default of ``auto.create.topics.enable``; the worker uses each topic all the time."""
    properties = {"auto.create.topics.enable": "true"}
    with EmbeddedBroker(tmp_path / "broker", port=0, properties=properties) as broker:
        system = System(broker.start(), tmp_path)
        try:
            worker = system.worker().start().ready()
            settings, gone = system.settings, system.target()
            system.fired(system.send(*soon(gone, 20)))
            deleted = {
                *(gone, system.request_topic, settings.retry_topic, settings.oscillator_topic),
                *(settings.progress_topic, settings.dead_letter_topic),
            }
            system.cluster.delete(sorted(deleted))
            while "created topics" not in worker.log:
                assert not deleted & set(system.cluster.topics()) or "created topics" in worker.log
                time.sleep(0.2)
            wait_until(lambda: deleted - set(system.cluster.topics()) == {gone}, "the worker's own topics are back")
            assert config_of(system, settings.progress_topic)["cleanup.policy"] == "compact"
            for topic in (system.request_topic, settings.retry_topic, settings.oscillator_topic):
                assert config_of(system, topic)["message.timestamp.type"] == "LogAppendTime"
            wait_until(lambda: health(worker.port, "ready")[0] == 200, "the worker is ready again")
            system.fired(system.send(*soon(system.target(), 20)))
        finally:
            system.close()


def test_an_oscillator_with_producers_times_is_corrected(system: System, worker: Worker) -> None:
    """Whether it is created again like that, or altered."""
    topic = system.settings.oscillator_topic
    system.create_anew(topic, PARTITIONS, message_timestamp_type="CreateTime")
    worker.wait_for(f"set message.timestamp.type=LogAppendTime on topic {topic}")
    system.fired(system.send(*soon(system.target(), 20)))
    system.configure(topic, message_timestamp_type="CreateTime")
    wait_until(lambda: config_of(system, topic)["message.timestamp.type"] == "LogAppendTime", "it is corrected")
    system.fired(system.send(*soon(system.target(), 20)))


def test_a_request_topic_that_comes_back_compacted_is_not_used_until_it_is_corrected(
    system: System, worker: Worker
) -> None:
    topic = system.request_topic
    system.create_anew(topic, PARTITIONS, cleanup_policy="compact")
    worker.wait_for(rf"topic '{topic}' has cleanup.policy=compact, which would lose timers; it must be exactly delete")

    def said() -> bool:
        status, body = health(worker.port, "ready")
        return status == 503 and any(f"{topic!r} has cleanup.policy=compact" in reason for reason in body["reasons"])

    wait_until(said, "the page says why")
    assert worker.log.count("has cleanup.policy=compact") == 1
    system.configure(topic, cleanup_policy="delete")
    wait_until(lambda: health(worker.port, "ready")[0] == 200, "the worker is ready again")
    system.fired(system.send(*soon(system.target(), 20)))


@pytest.fixture
def creating(broker_address: str, tmp_path: Path) -> Iterator[System]:
    """A system whose worker creates missing callback topics."""
    system = System(broker_address, tmp_path, TIMERS_CREATE_TARGET_TOPICS="1")
    yield system
    system.close()


def test_200_missing_callback_topics_delay_no_other_timer(creating: System) -> None:
    creating.worker().start().ready()
    target, due_s = creating.target(), due_in(4)
    missing = [f"{target}-missing-{number}" for number in range(200)]
    others = timers(target, 800, due_s, 4)
    creating.send(*(Request(topic, due_s, partition=n % PARTITIONS) for n, topic in enumerate(missing)), *others)
    assert all(record.lag_ms < MAX_LAG_MS for record in creating.fired(others).values())

    def fired() -> bool:
        return set(missing) <= set(creating.cluster.topics()) and all(map(creating.cluster.end, missing))

    wait_until(fired, "each missing topic was created and has its callback", 2 * DEADLINE_S)
    creating.cluster.delete(missing)
    assert creating.dead_letters().rest() == []
