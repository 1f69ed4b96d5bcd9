"""Transactional producing on aiokafka, for threads.

A machine's thread passes a whole transaction and waits: begin, batches, offsets and commit run as one coroutine on an
event loop that all machines share. So while a transaction is open, it waits only for brokers.

If brokers refuse records, the transaction is aborted. After any other error the machine is opened again:
``init_transactions`` rolls back the open transaction, and the committed progress shows what happened [I5]. aiokafka's
abort is not used then: it can forget partitions that it has added, and a later commit would commit them too.

Which topic failed is what the brokers said: their answer to a batch, or metadata without the partition or its leader.
Silence shows no cause. Then the machine tries fewer timers (:class:`timers.core.ports.TooMuch`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as StillRunning
from time import monotonic, sleep
from typing import TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidProducerEpoch,
    KafkaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersionError,
)
from aiokafka.structs import OffsetAndMetadata

from timers.core.limits import LONG_TRANSACTION_S
from timers.core.ports import BatchesRefused, DeliveryFailed, Lost, Unanswered
from timers.core.timer import TopicPartition as Machine
from timers.errors import AccessError, Fenced
from timers.kafka import aiokafka_clients, connection
from timers.kafka.aiokafka_internals import produce, version_two
from timers.kafka.aiokafka_internals.callback_batch import IS_COMPILED, CallbackBatch, write_callbacks
from timers.kafka.aiokafka_internals.metadata import start_patiently
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop, close_at_once
from timers.kafka.aiokafka_internals.record_batch import RecordBatch, size_alone
from timers.kafka.aiokafka_internals.transaction_errors import VersionAbsent
from timers.kafka.clients import TRANSACTION_TIMEOUT_MS
from timers.kafka.error_codes import limit_of
from timers.process.config.settings import Settings
from timers.process.config.variables import AUTO
from timers.process.partition_metrics import FENCED, PartitionMetrics
from timers.wire import topics

logger = logging.getLogger(__name__)

ROLLBACK_TIMEOUT_S = 5.0
"""A rollback usually takes 26 ms. If it takes longer than this, the machine is opened again, which also rolls back."""

OPEN_TIMEOUT_S = 20.0
"""Longer than a transaction of the former owner may last. The next attempt follows soon."""

QUOTA_LOG_S = 60.0
"""Seconds between two lines about a quota."""

CLOSE_TIMEOUT_S = 2.0
STOP_POLL_S = 0.5

_T = TypeVar("_T")

Batch = tuple[str, int, RecordBatch]
"""(topic, partition, sealed batch)"""


class TransactionalProducer:
    """One machine's producer. Every method blocks and is called from one thread.

    Args:
        loop: shared by all machines.
        settings: of the worker.
        machine: its transactional id fences any other producer that has it.
        stop: set when the machine must end; then waiting ends.
        metrics: of the machine; its heartbeat beats while the calling thread waits for the brokers.
    """

    def __init__(
        self,
        loop: ProducerLoop,
        settings: Settings,
        machine: Machine,
        stop: threading.Event,
        metrics: PartitionMetrics,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._machine = machine
        self._transactional_id = topics.transactional_id(settings.app_id, *machine)
        self._stop = stop
        self._metrics = metrics
        self._quota_logged_s = -QUOTA_LOG_S
        self._producer: AIOKafkaProducer | None = None
        self._road = produce.VERSION_ONE
        self.held_from: set[int] = set()

    batch = CallbackBatch if IS_COMPILED else RecordBatch
    write_callbacks = staticmethod(write_callbacks) if IS_COMPILED else None
    size_alone = staticmethod(size_alone)

    def open(self) -> None:
        """Fence the previous owner and roll back its open transaction.

        Raises:
            Lost: told to stop before the brokers answered, or they did not answer in time.
        """
        try:
            self._wait(self._loop.submit(self._open()))
        finally:
            self._metrics.heartbeat.rest()
        self.held_from.clear()

    async def _open(self) -> None:
        producer = AIOKafkaProducer(
            **aiokafka_clients.arguments(self._settings, self._transactional_id),
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=int(produce.DELIVERY_TIMEOUT_S * 1000),
        )
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                if not await start_patiently(producer.start, self._transactional_id, self._stop.is_set):
                    raise Lost(f"{self._transactional_id}: told to stop before the brokers answered")
                await self._choose_road(producer)
        except (TimeoutError, UnsupportedVersionError) as error:
            await close_at_once(producer, CLOSE_TIMEOUT_S)
            # The other error: transaction.version is 0 now, so the coordinator cannot store a transaction of version 2.
            why = f"within {OPEN_TIMEOUT_S:.0f} s" if isinstance(error, TimeoutError) else repr(error)
            raise Lost(
                f"the coordinator of {self._transactional_id!r} did not let it begin ({why}): "
                f"`kafka-transactions.sh describe --transactional-id {self._transactional_id}` shows the transaction "
                "that it waits for (docs/operations.md#a-hanging-transaction)"
            ) from None
        except BaseException:  # also after a cancel: a producer that is not stopped would ask for metadata without end
            await close_at_once(producer, CLOSE_TIMEOUT_S)
            raise
        self._producer = producer

    async def _choose_road(self, producer: AIOKafkaProducer) -> None:
        """Choose the version of transactions, after an opening: the markers of all former transactions are written.
        Without an opening, a marker of the last transaction of version 1 could be written into the first one of version
        2, which has the same epoch (KAFKA-18227)."""
        if self._settings.transaction_version == AUTO:
            with contextlib.suppress(Exception):  # no answer, or one that cannot be read: the last one counts
                await self._loop.answers.ask_version(producer, produce.coordinator_of(producer))
        self._road = self._present_road
        self._metrics.transaction_version = self._road.version

    @property
    def _present_road(self) -> produce.Road:
        """For the version of transactions that the cluster has now."""
        is_two = self._settings.transaction_version == AUTO and self._loop.answers.transaction_version == 2
        return version_two.VERSION_TWO if is_two else produce.VERSION_ONE

    def renew(self) -> None:
        """Open it again, over its connections if they work. No transaction may be open. Raises as :meth:`open`."""
        self._wait(self._loop.submit(self._renew()))
        self.held_from.clear()

    async def _renew(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                async with asyncio.timeout(ROLLBACK_TIMEOUT_S):
                    await produce.open_again(producer)
                    await self._choose_road(producer)
                self._producer = producer
                return
            except BaseException as error:
                await close_at_once(producer, CLOSE_TIMEOUT_S)
                if not isinstance(error, TimeoutError | KafkaError | AssertionError):
                    raise
        await self._open()

    @property
    def opening(self) -> tuple[int, int]:
        """Id and epoch of the open producer, in version 2 after its last transaction: the next opening has the next
        epoch, or another id."""
        assert self._producer is not None, "call open() first"
        return produce.opening(self._producer)

    def beat_and_may_wait(self) -> bool:
        """Note that the machine waits. Returns False if it was told to end."""
        self._metrics.heartbeat.beat()
        return not self._stop.is_set()

    @property
    def throttled_s(self) -> float:
        """Seconds for which a broker reads no batches of this producer, because of a quota."""
        return 0.0 if self._producer is None else max(0.0, produce.throttled_until(self._producer) - monotonic())

    def await_quota(self) -> None:
        """Wait while a broker, because of a quota, reads no batches of this machine.

        Raises:
            Lost: told to stop.
        """
        left_s = self.throttled_s
        self._metrics.throttled_s += left_s
        if left_s > LONG_TRANSACTION_S and monotonic() > self._quota_logged_s + QUOTA_LOG_S:
            self._quota_logged_s = monotonic()
            logger.info("%s/%d: a quota of the brokers lets this machine wait for %.0f s", *self._machine, left_s)
        while (left_s := self.throttled_s) > 0:
            if not self.beat_and_may_wait():
                raise Lost("told to stop")
            sleep(min(left_s, STOP_POLL_S))

    def transact(self, batches: Iterable[Batch], offsets: Mapping[Machine, tuple[int, str]]) -> bool:
        """Send and commit: see :meth:`timers.machines.firing.ports.Producer.transact`. Without the group's coordinator
        the transaction is committed without the offsets."""
        by_partition: dict[tuple[str, int], list[RecordBatch]] = {}
        for topic, partition, batch in batches:
            batch.seal()
            by_partition.setdefault((topic, partition), []).append(batch)
        of_group = {TopicPartition(*each): OffsetAndMetadata(*offset) for each, offset in offsets.items()}
        began_s = monotonic()
        try:
            with_offsets = self._wait(self._loop.submit(self._transact(by_partition, of_group)))
        except (BatchesRefused, DeliveryFailed, Unanswered):
            self._metrics.transaction_failed("delivery")
            raise
        except Fenced:
            self._metrics.transaction_failed(FENCED)
            raise
        except Lost:
            self._metrics.transaction_failed("unknown")
            raise
        self._metrics.transactions.observe(monotonic() - began_s)
        return with_offsets

    def expect(self, topics: Collection[str]) -> None:
        """Learn the leaders of topics that a transaction will use soon. Returns at once."""
        if self._producer is not None and topics:
            self._loop.call_soon(produce.track_topics, self._producer, [(topic, 0) for topic in topics])

    async def _transact(
        self, batches: dict[tuple[str, int], list[RecordBatch]], offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> bool:
        producer, answers, group = self._producer, self._loop.answers, self._settings.app_id
        assert producer is not None, "call open() first"
        road, held_from = self._road, self.held_from
        if road is not self._present_road:
            raise Lost(f"{self._transactional_id}: the brokers have changed transaction.version: it is opened anew")
        try:
            try:
                return await produce.transact(
                    producer, answers, batches, offsets, group, self._machine, held_from, road
                )
            except BatchesRefused:
                await self._roll_back(producer)
                raise
        except VersionAbsent:
            answers.doubt_version()
            raise

    async def _roll_back(self, producer: AIOKafkaProducer) -> None:
        """End the open transaction, and open a producer whose sequence numbers match those of the brokers. In version 2
        the end of a transaction is enough: the numbers begin at 0 in the next one.

        The opening fences another owner. The abort comes first: in version 1 it fails if there is another owner. One
        that opens between the abort and the opening may have committed: the opening then has not the next epoch. In
        version 2 no opening follows, and the next transaction fails then.

        Raises:
            Lost: another opening came between, or the coordinator has given another id.
        """
        async with asyncio.timeout(ROLLBACK_TIMEOUT_S):
            if self._road.abort is not None:
                await self._road.abort(producer)
                return
            await producer.abort_transaction()
            (id, epoch), self._producer = produce.opening(producer), None
            await close_at_once(producer, CLOSE_TIMEOUT_S)
            await self._open()
            if self.opening != (id, epoch + 1):
                raise Lost(f"{self._transactional_id}: another producer was opened during a rollback")

    def _wait(self, outcome: Future[_T]) -> _T:
        """Wait for the loop; when the machine must stop, wait no longer than a delivery may take."""
        polls_left, is_over = produce.DELIVERY_TIMEOUT_S / STOP_POLL_S, False
        while True:
            self._metrics.heartbeat.beat()
            try:
                return outcome.result(STOP_POLL_S)
            except StillRunning:
                if is_over:  # the coroutine itself timed out
                    raise Lost(f"{self._transactional_id}: timed out") from None
                is_over = outcome.done()
                polls_left -= self._stop.is_set() and not is_over
                if polls_left <= 0:
                    outcome.cancel()
                    raise Lost(f"{self._transactional_id}: stopped while the brokers did not answer") from None
            except (ProducerFenced, InvalidProducerEpoch):
                raise Fenced(
                    f"{self._transactional_id} was taken over by another worker or engine (was this one paused, or is "
                    "TIMERS_WORKER_ID or TIMERS_APP_ID used twice?)"
                ) from None
            except TransactionalIdAuthorizationFailed:
                raise AccessError(
                    f"{connection.principal(self._settings)} may not write as transactional id "
                    f"{self._transactional_id!r}: it needs the ACLs Write and Describe on all that begin with "
                    f"{self._settings.app_id + '-'!r} (docs/security.md)"
                ) from None
            except (KafkaError, OutOfOrderSequenceNumber, AssertionError, CancelledError) as error:
                why = limit_of(getattr(error, "errno", 0)) or repr(error)
                raise Lost(f"{self._transactional_id}: {why}") from error

    def close(self) -> None:
        """Close the connections. The next owner's fencing ends an open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):
                self._loop.submit(close_at_once(producer, CLOSE_TIMEOUT_S)).result(2 * CLOSE_TIMEOUT_S)
