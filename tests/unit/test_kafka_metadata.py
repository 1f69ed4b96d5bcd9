"""Questions to any broker: no client of the worker asks to create topics, and none waits for a frozen broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import client
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import CoordinatorNotAvailableError, KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.metadata import MetadataRequest

from tests.harness.constants import Constants
from tests.harness.waiting import DEADLINE_S
from timers.kafka import clients, connection
from timers.kafka.aiokafka_internals import metadata
from timers.process.config.settings import Settings

METADATA = MetadataRequest.API_KEY


def test_metadata_requests_of_aiokafka_create_no_topics() -> None:
    metadata.install()
    request = client.MetadataRequest(["orders"])
    assert request.prepare({METADATA: (0, 12)}).allow_auto_topic_creation is False
    assert request.prepare({METADATA: (0, 12)}).topics == ["orders"]


def test_librdkafka_clients_of_the_worker_create_no_topics() -> None:
    settings = Settings(brokers="127.0.0.1:1")
    assert clients.librdkafka(settings)["allow.auto.create.topics"] is False
    assert clients.admin_client(settings, connection.ErrorReports(settings)) is not None


class SimClient:
    """The parts of aiokafka's client that update the metadata.

    Args:
        brokers: id -> "ok", "new": has no data yet, "dead": takes no connection, "frozen": answers nothing, "breaks":
            its connection breaks.
    """

    def __init__(self, **brokers: str) -> None:
        self.brokers = brokers
        self.asked: list[str] = []
        self.updates: list[Any] = []
        self.closed: list[str] = []
        self._conns: dict[Any, Any] = {}
        known = [SimpleNamespace(nodeId=broker, host=broker, port=9092) for broker in brokers if broker != "bootstrap"]
        self._bootstrap_servers = [f"{broker.host}:{broker.port}" for broker in known]
        self.cluster = SimpleNamespace(
            brokers=lambda: known, update_metadata=self.updates.append, failed_update=self.updates.append
        )
        if "bootstrap" in brokers:
            self._conns[metadata._BOOTSTRAP] = SimpleNamespace(close=lambda: self.closed.append("bootstrap"))

    async def _get_conn(self, broker: str) -> Any:
        state = self.brokers[broker]

        async def send(request: Any) -> Any:
            self.asked.append(broker)
            if state == "frozen":
                await asyncio.Event().wait()
            if state == "breaks":
                raise KafkaConnectionError
            code = CoordinatorNotAvailableError.errno if state == "new" else 0
            return SimpleNamespace(brokers=[] if state == "new" else [broker], error_code=code, coordinator_id=7)

        return None if state == "dead" else SimpleNamespace(send=send)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> Callable[[SimClient], Any]:
    """An update that asks the last broker first, in a process that has asked none yet."""
    constants(metadata, NEXT_AFTER_S=0.01)
    monkeypatch.setattr(metadata, "_silent_until", {})
    monkeypatch.setattr("random.shuffle", lambda brokers: None)

    async def update(sim: SimClient) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await metadata.update(sim, sim.cluster, ["orders"])

    return update


async def test_a_frozen_broker_delays_no_update_of_metadata(in_order: Callable[[SimClient], Any]) -> None:
    metadata.install()
    assert AIOKafkaClient._metadata_update is metadata.update
    sim = SimClient(a="ok", b="breaks", c="frozen", d="dead")
    assert await in_order(sim)
    assert sim.asked == ["c", "b", "a"]
    assert [found.brokers for found in sim.updates] == [["a"]]


async def test_a_broker_that_was_silent_is_asked_last_by_all_clients_for_some_time(
    in_order: Callable[[SimClient], Any], constants: Constants
) -> None:
    await in_order(SimClient(a="ok", b="ok", c="frozen"))
    other = SimClient(a="ok", b="ok", c="ok")
    for _ in range(8):  # aiokafka's order of hosts is random
        assert [host for host, *_ in metadata.hosts(other)][-1] == "c"
    await in_order(other)
    assert other.asked == ["b"]
    constants(metadata, SILENT_S=0.0)
    metadata._silent_until.clear()
    await in_order(SimClient(a="ok", b="ok", c="frozen"))
    await in_order(other)
    assert other.asked == ["b", "c"], "it is asked again later"


async def test_metadata_are_as_before_if_no_broker_answers_or_none_is_listed(
    in_order: Callable[[SimClient], Any],
) -> None:
    silent = SimClient(a="dead", b="breaks")
    assert not await in_order(silent)
    assert silent.updates == [None], "aiokafka notes the failure"
    new = SimClient(a="new")
    assert not await in_order(new)
    assert new.updates == []


async def test_the_first_connection_is_closed_once_brokers_are_known(in_order: Callable[[SimClient], Any]) -> None:
    sim = SimClient(bootstrap="ok", a="dead")
    assert await in_order(sim)
    assert sim.closed == ["bootstrap"] and sim._conns == {}


async def test_a_frozen_broker_delays_no_lookup_of_a_coordinator(in_order: Callable[[SimClient], Any]) -> None:
    metadata.install()
    assert AIOKafkaClient.coordinator_lookup is metadata.look_up_coordinator
    async with asyncio.timeout(DEADLINE_S):
        assert await metadata.look_up_coordinator(SimClient(a="ok", b="frozen"), 0, "timers") == 7
    with pytest.raises(CoordinatorNotAvailableError):
        await metadata.look_up_coordinator(SimClient(a="new"), 0, "timers")
    with pytest.raises(NodeNotReadyError):
        await metadata.look_up_coordinator(SimClient(a="dead", b="breaks"), 0, "timers")
