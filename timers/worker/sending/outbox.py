"""What a machine sends: firings, retries, dead letters and progress, visible together or not at all.

Implements :class:`timers.core.ports.Outbox`. The machine knows nothing of bad targets: when a transaction fails, the
outbox remembers which topics were to blame and gives up; the machine is opened again from its committed progress, comes
to the same chunk, and this time the culprits' timers go to the retry topic or to the dead letters [I6].
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from aiokafka import TopicPartition
from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.core.operation import Verdict
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Forwarded, Origin, Rejected, Row, Tick, id_bytes, key_bytes, origin_of
from timers.errors import Fenced
from timers.kafka.clients import max_message_bytes
from timers.kafka.request_reader import RequestReader
from timers.wire import cold, dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire import verdict as verdict_record
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import schedule
from timers.wire.partitioner import partitions_for, partitions_of
from timers.worker.partition_metrics import PartitionMetrics
from timers.worker.sending.batches import Batches, size_alone
from timers.worker.sending.circuit_breaker import DeliveryProblem
from timers.worker.sending.producer import Batch, DeliveryFailed, TransactionalProducer
from timers.worker.sending.targets import Targets

MAX_BACKOFF_S = 300

SURELY_FITS_BYTES = 32 * 1024
"""A request of this size without headers fits in any retry topic of ours."""

COMPUTE_LOCK_POLL_S = 0.5


class GivenUp(NamedTuple):
    """A timer that becomes a dead letter when it should fire."""

    row: Row
    origin: Origin
    code: str
    reason: str


class KafkaOutbox:
    """One machine's outbox.

    Args:
        settings: of the worker. topic: request topic of the machine. partition: its partition. targets: shared
        knowledge of topics. request_reader: reads requests again, for dead letters. producer: the machine's own.
        compute_lock: shared by all outboxes of the worker; held while a transaction is filled, which is computing but
        for a
            rare look for a topic. One after the other, the first machine's records leave while the next one computes;
            all at once, each would wait for all.
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
        self._settings = settings
        self._topic = topic
        self._partition = partition
        self._targets = targets
        self._request_reader = request_reader
        self._producer = producer
        self._compute_lock = compute_lock
        self._metrics = metrics
        self._now_s = now_s
        self._computing = False
        self._retries = topic == settings.retry_topic
        self._schedules = topic in settings.schedule_topics
        self._id_prefix = topics.source(topic, partition, 0)[:-1].encode()
        self._topic_id = b""
        self._progress_partition = 0
        self._offset_sent = -1
        self._batches = Batches(targets.max_message_bytes)
        self._given_up: list[GivenUp] = []
        self._tick = Tick(0)
        self._tick_seen_s = 0.0

    def open(self) -> None:
        """Fence the previous owner and roll back what it left open. Blocks."""
        try:
            self._producer.open()
        finally:
            self._metrics.heartbeat.rest()

    def bind(self, topic_id: bytes, progress_partition: int) -> None:
        """Say which log the progress speaks of, and where it goes."""
        self._topic_id = topic_id
        self._progress_partition = progress_partition

    def close(self) -> None:
        """Let go of the producer."""
        self._release_compute_lock()
        self._producer.close()

    # ---- one transaction ----------------------------------------------------------------------------------------

    def begin(self, tick: Tick) -> None:
        """Start collecting. The brokers hear of it at the commit: until then nothing is open there."""
        while not self._computing:
            self._computing = self._compute_lock.acquire(timeout=COMPUTE_LOCK_POLL_S)
            self._metrics.heartbeat.beat()
            if not self._computing and self._producer.stopping:
                raise Lost("told to stop")
        self._batches = Batches(self._targets.max_message_bytes)
        self._given_up = []
        self._metrics.counters.begin()
        self._targets.refresh()
        if tick != self._tick:
            self._tick, self._tick_seen_s = tick, monotonic()

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""
        if self._retries:
            for row in rows:
                self._fire_again(row, self._origin(row, due_s))
            return
        if self._schedules:
            rows = self._end_schedules(rows)
        first = rows[0][1]
        if all(row[1] == first for row in rows):
            self._fire_to(first, due_s, rows)
            return
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row[1], []).append(row)
        for topic, group in by_topic.items():
            self._fire_to(topic, due_s, group)

    def _fire_to(self, topic: str, due_s: int, rows: Sequence[Row]) -> None:
        """Send timers of one topic, or move all of them out of the others' way."""
        partitions = self._targets.usable.get(topic) or self._route(topic, retried=False)
        if isinstance(partitions, DeliveryProblem):
            self._move(rows, due_s, partitions)
            return
        if topic == self._settings.request_topic:
            rows = self._that_may_set(due_s, rows)
        tail: list[h.Header] = [(h.TIMER_DUE, b"%d" % due_s), (h.TIMER_FIRED, b"%d" % self._tick.append_ms)]
        if topic in self._targets.max_message_bytes:
            rows = self._that_fit(topic, due_s, rows, tail)
        if rows:
            if self._schedules:
                self._batches.fire_schedules(topic, partitions, rows, tail, self._now_ms())
            else:
                self._batches.fire(topic, partitions, rows, self._id_prefix, tail, self._now_ms())
            self._metrics.counters.transaction.fire(due_s, len(rows))

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Move rows to the retry topic, due at ``again_s``: to keep a backlog from flooding its receivers."""
        if self._schedules:
            rows = self._end_schedules(rows)
        for row in rows:
            origin = self._origin(row, due_s)
            again = origin._replace(attempt=origin.attempt + 1)
            if origin.attempt < self._settings.retry_attempts and self._put_off(row, again, again_s) is None:
                continue
            if self._retries:
                self._fire_again(row, origin)
            else:
                self._fire_to(row[1], due_s, [row])

    def _end_schedules(self, rows: Sequence[Row]) -> list[Row]:
        """Add a tombstone for each schedule that leaves its topic, by whatever way, and say what goes out of it.

        On the partition that it came from: producers differ in how they hash, and elsewhere it would end nothing.
        """
        self._batches.end(self._topic, self._partition, schedule.tombstones(rows), self._now_ms())
        topic = self._topic.encode()
        return [schedule.fired(row, topic) for row in rows]

    def republish(self, rows: Sequence[Row]) -> None:
        """Add schedules to their topic as they stand there already."""
        for row in rows:
            key, value, headers, timestamp_ms = schedule.published(row)
            self._batches.add(self._topic, self._partition, key, value, headers, timestamp_ms)

    def _origin(self, row: Row, due_s: int) -> Origin:
        """What a timer is known by wherever it goes from here."""
        if self._retries:
            return Origin(*row[5] or ())
        return origin_of(row, due_s, topics.source(self._topic, self._partition, row[0]))

    def _route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        try:
            return self._targets.route(topic, retried=retried)
        except KafkaException as error:
            raise Lost(f"the brokers do not say whether topic {topic!r} exists: {error.args[0]}") from None

    def _that_may_set(self, due_s: int, rows: Sequence[Row]) -> list[Row]:
        """Rows that may set the timers they ask for, as they go out; the others are moved."""
        allowed = []
        for row in rows:
            request = self._next_request(row, due_s)
            if isinstance(request, DeliveryProblem):
                self._move([row], due_s, request)
            else:
                allowed.append(request)
        return allowed

    def _next_request(self, row: Row, due_s: int) -> Row | DeliveryProblem:
        try:
            return self._targets.rules.next_request(row, due_s)
        except InvalidRequestError as error:
            return DeliveryProblem(error.code, str(error), None)

    def _that_fit(self, topic: str, due_s: int, rows: Sequence[Row], tail: list[h.Header]) -> list[Row]:
        """Rows that a topic with a known limit takes; the others are moved."""
        fitting = []
        for row in rows:
            ours = [(h.TIMER_ID, id_bytes(self._origin(row, due_s).timer_id)), *tail]
            too_large = self._too_large(topic, row, ours)
            if too_large is None:
                fitting.append(row)
            else:
                self._move([row], due_s, too_large)
        return fitting

    def _too_large(self, topic: str, row: Row, ours: list[h.Header]) -> DeliveryProblem | None:
        limit = self._targets.max_message_bytes.get(topic)
        if limit is None:
            return None
        size = size_alone(key_bytes(row[2]), row[3], [*(row[4] or ()), *ours])
        if size <= limit:
            return None
        reason = f"the callback makes a batch of {size} bytes, more than the {limit} that fit in {topic!r}"
        return DeliveryProblem("message-too-large", reason, None)

    # ---- timers in trouble --------------------------------------------------------------------------------------

    def _move(self, rows: Sequence[Row], due_s: int, problem: DeliveryProblem) -> None:
        """Move timers to the retry topic, in this transaction, so that nothing waits for their target.

        Those that can never be sent go there too, to become dead letters at once: that takes reading their requests
        again, and nothing of another target's waits for it there.
        """
        attempt = 0 if problem.open_s is None else 1
        again_s = self._again_s(0, problem)
        for row in rows:
            self._put_off_or_give_up(row, self._origin(row, due_s)._replace(attempt=attempt), again_s, problem)

    def _again_s(self, attempts: int, problem: DeliveryProblem) -> int:
        """When to try again: not before the circuit closes, so that each attempt is one that was made.

        Two seconds are added for what is cut off: up to one of the time left, and up to one since the tick.
        """
        if problem.open_s is None:
            return self._tick.second
        return self._tick.second + max(min(1 << attempts, MAX_BACKOFF_S), int(problem.open_s) + 2)

    def _put_off_or_give_up(self, row: Row, origin: Origin, again_s: int, problem: DeliveryProblem) -> None:
        too_large = self._put_off(row, origin, again_s)
        if too_large is not None:
            reason = f"{problem.reason}; and to be tried again, its {too_large} bytes would have to fit in "
            self._given_up.append(GivenUp(row, origin, problem.code, reason + repr(self._settings.retry_topic)))

    def _put_off(self, row: Row, origin: Origin, again_s: int) -> int | None:
        """Move a timer to the retry topic, due at ``again_s``; or its size, if it does not fit there."""
        _, topic, key, value, headers, _ = row
        retry_topic = self._settings.retry_topic
        request, all_headers = future.encode_retry(topic, key, value, headers, origin)
        due = b"%d" % again_s
        if headers is not None or len(request) > SURELY_FITS_BYTES:
            size = size_alone(due, request, all_headers)
            if size > self._limit(retry_topic):
                return size
        # Any partition will do: this way those of one second are spread as their requests are.
        partition = self._partition % self._targets.partitions(retry_topic)
        self._batches.add(retry_topic, partition, due, request, all_headers, self._now_ms())
        self._metrics.counters.transaction.retried += 1
        return None

    def _fire_again(self, row: Row, origin: Origin) -> None:
        """Send a timer that was moved, or move it again, or give it up."""
        topic = row[1]
        ours: list[h.Header] = [
            (h.TIMER_ID, id_bytes(origin.timer_id)),
            (h.TIMER_DUE, b"%d" % origin.due_s),
            (h.TIMER_FIRED, b"%d" % self._tick.append_ms),
        ]
        outgoing = self._outgoing(row, origin, ours)
        if not isinstance(outgoing, DeliveryProblem):
            (offset, _, key, value, headers, _), partitions = outgoing
            sent_key = key_bytes(key)
            (partition,) = partitions_for([sent_key], [offset], partitions)
            self._batches.add(topic, partition, sent_key, value, [*(headers or ()), *ours], self._now_ms())
            self._metrics.counters.transaction.fire_again(origin.due_s)
            return
        problem = outgoing
        if problem.open_s is None:
            self._given_up.append(GivenUp(row, origin, problem.code, problem.reason))
        elif origin.attempt >= self._settings.retry_attempts:
            reason = f"{problem.reason} ({origin.attempt} tries)"
            self._given_up.append(GivenUp(row, origin, problem.code, reason))
        else:
            again_s = self._again_s(origin.attempt, problem)
            self._put_off_or_give_up(row, origin._replace(attempt=origin.attempt + 1), again_s, problem)

    def _outgoing(self, row: Row, origin: Origin, ours: list[h.Header]) -> tuple[Row, int] | DeliveryProblem:
        """What a timer that was moved is sent as, and the number of its topic's partitions; or why it is not."""
        topic = row[1]
        route = self._targets.usable.get(topic) or self._route(topic, retried=True)
        if isinstance(route, DeliveryProblem):
            return route
        sent = self._next_request(row, origin.due_s) if topic == self._settings.request_topic else row
        if isinstance(sent, DeliveryProblem):
            return sent
        return self._too_large(topic, sent, ours) or (sent, route)

    def _add_given_up(self) -> None:
        """Dead-letter timers whose requests were fine when they were accepted, as they were sent.

        Raises:
            Lost: their requests cannot be read now.
        """
        given_up, self._given_up = self._given_up, []
        request_reader = self._request_reader.find([(each.row, each.origin) for each in given_up], self._may_wait)
        for row, origin, code, reason in given_up:
            sent = request_reader.get(origin.request)
            request_format = self._request_reader.request_format(origin.request)
            if sent is not None:
                key, value, headers = sent.key, sent.value, list(sent.headers or row[4] or ())
            else:
                reason = f"{reason}; its request is no longer in the log, so key and value are written anew"
                key, value, headers = request_format.rebuild_request(row, origin)
            if not request_format.republish_unchanged and h.republished_due(headers) is None:
                headers.append((h.TIMER_AGAIN, b"%d" % origin.due_s))
            self._add_dead_letter(Rejected(row[0], code, reason, key, value, headers), origin.request)

    def _may_wait(self) -> bool:
        """Whether waiting for the brokers may go on."""
        self._metrics.heartbeat.beat()
        return not self._producer.stopping

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        for entry in rejected:
            self._add_dead_letter(entry, topics.source(self._topic, self._partition, entry.offset))
            if self._schedules and entry.code == schedule.OVERDUE:
                # It was a schedule, and is over. What cannot be read stays: the topic may hold something else entirely.
                ended = [(entry.key, schedule.tombstone_headers(entry.offset))]
                self._batches.end(self._topic, self._partition, ended, self._now_ms())

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on cancels and updates."""
        topic = self._settings.verdict_topic
        ids = [verdict.id for verdict in verdicts]
        now_ms, told = self._now_ms(), self._metrics.counters.transaction.verdicts
        for verdict, partition in zip(verdicts, partitions_of(ids, self._targets.partitions(topic)), strict=True):
            headers = [(h.TIMER_SOURCE, b"%b%d" % (self._id_prefix, verdict.offset))]
            self._batches.add(topic, partition, verdict.id, verdict_record.encode(verdict), headers, now_ms)
            told[verdict.verdict] = told.get(verdict.verdict, 0) + 1

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add requests that go cold."""
        topic = self._settings.cold_topic
        partition, now_ms = self._partition % self._targets.partitions(topic), self._now_ms()
        for record, due_s, secret in forwarded:
            source = topics.source(self._topic, self._partition, record.offset)
            headers = cold.encode_cold(record, source, due_s, secret)
            self._batches.add(topic, partition, record.key, record.value, headers, now_ms)
        self._metrics.counters.transaction.forwarded += len(forwarded)

    def _add_dead_letter(self, rejected: Rejected, source: str) -> None:
        topic = self._settings.dead_letter_topic
        self._metrics.counters.transaction.dead_letter(rejected.code)
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
            Lost: nothing, or all, became visible: the committed progress says which. The circuits of culprits are open.
        """
        record = progress_record.encode(progress, self._topic_id)
        key = progress_record.encode_key(self._topic, self._partition)
        self._batches.add(self._settings.progress_topic, self._progress_partition, key, record, (), self._now_ms())
        offsets = {}
        if progress.next_offset != self._offset_sent:
            offsets[TopicPartition(self._topic, self._partition)] = progress.next_offset
        if self._given_up:
            self._release_compute_lock()  # others need not wait while requests are read again
            self._add_given_up()
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

    def _release_compute_lock(self) -> None:
        if self._computing:
            self._computing = False
            self._compute_lock.release()
