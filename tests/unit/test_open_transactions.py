"""Which open transactions are named, and as what, from the answers of leaders and coordinators."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.harness.constants import Constants
from timers.kafka.aiokafka_internals import open_transactions, sessions
from timers.kafka.aiokafka_internals.open_transactions import (
    DescribeProducers,
    DescribeTransactions,
    ListTransactions,
    Looked,
    OpenTransaction,
)
from timers.kafka.aiokafka_internals.requests import UNKNOWN_REQUEST_ERRORS

LEADERS = {1: [("t", 0), ("t", 1)], 2: [("u", 0)]}


def partition(number: int, *producers: tuple[int, int, int], error: int = 0) -> dict[str, Any]:
    """What a leader says of a partition; of each producer its id, when it wrote, and where its transaction begins."""
    named = [{"producer_id": id, "last_ms": last_ms, "start_offset": start} for id, last_ms, start in producers]
    return {"partition": number, "error_code": error, "producers": named}


class SimClient:
    """Brokers 1 and 2. ``answers``: (broker, request) -> its answers one after the other, or what it raises."""

    def __init__(self, answers: dict[tuple[int, type], list[Any]]) -> None:
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1), SimpleNamespace(nodeId=2)])
        self.asked: list[tuple[int, type]] = []
        self._answers = answers

    async def close(self) -> None: ...

    async def send(self, broker: int, request: Any) -> Any:
        self.asked.append((broker, type(request)))
        answers = self._answers.get((broker, type(request)), [{"error_code": 0, "transactions": [], "topics": []}])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(to_object=lambda: answer)


async def looked(
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[tuple[int, type], list[Any]],
    leaders: dict[int, list[tuple[str, int]]] | None = None,
) -> tuple[Looked, SimClient]:
    client = SimClient(answers)

    async def bootstrapped(arguments: dict[str, Any]) -> SimClient:
        assert arguments == {"request_timeout_ms": 3000}, "the default is 40 s"
        return client

    monkeypatch.setattr(sessions, "bootstrapped", bootstrapped)
    return await open_transactions.look({}, leaders or LEADERS, 1000, lambda: None), client


def of_leader(*partitions: dict[str, Any], topic: str = "t") -> dict[str, Any]:
    return {"topics": [{"topic": topic, "partitions": list(partitions)}]}


def listed(*ids: str, error: int = 0) -> dict[str, Any]:
    return {"error_code": error, "transactions": [{"id": id} for id in ids]}


def described(id: str, producer_id: int, *partitions: int, **more: Any) -> dict[str, Any]:
    """What a coordinator says of a transaction with partitions of t."""
    topics = [{"topic": "t", "partitions": list(partitions)}]
    known = {"error_code": 0, "id": id, "state": "Ongoing", "timeout_ms": 60, "start_ms": 5}
    return {**known, "producer_id": producer_id, "topics": topics, **more}


async def test_what_a_coordinator_knows_is_named_and_what_none_knows_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = described("old", 8, 1, state="CompleteCommit")
    found, _ = await looked(
        monkeypatch,
        {
            (1, DescribeProducers): [of_leader(partition(0, (7, 900, 3), (9, 1, -1)), partition(1, (8, 400, 4)))],
            (2, ListTransactions): [listed("billing", "old")],
            (2, DescribeTransactions): [{"transactions": [described("billing", 7, 0), ended]}],
        },
    )
    assert found == (
        [OpenTransaction("t", 0, 3, 5, 7, "billing", "Ongoing", 60), OpenTransaction("t", 1, 4, 400, 8)],
        [],
    )


async def test_a_transaction_that_hangs_is_not_taken_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same worker goes on, and has a transaction on another partition."""
    answers: dict[tuple[int, type], list[Any]] = {
        (1, DescribeProducers): [of_leader(partition(0, (7, 1, 3)), partition(1, (7, 900, 4)))],
        (1, ListTransactions): [listed("w")],
        (1, DescribeTransactions): [{"transactions": [described("w", 7, 1)]}],
    }
    found, _ = await looked(monkeypatch, answers)
    assert found.transactions == [
        OpenTransaction("t", 0, 3, 1, 7),
        OpenTransaction("t", 1, 4, 5, 7, "w", "Ongoing", 60),
    ]


async def test_one_that_ends_between_two_questions_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [of_leader(partition(0, (7, 1, 3)), partition(1, (8, 1, 4))), of_leader(partition(1, (8, 1, 4)))]
    found, _ = await looked(monkeypatch, {(1, DescribeProducers): asked})
    assert found.transactions == [OpenTransaction("t", 1, 4, 1, 8)]


async def test_the_coordinator_says_since_when_one_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that writes now may have begun long ago, and one that wrote nothing lately is old in each case."""
    young, writing = described("x", 7, 0, start_ms=5000), described("y", 8, 1)
    answers: dict[tuple[int, type], list[Any]] = {
        (1, DescribeProducers): [of_leader(partition(0, (7, 1, 3)), partition(1, (8, 2000, 4)))],
        (1, ListTransactions): [listed("x", "y")],
        (1, DescribeTransactions): [{"transactions": [young, writing]}],
        (2, DescribeProducers): [of_leader(partition(0, (9, 2000, 6)), topic="u")],
    }
    found, _ = await looked(monkeypatch, answers)
    assert found.transactions == [OpenTransaction("t", 1, 4, 5, 8, "y", "Ongoing", 60)]
    (unknown,) = found.unknown
    assert unknown.startswith("u/0: no coordinator tells since when"), "it is open, and nobody says for how long"


async def test_what_does_not_answer_is_named_and_the_rest_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = await looked(
        monkeypatch,
        {
            (1, DescribeProducers): [of_leader(partition(0, error=29), partition(1, (8, 1, 4)))],
            (1, ListTransactions): [listed(error=14)],
            (2, DescribeProducers): [KafkaConnectionError("gone")],
        },
        {**LEADERS, -1: [("v", 3)]},
    )
    assert [each.producer_id for each in found.transactions] == [8]
    assert sorted(found.unknown) == [
        "broker 1 does not tell all the transactions that it coordinates (GroupLoadInProgressError)",
        "broker 2 did not answer (KafkaConnectionError)",
        "t/0: this login lacks Read on them",
        "u/0: broker 2 leads them",
        "v/3: they have no leader",
    ]


@pytest.mark.parametrize("error", UNKNOWN_REQUEST_ERRORS)
async def test_a_broker_that_cannot_say_is_asked_once(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = {1: [("t", 0)], 2: [("u", each) for each in range(5 * open_transactions.AT_ONCE)]}
    answers: dict[tuple[int, type], list[Any]] = {
        (1, DescribeProducers): [of_leader(partition(0, (7, 1, 3)))],
        (2, DescribeProducers): [error("old")],
    }
    found, client = await looked(monkeypatch, answers, leaders)
    assert [kind for broker, kind in client.asked if broker == 2] == [DescribeProducers]
    assert any(why.startswith("u/0, u/1, u/10, u/100, u/101 and 995 others: broker 2") for why in found.unknown)
    assert any(why.startswith("broker 2 does not know such questions") for why in found.unknown)


async def test_looking_ends_in_time(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(open_transactions, LOOK_S=0)
    found, client = await looked(monkeypatch, {})
    assert client.asked == [] and "broker 1 was not asked all within 0 s" in found.unknown
