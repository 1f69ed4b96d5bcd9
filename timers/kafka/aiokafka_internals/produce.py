"""Sends transactions; finds which records a broker refused and why, and whether brokers throttle.

A first attempt goes past aiokafka's sender: :func:`deliver` and :func:`commit` say how.

From version 8 of the produce request on (KIP-467, Kafka 2.4) a broker that refuses a batch lists each bad record of it.
aiokafka can read such an answer, but its list of versions ends at 7, its sender drops the list of records, and it has
no name for error 87. A broker before 2.4 is still asked in version 7, and then lists no record.

Seen with Kafka 4.2: all bad records of a batch are listed, each with its first fault only. If the time of any record is
bad, the code of the batch is INVALID_TIMESTAMP, also for records without a key. Nothing of a refused batch is appended.
The next batch to the same partition fails with ``OutOfOrderSequenceNumber``, unless it has bad records of its own.

A broker that throttles a client (a quota) answers at once, says for how long it throttles, and reads nothing from the
connection until then. aiokafka ignores this: its next request gets no answer in time.

This module relies on:

==========================================================  ==========================================================
``aiokafka.protocol.produce.ProduceRequest._CLASSES``       versions that may be used, in ascending order
``aiokafka.protocol.produce.ProduceRequest_v8``             exists, and is not in that list
``aiokafka.producer.sender.SendProduceReqHandler``          looked up by that name for each request
``SendProduceReqHandler.handle_response(response)``         called with each answer
``SendProduceReqHandler._batches``                          ``TopicPartition`` -> batch that was sent
``MessageBatch.failure(exception=...)``                     the first call counts
``SendProduceReqHandler._sender``                           the producer's ``Sender``, an ordinary object
``AIOKafkaProducer._txn_manager``, ``_sender``, ``_closed`` state of the transaction, the task that sends, closed or not
``Sender._acks``, ``_request_timeout_ms``                   of a produce request
``Sender._find_coordinator``                                looks a coordinator up, unless it is known
``sender.InitPIDHandler(Sender).create_request()``          the request that opens a producer
``TransactionManager._pid_and_epoch``                       the opening
``TransactionManager._sequence_numbers``                    partition -> its next sequence number
``TransactionManager._txn_partitions``                      partitions that the coordinator has added
``begin_transaction``, ``_transition_to``,                  of the transaction manager; without its
``complete_transaction``                                    ``notify_task_waiter`` the sender does not wake
``BatchBuilder._set_producer_state``, ``_build``            write the batch's header, and return its bytes
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    KafkaError,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumber,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.producer import sender
from aiokafka.producer.transaction_manager import PidAndEpoch, TransactionState
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v8, ProduceResponse_v8
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from timers.core.ports import BatchesRefused
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.callback_batch import CallbackBatch
from timers.kafka.aiokafka_internals.record_batch import RecordBatch
from timers.kafka.aiokafka_internals.requests import by_topic

Place: TypeAlias = tuple[str, int]
"""(Topic, partition)"""
Batch: TypeAlias = CallbackBatch | RecordBatch

NO_LEADER = -1

INVALID_RECORD = 87
"""Code of a record that the topic never takes, for example one without a key in a compacted topic."""

INVALID_TIMESTAMP = 32
"""Code of a record whose time is too far from the broker's (``message.timestamp.before.max.ms``, ``.after.max.ms``)."""

SHORT_OF_REPLICAS = frozenset({NotEnoughReplicasError.errno, NotEnoughReplicasAfterAppendError.errno})

ENDING_S, LONGEST_ENDING_S = 0.01, 0.08
"""First and longest pause before a request is sent again while the markers of the producer's last transaction are being
written. Each pause is twice the one before: 64 machines on a busy machine sent four of five requests in vain."""

_NAMES: Mapping[int, str] = {INVALID_RECORD: "INVALID_RECORD", INVALID_TIMESTAMP: "INVALID_TIMESTAMP"}


class RefusedRecord(NamedTuple):
    """One record that the broker does not take."""

    place: int
    """Index of the record in its batch."""
    why: str
    """The broker's sentence; may be empty."""


class RecordsRefused(KafkaError):
    """A broker appended nothing of a batch, because of records in it. It would refuse the same batch again.

    Attributes:
        code: 87 or 32.
        why: the broker's sentence about the batch; may be empty.
        records: each bad record; empty if the broker lists none.
    """

    retriable = False

    def __init__(self, topic: str, partition: int, code: int, why: str, records: tuple[RefusedRecord, ...]) -> None:
        super().__init__(topic, partition, code, why, records)  # all values: aiokafka copies an error by its args
        self.topic = topic
        self.partition = partition
        self.code = code
        self.why = why
        self.records = records

    @property
    def name(self) -> str:
        """Kafka's name of the code."""
        return _NAMES[self.code]

    @property
    def is_of_timestamps(self) -> bool:
        """Whether the times of records are the reason."""
        return self.code == INVALID_TIMESTAMP


class _Handler(sender.SendProduceReqHandler):
    """Lets a refused batch fail with :class:`RecordsRefused`, and notes for how long brokers throttle the producer."""

    def handle_response(self, response: Any) -> None:
        _note_answer(self._sender, response)
        for tp, error in refusals(response).items():
            batch = self._batches.get(tp)
            if batch is not None:
                batch.failure(exception=error)  # aiokafka fails it again, which has no effect
        super().handle_response(response)


def _note_answer(sending: Any, response: Any) -> None:
    """Note for how long the broker throttles, which partitions have too few replicas in sync, and the first offset in
    each partition."""
    short: set[tuple[str, int]] = getattr(sending, "short_of_replicas", set())
    first: dict[tuple[str, int], int] = getattr(sending, "first_offsets", {})
    sending.short_of_replicas, sending.first_offsets = short, first
    for topic, partitions in response.topics:
        for partition, code, offset, *_ in partitions:
            (short.add if code in SHORT_OF_REPLICAS else short.discard)((topic, partition))
            if offset >= 0:  # so says a broker that has appended the batch, also if its copies came too late
                first.setdefault((topic, partition), offset)
    throttled_ms = getattr(response, "throttle_time_ms", 0)
    if throttled_ms > 0:
        until = monotonic() + throttled_ms / 1000
        sending.throttled_until = max(until, getattr(sending, "throttled_until", 0.0))


def refusals(response: Any) -> dict[TopicPartition, RecordsRefused]:
    """The refused batches in an answer to a produce request of any version."""
    found: dict[TopicPartition, RecordsRefused] = {}
    for topic, partitions in response.topics:
        for partition, code, *rest in partitions:
            if code not in _NAMES:
                continue
            listed: Iterable[tuple[int, str | None]] = ()
            why: str | None = None
            if response.API_VERSION >= ProduceResponse_v8.API_VERSION:
                *_, listed, why = rest
            records = tuple(RefusedRecord(place, said or "") for place, said in listed or ())
            found[TopicPartition(topic, partition)] = RecordsRefused(topic, partition, code, why or "", records)
    return found


def begin(producer: AIOKafkaProducer) -> None:
    """Begin a transaction."""
    producer._txn_manager.begin_transaction()
    producer._sender.first_offsets = {}


def first_offset(producer: AIOKafkaProducer, place: Place) -> int | None:
    """The first offset that the present transaction has in a partition; None: it has none."""
    offsets: dict[Place, int] = getattr(producer._sender, "first_offsets", {})
    return offsets.get(place)


async def deliver(
    producer: AIOKafkaProducer,
    batches: Mapping[Place, Sequence[Batch]],
    outcomes: Mapping[Place, asyncio.Future[None]],
    answered: set[Place],
) -> None:
    """Send batches. Set the outcome of each partition when all its batches are answered.

    The first attempt is one request to add all partitions, and then one to each leader. aiokafka's sender, which needs
    twice the CPU time for this, does only what a broker did not do at once: it tries again, and knows each error. A
    batch that comes twice has the same sequence number, so its leader drops the second one.

    Args:
        outcomes: fail as :func:`send` does.
        answered: gets each partition of which a batch was answered.
    """
    is_added = await _add_partitions(producer, batches)
    by_leader: dict[int | None, list[Place]] = {}
    for place, leader in leaders(producer, batches).items():
        by_leader.setdefault(leader if is_added and leader != NO_LEADER else None, []).append(place)
    deliveries = [
        _deliver_to(producer, leader, {place: batches[place] for place in places}, outcomes, answered)
        for leader, places in by_leader.items()
    ]
    if len(deliveries) == 1:  # without a task
        await deliveries[0]
    else:
        await asyncio.gather(*deliveries)


def _ending_pauses_s() -> Iterator[float]:
    pause_s = ENDING_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_ENDING_S)


async def _add_partitions(producer: AIOKafkaProducer, places: Iterable[Place]) -> bool:
    """Add partitions to the transaction. Returns whether the coordinator has added them all."""
    manager = producer._txn_manager
    request = AddPartitionsToTxnRequest(
        manager.transactional_id, manager.producer_id, manager.producer_epoch, by_topic(dict.fromkeys(places, ()))
    )
    pauses_s = _ending_pauses_s()
    while True:
        response = await _ask_coordinator(producer, request)
        if response is None:
            return False
        codes = {code for _, partitions in response.errors for _, code in partitions}
        if ConcurrentTransactions.errno not in codes:
            break
        await asyncio.sleep(next(pauses_s))  # the markers of the last transaction are being written
    if any(codes):
        return False
    manager._txn_partitions.update(TopicPartition(*place) for place in places)
    return True


async def _deliver_to(
    producer: AIOKafkaProducer,
    leader: int | None,
    batches: Mapping[Place, Sequence[Batch]],
    outcomes: Mapping[Place, asyncio.Future[None]],
    answered: set[Place],
) -> None:
    """Send the batches of the partitions of one leader; None: aiokafka must find the leaders, or add the partitions."""
    manager = producer._txn_manager
    sent = dict.fromkeys(batches, 0)
    waiting = [] if leader is None else [*batches]
    while waiting:
        now = {place: batches[place][sent[place]] for place in waiting}
        try:
            response = await producer.client.send(leader, _produce_request(producer, now))
        except KafkaError:
            break
        _note_answer(producer._sender, response)
        waiting = []
        for topic, partitions in response.topics:
            for partition, code, *_ in partitions:
                place = topic, partition
                if code:
                    continue
                manager.increment_sequence_number(TopicPartition(*place), now[place].record_count())
                sent[place] += 1
                answered.add(place)
                if sent[place] < len(batches[place]):
                    waiting.append(place)
                elif not outcomes[place].done():
                    outcomes[place].set_result(None)
    left = [place for place in batches if sent[place] < len(batches[place])]
    if left:
        resent = (send(producer, *place, batches[place][sent[place] :], partial(answered.add, place)) for place in left)
        await asyncio.gather(*map(_settle, [outcomes[place] for place in left], resent))


async def _settle(outcome: asyncio.Future[None], sending: Coroutine[Any, Any, None]) -> None:
    error: Exception | None = None
    try:
        await sending
    except Exception as raised:
        error = raised
    if not outcome.done():
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)


def _produce_request(producer: AIOKafkaProducer, batches: Mapping[Place, Batch]) -> ProduceRequest:
    manager, sending = producer._txn_manager, producer._sender
    built = {}
    for place, batch in batches.items():
        first = manager.sequence_number(TopicPartition(*place))
        batch._set_producer_state(manager.producer_id, manager.producer_epoch, first)
        built[place] = (batch._build(),)
    return ProduceRequest(
        transactional_id=manager.transactional_id,
        required_acks=sending._acks,
        timeout=sending._request_timeout_ms,
        topics=by_topic(built),
    )


async def _ask_coordinator(producer: AIOKafkaProducer, request: Any) -> Any:
    """Returns the answer of the coordinator of transactions; None if it does not answer."""
    sending, name = producer._sender, producer._txn_manager.transactional_id
    try:
        node = await sending._find_coordinator(CoordinationType.TRANSACTION, name)
        return await producer.client.send(node, request, group=ConnectionGroup.COORDINATION)
    except KafkaError:
        return None


async def commit(producer: AIOKafkaProducer) -> None:
    """Commit the transaction. aiokafka's sender does it only if the coordinator did not do it at once.

    Raises:
        KafkaError: the outcome is not known, or another producer has fenced this one.
    """
    manager = producer._txn_manager
    if manager.state == TransactionState.IN_TRANSACTION:
        request = EndTxnRequest(manager.transactional_id, manager.producer_id, manager.producer_epoch, True)
        response = await _ask_coordinator(producer, request)
        if response is not None and not response.error_code:
            manager._transition_to(TransactionState.COMMITTING_TRANSACTION)
            manager.complete_transaction()
            return
    await producer.commit_transaction()


async def send(
    producer: AIOKafkaProducer,
    topic: str,
    partition: int,
    batches: Sequence[Batch],
    on_answer: Callable[[], object],
) -> None:
    """Send batches to one partition, and wait for all answers.

    Args:
        on_answer: called after each answer.

    Raises:
        BatchesRefused: some batches have bad records, and there is no other error.
        KafkaError: another error.
    """
    deliveries: list[asyncio.Future[Any]] = []
    try:
        for batch in batches:
            delivery: asyncio.Future[Any] = await producer.send_batch(batch, topic, partition=partition)
            delivery.add_done_callback(lambda _: on_answer())
            deliveries.append(delivery)
    except AssertionError:  # aiokafka's sign that the topic has fewer partitions now
        raise UnknownTopicOrPartitionError(topic, partition) from None
    answers: list[Any] = []
    for delivery in deliveries:  # asyncio.gather takes longer than this loop: most lists have one entry
        try:
            answers.append(await delivery)
        except Exception as error:
            answers.append(error)
    refused = [
        (batch, answer) for batch, answer in zip(batches, answers, strict=True) if isinstance(answer, RecordsRefused)
    ]
    # The brokers refuse a batch after a refused one, as out of sequence: its records are not the cause.
    consequence = (RecordsRefused, OutOfOrderSequenceNumber) if refused else ()
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, consequence):
            raise answer
    if refused:
        raise BatchesRefused(refused)


def track_topics(producer: AIOKafkaProducer, places: Iterable[tuple[str, int]]) -> None:
    """Keep the leaders of these partitions known, also after metadata updates.

    aiokafka knows all topics when it starts, but tracks only added topics: without this, the first use of a new topic
    would make it forget the leaders of the others.
    """
    for topic, _ in places:
        producer.client.add_topic(topic)


def unavailable(producer: AIOKafkaProducer, places: Iterable[tuple[str, int]]) -> dict[str, BaseException]:
    """Topic -> error, for partitions that have no leader or do not exist, by the last metadata."""
    found: dict[str, BaseException] = {}
    for topic, partition in places:
        leader = producer.client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if leader is None:
            found[topic] = UnknownTopicOrPartitionError(topic, partition)
        elif leader == NO_LEADER:
            found[topic] = LeaderNotAvailableError(topic, partition)
    return found


def short_of_replicas(producer: AIOKafkaProducer, places: Iterable[tuple[str, int]]) -> dict[str, BaseException]:
    """Topic -> error, for partitions whose leaders say that too few replicas are in sync. aiokafka asks them again."""
    short: set[tuple[str, int]] = getattr(producer._sender, "short_of_replicas", set())
    return {topic: NotEnoughReplicasError(topic, partition) for topic, partition in short.intersection(places)}


def leaders(producer: AIOKafkaProducer, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
    """Partition -> id of its leader by the last metadata, ``NO_LEADER``, or None if the partition is not known."""
    leader_of = producer.client.cluster.leader_for_partition
    return {place: leader_of(TopicPartition(*place)) for place in places}


def no_leaders(places: Iterable[tuple[str, int]]) -> dict[str, BaseException]:
    """Topic -> error that names its partitions, for partitions without a leader."""
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return {topic: LeaderNotAvailableError(topic, *partitions) for topic, partitions in found.items()}


async def update_metadata(producer: AIOKafkaProducer, timeout_s: float) -> bool:
    """Ask a broker for metadata. Returns whether it answered in time."""
    try:
        return bool(await asyncio.wait_for(producer.client.force_metadata_update(), timeout_s))
    except TimeoutError:
        return False


def throttled_until(producer: AIOKafkaProducer) -> float:
    """Until when a broker reads no batches of this producer, or has read none, in seconds of the monotonic clock."""
    until: float = getattr(producer._sender, "throttled_until", 0.0)
    return until


def transaction_error(producer: AIOKafkaProducer) -> BaseException | None:
    """Why the whole transaction failed; None if it has not."""
    outcome = producer._txn_manager.wait_for_transaction_end()
    return outcome.exception() if outcome.done() and not outcome.cancelled() else None


def opening(producer: AIOKafkaProducer) -> tuple[int, int]:
    """Id and epoch of a started producer. Each opening of a transactional id has the next epoch, or another id."""
    id, epoch = producer._txn_manager._pid_and_epoch
    return id, epoch


async def open_again(producer: AIOKafkaProducer) -> None:
    """Open a producer that has no open transaction again, over its connections: this fences all other producers.

    Raises:
        KafkaError: it cannot be used any more.
    """
    manager, sending = producer._txn_manager, producer._sender
    assert manager.state == TransactionState.READY, manager.state
    request = sender.InitPIDHandler(sending).create_request()
    pauses_s = _ending_pauses_s()
    while True:
        node = await sending._find_coordinator(CoordinationType.TRANSACTION, manager.transactional_id)
        response = await producer.client.send(node, request)
        if response.error_code != ConcurrentTransactions.errno:
            break
        await asyncio.sleep(next(pauses_s))
    if response.error_code:
        raise for_code(response.error_code)(manager.transactional_id)
    manager._pid_and_epoch = PidAndEpoch(response.producer_id, response.producer_epoch)
    manager._sequence_numbers.clear()


def log_unless_reported(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the loop that runs producers, unless a caller got it already.

    After a failure, aiokafka leaves futures with the same error, and tasks when its producer is dropped.
    """
    reported = isinstance(context.get("exception"), KafkaError) and "never retrieved" in context["message"]
    if not reported and "was destroyed but" not in context["message"]:
        loop.default_exception_handler(context)


async def close_at_once(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """Close a producer without waiting for deliveries, which ``producer.stop()`` waits for."""
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        task.cancel()
    await sessions.end_in_time(producer.client.close())
    if task is not None:
        await asyncio.wait([task], timeout=timeout_s)
        if task.done() and not task.cancelled():
            task.exception()


def install() -> None:
    """Let all producers of this process use version 8 of the produce request. May be called again."""
    if ProduceRequest_v8 not in ProduceRequest._CLASSES:
        ProduceRequest._CLASSES = (*ProduceRequest._CLASSES, ProduceRequest_v8)
    sender.SendProduceReqHandler = _Handler
