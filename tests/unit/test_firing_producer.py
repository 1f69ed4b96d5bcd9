"""What a producer makes of answers, metadata and silence. The broker tests use real brokers."""

import asyncio
import gc
from concurrent.futures import Future
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    RequestTimedOutError,
    UnknownError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.producer.transaction_manager import TransactionManager, TransactionState

from tests.harness.constants import Constants
from timers.core.ports import BatchesRefused, DeliveryFailed, Lost, Unanswered
from timers.errors import Fenced
from timers.kafka.aiokafka_internals import broker_answers, produce
from timers.kafka.aiokafka_internals.callback_batch import CallbackBatch
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.aiokafka_internals.refusals import INVALID_RECORD, RecordsRefused, RefusedRecord
from timers.kafka.aiokafka_internals.transaction_errors import ANSWERS, Does, error_of
from timers.machines.firing import producer as producer_module
from timers.machines.firing.producer import TransactionalProducer
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics

Place = tuple[str, int]
FIRST_OFFSET = 40
SILENT = -2
"""No code of Kafka: the broker does not answer."""


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
        self._sender = SimpleNamespace(_find_coordinator=self._coordinator, _coordinator_dead=lambda kind: None)
        self._quota_ms = quota_ms
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ids = {"transactional_id": "app-t-0", "producer_id": 7, "producer_epoch": 1}
        self._txn_manager = SimpleNamespace(wait_for_transaction_end=lambda: ended, **ids)

    async def _coordinator(self, kind: Any, key: str) -> int:
        return 1

    async def send(self, node: int, request: Any, group: Any) -> Any:
        """Fail, so that aiokafka's sender does all."""
        raise NodeNotReadyError(node)

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
    batches: Any = {place: [SimpleNamespace(count=1)] * batches_each for place in answers}
    await produce.deliver_in_time(producer, batches, produce.VERSION_ONE)


@pytest.fixture
def impatient(constants: Constants) -> None:
    constants(produce, CHECK_S=0.02, DELIVERY_TIMEOUT_S=0.1)
    constants(broker_answers, AWAKE_S=0.01)


async def test_what_a_broker_answers_is_the_fault_of_its_topic() -> None:
    with pytest.raises(DeliveryFailed) as failed:
        await deliver({("a", 0): [None], ("b", 0): [UnknownError()]})
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {"b": UnknownError}


@pytest.mark.parametrize(
    "code", [code for code, does in ANSWERS.items() if does is not Does.DONE and for_code(code).errno == code]
)
async def test_what_brokers_have_forgotten_of_the_producer_is_not_the_fault_of_a_topic(code: int) -> None:
    """Version 1 asks the same table as version 2. After an unclean election a leader knows no sequence numbers.
    aiokafka has no name for codes 90 and 120, with which no broker answers version 8 of the produce request."""
    of_producer = ANSWERS[code] in (Does.ANEW, Does.FENCED, Does.RIGHT)
    with pytest.raises(KafkaError if of_producer else DeliveryFailed) as failed:
        await deliver({("a", 0): [None], ("b", 0): [for_code(code)()]})
    if not of_producer:
        assert isinstance(failed.value, DeliveryFailed) and failed.value.culprits.keys() == {"b"}


class EndsAtLast(Future[None]):
    """A future that ends after a wait for it has timed out."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def done(self) -> bool:
        if self._error is None:
            self.set_result(None)
        else:
            self.set_exception(self._error)
        return True


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ProducerFenced(), Fenced), (RequestTimedOutError(), Lost), (TimeoutError(), Lost), (None, None)],
)
def test_an_answer_that_comes_while_a_wait_ends_is_judged_as_any_other(
    error: Exception | None, raised: type[Exception] | None, constants: Constants
) -> None:
    constants(producer_module, STOP_POLL_S=0.001)
    producer: Any = TransactionalProducer.__new__(TransactionalProducer)
    producer._metrics, producer._stop, producer._transactional_id = PartitionMetrics(), Event(), "app-t-0"
    with nullcontext() if raised is None else pytest.raises(raised):
        producer._wait(EndsAtLast(error))


async def test_a_partition_that_lost_its_leader_or_is_gone_is_seen_in_the_metadata(impatient: None) -> None:
    places: dict[Place, list[BaseException | None]] = {("a", 0): [None], ("b", 0): [None], ("b", 1): [], ("c", 0): []}
    with pytest.raises(DeliveryFailed) as failed:
        await deliver(places, {("a", 0): 1, ("b", 0): 1, ("b", 1): -1, ("c", 0): None})
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {
        "b": LeaderNotAvailableError,
        "c": UnknownTopicOrPartitionError,
    }


async def test_silence_is_no_fault_and_names_the_topics_without_any_answer(impatient: None) -> None:
    with pytest.raises(Unanswered) as silence:
        await deliver({("a", 0): [None, None], ("slow", 0): [None], ("silent", 0): []}, batches_each=2)
    assert silence.value.topics == {"silent"}


async def test_a_partition_with_too_few_replicas_is_a_fault_of_its_topic(impatient: None) -> None:
    """aiokafka asks its leader again and again, until the time-out of the transaction."""
    with pytest.raises(DeliveryFailed) as failed:
        await deliver({("a", 0): [None], ("b", 0): [], ("c", 0): []}, codes={("b", 0): 19, ("a", 0): 20})
    assert {topic: type(error) for topic, error in failed.value.culprits.items()} == {"b": NotEnoughReplicasError}


async def test_a_throttled_producer_names_no_silent_topic(impatient: None) -> None:
    """The broker answers the first batches at once, and reads the others only when the producer may send again."""
    with pytest.raises(Unanswered) as silence:
        await deliver({("own", 0): [None], ("unread", 0): []}, quota_ms=5_000)
    assert silence.value.topics == set()


async def test_refused_records_are_reported_when_all_batches_are_answered(impatient: None) -> None:
    refused = RecordsRefused("a", 0, INVALID_RECORD, "", (RefusedRecord(1, "no key"),))
    with pytest.raises(BatchesRefused) as reported:
        await deliver({("a", 0): [refused, OutOfOrderSequenceNumber()], ("b", 0): [None, None]}, batches_each=2)
    assert [error for _, error in reported.value.batches] == [refused]
    with pytest.raises(Unanswered):
        await deliver({("a", 0): [refused], ("b", 0): []})


@pytest.mark.parametrize("fenced", [ProducerFenced(), InvalidProducerEpoch()])
async def test_who_was_fenced_blames_no_topic(fenced: KafkaError) -> None:
    with pytest.raises(type(fenced)):
        await deliver({("a", 0): [fenced], ("b", 0): [None]})


def test_a_code_that_aiokafka_does_not_know_is_named() -> None:
    assert "error code 999" in str(error_of(999))


class SimBrokers:
    """aiokafka's producer and its client. Brokers answer each request at once.

    Args:
        codes: kind of request -> error codes of its answers, one after another; then each is 0.

    Attributes:
        asked: (kind, what it names) of each request.
        left: (topic, partition, first sequence number) of each batch that was left to aiokafka's sender.
    """

    def __init__(self, codes: dict[str, list[int]], leaders: dict[Place, int]) -> None:
        self._codes = codes
        self.asked: list[tuple[str, Any]] = []
        self.left: list[tuple[str, int, int]] = []
        self.forgotten = 0
        self.client = self
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: leaders[tuple(place)])
        self._sender = SimpleNamespace(
            _acks=-1,
            _request_timeout_ms=1000,
            _find_coordinator=self._coordinator,
            _coordinator_dead=self._forget,
        )
        self._txn_manager = TransactionManager("app-t-0", 1000)
        self._txn_manager.set_pid_and_epoch(7, 1)
        self._txn_manager.begin_transaction()

    async def _coordinator(self, kind: Any, key: str) -> int:
        return 1

    def _forget(self, kind: Any) -> None:
        self.forgotten += 1

    async def send(self, node: int, request: Any, group: Any = None) -> Any:
        kind = type(request).__name__.removesuffix("Request")
        codes = self._codes.get(kind, [])
        code = codes.pop(0) if codes else 0
        if kind == "EndTxn":
            self.asked.append((kind, request._transaction_result))
            if code == SILENT:
                raise RequestTimedOutError
            return SimpleNamespace(error_code=code)
        is_batch = kind == "Produce"
        named = [(topic, each[0] if is_batch else each) for topic, partitions in request._topics for each in partitions]
        self.asked.append((kind, named))
        offset = [FIRST_OFFSET + len(self.asked)] if is_batch else []
        answers = [
            (topic, [(partition, code if place == named[0] else 0, *offset)])
            for place in named
            for topic, partition in [place]
        ]
        return SimpleNamespace(topics=answers, errors=answers, throttle_time_ms=0, API_VERSION=8)

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
        place = TopicPartition(topic, partition)
        self.left.append((topic, partition, self._txn_manager.sequence_number(place)))
        self._txn_manager.increment_sequence_number(place, batch.record_count())
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer


def filled(count: int) -> CallbackBatch:
    batch = CallbackBatch(10_000)
    for place in range(count):
        batch.add(place, 5, b"k", b"v", ())
    return batch


async def delivered(codes: dict[str, list[int]]) -> SimBrokers:
    """Deliver two batches to one partition, and one to two others, of which one has another leader."""
    brokers = SimBrokers(codes, {("t", 0): 1, ("t", 1): 1, ("u", 0): 2})
    producer: Any = brokers
    await produce.deliver_in_time(
        producer,
        {("t", 0): [filled(2), filled(3)], ("t", 1): [filled(4)], ("u", 0): [filled(5)]},
        produce.VERSION_ONE,
    )
    manager = brokers._txn_manager
    sequence = [manager.sequence_number(TopicPartition(*place)) for place in (("t", 0), ("t", 1), ("u", 0))]
    assert sequence == [5, 4, 5]
    return brokers


ADD = ("AddPartitionsToTxn", [("t", 0), ("t", 1), ("u", 0)])
FIRST, SECOND, OTHER = ("Produce", [("t", 0), ("t", 1)]), ("Produce", [("t", 0)]), ("Produce", [("u", 0)])


async def test_a_transaction_is_one_request_to_add_its_partitions_and_one_to_each_leader_for_a_batch_of_each() -> None:
    brokers = await delivered({})
    assert brokers.asked[0] == ADD and sorted(brokers.asked[1:]) == sorted([FIRST, SECOND, OTHER])
    assert brokers.left == []
    producer: Any = brokers
    number = brokers.asked.index(FIRST) + 1
    assert produce.first_offset(producer, ("t", 0)) == FIRST_OFFSET + number, "that of its first batch"
    assert produce.first_offset(producer, ("t", 2)) is None


@pytest.mark.parametrize(
    ("answers", "first"),
    [
        ([(0, 40), (0, 41)], 40),
        ([(20, 40), (0, 40)], 40),  # its copies came too late
        ([(7, 40), (46, -1)], 40),  # the leader waited too long for them, and then had it already
        ([(87, -1), (0, 45)], 45),  # nothing of the first one is there
        ([(6, -1)], None),
    ],
)
def test_a_batch_has_the_first_offset_that_the_broker_names(answers: list[tuple[int, int]], first: int | None) -> None:
    producer: Any = SimpleNamespace(_sender=SimpleNamespace())
    for code, offset in answers:
        produce.note_answer(producer._sender, SimpleNamespace(topics=[("t", [(0, code, offset, -1)])]))
    assert produce.first_offset(producer, ("t", 0)) == first


async def test_first_offsets_in_the_own_log_are_all_kept(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    """An end of the log that an earlier one held back may be answered late."""
    producer: Any = TransactionalProducer.__new__(TransactionalProducer)
    producer._machine, producer.held_from = ("t", 0), set()
    producer._loop = SimpleNamespace(answers=SimpleNamespace(note=lambda leaders: None))
    producer._settings, producer._roll_back = Settings(), AsyncMock()
    producer._road = produce.VERSION_ONE._replace(commit=AsyncMock())
    monkeypatch.setattr(TransactionalProducer, "_present_road", producer._road)
    manager = SimpleNamespace(begin_transaction=lambda: None)
    producer._producer = sending = SimpleNamespace(_sender=SimpleNamespace(), _txn_manager=manager)
    monkeypatch.setattr(produce, "track_topics", lambda *_: None)
    monkeypatch.setattr(produce, "check_leaders", AsyncMock())

    async def transact(first_offset: int | None, error: Exception | None = None) -> None:
        async def deliver(*_: object) -> None:
            if first_offset is not None:
                sending._sender.first_offsets = {("t", 0): first_offset, ("u", 0): 1}
            if error is not None:
                raise error

        monkeypatch.setattr(produce, "deliver_in_time", deliver)
        await producer._transact({("t", 0): []}, {})

    await transact(40)
    await transact(None)
    assert producer.held_from == {40}, "the next one wrote nothing there"
    await transact(50)
    assert producer.held_from == {40, 50}
    with pytest.raises(BatchesRefused):
        await transact(60, BatchesRefused([]))
    assert producer._roll_back.await_count == 1
    await transact(None)
    assert producer.held_from == {40, 50, 60}, "what was rolled back held the end back too"
    constants(produce, MOST_STARTS=3)
    await transact(70)
    assert producer.held_from == {50, 60, 70}


async def test_what_a_leader_does_not_take_at_once_is_left_to_aiokafka_with_the_same_sequence_number() -> None:
    brokers = await delivered({"Produce": [NotLeaderForPartitionError.errno]})
    assert brokers.left == [("t", 0, 0), ("t", 0, 2)]


async def test_partitions_are_added_again_while_the_last_markers_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    brokers = await delivered({"AddPartitionsToTxn": [ConcurrentTransactions.errno] * 6})
    assert brokers.asked[:7] == [ADD] * 7 and brokers.left == []
    assert pauses_s == [0.01, 0.02, 0.04, 0.08, 0.08, 0.08]


async def test_without_the_coordinator_all_is_left_to_aiokafka() -> None:
    brokers = await delivered({"AddPartitionsToTxn": [NotCoordinatorError.errno]})
    assert brokers.asked == [ADD] and len(brokers.left) == 4


async def test_a_commit_is_sent_again_only_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without an answer may end the next transaction of version 1, which has the same epoch [I5]."""
    monkeypatch.setattr(asyncio, "sleep", AsyncMock())
    brokers = await delivered({"EndTxn": [ConcurrentTransactions.errno, NotCoordinatorError.errno]})
    producer: Any = brokers
    await produce.commit(producer)
    assert brokers.asked[-3:] == [("EndTxn", True)] * 3 and brokers.forgotten == 1
    assert brokers._txn_manager.state == TransactionState.READY
    brokers = await delivered({"EndTxn": [InvalidProducerEpoch.errno]})
    producer = brokers
    with pytest.raises(ProducerFenced):
        await produce.commit(producer)
    brokers = await delivered({"EndTxn": [SILENT]})
    producer = brokers
    with pytest.raises(RequestTimedOutError):
        await produce.commit(producer)
    assert brokers.asked.count(("EndTxn", True)) == 1
