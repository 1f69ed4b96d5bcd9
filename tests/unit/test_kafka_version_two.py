"""What the answers to requests of version 2 of transactions do. The broker tests and the simulator see whole ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka.errors import InvalidTxnState, ProducerFenced, RequestTimedOutError
from aiokafka.producer.transaction_manager import TransactionManager
from confluent_kafka import KafkaError as Code

from timers.kafka.aiokafka_internals import produce, version_two
from timers.kafka.aiokafka_internals.requests import EndTransaction, FeaturesRequest, finalized_features
from timers.kafka.aiokafka_internals.transaction_errors import Does, effect_of, error_of, is_of_replicas

BUSY, MOVED, FENCED = Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR, Code.PRODUCER_FENCED
SILENT = -2
"""No code of Kafka: the broker does not answer."""


class SimCoordinator:
    """aiokafka's producer, and a coordinator that answers an end with some codes; then it succeeds."""

    def __init__(self, *codes: int) -> None:
        self._codes = [*codes]
        self.asked: list[tuple[Any, ...]] = []
        self.client = self
        self._sender = SimpleNamespace(_find_coordinator=AsyncMock(return_value=1), _coordinator_dead=lambda kind: None)
        self._txn_manager = TransactionManager("app-t-0", 1000)
        self._txn_manager.set_pid_and_epoch(7, 3)
        self._txn_manager.begin_transaction()
        self._txn_manager._sequence_numbers["t", 0] = 5

    async def send(self, node: int, request: EndTransaction, group: Any) -> Any:
        self.asked.append(request.fields[:4])
        code = self._codes.pop(0) if self._codes else 0
        if code == SILENT:
            raise RequestTimedOutError
        return SimpleNamespace(error_code=code, producer_id=7, producer_epoch=4)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "sleep", AsyncMock())


async def test_an_end_is_asked_for_until_it_succeeds_with_the_epoch_of_the_transaction() -> None:
    brokers = SimCoordinator(BUSY, SILENT, MOVED)
    producer: Any = brokers
    await version_two.commit(producer)
    assert brokers.asked == [("app-t-0", 7, 3, True)] * 4
    assert produce.opening(producer) == (7, 4), "the id and the epoch of the answer"
    assert not brokers._txn_manager._sequence_numbers, "numbers begin at 0 in the next transaction"
    brokers._txn_manager.begin_transaction()
    await version_two.abort(producer)
    assert brokers.asked[-1] == ("app-t-0", 7, 4, False)


async def test_a_fence_says_who_owns_the_machine_only_if_each_end_was_answered() -> None:
    """After an end without an answer, a later owner may have fenced this one after its commit."""
    producer: Any = SimCoordinator(BUSY, FENCED)
    with pytest.raises(ProducerFenced):
        await version_two.commit(producer)
    producer = SimCoordinator(SILENT, FENCED)
    with pytest.raises(InvalidTxnState):
        await version_two.commit(producer)


async def test_a_commit_does_not_follow_a_failed_request() -> None:
    brokers = SimCoordinator()
    brokers._txn_manager.error_transaction(RequestTimedOutError())
    producer: Any = brokers
    with pytest.raises(RequestTimedOutError):
        await version_two.commit(producer)
    assert not brokers.asked


def test_each_code_does_what_the_table_says() -> None:
    assert effect_of(Code.MSG_SIZE_TOO_LARGE) is effect_of(Code.TOPIC_AUTHORIZATION_FAILED) is Does.TOPIC
    assert type(error_of(Code.MSG_SIZE_TOO_LARGE, "t", 0)).__name__ == "MessageSizeTooLargeError"
    assert isinstance(error_of(Code.INVALID_PRODUCER_EPOCH, "t", 0), ProducerFenced)
    assert "UNSUPPORTED_VERSION" in str(error_of(Code.UNSUPPORTED_VERSION))


@pytest.mark.parametrize(
    ("code", "why", "expected"),
    [
        (19, None, True),
        (20, "The size of the current ISR is insufficient", True),
        (
            19,
            "Unable to verify the partition has been added to the transaction. Underlying error: NOT_COORDINATOR",
            False,
        ),
        (6, None, False),
    ],
)
def test_a_topic_is_at_fault_for_its_replicas_and_not_for_the_coordinator(
    code: int, why: str | None, expected: bool
) -> None:
    assert is_of_replicas(code, (-1, -1, [], why)) is expected


def test_the_features_of_a_cluster_are_read_from_an_answer_and_may_be_absent() -> None:
    answer: Any = FeaturesRequest._CLASSES[0].RESPONSE_TYPE
    epoch = bytes.fromhex("01080000000000000003")
    named = b"\x13transaction.version\x00\x02\x00\x02\x00"
    finalized = b"\x02" + b"\x14" + named[1:]
    tags = b"\x02" + epoch + b"\x02" + bytes([len(finalized)]) + finalized
    full = answer.decode(b"\x00\x00" + b"\x01" + bytes(4) + tags)
    assert finalized_features(full) == (3, {"transaction.version": 2})
    assert finalized_features(answer.decode(b"\x00\x00\x01" + bytes(4) + b"\x00")) == (-1, {})
