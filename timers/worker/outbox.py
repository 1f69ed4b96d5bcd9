"""What a machine sends: firings, retries, dead letters and progress, visible together or not at all.

Implements :class:`timers.core.ports.Outbox`. The machine knows nothing of bad targets: when a transaction fails, the
outbox remembers which topics were to blame and gives up; the machine is opened again from its committed progress, comes
to the same chunk, and this time the culprits' timers go to the retry topic or to the dead letters (rule 6).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic

from aiokafka import TopicPartition
from aiokafka.errors import (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaException

from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Origin, Rejected, Row, Tick
from timers.errors import Fenced
from timers.settings import Settings
from timers.wire import dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.worker.batches import Batches
from timers.worker.kafka import max_message_bytes
from timers.worker.meter import Meter
from timers.worker.partitioner import partitions_of
from timers.worker.producer import Batch, DeliveryFailed, TransactionalProducer
from timers.worker.targets import Targets

MAX_BACKOFF_S = 300

RETRY_OVERHEAD_BYTES = 1024
"""What a record on the retry topic has beyond the callback: the frame of a ``Future`` and three headers."""

TURN_POLL_S = 0.5


class KafkaOutbox:
    """One machine's outbox.

    Args:
        settings: of the worker.
        topic: request topic of the machine.
        partition: its partition.
        targets: shared knowledge of topics.
        producer: the machine's own.
        turn: shared by all outboxes of the worker; held while a transaction is filled, which is computing but for a
            rare look for a topic. One after the other, the first machine's records leave while the next one computes;
            all at once, each would wait for all.
        meter: of the partition.
        now_s: the brokers' time in epoch seconds, None if it is not known; for lags and record times, decides nothing.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        partition: int,
        targets: Targets,
        producer: TransactionalProducer,
        turn: threading.Lock,
        meter: Meter,
        now_s: Callable[[], float | None],
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._partition = partition
        self._targets = targets
        self._producer = producer
        self._turn = turn
        self._meter = meter
        self._now_s = now_s
        self._my_turn = False
        self._id_prefix = topics.source(topic, partition, 0)[:-1].encode()
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
            self._meter.pulse.rest()

    def bind(self, topic_id: bytes, progress_partition: int) -> None:
        """Say which log the progress speaks of, and where it goes."""
        self._topic_id = topic_id
        self._progress_partition = progress_partition

    def close(self) -> None:
        """Let go of the producer."""
        self._end_turn()
        self._producer.close()

    # ---- one transaction ----------------------------------------------------------------------------------------

    def begin(self, tick: Tick) -> None:
        """Start collecting. The brokers hear of it at the commit: until then nothing is open there."""
        while not self._my_turn:
            self._my_turn = self._turn.acquire(timeout=TURN_POLL_S)
            self._meter.pulse.beat()
            if not self._my_turn and self._producer.stopping:
                raise Lost("told to stop")
        self._batches = Batches(self._targets.max_message_bytes)
        self._meter.tally.begin()
        self._targets.refresh()
        if tick != self._tick:
            self._tick, self._tick_seen_s = tick, monotonic()

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""
        first = rows[0][1]
        if all(row[1] == first and row[5] is None for row in rows):
            self._fire_to(first, due_s, rows)
            return
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            if row[5] is None:
                by_topic.setdefault(row[1], []).append(row)
            else:
                self._fire_with_care(row, due_s)
        for topic, group in by_topic.items():
            self._fire_to(topic, due_s, group)

    def _fire_to(self, topic: str, due_s: int, rows: Sequence[Row]) -> None:
        for index, row in enumerate(rows):
            partitions = self._targets.usable.get(topic)
            if partitions is not None:
                tail: list[h.Header] = [(h.TIMER_DUE, b"%d" % due_s), (h.TIMER_FIRED, b"%d" % self._tick.append_ms)]
                self._batches.fire(topic, partitions, rows[index:], self._id_prefix, tail, self._now_ms())
                self._meter.tally.sending.fire(due_s, len(rows) - index)
                return
            self._fire_with_care(row, due_s)

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Move rows to the retry topic, due at ``again_s``: to keep a backlog from flooding its receivers."""
        limit = self._limit(self._settings.retry_topic) - RETRY_OVERHEAD_BYTES
        for row in rows:
            origin = self._origin(row, due_s)
            fits = dead_letter.size(row[2].encode(), row[3], row[4] or ()) <= limit
            if fits and origin.attempt < self._settings.retry_attempts:
                self._move(row, origin, again_s)
            else:
                self._fire_with_care(row, due_s)

    def _origin(self, row: Row, due_s: int) -> Origin:
        return Origin(*row[5]) if row[5] else Origin(topics.source(self._topic, self._partition, row[0]), due_s, 0)

    def _fire_with_care(self, row: Row, due_s: int) -> None:
        """Send one timer that needs a question first, or send something else in its place."""
        _, topic, key, value, headers, _ = row
        origin = self._origin(row, due_s)
        denied = self._targets.denied(topic)
        if denied:
            return self._give_up(row, origin, "topic-denied", denied)
        ours: list[h.Header] = [
            (h.TIMER_ID, origin.timer_id.encode()),
            (h.TIMER_DUE, b"%d" % origin.due_s),
            (h.TIMER_FIRED, b"%d" % self._tick.append_ms),
        ]
        all_headers = [*(headers or ()), *ours]
        # Judged by the retry topic's limit too: what does not fit there could never be tried again.
        limit = min(self._limit(topic), self._limit(self._settings.retry_topic) - RETRY_OVERHEAD_BYTES)
        size = dead_letter.size(key.encode(), value, all_headers)
        if size > limit:
            reason = f"the callback has up to {size} bytes, more than the {limit} that fit in {topic!r}"
            return self._give_up(row, origin, "message-too-large", reason)
        trouble = self._targets.quarantined(topic)
        if trouble is None:
            try:
                if not self._targets.exists(topic):
                    return self._give_up(row, origin, "topic-unknown", f"callBackTopic {topic!r} does not exist")
            except KafkaException as error:
                raise Lost(f"the brokers do not say whether topic {topic!r} exists: {error.args[0]}") from None
            trouble = self._targets.quarantined(topic)
        if trouble is not None:
            return self._try_later(row, origin, *trouble)
        if origin.attempt:
            self._meter.tally.sending.fire_again(origin.due_s)
        else:
            self._meter.tally.sending.fire(due_s, 1)
        return self._add(topic, key.encode(), value, all_headers)

    def _try_later(self, row: Row, origin: Origin, spared_s: float, reason: str) -> None:
        """Move a timer to the retry topic, in this transaction, so that nothing waits for its target."""
        if origin.attempt >= self._settings.retry_attempts:
            code, _, sentence = reason.partition(": ")
            if code not in ("topic-denied", "message-too-large"):
                code, sentence = "target-failing", reason
            return self._give_up(row, origin, code, f"{sentence} ({origin.attempt} tries)")
        # Not before the quarantine ends: each attempt is one that was made.
        again_s = self._tick.second + max(min(2**origin.attempt, MAX_BACKOFF_S), int(spared_s) + 1)
        return self._move(row, origin, again_s)

    def _move(self, row: Row, origin: Origin, again_s: int) -> None:
        _, target, key, value, headers, _ = row
        self._meter.tally.sending.retried += 1
        moved = origin._replace(attempt=origin.attempt + 1)
        value, headers = future.encode_retry(target, key, value, headers, moved)
        topic = self._settings.retry_topic
        partition = self._partition % self._targets.partitions(topic)  # any would do; hashing the key costs 10 us
        self._batches.add(topic, partition, b"%d" % again_s, value, headers, self._now_ms())

    def _give_up(self, row: Row, origin: Origin, code: str, reason: str) -> None:
        """Dead-letter a timer whose request was fine when it was accepted."""
        offset, topic, key, value, headers, _ = row
        request = future.encode(topic, key, value)
        rejected = Rejected(offset, code, reason, b"%d" % origin.due_s, request, headers or ())
        self._add_dead_letter(rejected, origin.timer_id)

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        for entry in rejected:
            self._add_dead_letter(entry, topics.source(self._topic, self._partition, entry.offset))

    def _add_dead_letter(self, rejected: Rejected, source: str) -> None:
        topic = self._settings.dead_letter_topic
        self._meter.tally.sending.dead_letter(rejected.code)
        letter = dead_letter.encode(rejected, source, self._limit(topic))
        self._add(topic, letter.key, letter.value, letter.headers)

    def _limit(self, topic: str) -> int:
        return self._targets.max_message_bytes.get(topic, max_message_bytes(self._settings))

    def _add(self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> None:
        count = self._targets.partitions(topic)
        partition = self._partition % count if key is None else partitions_of([key], count)[0]
        self._batches.add(topic, partition, key, value, headers, self._now_ms())

    def _now_ms(self) -> int:
        """The brokers' time, never before the tick; where it is not known, by the tick and what has passed since."""
        known_s = self._now_s()
        if known_s is not None:
            return max(self._tick.append_ms, int(known_s * 1000))
        return self._tick.append_ms + int((monotonic() - self._tick_seen_s) * 1000)

    def commit(self, progress: Progress) -> None:
        """Add ``progress``, send everything, and make all of it visible.

        Raises:
            Fenced: another worker owns the machine.
            Lost: nothing, or all, became visible: the committed progress says which. Culprits are in quarantine.
        """
        record = progress_record.encode(progress, self._topic_id)
        key = progress_record.encode_key(self._topic, self._partition)
        self._batches.add(self._settings.progress_topic, self._progress_partition, key, record, (), self._now_ms())
        offsets = {}
        if progress.next_offset != self._offset_sent:
            offsets[TopicPartition(self._topic, self._partition)] = progress.next_offset
        batches = list(self._batches.take())
        self._end_turn()
        self._transact(batches, offsets)
        self._offset_sent = progress.next_offset

    def _transact(self, batches: list[Batch], offsets: dict[TopicPartition, int]) -> None:
        began_s = monotonic()
        try:
            self._producer.transact(batches, offsets)
        except DeliveryFailed as failure:
            self._meter.transaction_failed("delivery")
            self._judge(failure)
            raise
        except Fenced:
            self._meter.transaction_failed("fenced")
            raise
        except Lost:
            self._meter.transaction_failed("unknown")
            raise
        else:
            self._meter.transactions.observe(monotonic() - began_s)
        finally:
            self._meter.tally.sending.ended_ms = self._now_ms()

    def _end_turn(self) -> None:
        if self._my_turn:
            self._my_turn = False
            self._turn.release()

    def _judge(self, failure: DeliveryFailed) -> None:
        """Spare the targets that made a transaction fail, unless the brokers themselves are in trouble."""
        own = {self._settings.progress_topic, self._settings.retry_topic, self._settings.dead_letter_topic}
        for topic, error in failure.culprits.items():
            if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
                try:
                    self._targets.learn_limit(topic)
                except KafkaException:
                    self._targets.quarantine(topic, f"message-too-large: {error!r}")
            elif own & failure.culprits.keys():
                continue  # our own topics fail too: the brokers are in trouble, not the targets
            elif isinstance(error, UnknownTopicOrPartitionError):
                self._targets.forget(topic)
            elif isinstance(error, TopicAuthorizationFailedError):
                self._targets.quarantine(topic, f"topic-denied: not authorized to write to {topic!r}")
            else:
                self._targets.quarantine(topic, f"{topic}: {error!r}")
