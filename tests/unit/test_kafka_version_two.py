"""What the answers to requests of version 2 of transactions do. The broker tests and the simulator see whole ones."""

import asyncio
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    RequestTimedOutError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.producer.transaction_manager import TransactionManager, TransactionState
from aiokafka.protocol.transaction import EndTxnRequest
from confluent_kafka import KafkaError as Code

from timers.core.ports import BatchesRefused, Lost
from timers.kafka.aiokafka_internals import broker_answers, produce, version_two
from timers.kafka.aiokafka_internals.broker_answers import BrokerAnswers
from timers.kafka.aiokafka_internals.requests import FeaturesRequest, OffsetsInTransaction, finalized_features
from timers.kafka.aiokafka_internals.transaction_errors import (
    ANSWERS,
    FENCING,
    Does,
    VersionAbsent,
    effect_of,
    error_of,
    is_of_replicas,
)
from timers.machines.firing import producer as firing
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics

BUSY, MOVED, FENCED = Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR, Code.PRODUCER_FENCED
SILENT = -2
"""No code of Kafka: the broker does not answer."""
UNKNOWN = -3
"""No code of Kafka: the broker lacks the version of the request."""


class SimCoordinator:
    """aiokafka's producer, and a coordinator that answers an end with some codes; then it succeeds."""

    def __init__(self, *codes: int) -> None:
        self._codes = [*codes]
        self.names: tuple[int, int] | None = None
        self.asked: list[tuple[Any, ...]] = []
        self.client = self
        self.looked_up: list[Any] = []
        self._sender = SimpleNamespace(
            _find_coordinator=AsyncMock(return_value=1), _coordinator_dead=self.looked_up.append
        )
        self._txn_manager = TransactionManager("app-t-0", 1000)
        self._txn_manager.set_pid_and_epoch(7, 3)
        self._txn_manager.begin_transaction()
        self._txn_manager._sequence_numbers["t", 0] = 5

    async def send(self, node: int, request: Any, group: Any) -> Any:
        code = self._codes.pop(0) if self._codes else 0
        if isinstance(request, EndTxnRequest):
            self.asked.append(())
            return SimpleNamespace(error_code=code)
        self.asked.append(request.fields[:4])
        if isinstance(request, OffsetsInTransaction):
            return SimpleNamespace(topics=[("t", [(0, code, {})], {})])
        id, epoch = request.fields[1:3]
        if code == SILENT:
            raise RequestTimedOutError
        if code == UNKNOWN:
            raise NotImplementedError
        named = self.names or (id, epoch + 1)
        return SimpleNamespace(error_code=code, producer_id=named[0], producer_epoch=named[1])


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
    for unsure in SILENT, MOVED:
        producer = SimCoordinator(unsure, FENCED)
        with pytest.raises(InvalidTxnState):
            await version_two.commit(producer)


@pytest.mark.parametrize("road", [produce.VERSION_ONE, version_two.VERSION_TWO], ids=["version 1", "version 2"])
@pytest.mark.parametrize("code", FENCING)
async def test_a_commit_that_meets_a_fence_is_sent_again_until_it_is_said(code: int, road: produce.Road) -> None:
    """A coordinator that fences just now says an unknown error, or that it is busy, or that nothing is open."""
    producer: Any = SimCoordinator(code, BUSY, code, FENCED)
    with pytest.raises(ProducerFenced):
        await road.commit(producer)
    producer = SimCoordinator(code)
    await road.commit(producer)
    assert len(producer.asked) == 2 and producer._txn_manager.state == TransactionState.READY
    producer = SimCoordinator(*[code] * (produce.MOST_FENCING + 1))
    with pytest.raises(for_code(code)):
        await road.commit(producer)
    assert len(producer.asked) == produce.MOST_FENCING + 1, "it lasts: the machine is opened anew"
    producer = SimCoordinator(MOVED, code)
    with pytest.raises(InvalidTxnState):
        await road.commit(producer)
    assert len(producer.asked) == 2, "it may have been committed before"


@pytest.mark.parametrize("named", [(7, 3), (7, 5), (8, 1), (-1, 0), (7, -1)])
async def test_an_end_names_what_follows_its_own_id_and_epoch(named: tuple[int, int]) -> None:
    producer: Any = SimCoordinator()
    producer.names = named
    with pytest.raises(InvalidTxnState):
        await version_two.commit(producer)
    assert produce.opening(producer) == (7, 3)


async def test_an_end_may_name_another_id_and_never_the_last_epoch() -> None:
    producer: Any = SimCoordinator()
    producer.names = 8, 0
    await version_two.commit(producer)
    assert produce.opening(producer) == (8, 0)
    producer = SimCoordinator()
    produce.set_opening(producer, 7, 32_766)
    with pytest.raises(InvalidTxnState):
        await version_two.commit(producer)


@pytest.mark.parametrize("code", [UNKNOWN, Code.UNSUPPORTED_VERSION])
async def test_a_broker_without_the_request_lets_the_machine_ask_for_the_version_again(code: int) -> None:
    producer: Any = SimCoordinator(code)
    with pytest.raises(VersionAbsent):
        await version_two.commit(producer)


class SimLeader:
    """aiokafka's producer, and a leader that answers batches with some codes."""

    def __init__(self, codes: dict[str, int], why: str = "") -> None:
        self._codes, self._why = codes, why
        self.client, self._sender = self, SimpleNamespace(_acks=-1, _request_timeout_ms=1)
        self.is_known, self.is_changing, self.looked_up = True, False, 0
        self._txn_manager = TransactionManager("app-t-0", 1000)
        self._txn_manager.set_pid_and_epoch(7, 3)
        self._txn_manager.begin_transaction()
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: 1)

    def force_metadata_update(self) -> None:
        self.looked_up += 1

    async def send(self, node: int, request: Any, group: Any) -> Any:
        if not self.is_known:
            raise NotImplementedError
        named = [topic for topic, *_ in request.fields[3]]
        topics: list[Any] = [(topic, [(0, self._codes[topic], -1, -1, -1, [], self._why)]) for topic in named]
        if self.is_changing:
            self._codes = dict.fromkeys(self._codes, 0)
        return SimpleNamespace(topics=topics, throttle_time_ms=0, API_VERSION=12)


def sim_batch() -> Any:
    return SimpleNamespace(_set_producer_state=lambda *_: None, _build=lambda: b"", record_count=lambda: 1)


async def delivered(leader: Any, answered: set[tuple[str, int]]) -> dict[str, asyncio.Future[None]]:
    """Deliver a batch to each topic; the delivery ends at the first pause."""
    places = [(topic, 0) for topic in leader._codes]
    outcomes = {place: asyncio.get_running_loop().create_future() for place in places}
    with pytest.raises(StopAsyncIteration):
        await version_two.deliver(leader, {place: [sim_batch()] for place in places}, outcomes, answered)
    return {topic: outcome for (topic, _), outcome in outcomes.items()}


async def test_a_topic_that_is_missing_does_not_fail_the_topic_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator then adds no partition of the request; the metadata say which topic is missing."""
    monkeypatch.setattr(asyncio, "sleep", AsyncMock(side_effect=StopAsyncIteration))
    missing, beside = Code.UNKNOWN_TOPIC_OR_PART, Code.OPERATION_NOT_ATTEMPTED
    answered: set[tuple[str, int]] = set()
    outcomes = await delivered(SimLeader({"beside": beside, "missing": missing}), answered)
    assert not any(outcome.done() for outcome in outcomes.values()), "both are sent again"
    assert answered == {("beside", 0)}


async def test_a_leader_whose_coordinator_is_busy_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "sleep", AsyncMock(side_effect=StopAsyncIteration))
    for code in BUSY, MOVED, Code.NETWORK_EXCEPTION, Code.NOT_ENOUGH_REPLICAS:
        answered: set[tuple[str, int]] = set()
        leader: Any = SimLeader({"t": code}, "Unable to verify the partition has been added to the transaction.")
        await delivered(leader, answered)
        assert answered == {("t", 0)}
        assert not produce.short_of_replicas(leader, [("t", 0)])


async def test_a_doubted_version_is_the_one_that_the_next_broker_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a doubt an older epoch of the features does not count."""
    answers, producer = BrokerAnswers(), SimpleNamespace(client=SimpleNamespace(send=AsyncMock()))
    broker: Any = producer
    said = iter([(9, {"transaction.version": 2}), (3, {}), (3, {}), (4, {"transaction.version": 2})])
    monkeypatch.setattr(broker_answers, "finalized_features", lambda answer: next(said))

    async def version() -> int:
        await answers.ask_version(broker, 1)
        return answers.transaction_version

    assert [await version(), await version()] == [2, 2]
    answers.doubt_version()
    assert answers.transaction_version == 2, "the other machines are not opened anew for it"
    assert [await version(), await version()] == [1, 2]
    answers.doubt_version()
    producer.client.send.side_effect = NotImplementedError  # a broker that has no features
    assert await version() == 1


async def test_a_version_that_changes_during_the_check_begins_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "track_topics", lambda *_: None)
    monkeypatch.setattr(produce, "check_leaders", AsyncMock())
    manager = SimpleNamespace(transactional_id="app-t-0")  # cannot begin
    producer: Any = SimpleNamespace(_txn_manager=manager)
    own, road = ("t", 0), version_two.VERSION_TWO
    with pytest.raises(Lost, match="changed"):
        await produce.transact(producer, BrokerAnswers(), {own: []}, {}, "app", own, set(), road)


@pytest.mark.parametrize("error", [None, ValueError("an answer that cannot be read"), asyncio.CancelledError()])
async def test_a_cancelled_opening_leaves_nothing(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    """Only a cancel ends it: without an answer about the version the last one counts."""
    started = SimpleNamespace(start=AsyncMock(), _sender=SimpleNamespace(_coordinators={0: 1, 1: 1}))
    closed = AsyncMock()
    monkeypatch.setattr(firing, "AIOKafkaProducer", lambda **_: started)
    monkeypatch.setattr(firing, "close_at_once", closed)
    answers = SimpleNamespace(ask_version=AsyncMock(side_effect=error), transaction_version=2)
    loop: Any = SimpleNamespace(answers=answers)
    settings = Settings(transaction_version="auto")
    machine = firing.TransactionalProducer(loop, settings, ("t", 0), Event(), PartitionMetrics())
    if isinstance(error, asyncio.CancelledError):
        with pytest.raises(asyncio.CancelledError):
            await machine._open()
        assert closed.await_count == 1
    else:
        await machine._open()
        assert (machine._producer, machine._road) == (started, version_two.VERSION_TWO)
        assert not closed.await_count
    answers.ask_version.assert_awaited_once()


async def test_a_leader_without_the_request_is_not_asked_again() -> None:
    leader: Any = SimLeader({"t": 0})
    leader.is_known = False
    outcome = asyncio.get_running_loop().create_future()
    with pytest.raises(VersionAbsent):
        await version_two.deliver(leader, {("t", 0): [sim_batch()]}, {("t", 0): outcome}, set())


def test_in_version_1_the_code_alone_says_that_replicas_are_few() -> None:
    """aiokafka asks again without end."""
    why = "Unable to verify the partition has been added to the transaction."
    answer = SimpleNamespace(topics=[("t", [(0, 19, -1, -1, -1, [], why)])])
    producer: Any = SimpleNamespace(_sender=SimpleNamespace())
    produce.note_answer(producer._sender, answer)
    assert produce.short_of_replicas(producer, [("t", 0)])
    produce.note_answer(producer._sender, answer, version=2)
    assert not produce.short_of_replicas(producer, [("t", 0)])


async def test_a_commit_does_not_follow_a_failed_request() -> None:
    brokers = SimCoordinator()
    brokers._txn_manager.error_transaction(RequestTimedOutError())
    producer: Any = brokers
    with pytest.raises(RequestTimedOutError):
        await version_two.commit(producer)
    assert not brokers.asked


OTHER_CODES = [Code.UNKNOWN, Code.MSG_SIZE_TOO_LARGE, Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED]

RAISED: dict[Does, type[Exception]] = {
    Does.ANEW: InvalidTxnState,
    Does.FENCED: ProducerFenced,
    Does.RIGHT: TransactionalIdAuthorizationFailed,
}


@pytest.mark.parametrize("code", [*ANSWERS, *OTHER_CODES])
@pytest.mark.parametrize("asks", ["end", "offsets"])
async def test_a_coordinators_code_does_what_the_table_says(code: int, asks: str) -> None:
    brokers = SimCoordinator(code)
    producer: Any = brokers
    offsets: Any = {TopicPartition("t", 0): SimpleNamespace(offset=5, metadata="")}
    asking = version_two.commit(producer) if asks == "end" else version_two.send_offsets(producer, offsets, "app")
    does = effect_of(code)
    if does in (Does.DONE, Does.AGAIN, Does.LOOK) or (asks == "end" and code in FENCING):
        await asking
        assert len(brokers.asked) == 2 - (does is Does.DONE)
        assert bool(brokers.looked_up) is (does is Does.LOOK)
        return
    with pytest.raises(RAISED.get(does, for_code(code))):
        await asking
    assert len(brokers.asked) == 1, "it is not sent again"


@pytest.mark.parametrize("code", [*ANSWERS, *OTHER_CODES])
async def test_a_leaders_code_does_what_the_table_says(code: int) -> None:
    leader: Any = SimLeader({"t": code})
    leader.is_changing = True
    outcome = asyncio.get_running_loop().create_future()
    await version_two.deliver(leader, {("t", 0): [sim_batch()]}, {("t", 0): outcome}, set())
    does, error = effect_of(code), outcome.exception()
    numbered = leader._txn_manager.sequence_number(TopicPartition("t", 0))
    assert numbered == (does in (Does.DONE, Does.AGAIN, Does.LOOK, Does.REFUSED)), "batches that are answered for good"
    assert bool(leader.looked_up) is (does is Does.LOOK)
    match does:
        case Does.DONE | Does.AGAIN | Does.LOOK:
            assert error is None
        case Does.REFUSED:
            assert isinstance(error, BatchesRefused)
        case _:
            assert isinstance(error, RAISED.get(does, KafkaError))


def test_the_errors_of_codes_have_their_names() -> None:
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
def test_a_topic_is_at_fault_for_its_replicas_only(code: int, why: str | None, expected: bool) -> None:
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
