"""What a producer makes of answers, metadata and silence. The broker tests use real brokers."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from timers.core.ports import BatchesRefused
from timers.firing import producer as module
from timers.firing.ports import DeliveryFailed, NoAnswer
from timers.firing.producer import TransactionalProducer
from timers.kafka import producer_loop
from timers.kafka.aiokafka_internals import produce
from timers.kafka.aiokafka_internals.produce import INVALID_RECORD, RecordsRefused, RefusedRecord
from timers.kafka.producer_loop import ProducerLoop

Place = tuple[str, int]


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


class SimProducer:
    """aiokafka's producer. Each batch gets the answer that is planned for its place; without one it waits for ever.

    Args:
        answers: (topic, partition) -> error or None, one for each batch.
        leaders: (topic, partition) -> broker in the metadata.
        quota_ms: for how long the broker throttles after the first batch.
        codes: (topic, partition) -> error code of the broker's answer that lets aiokafka ask again.
    """

    def __init__(
        self,
        answers: dict[Place, list[BaseException | None]],
        leaders: dict[Place, int | None],
        quota_ms: int = 0,
        codes: dict[Place, int] | None = None,
    ) -> None:
        self._answers = answers
        self._codes = codes or {}
        self.client = self
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: leaders[tuple(place)])
        self.metadata_requests = 0
        self._sender = SimpleNamespace()
        self._quota_ms = quota_ms
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._txn_manager = SimpleNamespace(wait_for_transaction_end=lambda: ended)

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
        handler = object.__new__(produce._Handler)
        handler._sender, handler._batches = self._sender, {}
        answered = [(topic, [(partition, code, -1, -1, 0)])] if (code := self._codes.get((topic, partition))) else []
        response = SimpleNamespace(topics=answered, throttle_time_ms=self._quota_ms, API_VERSION=7)
        handler.handle_response(response)
        answer = asyncio.get_running_loop().create_future()
        planned = self._answers[topic, partition]
        if planned:
            error = planned.pop(0)
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)
        return answer

    async def force_metadata_update(self) -> bool:
        self.metadata_requests += 1
        return True


async def deliver(
    answers: dict[Place, list[BaseException | None]],
    leaders: dict[Place, int | None] | None = None,
    batches_each: int = 1,
    quota_ms: int = 0,
    codes: dict[Place, int] | None = None,
) -> None:
    producer: Any = SimProducer(dict(answers), leaders or dict.fromkeys(answers, 1), quota_ms, codes)
    unbound: Any = TransactionalProducer.__new__(TransactionalProducer)
    batches: Any = {place: [SimpleNamespace(count=1)] * batches_each for place in answers}
    await unbound._deliver(producer, batches)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0.02)
    monkeypatch.setattr(module, "DELIVERY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(producer_loop, "AWAKE_S", 0.01)


async def test_what_a_broker_answers_is_the_fault_of_its_topic() -> None:
    with pytest.raises(DeliveryFailed) as failed:
        await deliver({("a", 0): [None], ("b", 0): [UnknownError()]})
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {"b": UnknownError}


async def test_a_partition_that_lost_its_leader_or_is_gone_is_seen_in_the_metadata(impatient: None) -> None:
    places: dict[Place, list[BaseException | None]] = {("a", 0): [None], ("b", 0): [None], ("b", 1): [], ("c", 0): []}
    with pytest.raises(DeliveryFailed) as failed:
        await deliver(places, {("a", 0): 1, ("b", 0): 1, ("b", 1): -1, ("c", 0): None})
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {
        "b": LeaderNotAvailableError,
        "c": UnknownTopicOrPartitionError,
    }


async def test_silence_is_no_fault_and_names_the_topics_without_any_answer(impatient: None) -> None:
    with pytest.raises(NoAnswer) as silence:
        await deliver({("a", 0): [None, None], ("slow", 0): [None], ("silent", 0): []}, batches_each=2)
    assert silence.value.topics == {"silent"}


async def test_a_partition_with_too_few_replicas_is_a_fault_of_its_topic(impatient: None) -> None:
    """aiokafka asks its leader again and again, until the time-out of the transaction."""
    with pytest.raises(DeliveryFailed) as failed:
        await deliver({("a", 0): [None], ("b", 0): [], ("c", 0): []}, codes={("b", 0): 19, ("a", 0): 20})
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {"b": NotEnoughReplicasError}


async def test_a_throttled_producer_names_no_silent_topic(impatient: None) -> None:
    """The broker answers the first batches at once, and reads the others only when the producer may send again."""
    with pytest.raises(NoAnswer) as silence:
        await deliver({("own", 0): [None], ("unread", 0): []}, quota_ms=5_000)
    assert silence.value.topics == set()


async def test_refused_records_are_reported_when_all_batches_are_answered(impatient: None) -> None:
    refused = RecordsRefused("a", 0, INVALID_RECORD, "", (RefusedRecord(1, "no key"),))
    with pytest.raises(BatchesRefused) as reported:
        await deliver({("a", 0): [refused, OutOfOrderSequenceNumber()], ("b", 0): [None, None]}, batches_each=2)
    assert [error for _, error in reported.value.batches] == [refused]
    with pytest.raises(NoAnswer):
        await deliver({("a", 0): [refused], ("b", 0): []})


async def test_only_a_partition_with_several_batches_or_without_metadata_needs_a_task() -> None:
    one, several, unknown = ("t", 0), ("t", 1), ("u", 0)
    answers: dict[Place, list[BaseException | None]] = {one: [None], several: [None, None], unknown: [None]}
    producer: Any = SimProducer(answers, {one: 1, several: 1, unknown: None})
    batches: Any = {place: [SimpleNamespace(count=1)] * len(planned) for place, planned in answers.items()}
    sending = await produce.start(producer, batches, set())
    assert {place for each, place in sending.items() if isinstance(each, asyncio.Task)} == {several, unknown}
    await asyncio.gather(*sending)
