"""Transactional producing on aiokafka, for threads.

A machine's thread passes a whole transaction and waits: begin, batches, offsets and commit run as one coroutine on an
event loop that all machines share. So while a transaction is open, it waits only for brokers.

If brokers refuse records, the transaction is aborted. After any other error the machine is opened again:
``init_transactions`` rolls back the open transaction, and the committed progress shows what happened [I5]. aiokafka's
abort is not used then: it can forget partitions that it has added, and a later commit would commit them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.errors import (
    IllegalOperation,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.admin import ApiVersionRequest

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.errors import AccessError, Fenced
from timers.kafka import connection
from timers.kafka.aiokafka_internals import produce
from timers.kafka.aiokafka_internals.produce import RecordsRefused
from timers.kafka.clients import TRANSACTION_TIMEOUT_MS
from timers.worker.partition_metrics import Heartbeat
from timers.worker.sending.batches import RecordBatch
from timers.worker.sending.producer_loop import ProducerLoop, wait_awake

logger = logging.getLogger(__name__)

OFFSETS_TIMEOUT_S = 2.0

ROLLBACK_TIMEOUT_S = 5.0
"""A rollback usually takes 26 ms. If it takes longer than this, the machine is opened again, which also rolls back."""

PROBE_S = 1.0
"""If a delivery takes longer, its topics are checked: aiokafka tries without end to send to a deleted topic."""

DELIVERY_TIMEOUT_S = 6.0
"""After this time a target counts as failing. Together with the time for the offsets it is less than the transaction
timeout. So the broker does not end the transaction first, which would hide the failing target."""

CLOSE_TIMEOUT_S = 2.0
STOP_POLL_S = 0.5

_T = TypeVar("_T")

NO_LEADER = -1

Batch = tuple[str, int, RecordBatch]
"""(topic, partition, sealed batch)"""


class DeliveryFailed(Lost):
    """Some topics did not take their records. The next opening of the machine rolls the transaction back.

    Attributes:
        culprits: topic -> its error.
    """

    def __init__(self, culprits: Mapping[str, BaseException]) -> None:
        super().__init__("; ".join(f"{topic}: {error!r}" for topic, error in culprits.items()))
        self.culprits = culprits


class RecordsNotTaken(Exception):
    """Brokers refused records of the transaction. It was rolled back; the same machine may send another one.

    Attributes:
        refused: (batch, what the broker said about it).
    """

    def __init__(self, refused: Sequence[tuple[RecordBatch, RecordsRefused]]) -> None:
        super().__init__("; ".join(f"{error.topic}: {error.name} ({error.why})" for _, error in refused))
        self.refused = refused


def _refusal(task: asyncio.Task[None]) -> RecordsNotTaken | None:
    """The error of a task about refused records; None if it has not ended with this error."""
    error = task.exception() if task.done() and not task.cancelled() else None
    return error if isinstance(error, RecordsNotTaken) else None


class TransactionalProducer:
    """One machine's producer. Every method blocks and is called from one thread.

    Args:
        loop: shared by all machines.
        settings: of the worker.
        transactional_id: of the machine; fences any other producer that has it.
        stop: set when the machine must end; then waiting ends.
        failing: returns topic -> error for partitions that do not exist or have no leader; blocks.
        heartbeat: of the calling thread; updated while it waits for the brokers.
    """

    def __init__(
        self,
        loop: ProducerLoop,
        settings: Settings,
        transactional_id: str,
        stop: threading.Event,
        failing: Callable[[Iterable[tuple[str, int]]], Mapping[str, KafkaError]],
        heartbeat: Heartbeat,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._transactional_id = transactional_id
        self._stop = stop
        self._failing = failing
        self._heartbeat = heartbeat
        self._producer: AIOKafkaProducer | None = None

    def open(self) -> None:
        """Fence the previous owner and roll back its open transaction.

        Raises:
            Lost: told to stop before the brokers answered.
        """
        self._wait(self._loop.submit(self._open()))

    async def _open(self) -> None:
        producer = AIOKafkaProducer(
            **connection.aiokafka(self._settings),
            client_id=f"{self._settings.worker_id}-{self._transactional_id}",
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=int(DELIVERY_TIMEOUT_S * 1000),
        )
        try:
            await self._start(producer)
        except BaseException:  # also after a cancel: the producer would ask for metadata without end
            await self._close(producer)
            raise
        self._producer = producer

    async def _start(self, producer: AIOKafkaProducer) -> None:
        logged = False
        while not self._stop.is_set():
            try:
                await producer.start()
            except (KafkaError, OSError) as error:
                if not (isinstance(error, OSError) or error.retriable or isinstance(error, KafkaConnectionError)):
                    raise
                if not logged:
                    logger.warning("%s: waiting for the brokers (%r)", self._transactional_id, error)
                    logged = True
                await asyncio.sleep(0.2)
            else:
                return
        raise Lost(f"{self._transactional_id}: told to stop before the brokers answered")

    @property
    def stopping(self) -> bool:
        """Whether the machine was told to end."""
        return self._stop.is_set()

    def transact(self, batches: Iterable[Batch], offsets: dict[TopicPartition, int]) -> None:
        """Send and commit.

        Raises:
            Fenced: another worker owns the machine.
            RecordsNotTaken: brokers refused some records, and nothing is visible; another transaction may follow.
            DeliveryFailed: some topics failed; the machine must be opened again.
            Lost: the outcome is not known; the machine must be opened again.
        """
        by_partition: dict[tuple[str, int], list[RecordBatch]] = {}
        for topic, partition, batch in batches:
            by_partition.setdefault((topic, partition), []).append(batch)
        self._wait(self._loop.submit(self._transact(by_partition, offsets)))

    async def _transact(
        self, batches: dict[tuple[str, int], list[RecordBatch]], offsets: dict[TopicPartition, int]
    ) -> None:
        producer = self._producer
        assert producer is not None, "call open() first"
        # aiokafka knows all topics when it starts, but tracks only added topics: without this, the first use of a new
        # topic would make it forget the leaders of the others.
        for topic, _ in batches:
            producer.client.add_topic(topic)
        # A partition without a leader must not become part of a transaction: a rollback would also need the leader,
        # and the machine could not begin another transaction before the leader is back.
        leaderless = {
            topic
            for topic, partition in batches
            if producer.client.cluster.leader_for_partition(TopicPartition(topic, partition)) == NO_LEADER
        }
        if leaderless:
            raise DeliveryFailed(dict.fromkeys(leaderless, LeaderNotAvailableError()))
        await producer.begin_transaction()
        try:
            await self._deliver(producer, batches)
        except RecordsNotTaken:
            await self._roll_back(producer)
            raise
        if offsets:
            # Not together with the batches: while the coordinator adds the group, it cannot confirm a partition, and
            # the partition's leader would refuse the batch (KIP-890), which is tried again 100 ms later.
            offsets_sent = asyncio.ensure_future(producer.send_offsets_to_transaction(offsets, self._settings.app_id))
            try:
                if await wait_awake([offsets_sent], OFFSETS_TIMEOUT_S):
                    raise TimeoutError(f"the group's coordinator did not answer for {OFFSETS_TIMEOUT_S:.0f} s")
                await offsets_sent
            finally:
                offsets_sent.cancel()
        await producer.commit_transaction()

    async def _roll_back(self, producer: AIOKafkaProducer) -> None:
        """End the open transaction, and open a producer whose sequence numbers match those of the brokers.

        Opening would fence another owner. The abort comes first, because it fails if there is another owner.
        """
        async with asyncio.timeout(ROLLBACK_TIMEOUT_S):
            await producer.abort_transaction()
            self._producer = None
            await self._close(producer)
            await self._open()

    async def _deliver(self, producer: AIOKafkaProducer, batches: dict[tuple[str, int], list[RecordBatch]]) -> None:
        sending = {
            asyncio.create_task(self._send(producer, topic, partition, queue)): topic
            for (topic, partition), queue in batches.items()
        }
        silent_leaders: dict[str, KafkaError] = {}
        try:
            late = await wait_awake(sending, PROBE_S)
            if any(map(_refusal, sending)):  # a rollback needs all answers; other batches may have bad records too
                late = await wait_awake(sending, DELIVERY_TIMEOUT_S - PROBE_S, return_when=asyncio.ALL_COMPLETED)
                self._raise_if_only_refused(sending)
            elif late and not self._culprits(producer, sending):
                places = {place for task, place in zip(sending, batches, strict=True) if task in late}
                failing, silent_leaders = await asyncio.gather(
                    self._which_fail(places), self._with_silent_leaders(producer, batches)
                )
                if failing:
                    raise DeliveryFailed(failing)
                await wait_awake(sending, DELIVERY_TIMEOUT_S - 2 * PROBE_S)
                self._raise_if_only_refused(sending)
            culprits = self._culprits(producer, sending)
            if not culprits:
                slow = {topic for task, topic in sending.items() if not task.done()}
                culprits = dict.fromkeys(slow, TimeoutError(f"no answer for {DELIVERY_TIMEOUT_S:.0f} s"))
            if any(isinstance(error, (TimeoutError, KafkaTimeoutError)) for error in culprits.values()):
                # If a broker does not answer, or answered too late, it is the cause, and not the topic.
                culprits |= silent_leaders | await self._with_silent_leaders(producer, batches)
            if culprits:
                raise DeliveryFailed(culprits)
        finally:
            for task in sending:
                task.cancel()

    @staticmethod
    def _raise_if_only_refused(sending: Iterable[asyncio.Task[None]]) -> None:
        """Raise RecordsNotTaken if there are refused records, and nothing else failed or has no answer."""
        failed = [_refusal(task) for task in sending if not task.done() or task.cancelled() or task.exception()]
        refusals = [refusal for refusal in failed if refusal is not None]
        if refusals and len(refusals) == len(failed):
            raise RecordsNotTaken([one for refusal in refusals for one in refusal.refused])

    async def _which_fail(self, places: set[tuple[str, int]]) -> Mapping[str, KafkaError]:
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._failing, places), PROBE_S)
        except TimeoutError:
            return {}

    @staticmethod
    async def _with_silent_leaders(
        producer: AIOKafkaProducer, places: Iterable[tuple[str, int]]
    ) -> dict[str, KafkaError]:
        """Topic -> ``NodeNotReadyError``, for topics with a partition whose leader does not answer now."""
        client = producer.client
        leaders = {place: client.cluster.leader_for_partition(TopicPartition(*place)) for place in places}

        async def silent(node: int | None) -> bool:
            # Not on the connection for batches: there the answer would wait for the answers to the batches.
            probe = client.send(node, ApiVersionRequest(), group=ConnectionGroup.COORDINATION)
            try:
                await asyncio.wait_for(probe, PROBE_S)
            except (KafkaError, TimeoutError):
                return True
            return False

        nodes = list(set(leaders.values()))
        answers = dict(zip(nodes, await asyncio.gather(*map(silent, nodes)), strict=True))
        return {topic: NodeNotReadyError() for (topic, _), node in leaders.items() if answers[node]}

    @staticmethod
    async def _send(producer: AIOKafkaProducer, topic: str, partition: int, queue: list[RecordBatch]) -> None:
        try:
            deliveries: list[Awaitable[Any]] = [
                await producer.send_batch(batch, topic, partition=partition) for batch in queue
            ]
        except AssertionError:  # aiokafka's sign that the topic has fewer partitions now
            raise UnknownTopicOrPartitionError(topic, partition) from None
        answers = await asyncio.gather(*deliveries, return_exceptions=True)
        refused = [
            (batch, answer) for batch, answer in zip(queue, answers, strict=True) if isinstance(answer, RecordsRefused)
        ]
        # A batch after a refused one is out of sequence: a consequence, and no fault of its records.
        consequence = (RecordsRefused, OutOfOrderSequenceNumber) if refused else ()
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, consequence):
                raise answer
        if refused:
            raise RecordsNotTaken(refused)

    @staticmethod
    def _culprits(producer: AIOKafkaProducer, sending: Mapping[asyncio.Task[None], str]) -> dict[str, BaseException]:
        """Topic -> error, for topics that refused their records.

        Raises:
            KafkaError: the whole transaction failed, and not because of a topic.
        """
        fatal = produce.transaction_error(producer)
        if isinstance(fatal, TopicAuthorizationFailedError):  # aiokafka then also fails the batches of other topics
            return dict.fromkeys(fatal.args[0], fatal)
        if fatal is not None:
            raise fatal
        culprits: dict[str, BaseException] = {}
        for task, topic in sending.items():
            if task.done() and not task.cancelled():
                error = task.exception()
                if isinstance(error, (ProducerFenced, InvalidProducerEpoch, InvalidTxnState, IllegalOperation)):
                    raise error
                if error is not None and not isinstance(error, RecordsNotTaken):
                    culprits[topic] = error
        return culprits

    def _wait(self, outcome: Future[_T]) -> _T:
        """Wait for the loop; when the machine must stop, wait no longer than a delivery may take."""
        polls_left = DELIVERY_TIMEOUT_S / STOP_POLL_S
        while True:
            self._heartbeat.beat()
            try:
                return outcome.result(STOP_POLL_S)
            except StillRunning:
                if outcome.done():  # it ended just now, or the coroutine itself timed out
                    with contextlib.suppress(TimeoutError):
                        return outcome.result()
                    raise Lost(f"{self._transactional_id}: timed out") from None
                polls_left -= self._stop.is_set()
                if polls_left <= 0:
                    outcome.cancel()
                    raise Lost(f"{self._transactional_id}: stopped while the brokers did not answer") from None
            except (ProducerFenced, InvalidProducerEpoch):
                raise Fenced(
                    f"{self._transactional_id} was taken over by another worker (was this one paused, or is "
                    "TIMERS_WORKER_ID or TIMERS_APP_ID used twice?)"
                ) from None
            except TransactionalIdAuthorizationFailed:
                raise AccessError(
                    f"{connection.principal(self._settings)} may not write as transactional id "
                    f"{self._transactional_id!r}: it needs the ACLs Write and Describe on all that begin with "
                    f"{self._settings.app_id + '-'!r} (docs/security.md)"
                ) from None
            except (KafkaError, OutOfOrderSequenceNumber, AssertionError) as error:
                raise Lost(f"{self._transactional_id}: {error!r}") from error

    def close(self) -> None:
        """Close the connections. The next owner's fencing ends an open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):
                self._loop.submit(self._close(producer)).result(2 * CLOSE_TIMEOUT_S)

    @staticmethod
    async def _close(producer: AIOKafkaProducer) -> None:
        await produce.close_at_once(producer, CLOSE_TIMEOUT_S)
