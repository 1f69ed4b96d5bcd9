"""Clients of librdkafka that have lost the addresses of all brokers, and connect to none any more, are made anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.harness.bad_network import DistantBroker
from tests.harness.constants import Constants
from tests.harness.no_brokers import NoBrokers
from tests.harness.queue_calls import receive
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.client import TimersClient
from timers.errors import TimersError
from timers.kafka import lost_brokers
from timers.kafka.admin_client import AdminClient
from timers.queue import Queue

pytestmark = pytest.mark.broker

SESSION_S = LEASE_S = 10.0


class ForgetfulBroker(DistantBroker):
    """A broker whose clients lose it."""

    network: NoBrokers

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, NoBrokers)

    def lets_lose(self, client_id: str, client: Any, topic: str) -> None:
        """Let a client lose all brokers: it has another connection when it has just been made."""

        def is_lost() -> bool:
            self.network.lose(client_id)
            with suppress(
                KafkaException, RuntimeError
            ):  # the calls end before the loss is known: a client may not be closed in one
                client.list_topics(topic, timeout=1)
            try:
                client.list_topics(topic, timeout=2)  # a slow broker answers
            except (KafkaException, RuntimeError):  # it may have been closed between two calls
                return True
            return False

        wait_until(is_lost, "the loss")
        self.network.lose_no_more()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForgetfulBroker]:
    broker = ForgetfulBroker(tmp_path_factory.mktemp("forgetful") / "broker")
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def topic(broker: ForgetfulBroker, monkeypatch: pytest.MonkeyPatch, constants: Constants) -> str:
    """A topic of the test. Statistics come often."""
    constants(lost_brokers, STATISTICS_MS=5000, _SURE_S=4.0)
    monkeypatch.setenv("TIMERS_BROKERS", broker.distant_address)
    name = f"topic-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    return name


@pytest.mark.parametrize("which", ["consumer", "_asking"])
def test_a_queue_is_opened_again(
    broker: ForgetfulBroker, topic: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Queue(topic, member="first", session_timeout_s=SESSION_S, lease_s=LEASE_S) as queue:
        queue.send_many((None, value, ()) for value in (b"done", b"taken"))
        done, _ = receive(queue, 2)
        done.ack()
        queue.settle()
        former = getattr(queue.driver._transport, which)
        broker.lets_lose(f"queue.{topic}-first", former, topic)
        queue.send(b"new")
        assert {message.value for message in receive(queue, 2, ack=True)} == {b"taken", b"new"}
        queue.settle()
        assert getattr(queue.driver._transport, which) is not former
        assert queue.unready() == []
    assert caplog.text.count(lost_brokers.LOST_BROKERS) == 1


def test_a_client_makes_a_new_producer(broker: ForgetfulBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with TimersClient(request_topic=topic, timeout_s=5) as client:
        client.schedule(topic, b"key", b"value", delay=3600)
        former = client._publisher._single
        broker.lets_lose("timers-client", former, topic)
        sources: list[str] = []

        def is_sent() -> bool:
            with suppress(TimersError):
                sources.append(client.schedule(topic, b"key", b"value", delay=3600))
            return bool(sources)

        wait_until(is_sent, "a new producer")
        assert client._publisher._single is not former
    assert caplog.text.count(lost_brokers.LOST_BROKERS) == 1
