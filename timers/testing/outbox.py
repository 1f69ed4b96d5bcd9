"""Transactions over the simulated log: what :mod:`timers.worker.sending.outbox` does on Kafka, step for step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timers.callbacks import CallbackRules
from timers.config.settings import Settings
from timers.core.operation import Verdict
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Forwarded, Origin, Rejected, Row, Tick, TopicPartition, id_bytes, key_bytes, origin_of
from timers.request_formats import enabled_formats
from timers.testing import faults as f
from timers.testing.faults import Faults
from timers.testing.log import SimLog, SimProducer
from timers.wire import cold, dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire import verdict as verdict_record
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import RequestRecord, schedule

TOPIC_ID = b"simulated topic."
"""Kafka's topic ids are 16 bytes."""

PROGRESS_PARTITION = 0
"""All machines share one partition of the progress topic, and so meet each other's open transactions there."""

CIRCUIT_OPEN_MS = 5_000


class Outgoing(NamedTuple):
    """A record that waits for the commit."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[h.Header]
    partition: int | None = None
    timestamp_ms: int | None = None
    """None: the time at which it is appended."""


class SimOutbox:
    """Implements :class:`timers.core.ports.Outbox`.

    Args:
        log: the cluster.
        settings: names of topics, number of retries.
        machine: (request topic, partition).
        faults: of the worker.
        open_circuits: callback topic -> broker time until which it is spared; shared by a worker's machines.
    """

    def __init__(
        self, log: SimLog, settings: Settings, machine: TopicPartition, faults: Faults, open_circuits: dict[str, int]
    ) -> None:
        self._log = log
        self._settings = settings
        self._rules = CallbackRules(settings)
        self._topic, self._partition = machine
        self._retries = self._topic == settings.retry_topic
        self._schedules = self._topic in settings.schedule_topics
        self._formats = enabled_formats(settings)
        self._faults = faults
        self._open_circuits = open_circuits
        self._producer = SimProducer(log, topics.transactional_id(settings.app_id, *machine))
        self._outgoing: list[Outgoing] = []
        self._tick = Tick(0)
        self._offset_sent = -1

    def open(self) -> None:
        """Fence the former owner and roll back what it left open."""
        self._producer.init_transactions()
        self._faults.point("after fencing")

    # ---- one transaction ----------------------------------------------------------------------------------------

    def begin(self, tick: Tick) -> None:
        """Start collecting; the brokers hear of it at the commit."""
        self._outgoing = []
        self._tick = tick

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""
        for row in self._leaving(rows):
            self._fire_one(row, due_s)

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Ask for rows anew, at ``again_s``."""
        for row in self._leaving(rows):
            origin = self._origin(row, due_s)
            if origin.attempt < self._settings.retry_attempts:
                self._move(row, origin._replace(attempt=origin.attempt + 1), again_s)
            else:
                self._fire_one(row, due_s)

    def _leaving(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Rows as they go out; of schedules, each leaves a tombstone behind."""
        if not self._schedules:
            return rows
        for row in rows:
            self._add_tombstone(row)
        return [schedule.fired(row, self._topic.encode()) for row in rows]

    def _add_tombstone(self, row: Row) -> None:
        ((id, headers),) = schedule.tombstones([row])
        self._outgoing.append(Outgoing(self._topic, id, None, headers, self._partition))

    def republish(self, rows: Sequence[Row]) -> None:
        """Add schedules to their topic as they stand there already."""
        for row in rows:
            key, value, headers, timestamp_ms = schedule.published(row)
            self._outgoing.append(Outgoing(self._topic, key, value, headers, self._partition, timestamp_ms))

    def _origin(self, row: Row, due_s: int) -> Origin:
        if self._retries:
            return Origin(*row[5] or ())
        return origin_of(row, due_s, topics.source(self._topic, self._partition, row[0]))

    def _fire_one(self, row: Row, due_s: int) -> None:
        topic = row[1]
        origin = self._origin(row, due_s)
        denied = self._rules.denied(topic)
        if denied:
            return self._give_up(row, origin, "topic-denied", denied)
        if topic in self._log.missing:
            return self._give_up(row, origin, "topic-unknown", f"callBackTopic {topic!r} does not exist")
        if self._open_circuits.get(topic, 0) > self._log.clock.now_ms:
            return self._try_later(row, origin)
        ours: list[h.Header] = [
            (h.TIMER_ID, id_bytes(origin.timer_id)),
            (h.TIMER_DUE, str(origin.due_s).encode()),
            (h.TIMER_FIRED, str(self._tick.append_ms).encode()),
        ]
        try:
            sent = self._rules.next_request(row, origin.due_s) if topic == self._settings.request_topic else row
        except InvalidRequestError as error:
            return self._give_up(row, origin, error.code, str(error))
        _, _, key, value, headers, _ = sent
        return self._outgoing.append(Outgoing(topic, key_bytes(key), value, [*(headers or ()), *ours]))

    def _try_later(self, row: Row, origin: Origin) -> None:
        attempt = origin.attempt + 1
        if attempt > self._settings.retry_attempts:
            return self._give_up(row, origin, "target-failing", f"{row[1]} fails ({origin.attempt} tries)")
        return self._move(row, origin._replace(attempt=attempt), self._tick.second + 2 ** min(origin.attempt, 8))

    def _move(self, row: Row, origin: Origin, again_s: int) -> None:
        _, topic, key, value, headers, _ = row
        value, headers = future.encode_retry(topic, key, value, headers, origin)
        self._outgoing.append(Outgoing(self._settings.retry_topic, b"%d" % again_s, value, headers, self._partition))

    def _give_up(self, row: Row, origin: Origin, code: str, reason: str) -> None:
        """Dead-letter a retried timer, as it was sent; let the retry topic's machine do so with any other."""
        if not self._retries:
            return self._move(row, origin, self._tick.second)
        source, partition, sent_at = origin.request.rsplit("/", 2)
        found = self._log.fetch(source, int(partition), int(sent_at), 1).records
        request_format = self._formats[source]
        if not found:  # compaction took it
            return self._add_dead_letter(
                Rejected(row[0], code, reason, *request_format.rebuild_request(row, origin)), origin.request
            )
        (sent,) = found
        assert request_format.is_request_of(
            RequestRecord(sent.offset, sent.key, sent.value, sent.headers, sent.timestamp), row, origin
        )
        headers = list(sent.headers)
        if not request_format.republish_unchanged and h.republished_due(headers) is None:
            headers.append((h.TIMER_AGAIN, b"%d" % origin.due_s))
        rejected = Rejected(row[0], code, reason, sent.key, sent.value, headers)
        return self._add_dead_letter(rejected, origin.request)

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        for entry in rejected:
            self._add_dead_letter(entry, topics.source(self._topic, self._partition, entry.offset))
            if self._schedules and entry.code == schedule.OVERDUE:
                headers = schedule.tombstone_headers(entry.offset)
                self._outgoing.append(Outgoing(self._topic, entry.key, None, headers, self._partition))

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on cancels and updates."""
        for verdict in verdicts:
            source = topics.source(self._topic, self._partition, verdict.offset)
            headers = [(h.TIMER_SOURCE, source.encode())]
            value = verdict_record.encode(verdict)
            self._outgoing.append(Outgoing(self._settings.verdict_topic, verdict.id, value, headers))

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add requests that go cold."""
        for record, due_s, secret in forwarded:
            source = topics.source(self._topic, self._partition, record.offset)
            headers = cold.encode_cold(record, source, due_s, secret)
            self._outgoing.append(
                Outgoing(self._settings.cold_topic, record.key, record.value, headers, self._partition)
            )

    def _add_dead_letter(self, rejected: Rejected, source: str) -> None:
        letter = dead_letter.encode(rejected, source, self._settings.max_request_bytes + dead_letter.OVERHEAD_BYTES)
        self._outgoing.append(Outgoing(self._settings.dead_letter_topic, letter.key, letter.value, letter.headers))

    def commit(self, progress: Progress) -> None:
        """Add ``progress``, send everything, and make all of it visible."""
        key = progress_record.encode_key(self._topic, self._partition)
        value = progress_record.encode(progress, TOPIC_ID)
        # Partitions are sent to in any order: the progress may come first.
        self._outgoing.insert(0, Outgoing(self._settings.progress_topic, key, value, (), PROGRESS_PARTITION))
        self._faults.point("before a transaction")
        if self._faults.take(f.UNREACHABLE):
            raise Lost("no broker answers")
        self._producer.begin()
        self._send(progress)
        self._faults.point("before a commit")
        self._end()
        self._offset_sent = progress.next_offset
        self._faults.point("after a commit")

    def _send(self, progress: Progress) -> None:
        if progress.next_offset != self._offset_sent:
            self._producer.send_offset(self._settings.app_id, (self._topic, self._partition), progress.next_offset)
        for record in self._outgoing:
            if record.topic in self._log.failing:
                self._open_circuits[record.topic] = self._log.clock.now_ms + CIRCUIT_OPEN_MS
                raise Lost(f"{record.topic} refuses")
            self._producer.produce(*record)
            self._faults.point("inside a transaction")
        if self._faults.take(f.REFUSED):
            raise Lost("a delivery failed")

    def _end(self) -> None:
        """Commit. Whatever its outcome, a machine that is not told of it starts anew [I5]."""
        if self._faults.take(f.REQUEST_LOST):
            raise Lost("the commit timed out")
        self._producer.commit()
        if self._faults.take(f.REPLY_LOST):
            raise Lost("the commit timed out")
