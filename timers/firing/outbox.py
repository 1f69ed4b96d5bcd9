"""The outbox of a machine on Kafka: a buffer of record batches, and one transaction that sends them.

Implements :class:`timers.core.ports.Outbox`. When a transaction fails, the outbox notes what the brokers said of each
topic. The machine is opened again from its committed progress and comes to the same chunk. Then the policy
(:mod:`timers.firing.policy`) moves the timers of these topics to the retry topic [I6].

If brokers are slow, no topic is at fault: the next transactions have fewer timers, and none begins while a broker
throttles this machine, because an open transaction would wait as long.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from time import monotonic, sleep

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from timers.config.settings import Settings
from timers.core.chunk_size import LONG_S, SMALL
from timers.core.ports import Lost, TooMuch
from timers.core.progress import Cuts, Progress
from timers.core.timer import Tick
from timers.errors import AccessError, Fenced
from timers.firing.batches import Batches
from timers.firing.policy import policy_of
from timers.firing.producer import Batch, DeliveryFailed, NoAnswer, Offsets, TransactionalProducer
from timers.firing.topics import Targets
from timers.firing.transaction import BaseOutbox, Outgoing
from timers.kafka.aiokafka_internals.produce import INVALID_TIMESTAMP, BatchesRefused, RefusedRecord
from timers.kafka.request_reader import RequestReader
from timers.partition_metrics import PartitionMetrics

logger = logging.getLogger(__name__)

COMPUTE_LOCK_POLL_S = 0.5

MAX_REFUSALS = 20
"""Refused transactions after which the machine is opened again. Two are usual: a broker reports only the first fault of
each record."""

QUOTA_LOG_S = 60.0
"""Seconds between two lines about a quota."""

FEW_RECORDS = 5 * SMALL
"""A topic that does not answer is slow, unless the transaction had as few records as this: then it fails."""


class KafkaOutbox(BaseOutbox):
    """One machine's outbox.

    Args:
        settings: of the worker.
        topic: request topic of the machine.
        partition: its partition.
        targets: facts about topics.
        request_reader: reads requests again, for dead letters.
        producer: only for this machine.
        compute_lock: shared by all outboxes of the worker; held while a transaction is filled. So the first machine's
            records are sent while the next machine computes; without it, all machines would compute at the same time,
            and each one would wait for all.
        metrics: of the partition.
        now_s: the brokers' time in epoch seconds, None if it is not known; used only for lags and record times.
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
        super().__init__(outgoing, outgoing.delivery(policy_of(settings, topic), targets.rules))
        self._tp = TopicPartition(topic, partition)
        self._targets = targets
        self._request_reader = request_reader
        self._producer = producer
        self._compute_lock = compute_lock
        self._metrics = metrics
        self._now_s = now_s
        self.chunk = metrics.chunk
        self._computing = False
        self._topic_id = b""
        self._progress_partition = 0
        self._is_settled = False
        """Whether the last transaction was committed, so that another one may follow."""
        self._batches = Batches(targets.max_message_bytes)
        self._tick = Tick(0)
        self._tick_seen_s = 0.0
        self._quota_logged_s = -QUOTA_LOG_S

    def open(self) -> None:
        """Fence the previous owner and roll back its open transaction. Blocks."""
        try:
            self._producer.open()
        finally:
            self._metrics.heartbeat.rest()

    def bind(self, topic_id: bytes, progress_partition: int, cuts: Cuts = (), progress: Progress | None = None) -> None:
        """Set the topic id in the progress records, the partition of the progress topic, the cuts of the log, and the
        progress with which the machine opens."""
        self._outgoing.bind(cuts)
        self._topic_id = topic_id
        self._progress_partition = progress_partition
        self._witness.begin(progress or Progress(), topic_id, monotonic())

    def close(self) -> None:
        """Commit what the group does not know yet, if its coordinator answers, and close the producer."""
        self._release_compute_lock()
        left = self._witness.left()
        if left is not None and self._is_settled:
            with contextlib.suppress(Lost, Fenced, AccessError):  # the next owner has the progress itself
                self._producer.transact((), {self._tp: OffsetAndMetadata(*left)})
        self._producer.close()

    @property
    def has_old_witness(self) -> bool:
        return self._witness.is_old(monotonic())

    def begin(self, tick: Tick) -> None:
        """Start to fill a transaction. The brokers open it only at the commit."""
        self._is_settled = False
        self._await_quota()
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

    def _await_quota(self) -> None:
        """Wait while a broker, because of a quota, reads no batches of this machine."""
        left_s = self._producer.throttled_s
        self._metrics.throttled_s += left_s
        if left_s > LONG_S and monotonic() > self._quota_logged_s + QUOTA_LOG_S:
            self._quota_logged_s = monotonic()
            logger.info("%s/%d: a quota of the brokers lets this machine wait for %.0f s", *self._tp, left_s)
        while (left_s := self._producer.throttled_s) > 0:
            if not self._keep_waiting():
                raise Lost("told to stop")
            sleep(min(left_s, COMPUTE_LOCK_POLL_S))

    def commit(self, progress: Progress) -> None:
        """Add ``progress``, send everything, and make all of it visible.

        Raises:
            Fenced: another worker owns the machine.
            TooMuch: brokers did not answer in time, or refuse a record and do not say which.
            DeliveryFailed: topics failed, and their circuits are open.
            Lost: nothing, or all, became visible; the committed progress shows which. The circuits of the topics that
                failed are open.
        """
        due = self._witness.due(progress, self._topic_id, monotonic())
        offsets = {} if due is None else {self._tp: OffsetAndMetadata(*due)}
        batches = self._complete(progress)
        refusals = 0
        times_refused: set[str] = set()
        began_s = monotonic()
        while isinstance(sent := self._transact(batches, offsets), BatchesRefused):
            refusals += 1
            if refusals > MAX_REFUSALS:
                raise DeliveryFailed({refused.topic: refused for _, refused in sent.batches})
            logger.info("%s/%d: %s; sending the other records again", *self._tp, sent)
            self._note_refused(sent, times_refused)
            self._batches = Batches(self._targets.max_message_bytes)
            self.refill(self._tick, self._batches)
            batches = self._complete(progress)
        self._is_settled = True
        self._witness.note(progress, self._topic_id, monotonic(), tried=bool(offsets), sent=sent)
        self.chunk.committed(monotonic() - began_s + self._producer.throttled_s)
        self._targets.note_worked({topic for topic, _, _ in batches})

    def _complete(self, progress: Progress) -> list[Batch]:
        """Add the last records of a transaction, and take its batches."""
        self._await_answers()
        self._outgoing.add_progress(progress, self._topic_id, self._progress_partition)
        if self._outgoing.given_up:
            self._release_compute_lock()  # so other machines do not wait while requests are read again
            self._outgoing.add_given_up(self._request_reader, self._keep_waiting)
        batches = list(self._batches.take())
        self._release_compute_lock()
        return batches

    def _await_answers(self) -> None:
        """Wait until the brokers have said what they know of topics that the transaction uses first.

        If they do not say it at once, the timers of these topics go to the retry topic, and the others are sent.
        """
        if self._delivery.unanswered:
            self._release_compute_lock()  # so other machines do not wait
            self._targets.wait(self._delivery.unanswered, self._keep_waiting)
            self._delivery.end_wait()

    def _note_refused(self, error: BatchesRefused, times_refused: set[str]) -> None:
        """Tell the policy which callbacks were refused, so that it moves them to the retry topic.

        The outbox sets the times of records. So refused times are no fault of the records: these are sent again with
        new times, unless the topic can never take them. If it refuses these too, its circuit opens.

        Args:
            error: what the brokers said.
            times_refused: topics that have refused times since this transaction was begun first.

        Raises:
            DeliveryFailed: a topic of the engine refused records.
            TooMuch: a broker does not say which records of a batch it refuses.
        """
        for batch, refused in error.batches:
            topic = refused.topic
            if topic in self._targets.own:
                raise DeliveryFailed({topic: refused})
            if refused.code == INVALID_TIMESTAMP:
                if topic in times_refused:
                    self._targets.open_circuit(topic, refused)
                self._targets.note_times_refused(topic)
                continue
            if batch.count > 1 and not refused.records:
                raise TooMuch(str(error), rolled_back=True)
            sent = batch.records()
            bad_records = refused.records or (RefusedRecord(0, refused.why),)
            about = f"{topic!r} refused the callback: {refused.name}"
            new = [self._refuse(topic, sent[bad.place], f"{about} ({bad.why or refused.why})") for bad in bad_records]
            if not any(new):
                self._targets.open_circuit(topic, refused)
        times_refused |= {refused.topic for _, refused in error.batches if refused.code == INVALID_TIMESTAMP}

    def _transact(self, batches: list[Batch], offsets: Offsets) -> BatchesRefused | bool:
        """Send and commit.

        Returns:
            Whether the offsets were sent; or the refused records, if the transaction was rolled back because of them.
        """
        began_s = monotonic()
        try:
            offsets_sent = self._producer.transact(batches, offsets)
        except BatchesRefused as error:
            self._metrics.transaction_failed("delivery")
            return error
        except DeliveryFailed as failure:
            self._metrics.transaction_failed("delivery")
            self._targets.note_failed(failure.culprits)
            raise
        except NoAnswer as failure:
            self._metrics.transaction_failed("delivery")
            self._targets.note_silent(failure, is_short=sum(batch.count for _, _, batch in batches) <= FEW_RECORDS)
            raise
        except Fenced:
            self._metrics.transaction_failed("fenced")
            raise
        except Lost:
            self._metrics.transaction_failed("unknown")
            raise
        else:
            self._metrics.transactions.observe(monotonic() - began_s)
            return offsets_sent
        finally:
            self._metrics.counters.transaction.ended_ms = self._now_ms()

    def _keep_waiting(self) -> bool:
        """Whether the machine may continue to wait for the brokers."""
        self._metrics.heartbeat.beat()
        return not self._producer.stopping

    def _now_ms(self) -> int:
        """The brokers' time, never before the tick. If it is not known: the tick plus the time since it was read."""
        known_s = self._now_s()
        if known_s is not None:
            return max(self._tick.append_ms, int(known_s * 1000))
        return self._tick.append_ms + int((monotonic() - self._tick_seen_s) * 1000)

    def _release_compute_lock(self) -> None:
        if self._computing:
            self._computing = False
            self._compute_lock.release()
