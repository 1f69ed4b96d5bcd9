"""Which open transactions are named, and as what, from the answers of leaders and coordinators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError

from timers.kafka.aiokafka_internals import open_transactions, sessions
from timers.kafka.aiokafka_internals.open_transactions import (
    DescribeProducers,
    DescribeTransactions,
    ListTransactions,
    Looked,
    OpenTransaction,
)

LEADERS = {1: [("t", 0), ("t", 1)], 2: [("u", 0)]}


def partition(number: int, *producers: tuple[int, int, int], error: int = 0) -> dict[str, Any]:
    """What a leader says of a partition; of each producer its id, when it wrote, and where its transaction begins."""
    named = [{"producer_id": id, "last_ms": last_ms, "start_offset": start} for id, last_ms, start in producers]
    return {"partition": number, "error_code": error, "producers": named}


class SimClient:
    """Brokers 1 and 2. ``answers``: (broker, request) -> its answers one after the other, or what it raises."""

    def __init__(self, answers: dict[tuple[int, type], list[Any]]) -> None:
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1), SimpleNamespace(nodeId=2)])
        self._answers = answers

    async def close(self) -> None: ...

    async def send(self, broker: int, request: Any) -> Any:
        answers = self._answers.get((broker, type(request)), [{"transactions": [], "topics": []}])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(to_object=lambda: answer)


async def looked(monkeypatch: pytest.MonkeyPatch, answers: dict[tuple[int, type], list[Any]]) -> Looked:
    async def bootstrapped(_: Any) -> SimClient:
        return SimClient(answers)

    monkeypatch.setattr(sessions, "bootstrapped", bootstrapped)
    return await open_transactions.look({}, LEADERS, 1000, lambda: None)


def of_leader(*partitions: dict[str, Any], topic: str = "t") -> dict[str, Any]:
    return {"topics": [{"topic": topic, "partitions": list(partitions)}]}


async def test_what_a_coordinator_knows_is_named_and_what_none_knows_is_left_without_a_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = {"error_code": 0, "id": "billing", "state": "Ongoing", "timeout_ms": 60, "start_ms": 5}
    ended = {**described, "id": "old", "state": "CompleteCommit", "producer_id": 8}
    found = await looked(
        monkeypatch,
        {
            (1, DescribeProducers): [of_leader(partition(0, (7, 900, 3), (9, 1, -1)), partition(1, (8, 400, 4)))],
            (2, ListTransactions): [{"transactions": [{"id": "billing"}, {"id": "old"}]}],
            (2, DescribeTransactions): [{"transactions": [{**described, "producer_id": 7}, ended]}],
        },
    )
    assert found == (
        [OpenTransaction("t", 0, 3, 5, 7, "billing", "Ongoing", 60), OpenTransaction("t", 1, 4, 400, 8)],
        {},
    )


async def test_one_that_ends_between_two_questions_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [of_leader(partition(0, (7, 1, 3)), partition(1, (8, 1, 4))), of_leader(partition(1, (8, 1, 4)))]
    found = await looked(monkeypatch, {(1, DescribeProducers): asked})
    assert found.transactions == [OpenTransaction("t", 1, 4, 1, 8)]


async def test_a_young_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    young = {"error_code": 0, "id": "x", "state": "Ongoing", "timeout_ms": 60, "start_ms": 5000, "producer_id": 7}
    answers: dict[tuple[int, type], list[Any]] = {
        (1, DescribeProducers): [of_leader(partition(0, (7, 1, 3)), partition(1, (8, 2000, 4)))],
        (1, ListTransactions): [{"transactions": [{"id": "x"}]}],
        (1, DescribeTransactions): [{"transactions": [young]}],
    }
    assert (await looked(monkeypatch, answers)).transactions == []


async def test_what_does_not_answer_is_named_and_the_rest_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await looked(
        monkeypatch,
        {
            (1, DescribeProducers): [of_leader(partition(0, error=29), partition(1, (8, 1, 4)))],
            (2, DescribeProducers): [KafkaConnectionError("gone")],
            (2, ListTransactions): [IncompatibleBrokerVersion("old")],
        },
    )
    assert [each.producer_id for each in found.transactions] == [8]
    assert found.unasked == {"t/0": "TopicAuthorizationFailedError", "broker 2": "KafkaConnectionError('gone')"}
