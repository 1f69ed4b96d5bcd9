"""Dropped fetches are read again, so that no offset range is delivered without its records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest
from faust.types import TP

from timers.core.timer import Fetched, TopicPartition
from timers.worker import faust_internals
from timers.worker.consumer.transport import BatchConsumerThread

REQUESTS = TP("timer-request", 0)


class SimConsumer:
    """The parts of aiokafka's consumer that a fetch uses: it returns the records after its position."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.position = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """Function that is called while a fetch waits for the brokers."""
        self._closed = False
        self._fetcher = self
        self._records: dict[TP, Any] = {}
        self._subscriptions = SimpleNamespace(fetch_context=nullcontext)
        state = SimpleNamespace(assignment=SimpleNamespace(tps={REQUESTS}, state_value=lambda tp: self))
        self._subscription = SimpleNamespace(subscription=state)
        self._client = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda tp: 0), _conns={})

    has_valid_position = True

    async def fetched_records(self, partitions: set[TP], **_: Any) -> dict[TP, list[str]]:
        self.meanwhile()
        records, self.position = self.log[self.position :], len(self.log)
        return {REQUESTS: records} if records else {}

    def seek(self, tp: TP, offset: int) -> None:
        self.position = offset


def thread(consumer: SimConsumer, on_suspended: Callable[[TopicPartition, bool], None] = print) -> BatchConsumerThread:
    made = object.__new__(BatchConsumerThread)  # its __init__ would want a Faust app
    made.consumer = SimpleNamespace(flow_active=True, on_suspended=on_suspended)
    made.app = SimpleNamespace(loop=SimpleNamespace(call_soon_threadsafe=lambda call, *args: call(*args)))
    made._consumer = consumer
    made._delivered_to, made._delivered_at, made._suspended = {REQUESTS: 0}, {}, set()
    made._never_fetched, made._passed, made._connections = set(), {}, {}
    return made


def test_records_fetched_while_their_partition_was_suspended_are_read_again() -> None:
    async def fetches() -> list[Any]:
        consumer = SimConsumer(["a", "b"])
        reader = thread(consumer)
        consumer.meanwhile = lambda: reader._suspended.add(REQUESTS)  # as after an error of another partition's leader
        dropped = await reader.fetch({REQUESTS}, 0)
        consumer.meanwhile = lambda: None
        reader._suspended.clear()  # its topic was looked up and is the same
        return [dropped, await reader.fetch({REQUESTS}, 0)]

    assert asyncio.run(fetches()) == [{}, {REQUESTS: Fetched(0, 2, ["a", "b"])}]


async def test_the_first_fetch_of_an_assigned_partition_suspends_it_once() -> None:
    """Its topic may have been deleted and created again before: then the fetch gives no error."""
    suspended: list[tuple[TopicPartition, bool]] = []
    reader = thread(SimConsumer([]), lambda *seen: suspended.append(seen))
    fetched = SimpleNamespace(API_KEY=FetchRequest.API_KEY, topics=[(REQUESTS.topic, [(REQUESTS.partition, 0)])])
    another = SimpleNamespace(API_KEY=FetchRequest.API_KEY + 1, topics=fetched.topics)
    await reader.forget({REQUESTS})
    for assigned in (1, 2):
        await reader._seek_now({REQUESTS: 0})
        reader._inspect_fetch(another)
        assert len(suspended) == assigned - 1, "only a fetch counts"
        reader._inspect_fetch(fetched)
        assert suspended == assigned * [(tuple(REQUESTS), False)]
        reader._suspended.clear()  # its topic was looked up and is the same
        await reader._seek_now({REQUESTS: 0})  # the machine reads its log again
        reader._inspect_fetch(fetched)
        assert len(suspended) == assigned, "the topic was checked after the assignment"
        await reader.forget({REQUESTS})


class SimClient:
    """A client whose first connections fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.is_started = False

    async def start(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.is_started = True


async def test_a_client_whose_first_connections_are_cut_starts_when_the_brokers_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faust_internals, "RETRY_S", 0.0)
    client = SimClient(KafkaConnectionError("Unable to bootstrap"), ConnectionResetError(), KafkaConnectionError())
    await faust_internals.start_patiently(client, "the producer", lambda: False).start()
    assert client.is_started
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["the producer waits for the brokers"]


async def test_a_worker_that_is_stopped_does_not_wait_for_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_internals, "RETRY_S", 0.0)
    client = SimClient(*(KafkaConnectionError() for _ in range(9)))
    await faust_internals.start_patiently(client, "the producer", lambda: len(client.failures) < 5).start()
    assert not client.is_started and len(client.failures) == 4


async def test_an_error_that_is_no_connection_ends_the_start() -> None:
    client = SimClient(TopicAuthorizationFailedError("orders"))
    with pytest.raises(TopicAuthorizationFailedError):
        await faust_internals.start_patiently(client, "the producer", lambda: False).start()
