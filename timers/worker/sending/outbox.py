"""The outbox of a machine on Kafka: a buffer of record batches, and one transaction that sends them.

Implements :class:`timers.core.ports.Outbox`. When a transaction fails, the outbox notes which topics failed. The
machine is opened again from its committed progress and comes to the same chunk, and now the policy
(:mod:`timers.core.delivery`) moves the timers of these topics out of the way [I6].
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from aiokafka import TopicPartition

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Tick
from timers.errors import Fenced
from timers.kafka.request_reader import RequestReader
from timers.request_formats import delivery_of
from timers.wire.outgoing import Outgoing, OutgoingOutbox
from timers.worker.partition_metrics import PartitionMetrics
from timers.worker.sending.batches import Batches
from timers.worker.sending.producer import Batch, DeliveryFailed, TransactionalProducer
from timers.worker.sending.targets import Targets

COMPUTE_LOCK_POLL_S = 0.5


class KafkaOutbox(OutgoingOutbox):
    """One machine's outbox.

    Args:
        settings: of the worker. topic: request topic of the machine. partition: its partition. targets: what all
        machines know of topics. request_reader: reads requests again, for dead letters. producer: the machine's own.
        compute_lock: shared by all outboxes of the worker; held while a transaction is filled. So the first machine's
            records are sent while the next machine computes; without it, all machines would compute at once and each
            one would wait for all.
        metrics: of the partition.
        now_s: the brokers' time in epoch seconds, None if it is not known; for lags and record times, decides nothing.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        partition: int,
        targets: Targets,
        request_reader: RequestReader,
        producer: TransactionalProducer,
        compute_lock: threading.Lock,
        metrics: PartitionMetrics,
        now_s: Callable[[], float | None],
    ) -> None:
        outgoing = Outgoing(settings, (topic, partition), targets, metrics.counters, self._now_ms)
        super().__init__(outgoing, outgoing.delivery(delivery_of(settings, topic), targets.rules))
        self._tp = TopicPartition(topic, partition)
        self._targets = targets
        self._request_reader = request_reader
        self._producer = producer
        self._compute_lock = compute_lock
        self._metrics = metrics
        self._now_s = now_s
        self._computing = False
        self._topic_id = b""
        self._progress_partition = 0
        self._offset_sent = -1
        self._batches = Batches(targets.max_message_bytes)
        self._tick = Tick(0)
        self._tick_seen_s = 0.0

    def open(self) -> None:
        """Fence the previous owner and roll back what it left open. Blocks."""
        try:
            self._producer.open()
        finally:
            self._metrics.heartbeat.rest()

    def bind(self, topic_id: bytes, progress_partition: int) -> None:
        """Set the topic id that the progress names, and the partition that the progress goes to."""
        self._topic_id = topic_id
        self._progress_partition = progress_partition

    def close(self) -> None:
        """Close the producer."""
        self._release_compute_lock()
        self._producer.close()

    def begin(self, tick: Tick) -> None:
        """Start to fill a transaction. It is opened on the brokers only at the commit."""
        while not self._computing:
            self._computing = self._compute_lock.acquire(timeout=COMPUTE_LOCK_POLL_S)
            self._metrics.heartbeat.beat()
            if not self._computing and self._producer.stopping:
                raise Lost("told to stop")
        self._batches = Batches(self._targets.max_message_bytes)
        self._metrics.counters.begin()
        self._targets.refresh()
        if tick != self._tick:
            self._tick, self._tick_seen_s = tick, monotonic()
        self._begin(tick, self._batches)

    def commit(self, progress: Progress) -> None:
        """Add ``progress``, send everything, and make all of it visible.

        Raises:
            Fenced: another worker owns the machine.
            Lost: nothing, or all, became visible: the committed progress says which. The circuits of the topics that
                failed are open.
        """
        self._outgoing.add_progress(progress, self._topic_id, self._progress_partition)
        offsets = {} if progress.next_offset == self._offset_sent else {self._tp: progress.next_offset}
        if self._outgoing.given_up:
            self._release_compute_lock()  # other machines need not wait while requests are read again
            self._outgoing.add_given_up(self._request_reader, self._may_wait)
        batches = list(self._batches.take())
        self._release_compute_lock()
        self._transact(batches, offsets)
        self._offset_sent = progress.next_offset
        self._targets.circuit_breaker.worked({topic for topic, _, _ in batches})

    def _transact(self, batches: list[Batch], offsets: dict[TopicPartition, int]) -> None:
        began_s = monotonic()
        try:
            self._producer.transact(batches, offsets)
        except DeliveryFailed as failure:
            self._metrics.transaction_failed("delivery")
            self._targets.blame(failure.culprits)
            raise
        except Fenced:
            self._metrics.transaction_failed("fenced")
            raise
        except Lost:
            self._metrics.transaction_failed("unknown")
            raise
        else:
            self._metrics.transactions.observe(monotonic() - began_s)
        finally:
            self._metrics.counters.transaction.ended_ms = self._now_ms()

    def _may_wait(self) -> bool:
        """Whether the machine may go on waiting for the brokers."""
        self._metrics.heartbeat.beat()
        return not self._producer.stopping

    def _now_ms(self) -> int:
        """The brokers' time, never before the tick; where it is not known, the tick plus the time since it came."""
        known_s = self._now_s()
        if known_s is not None:
            return max(self._tick.append_ms, int(known_s * 1000))
        return self._tick.append_ms + int((monotonic() - self._tick_seen_s) * 1000)

    def _release_compute_lock(self) -> None:
        if self._computing:
            self._computing = False
            self._compute_lock.release()
