"""A machine's transactions: firings, retries, dead letters and progress, visible together or not at all.

Implements :class:`timers.core.ports.Outbox` on librdkafka's transactional producer. The machine knows nothing of bad
targets: when a transaction fails, the outbox finds the culprits from the delivery reports, quarantines their topics
and reports :class:`~timers.core.ports.Aborted`; the machine gives the same chunk again, and this time the culprits'
timers go to the retry topic or to the dead letters (rule 6 of the design).

The loop of :meth:`KafkaOutbox.fire` is the hottest of the whole system: about 2 us a timer, nearly all inside
librdkafka. What is not needed for a healthy target happens elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from timers.core.ports import Aborted
from timers.core.progress import Progress
from timers.core.timer import Origin, Rejected, Row, Tick
from timers.errors import Fenced
from timers.settings import Settings
from timers.wire import dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.worker.kafka import librdkafka, max_message_bytes, transactional_producer
from timers.worker.targets import Targets

CHUNK_S = 1.0
"""Longest time of filling one transaction: receivers that read committed wait for its end."""

CALL_TIMEOUT_S = 5.0
"""One attempt of a blocking call; its outcome is then unknown and the same call is made again."""

MAX_BACKOFF_S = 300

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_GONE = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
_DENIED = {KafkaError.TOPIC_AUTHORIZATION_FAILED}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class ProducerLost(Exception):
    """The producer cannot go on: open the machine again from its committed progress (rule 5)."""


class KafkaOutbox:
    """One machine's outbox.

    Args:
        settings: of the worker.
        topic: request topic of the machine.
        partition: its partition.
        targets: shared knowledge of callback topics.
        stop: set when the machine must end: endless retries give up.
    """

    def __init__(self, settings: Settings, topic: str, partition: int, targets: Targets, stop: threading.Event) -> None:
        self._settings = settings
        self._topic = topic
        self._partition = partition
        self._targets = targets
        self._stop = stop
        self._id_prefix = topics.source(topic, partition, 0)[:-1]
        self._transactional_id = topics.transactional_id(settings.app_id, topic, partition)
        self._producer: Any = None
        self._group: Any = None
        self._topic_id = b""
        self._progress_partition = 0
        self._offset_sent = -1
        self._filled_by = 0.0
        self._errors: dict[str, KafkaError] = {}
        self._bytes_unflushed: dict[str, int] = {}

    # ---- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fence the previous owner and roll back what it left open. Blocks.

        Raises:
            Fenced: somebody else opened the same machine meanwhile.
            ProducerLost: told to stop before the broker answered.
        """
        config = transactional_producer(self._settings, self._transactional_id)
        self._producer = Producer({**config, "on_delivery": self._on_delivery})
        # Group metadata without a member: the transactional id fences, not the group's generation (rule 12).
        consumer = Consumer({**librdkafka(self._settings), "group.id": self._settings.app_id})
        self._group = consumer.consumer_group_metadata()
        consumer.close()
        self._call(self._producer.init_transactions)

    def bind(self, topic_id: bytes, progress_partition: int) -> None:
        """Say which log the progress speaks of, and where it goes."""
        self._topic_id = topic_id
        self._progress_partition = progress_partition

    def close(self) -> None:
        """Let go of the producer. An open transaction is left to the next owner's fencing."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    # ---- one transaction ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open a transaction."""
        self._errors.clear()
        self._bytes_unflushed.clear()
        self._filled_by = monotonic() + CHUNK_S
        self._call(self._producer.begin_transaction)

    def fire(self, due_s: int, rows: Sequence[Row], tick: Tick) -> bool:
        """Add firings of one due second. True: this transaction has been filling for long enough."""
        produce = self._producer.produce
        usable = self._targets.usable
        prefix = self._id_prefix
        due = (h.TIMER_DUE, str(due_s))
        fired = (h.TIMER_FIRED, str(tick.append_ms))
        waiting = iter(rows)
        while True:
            row: Row | None = None
            try:
                for row in waiting:
                    offset, topic, key, value, headers, origin = row
                    if origin is not None or topic not in usable:
                        self._fire_with_care(row, due_s, tick)
                    elif headers is None:
                        produce(topic, value, key, headers=[(h.TIMER_ID, f"{prefix}{offset}"), due, fired])
                    else:
                        produce(topic, value, key, headers=[*headers, (h.TIMER_ID, f"{prefix}{offset}"), due, fired])
                break
            except BufferError:
                assert row is not None
                self._producer.poll(0.1)
                self._fire_with_care(row, due_s, tick)
            except KafkaException as error:
                assert row is not None
                self._refused(error, row, due_s)
        self._producer.poll(0)
        return monotonic() >= self._filled_by or bool(self._errors)

    def _fire_with_care(self, row: Row, due_s: int, tick: Tick) -> None:
        """Send one timer that needs a question first, or send something else in its place."""
        offset, topic, key, value, headers, packed = row
        origin = Origin(*packed) if packed else Origin(f"{self._id_prefix}{offset}", due_s, 0)
        denied = self._targets.denied(topic)
        if denied:
            return self._give_up(row, due_s, "topic-denied", denied)
        trouble = self._targets.quarantined(topic)
        if trouble:
            return self._try_later(row, origin, tick, trouble)
        try:
            if not self._targets.exists(topic):
                return self._give_up(row, due_s, "topic-unknown", f"callBackTopic {topic!r} does not exist")
        except KafkaException as error:
            return self._try_later(row, origin, tick, str(error.args[0]))
        ours: list[h.Header] = [
            (h.TIMER_ID, origin.timer_id.encode()),
            (h.TIMER_DUE, str(origin.due_s).encode()),
            (h.TIMER_FIRED, str(tick.append_ms).encode()),
        ]
        all_headers = [*(headers or ()), *ours]
        limit = self._targets.max_message_bytes.get(topic)
        if limit is not None:
            size = dead_letter.size(key.encode(), value, all_headers)
            if size > limit:
                reason = f"the callback has up to {size} bytes, more than max.message.bytes={limit} of {topic!r}"
                return self._give_up(row, due_s, "message-too-large", reason)
            # librdkafka does not split a batch that a topic refuses: keep each batch within the topic's limit.
            if self._bytes_unflushed.get(topic, 0) + size > limit:
                self._producer.flush(CALL_TIMEOUT_S)
                self._bytes_unflushed.clear()
            self._bytes_unflushed[topic] = self._bytes_unflushed.get(topic, 0) + size
        try:
            self._produce(topic, value, key, all_headers)
        except KafkaException as error:
            self._refused(error, row, due_s)
        return None

    def _try_later(self, row: Row, origin: Origin, tick: Tick, trouble: str) -> None:
        """Move a timer to the retry topic, in this transaction, so that nothing waits for its target."""
        _, topic, key, value, headers, _ = row
        attempt = origin.attempt + 1
        if attempt > self._settings.retry_attempts:
            code, _, reason = trouble.partition(": ")
            if code not in ("topic-denied", "message-too-large"):
                code, reason = "target-failing", trouble
            return self._give_up(row, origin.due_s, code, f"{reason} ({origin.attempt} tries)")
        again_s = tick.second + min(2**origin.attempt, MAX_BACKOFF_S)
        value, headers = future.encode_retry(topic, key, value, headers, origin._replace(attempt=attempt))
        return self._produce(self._settings.retry_topic, value, str(again_s), headers)

    def _give_up(self, row: Row, due_s: int, code: str, reason: str) -> None:
        """Dead-letter a timer whose request was fine when it was accepted."""
        offset, topic, key, value, headers, _ = row
        request = future.encode(topic, key, value)
        self.reject([Rejected(offset, code, reason, str(due_s).encode(), request, headers or ())])

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        for entry in rejected:
            source = topics.source(self._topic, self._partition, entry.offset)
            letter = dead_letter.encode(entry, source, max_message_bytes(self._settings))
            self._produce(self._settings.dead_letter_topic, letter.value, letter.key, letter.headers)

    def commit(self, progress: Progress) -> None:
        """Add ``progress`` and make all of it visible.

        Raises:
            Aborted: rolled back; culprits, if any, are in quarantine.
            Fenced: another worker owns the machine.
            ProducerLost: the machine must be opened again.
        """
        record = progress_record.encode(progress, self._topic_id)
        key = progress_record.encode_key(self._topic, self._partition)
        self._produce(self._settings.progress_topic, record, key, None, self._progress_partition)
        if progress.next_offset != self._offset_sent:
            position = TopicPartition(self._topic, self._partition, progress.next_offset)
            self._call(self._producer.send_offsets_to_transaction, [position], self._group)
        self._call(self._producer.commit_transaction)
        self._offset_sent = progress.next_offset

    # ---- librdkafka ---------------------------------------------------------------------------------------------

    def _produce(
        self, topic: str, value: bytes | None, key: Any, headers: list[h.Header] | None, partition: int = -1
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.setdefault(message.topic(), error)

    def _refused(self, refusal: KafkaException, row: Row, due_s: int) -> None:
        """librdkafka would not even queue a message."""
        error: KafkaError = refusal.args[0]
        if error.code() in _TOO_LARGE:
            reason = f"the callback is larger than {max_message_bytes(self._settings)} bytes"
            return self._give_up(row, due_s, "message-too-large", reason)
        if error.code() in _GONE:
            self._errors.setdefault(row[1], error)
            return None
        return self._failed(error)

    def _call(self, call: Callable[..., None], *args: Any) -> None:
        """Make a transactional call; on an unknown outcome make the same call again (rule 5)."""
        timeout = () if call == self._producer.begin_transaction else (CALL_TIMEOUT_S,)
        while True:
            try:
                call(*args, *timeout)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                again = error.retriable() and not error.txn_requires_abort()
                if not again or self._stop.is_set():
                    self._failed(error)

    def _failed(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            raise Fenced(
                f"{self._transactional_id} was taken over by another worker (was this one paused, or is "
                f"TIMERS_WORKER_ID or TIMERS_APP_ID used twice?): {error.str()}"
            )
        if not error.txn_requires_abort():
            raise ProducerLost(f"{self._transactional_id}: {error.str()}")
        try:
            self._producer.abort_transaction(CALL_TIMEOUT_S)
        except KafkaException as failure:
            again: KafkaError = failure.args[0]
            if again.code() in _FENCED:
                self._failed(again)
            raise ProducerLost(f"{self._transactional_id}: {again.str()}") from None
        self._producer.poll(0)  # delivery reports of what the abort purged
        self._judge()
        raise Aborted(error.str())

    def _judge(self) -> None:
        """Find out which targets made the transaction fail, and spare them for a while."""
        errors = {
            topic: error
            for topic, error in self._errors.items()
            if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        }
        own = {self._settings.progress_topic, self._settings.retry_topic, self._settings.dead_letter_topic}
        if own & errors.keys():
            # Our own topics fail too: the brokers are in trouble, not the targets. Wait for them.
            for topic in errors:
                self._targets.release(topic)
            return
        for topic, error in errors.items():
            code = error.code()
            if code in _GONE:
                self._targets.forget(topic)
            elif code in _TOO_LARGE:
                try:
                    self._targets.learn_limit(topic)
                except KafkaException:
                    self._targets.quarantine(topic, f"message-too-large: {error.str()}")
            elif code in _DENIED:
                self._targets.quarantine(topic, f"topic-denied: {error.str()}")
            else:
                self._targets.quarantine(topic, f"{topic}: {error.str()}")
