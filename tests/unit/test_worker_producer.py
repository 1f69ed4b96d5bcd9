"""Producers with several simulated brokers. The broker tests use one real broker."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, ProducerFenced

from timers.worker.sending import producer as module
from timers.worker.sending.producer import TransactionalProducer
from timers.worker.sending.producer_loop import ProducerLoop


def test_a_failure_of_a_producer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = ProducerLoop()

    async def leave_behind(error: Exception) -> None:
        asyncio.get_running_loop().create_future().set_exception(error)

    loop.submit(leave_behind(ProducerFenced())).result()
    gc.collect()
    assert not caplog.records
    loop.submit(leave_behind(ValueError("ours"))).result()
    gc.collect()
    assert "never retrieved" in caplog.text
    loop.close()


class SimClient:
    """Brokers by their number: 1 answers, 2 refuses connections, 3 never answers."""

    def __init__(self, leaders: dict[tuple[str, int], int]) -> None:
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: leaders[tuple(place)])

    async def send(self, node: int, request: Any, *, group: Any) -> None:
        if node == 2:
            raise KafkaConnectionError()
        if node == 3:
            await asyncio.Event().wait()


async def test_topics_whose_leader_does_not_answer_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.05)
    leaders = {("a", 0): 1, ("a", 1): 1, ("b", 0): 1, ("b", 1): 2, ("c", 0): 3}
    producer: Any = SimpleNamespace(client=SimClient(leaders))
    silent = await TransactionalProducer._with_silent_leaders(producer, [TopicPartition(*place) for place in leaders])
    assert {topic: type(error) for topic, error in silent.items()} == {"b": NodeNotReadyError, "c": NodeNotReadyError}
