"""Sends transactions, and finds why brokers do not take them.

:func:`transact` is the whole of a transaction on the event loop of all producers. A first attempt goes past aiokafka's
sender: :func:`deliver` and :func:`commit` say how.

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
``AIOKafkaProducer._txn_manager``, ``_sender``              state of the transaction, the task that sends
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
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, KafkaTimeoutError, LeaderNotAvailableError, UnknownTopicOrPartitionError
from aiokafka.producer import sender
from aiokafka.producer.transaction_manager import PidAndEpoch, TransactionState
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v8
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest
from aiokafka.structs import OffsetAndMetadata

from timers.core.backoff import Pauses
from timers.core.ports import BatchesRefused, DeliveryFailed, Lost, Unanswered
from timers.kafka.aiokafka_internals.broker_answers import BrokerAnswers, wait_awake
from timers.kafka.aiokafka_internals.callback_batch import CallbackBatch
from timers.kafka.aiokafka_internals.record_batch import RecordBatch
from timers.kafka.aiokafka_internals.refusals import RecordsRefused, refusals
from timers.kafka.aiokafka_internals.requests import UNKNOWN_REQUEST_ERRORS, by_topic
from timers.kafka.aiokafka_internals.transaction_errors import (
    FENCING,
    Does,
    VersionAbsent,
    effect_of,
    effect_of_error,
    error_of,
    is_of_replicas,
)

Place: TypeAlias = tuple[str, int]
"""(Topic, partition)"""
Batch: TypeAlias = CallbackBatch | RecordBatch

NO_LEADER = -1

CHECK_S = 1.0
"""If a delivery, or the answer of a leader, takes longer, the metadata are checked again and again: aiokafka tries a
deleted topic without end, and a silent leader may have a successor."""

ANSWER_S = 5.0
"""Time for an answer of each leader before a transaction begins; less than the time-out of a request."""

DELIVERY_TIMEOUT_S = 6.0
TRANSACTION_S = 8.0
"""Time for deliveries, and for these and the group's offsets: less than the timeout after which brokers fence."""

MOST_STARTS = 1_000
"""Most first offsets in :attr:`TransactionalProducer.held_from`: more than a machine has transactions while an answer
about the end of its log is on its way. A machine without such answers removes none."""

TRANSACTION_ENDING_PAUSES = Pauses(0.01, 0.08)
"""Before a request is sent again while the markers of the producer's last transaction are being written. With the same
pause each time, 64 machines on a busy machine sent four of five requests in vain."""

END_S = 20.0
"""Time for the end of a transaction; the coordinator moves in less. Then the machine is opened anew."""

MOST_FENCING = 8
"""Times that an end is sent again after answers of :data:`FENCING`, within 0.5 s. An opening asks again after 0.1 s."""

_OF_THE_PRODUCER = {Does.ANEW, Does.FENCED, Does.RIGHT}
"""Effects of errors that are not the fault of a topic or a group."""


class Road(NamedTuple):
    """How the requests of a transaction go to the brokers. Each version of transactions has its own."""

    version: int
    deliver: Callable[
        [AIOKafkaProducer, Mapping[Place, Sequence[Batch]], Mapping[Place, asyncio.Future[None]], set[Place]],
        Coroutine[Any, Any, None],
    ]
    """:func:`deliver`"""
    send_offsets: Callable[
        [AIOKafkaProducer, Mapping[TopicPartition, OffsetAndMetadata], str], Coroutine[Any, Any, None]
    ]
    """Commits offsets of a group in the transaction. Raises KafkaError."""
    commit: Callable[[AIOKafkaProducer], Coroutine[Any, Any, None]]
    """:func:`commit`"""
    abort: Callable[[AIOKafkaProducer], Coroutine[Any, Any, None]] | None
    """Rolls back; raises as :func:`commit`. None: aiokafka's abort does it, and the producer must be opened again."""


class _Handler(sender.SendProduceReqHandler):
    """Lets a refused batch fail with :class:`RecordsRefused`, and notes for how long brokers throttle the producer.

    aiokafka's own drops the list of bad records, and has no name for error 87."""

    def handle_response(self, response: Any) -> None:
        note_answer(self._sender, response)
        for tp, error in refusals(response).items():
            batch = self._batches.get(tp)
            if batch is not None:
                batch.failure(exception=error)  # aiokafka fails it again, which has no effect
        super().handle_response(response)


def note_answer(sending: Any, response: Any, version: int = 1) -> None:
    """Note for how long the broker throttles, which partitions have too few replicas in sync, and the first offset in
    each partition. In version 1 of transactions the code alone counts: aiokafka asks again without end."""
    short: set[tuple[str, int]] = getattr(sending, "short_of_replicas", set())
    first: dict[tuple[str, int], int] = getattr(sending, "first_offsets", {})
    sending.short_of_replicas, sending.first_offsets = short, first
    for topic, partitions, *_ in response.topics:
        for partition, code, offset, *others in partitions:
            (short.add if is_of_replicas(code, others if version == 2 else ()) else short.discard)((topic, partition))
            if offset >= 0:  # a broker gives an offset if it has appended the batch, also if the copies came too late
                first.setdefault((topic, partition), offset)
    throttled_ms = getattr(response, "throttle_time_ms", 0)
    if throttled_ms > 0:
        until = monotonic() + throttled_ms / 1000
        sending.throttled_until = max(until, getattr(sending, "throttled_until", 0.0))


async def transact(
    producer: AIOKafkaProducer,
    answers: BrokerAnswers,
    batches: Mapping[Place, Sequence[Batch]],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: str,
    own: Place,
    held_from: set[int],
    road: Road,
) -> bool:
    """Send batches and offsets of a group in a transaction, and commit it.

    Args:
        batches: sealed.
        held_from: gets the first offset that the transaction has there, also if it is rolled back.
        road: of the version of transactions that the producer was opened for.

    Returns:
        Whether it has the offsets: not without the coordinator of the group.

    Raises:
        BatchesRefused: some batches have bad records. It can be rolled back.
        DeliveryFailed, Unanswered, Lost, KafkaError: it failed otherwise, or its outcome is not known.
    """
    track_topics(producer, batches)
    answering = await check_leaders(producer, answers, batches)
    if road.version == 2 and answers.transaction_version == 1:  # a broker has just answered that the version is 1
        raise Lost(f"{producer._txn_manager.transactional_id}: the brokers have changed transaction.version")
    # The transaction could not end either if the group's partition of the offsets topic had no leader.
    with_offsets = bool(offsets) and await answers.has_coordinator(producer, group)
    if not (batches or with_offsets):
        return False
    began_s = monotonic()
    producer._txn_manager.begin_transaction()
    producer._sender.first_offsets = {}
    if batches:
        try:
            await deliver_in_time(producer, batches, road)
        finally:
            if (first := first_offset(producer, own)) is not None:
                held_from.add(first)
                if len(held_from) > MOST_STARTS:
                    held_from.remove(min(held_from))
    answers.note(answering)
    if with_offsets:
        # Not together with the batches: while the coordinator adds the group, it cannot confirm a partition, and
        # the partition's leader would refuse the batch (KIP-890), which is tried again 100 ms later.
        least_s = TRANSACTION_S - DELIVERY_TIMEOUT_S
        left_s = 0.0 if answers.doubts_group else TRANSACTION_S - (monotonic() - began_s)
        try:
            await _send_offsets_in_time(road.send_offsets(producer, offsets, group), max(left_s, least_s))
        except (Unanswered, KafkaError) as error:
            if effect_of_error(error) not in _OF_THE_PRODUCER:
                answers.note_offsets(group, began_s, error)
            raise
        answers.note_offsets(group, began_s)
    await road.commit(producer)
    return with_offsets


async def _send_offsets_in_time(sending: Coroutine[Any, Any, None], seconds: float) -> None:
    """Send offsets. Raises Unanswered or KafkaError."""
    sent = asyncio.ensure_future(sending)
    try:
        if await wait_awake([sent], seconds):
            raise Unanswered(())
        await sent
    finally:
        sent.cancel()


async def check_leaders(producer: AIOKafkaProducer, answers: BrokerAnswers, places: Collection[Place]) -> set[int]:
    """Check before a transaction that the leaders of its partitions answer. Returns the leaders.

    Raises:
        DeliveryFailed: partitions have no leader, or it takes no connection.
        Unanswered: leaders do not answer.
        Lost: no broker answers.
    """
    refusing = {NO_LEADER}
    is_fresh = False
    checks_left = math.ceil(ANSWER_S / CHECK_S)
    while True:
        # After an update for other topics, aiokafka does not know the leaders of a topic that is used first.
        now = leaders(producer, places)
        leaderless = [place for place, leader in now.items() if leader in refusing]
        if leaderless and is_fresh:
            partitions = by_topic(dict.fromkeys(leaderless, ()))
            raise DeliveryFailed({topic: LeaderNotAvailableError(topic, *named) for topic, named in partitions})
        known = {leader for leader in now.values() if leader is not None}
        silent: set[tuple[str, int]] = set()
        if not leaderless and (is_fresh or None not in now.values()):
            absent = await answers.absent(producer, known, CHECK_S)
            if not any(absent):
                return known
            refusing |= absent.refusing
            silent = {place for place, leader in now.items() if leader in absent.silent}
            checks_left -= bool(silent)
            if not checks_left:
                raise Unanswered(silent, rolled_back=True)
        # Another broker may be the leader now.
        is_fresh = await update_metadata(producer, CHECK_S if silent else ANSWER_S)
        if not (is_fresh or silent):
            raise Lost(f"{producer._txn_manager.transactional_id}: no broker answers")


async def deliver_in_time(producer: AIOKafkaProducer, batches: Mapping[Place, Sequence[Batch]], road: Road) -> None:
    """Send batches, and wait for the answers. Raises as :func:`transact`."""
    began_s = monotonic()
    answered: set[tuple[str, int]] = set()
    outcomes = {place: asyncio.get_running_loop().create_future() for place in batches}
    sending = {outcome: place for place, outcome in outcomes.items()}
    delivery = asyncio.create_task(road.deliver(producer, batches, outcomes, answered))
    try:
        late, is_updated = await wait_awake(sending, CHECK_S), False
        for left in reversed(range(math.ceil(DELIVERY_TIMEOUT_S / CHECK_S))):
            if delivery.done():
                delivery.result()
            failed = _failed(producer, sending)
            if not failed and is_updated:
                failed = unavailable(producer, {sending[task] for task in late})
            failed = failed or short_of_replicas(producer, {sending[task] for task in late})
            if failed:
                raise DeliveryFailed(failed)
            if not late or not left:
                break
            # A rollback needs all answers, and other batches may have bad records too.
            late, is_updated = await asyncio.gather(
                wait_awake(late, CHECK_S, asyncio.ALL_COMPLETED), update_metadata(producer, CHECK_S)
            )
        late |= {task for task in sending if isinstance(_error(task), KafkaTimeoutError)}
        if late:
            silent = {sending[task] for task in late} - answered
            raise Unanswered(() if throttled_until(producer) > began_s else silent)
        found = [error for task in sending if isinstance(error := _error(task), BatchesRefused)]
        if found:
            raise BatchesRefused([each for error in found for each in error.batches])
    finally:
        for task in (delivery, *sending):
            task.cancel()


def _error(sending: asyncio.Future[Any]) -> BaseException | None:
    """The error of a future; None if it has none, or has not ended."""
    return sending.exception() if sending.done() and not sending.cancelled() else None


def _failed(
    producer: AIOKafkaProducer, sending: Mapping[asyncio.Future[Any], tuple[str, int]]
) -> dict[str, BaseException]:
    """Topic -> error, for topics that do not take batches.

    Raises:
        KafkaError: the whole transaction failed, and not because of a topic.
    """
    fatal = transaction_error(producer)
    if isinstance(fatal, errors.TopicAuthorizationFailedError):  # aiokafka then also fails the batches of other topics
        return dict.fromkeys(fatal.args[0], fatal)
    if fatal is not None:
        raise fatal
    failed: dict[str, BaseException] = {}
    for task, (topic, _) in sending.items():
        error = _error(task)
        if error is not None and effect_of_error(error) in _OF_THE_PRODUCER:
            raise error
        if error is not None and not isinstance(error, (BatchesRefused, KafkaTimeoutError)):
            failed[topic] = error
    return failed


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
    is_added = await add_partitions(producer, batches)
    by_leader: dict[int | None, list[Place]] = {}
    for place, leader in leaders(producer, batches).items():
        by_leader.setdefault(leader if is_added and leader != NO_LEADER else None, []).append(place)
    deliveries = [
        _deliver_to(producer, leader, {place: batches[place] for place in places}, outcomes, answered)
        for leader, places in by_leader.items()
    ]
    await together(deliveries)


async def together(sendings: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for requests to several leaders."""
    if len(sendings) == 1:  # gather() would start a task, which costs CPU time
        await sendings[0]
    else:
        await asyncio.gather(*sendings)


async def add_partitions(producer: AIOKafkaProducer, places: Iterable[Place]) -> bool:
    """Add partitions to the transaction. Returns whether the coordinator has added them all."""
    manager = producer._txn_manager
    request = AddPartitionsToTxnRequest(
        manager.transactional_id, manager.producer_id, manager.producer_epoch, by_topic(dict.fromkeys(places, ()))
    )
    for tries in count(1):
        response = await ask_coordinator(producer, request)
        if response is None:
            producer._sender._coordinator_dead(CoordinationType.TRANSACTION)
            return False
        codes = {code for _, partitions in response.errors for _, code in partitions}
        if errors.ConcurrentTransactions.errno not in codes:
            break
        await asyncio.sleep(
            TRANSACTION_ENDING_PAUSES.after(tries)
        )  # the markers of the last transaction are being written
    if any(codes):
        if codes & {errors.CoordinatorNotAvailableError.errno, errors.NotCoordinatorError.errno}:
            producer._sender._coordinator_dead(CoordinationType.TRANSACTION)
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
        note_answer(producer._sender, response)
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
    try:
        await sending
    except Exception as error:
        if not outcome.done():
            outcome.set_exception(error)
    else:
        if not outcome.done():
            outcome.set_result(None)


def _produce_request(producer: AIOKafkaProducer, batches: Mapping[Place, Batch]) -> ProduceRequest:
    manager, sending = producer._txn_manager, producer._sender
    built = {place: (numbered(producer, place, batch),) for place, batch in batches.items()}
    return ProduceRequest(
        transactional_id=manager.transactional_id,
        required_acks=sending._acks,
        timeout=sending._request_timeout_ms,
        topics=by_topic(built),
    )


def numbered(producer: AIOKafkaProducer, place: Place, batch: Batch) -> bytes | bytearray:
    """The bytes of a batch, with the producer's id and epoch, and the next sequence number of the partition."""
    manager = producer._txn_manager
    first = manager.sequence_number(TopicPartition(*place))
    batch._set_producer_state(manager.producer_id, manager.producer_epoch, first)
    built: bytes | bytearray = batch._build()
    return built


async def ask_coordinator(
    producer: AIOKafkaProducer, request: Any, kind: int = CoordinationType.TRANSACTION, key: str = ""
) -> Any:
    """Returns the answer of the coordinator, of transactions without ``kind`` and ``key``; None without an answer."""
    try:
        node = await producer._sender._find_coordinator(kind, key or producer._txn_manager.transactional_id)
        return await ask(producer, node, request, ConnectionGroup.COORDINATION)
    except VersionAbsent:
        raise
    except KafkaError:
        return None


async def ask(producer: AIOKafkaProducer, node: int, request: Any, group: int = ConnectionGroup.DEFAULT) -> Any:
    """Returns the answer of a broker.

    Raises:
        VersionAbsent: it does not know this version of the request.
        KafkaError: it does not answer.
    """
    try:
        return await producer.client.send(node, request, group=group)
    except UNKNOWN_REQUEST_ERRORS as error:
        raise VersionAbsent(f"broker {node}: {error}") from error


async def end(producer: AIOKafkaProducer, request: Any, *, committed: bool, repeats: bool) -> Any:
    """Let the coordinator end the transaction. Returns its answer.

    Args:
        committed: whether the request commits it.
        repeats: whether a request without an answer is sent again. In version 1 it must not be: if a network holds the
            first one back until the next transaction is open, it ends that one, which has the same epoch [I5]. In
            version 2 the epoch is another one then.

    Raises:
        KafkaError: the outcome is not known, or another producer has fenced this one.
    """
    manager, is_unsure, fencing = producer._txn_manager, False, 0
    if (failed := transaction_error(producer)) is not None:
        raise failed
    async with asyncio.timeout(END_S):
        for tries in count(1):
            answer = await ask_coordinator(producer, request)
            does = Does.LOOK if answer is None else effect_of(answer.error_code)
            if does is Does.DONE:
                break
            if does is Does.LOOK:  # a coordinator that moves may have ended the transaction before
                is_unsure = True
                if answer is None and not repeats:
                    raise errors.RequestTimedOutError("the coordinator did not answer the end of a transaction")
            elif does not in (Does.AGAIN, Does.LOOK):
                if is_unsure:  # a later owner may have fenced this producer after its commit
                    raise errors.InvalidTxnState()
                fencing += 1
                if answer.error_code not in FENCING or fencing > MOST_FENCING:
                    raise error_of(answer.error_code)
            if does is Does.LOOK:
                producer._sender._coordinator_dead(CoordinationType.TRANSACTION)
            await asyncio.sleep(TRANSACTION_ENDING_PAUSES.after(tries))
    manager._transition_to(
        TransactionState.COMMITTING_TRANSACTION if committed else TransactionState.ABORTING_TRANSACTION
    )
    manager.complete_transaction()
    return answer


async def commit(producer: AIOKafkaProducer) -> None:
    """Commit the transaction, of version 1. Raises as :func:`end`."""
    manager = producer._txn_manager
    request = EndTxnRequest(manager.transactional_id, manager.producer_id, manager.producer_epoch, True)
    await end(producer, request, committed=True, repeats=False)


def _send_offsets(
    producer: AIOKafkaProducer, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str
) -> Coroutine[Any, Any, None]:
    sending: Coroutine[Any, Any, None] = producer.send_offsets_to_transaction(offsets, group)
    return sending


VERSION_ONE = Road(1, deliver, _send_offsets, commit, abort=None)


async def send(
    producer: AIOKafkaProducer,
    topic: str,
    partition: int,
    batches: Sequence[Batch],
    on_answer: Callable[[], object],
) -> None:
    """Send batches to one partition, and wait for all answers.

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
    consequence = (RecordsRefused, errors.OutOfOrderSequenceNumber) if refused else ()
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
    return {topic: errors.NotEnoughReplicasError(topic, partition) for topic, partition in short.intersection(places)}


def leaders(producer: AIOKafkaProducer, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
    """Partition -> id of its leader by the last metadata, ``NO_LEADER``, or None if the partition is not known."""
    leader_of = producer.client.cluster.leader_for_partition
    return {place: leader_of(TopicPartition(*place)) for place in places}


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


def coordinator_of(producer: AIOKafkaProducer) -> int:
    """The coordinator of a started producer's transactions."""
    node: int = producer._sender._coordinators[CoordinationType.TRANSACTION]
    return node


def opening(producer: AIOKafkaProducer) -> tuple[int, int]:
    """Id and epoch of a started producer. Each opening of a transactional id has the next epoch, or another id."""
    id, epoch = producer._txn_manager._pid_and_epoch
    return id, epoch


def set_opening(producer: AIOKafkaProducer, id: int, epoch: int) -> None:
    """Go on with this id and epoch. The numbers of batches begin at 0."""
    manager = producer._txn_manager
    manager._pid_and_epoch = PidAndEpoch(id, epoch)
    manager._sequence_numbers.clear()


async def open_again(producer: AIOKafkaProducer) -> None:
    """Open a producer that has no open transaction again, over its connections: this fences all other producers.

    Raises:
        KafkaError: it cannot be used any more.
    """
    manager, sending = producer._txn_manager, producer._sender
    assert manager.state == TransactionState.READY, manager.state
    request = sender.InitPIDHandler(sending).create_request()
    for tries in count(1):
        node = await sending._find_coordinator(CoordinationType.TRANSACTION, manager.transactional_id)
        response = await producer.client.send(node, request)
        if response.error_code != errors.ConcurrentTransactions.errno:
            break
        await asyncio.sleep(TRANSACTION_ENDING_PAUSES.after(tries))
    if response.error_code:
        raise errors.for_code(response.error_code)(manager.transactional_id)
    set_opening(producer, response.producer_id, response.producer_epoch)


def install() -> None:
    """Let all producers of this process use version 8 of the produce request. May be called again."""
    if ProduceRequest_v8 not in ProduceRequest._CLASSES:
        ProduceRequest._CLASSES = (*ProduceRequest._CLASSES, ProduceRequest_v8)
    sender.SendProduceReqHandler = _Handler
