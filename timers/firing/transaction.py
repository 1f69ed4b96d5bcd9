"""Writes the records of a transaction: firings, retries, dead letters, tombstones, verdicts, cold requests, progress.

The worker and the simulator share this code. They have different :class:`Records`, which take the records, and
different :class:`Requests`, which read requests again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from timers.core.counters import Counters
from timers.core.operation import Verdict
from timers.core.ports import Lost
from timers.core.progress import Cuts, Progress
from timers.core.rescue import LOST, LOST_FROM_LOG
from timers.core.timer import (
    Forwarded,
    Origin,
    Rejected,
    Row,
    Tick,
    TopicPartition,
    id_bytes,
    id_text,
    key_bytes,
    origin_of,
)
from timers.firing.policy import CallbackRules, Delivery, DeliveryProblem, GivenUp, PolicySettings, Routes
from timers.wire import cold, dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire import verdict as verdict_record
from timers.wire.formats import RequestFormat, RequestRecord, marker, schedule
from timers.wire.partitioner import partitions_for, partitions_of
from timers.wire.witness import WitnessClock

ALWAYS_FITS_BYTES = 32 * 1024
"""A request of this size without headers fits in the retry topic with any limit."""


PUT_OFF_S = 30
"""Seconds until a request is looked for again whose partition had no leader."""


class Settings(Protocol):
    """The settings that the records depend on."""

    @property
    def app_id(self) -> str: ...
    @property
    def request_topic(self) -> str: ...
    @property
    def retry_topic(self) -> str: ...
    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def verdict_topic(self) -> str: ...
    @property
    def cold_topic(self) -> str: ...
    @property
    def progress_topic(self) -> str: ...
    @property
    def message_topic(self) -> str: ...
    @property
    def retry_attempts(self) -> int: ...
    @property
    def max_request_bytes(self) -> int: ...


class Topics(Routes, Protocol):
    """Facts about callback topics and the engine's own topics."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic of the engine."""

    def available(self, topic: str, partition: int) -> int:
        """Return ``partition`` of a topic of the engine, or another one while it has no leader."""

    def was_moved(self, topic: str, partition: int) -> bool:
        """Return whether :meth:`available` has returned another partition a short time ago."""


class Records(Protocol):
    """The records of one transaction, in the order in which they are added."""

    def size(self, key: bytes | None, value: bytes | None, headers: list[h.Header]) -> int:
        """Return the bytes of a batch that holds only this record: Kafka compares them with the topic's limit."""

    def fire(
        self, topic: str, partitions: int, rows: Sequence[Row], id_prefix: bytes, last: list[h.Header], now_ms: int
    ) -> None:
        """Add firings. The source of a row is ``id_prefix`` and its offset, if its origin does not name another one."""

    def add_tombstones(
        self, topic: str, partition: int, tombstones: Iterable[tuple[bytes | None, list[h.Header]]], now_ms: int
    ) -> None:
        """Add tombstones, given by key and headers."""

    def add(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[h.Header],
        now_ms: int,
    ) -> None:
        """Add one record."""


class Requests(Protocol):
    """Reads requests from the log again."""

    def find(
        self, timers: Iterable[tuple[Row, Origin]], keep_waiting: Callable[[], bool]
    ) -> Mapping[str, RequestRecord | None]:
        """Return source -> request, for timers whose requests are still in the log; None: it cannot be read for now.

        Raises:
            Lost: the brokers do not answer, or ``keep_waiting`` returned False.
        """

    def request_format(self, source: str) -> RequestFormat:
        """Return the format of the request at ``source``."""


class Outgoing:
    """Implements :class:`timers.firing.policy.Output`, and writes the other records of a machine.

    Args:
        machine: topic and partition of the machine. facts: what is known about topics. counters: totals of the
        partition. now_ms: returns the brokers' time, for the timestamps of records.

    Attributes:
        given_up: timers whose dead letters :meth:`add_given_up` will write.
    """

    def __init__(
        self, settings: Settings, machine: TopicPartition, facts: Topics, counters: Counters, now_ms: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._topic, self._partition = machine
        self._topics = facts
        self._counters = counters
        self._now_ms = now_ms
        self._machine = machine
        self._cuts: Cuts = ()
        self._machine_name = progress_record.machine_name(settings.app_id, *machine)
        self._id_prefix = f"{topics.partition_name(*machine)}/".encode()
        self._fired_ms = b""
        self._records: Records
        self.given_up: list[GivenUp] = []

    def delivery(self, variant: type[Delivery], rules: CallbackRules) -> Delivery:
        """Return the policy that decides what is written here."""
        given = self._settings
        settings = PolicySettings(given.request_topic, given.retry_topic, given.retry_attempts)
        return variant(settings, self._topics, rules, self)

    def bind(self, cuts: Cuts) -> None:
        """Set the cuts of the log, which are part of each source [I28]."""
        self._cuts = cuts

    def source(self, offset: int) -> str:
        """Return the source of a request of this machine."""
        return topics.source(*self._machine, offset, self._cuts)

    def begin(self, tick: Tick, records: Records) -> None:
        """Begin a transaction that happens at ``tick`` and goes to ``records``."""
        self._fired_ms = b"%d" % tick.append_ms
        self._records = records
        self.given_up = []

    def begin_again(self, tick: Tick, records: Records) -> None:
        """Begin the same transaction with nothing in it."""
        before = self._counters.transaction
        self._counters.begin()
        self._counters.transaction.late, self._counters.transaction.progress = before.late, before.progress
        self.begin(tick, records)

    # ---- decisions of the policy --------------------------------------------------------------------------------

    def send(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        """Fire timers of a request topic, or schedules."""
        if self._cuts:  # the source is then more than a prefix and the offset
            sources = [self.source(row[0]) for row in rows]
            origins = [origin_of(row, due_s, source) for row, source in zip(rows, sources, strict=True)]
            named = [each._replace(source=each.request) for each in origins]
            rows = [(*row[:5], origin) for row, origin in zip(rows, named, strict=True)]
        self._records.fire(topic, partitions, rows, self._id_prefix, h.firing(due_s, self._fired_ms), self._now_ms())
        self._counters.transaction.fire(due_s, len(rows))

    def send_retried(self, topic: str, partitions: int, rows: Sequence[Row]) -> None:
        """Fire timers of the retry topic; each one has its own due second."""
        keys, now_ms = [key_bytes(row[2]) for row in rows], self._now_ms()
        numbers = partitions_for(keys, [row[0] for row in rows], partitions)
        for row, key, partition in zip(rows, keys, numbers, strict=True):
            origin = Origin(*row[5] or ())
            self._records.add(topic, partition, key, row[3], self._fired_headers(row, origin), now_ms)
            self._counters.transaction.fire_again(origin.due_s)

    def size(self, row: Row, origin: Origin) -> int:
        """Return the bytes of a batch that holds only the callback of ``row``."""
        return self._records.size(key_bytes(row[2]), row[3], self._fired_headers(row, origin))

    def _fired_headers(self, row: Row, origin: Origin) -> list[h.Header]:
        identity = h.identity(id_bytes(origin.timer_id), origin.request.encode())
        return [*(row[4] or ()), *identity, *h.firing(origin.due_s, self._fired_ms)]

    def retry(self, row: Row, origin: Origin, due_s: int) -> int | None:
        """Move a timer to the retry topic; if its record is too large for the topic, return its bytes instead."""
        _, topic, key, value, headers, _ = row
        retry_topic, due = self._settings.retry_topic, b"%d" % due_s
        request, all_headers = future.encode_retry(topic, key, value, headers, origin)
        if headers is not None or len(request) > ALWAYS_FITS_BYTES:
            size = self._records.size(due, request, all_headers)
            if size > self._limit(retry_topic):
                return size
        # Any partition is correct; this choice spreads retries over partitions as their requests are spread.
        partition = self._topics.available(retry_topic, self._partition % self._topics.partitions(retry_topic))
        self._records.add(retry_topic, partition, due, request, all_headers, self._now_ms())
        self._counters.transaction.retried += 1
        return None

    def give_up(self, given_up: GivenUp) -> None:
        """Note a timer; :meth:`add_given_up` writes its dead letter."""
        self.given_up.append(given_up)

    def add_given_up(self, requests: Requests, keep_waiting: Callable[[], bool]) -> None:
        """Write the dead letters of the timers in ``given_up``, each with its request as it was sent.

        A timer whose request cannot be read for now goes to the retry topic, for :data:`PUT_OFF_S`: without its request
        the dead letter would not be what was sent, and the other timers of this machine must not wait for it.

        Raises:
            Lost: the requests cannot be read now.
        """
        given_up, self.given_up = self.given_up, []
        found = requests.find([(each.row, each.origin) for each in given_up], keep_waiting)
        for row, origin, code, reason in given_up:
            request = found.get(origin.request)
            if code == LOST_FROM_LOG and (topics.parse_source(origin.request) or ())[:2] == self._machine:
                if request is not None:
                    continue  # the log has it, and it fires
                if origin.request in found:
                    raise Lost(f"{origin.request} cannot be looked for in the log: its partition has no leader")
            if request is None and origin.request in found:
                if self.retry(row, origin, self._now_ms() // 1000 + PUT_OFF_S) is not None:
                    raise Lost(f"{origin.request} cannot be read for a dead letter: its partition has no leader")
                continue
            request_format = requests.request_format(origin.request)
            if request is not None:
                key, value, headers = request.key, request.value, list(request.headers or row[4] or ())
            else:
                reason = f"{reason}; its request is no longer in the log, so key and value are written anew"
                key, value, headers = request_format.rebuild_request(row, origin)
            if request_format.copy_needs_timer_again and h.former_due(headers) is None:
                headers.append((h.TIMER_AGAIN, b"%d" % origin.due_s))
            self._add_dead_letter(Rejected(row[0], code, reason, key, value, headers), origin.request)

    def rescue_cancels(self, cancels: Sequence[tuple[bytes, int]]) -> None:
        """Write the dead letters of cancels that the log has lost."""
        for id, offset in cancels:
            self._add_dead_letter(Rejected(offset, LOST_FROM_LOG, LOST, id, None, ()), self.source(offset))

    def reject(self, rejected: Rejected) -> None:
        """Write the dead letter of a request that was rejected on arrival."""
        self._add_dead_letter(rejected, self.source(rejected.offset))

    def _add_dead_letter(self, rejected: Rejected, source: str) -> None:
        topic = self._settings.dead_letter_topic
        self._counters.transaction.dead_letter(rejected.code)
        key, value, headers = dead_letter.encode(rejected, source, self._limit(topic))
        count = self._topics.partitions(topic)
        partition = self._partition % count if key is None else partitions_of([key], count)[0]
        self._records.add(topic, self._topics.available(topic, partition), key, value, headers, self._now_ms())

    def _limit(self, own_topic: str) -> int:
        default = self._settings.max_request_bytes + dead_letter.OVERHEAD_BYTES
        return self._topics.max_message_bytes.get(own_topic, default)

    def end_schedules(self, rows: Sequence[Row]) -> list[Row]:
        """Write a tombstone for each schedule, on the schedule's own partition; return the rows as they are sent.

        Producers hash keys in different ways, and a tombstone deletes only records of its own partition.
        """
        self._records.add_tombstones(self._topic, self._partition, schedule.tombstones(rows), self._now_ms())
        topic = self._topic.encode()
        return [schedule.callback_row(row, topic) for row in rows]

    def end_schedule(self, rejected: Rejected) -> None:
        """Write the tombstone of a schedule that was rejected."""
        tombstone = rejected.key, schedule.tombstone_headers(rejected.offset)
        self._records.add_tombstones(self._topic, self._partition, [tombstone], self._now_ms())

    def end_messages(self, rows: Sequence[Row]) -> list[Row]:
        """Write an End marker for each message, on the partition of its other markers; return the rows as they are
        sent: to the queue topic of the present settings."""
        now_ms = self._now_ms()
        for key, value in marker.end_markers(rows):
            self._records.add(self._topic, self._partition, key, value, (), now_ms)
        return [(row[0], self._settings.message_topic, *row[2:]) for row in rows]

    def send_spread(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        """Fire timers, each to the partition that follows from the offset of its request."""
        now_ms = self._now_ms()
        for row in rows:
            origin = origin_of(row, due_s, self.source(row[0]))
            headers = self._fired_headers(row, origin)
            self._records.add(topic, row[0] % partitions, key_bytes(row[2]), row[3], headers, now_ms)
        self._counters.transaction.fire(due_s, len(rows))

    # ---- decisions of the machine ------------------------------------------------------------------------------

    def republish(self, rows: Sequence[Row]) -> None:
        """Add schedules to their topic as they were published."""
        for row in rows:
            key, value, headers, timestamp_ms = schedule.as_published(row)
            self._records.add(self._topic, self._partition, key, value, headers, timestamp_ms)

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on cancels and replacements."""
        topic = self._settings.verdict_topic
        ids = [verdict.id for verdict in verdicts]
        now_ms, counts = self._now_ms(), self._counters.transaction.verdicts
        for verdict, partition in zip(verdicts, partitions_of(ids, self._topics.partitions(topic)), strict=True):
            headers = [(h.TIMER_SOURCE, self.source(verdict.offset).encode())]
            chosen = self._topics.available(topic, partition)
            if self._topics.was_moved(topic, partition):
                headers.append((h.TIMER_MOVED, b"1"))
            value = verdict_record.encode(verdict, self.source)
            self._records.add(topic, chosen, verdict.id, value, headers, now_ms)
            counts[verdict.verdict] = counts.get(verdict.verdict, 0) + 1

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add the cold requests to the cold topic."""
        topic = self._settings.cold_topic
        partition = self._topics.available(topic, self._partition % self._topics.partitions(topic))
        now_ms = self._now_ms()
        for record, due_s, secret in forwarded:
            headers = cold.encode_cold(record, self.source(record.offset), due_s, secret)
            self._records.add(topic, partition, record.key, record.value, headers, now_ms)
        self._counters.transaction.forwarded += len(forwarded)

    def add_progress(self, progress: Progress, topic_id: bytes, partition: int) -> None:
        """Add the progress that the transaction commits."""
        key = progress_record.encode_key(self._topic, self._partition)
        value = progress_record.encode(progress, topic_id, self._machine_name)
        self._records.add(self._settings.progress_topic, partition, key, value, (), self._now_ms())


class BaseOutbox:
    """The methods of :class:`timers.core.ports.Outbox` that the worker and the simulator share."""

    def __init__(self, outgoing: Outgoing, delivery: Delivery) -> None:
        self._outgoing = outgoing
        self._delivery = delivery
        self._fill: list[Callable[[], None]] = []
        """What the machine has asked for in this transaction, in order."""
        self._witness = WitnessClock()

    def _begin(self, tick: Tick, records: Records) -> None:
        self._fill = []
        self._outgoing.begin(tick, records)
        self._delivery.begin(tick)

    def refill(self, tick: Tick, records: Records) -> None:
        """Fill a transaction anew, after brokers refused records of it: the policy moves these out of the way."""
        self._outgoing.begin_again(tick, records)
        self._delivery.unanswered.clear()
        for ask in self._fill:
            ask()

    def _add(self, ask: Callable[[], None]) -> None:
        self._fill.append(ask)
        ask()

    def _refuse(self, topic: str, record: Any, reason: str) -> bool:
        """Note that a broker refused one record; False if it is no callback, or was noted before."""
        if [name for name, _ in record.headers[-3:]] != [h.TIMER_ID, h.TIMER_DUE, h.TIMER_FIRED]:
            return False
        own = dict(record.headers[-4:])
        callback = id_text(own.get(h.TIMER_SOURCE) or own[h.TIMER_ID]), record.key, record.value
        return self._delivery.refuse(topic, callback, DeliveryProblem("message-refused", reason, None))

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""
        self._add(partial(self._delivery.fire, due_s, rows))

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Move rows to the retry topic, due at ``again_s``."""
        self._add(partial(self._delivery.postpone, due_s, rows, again_s))

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""
        self._add(partial(self._delivery.reject, rejected))

    def rescue(self, timers: Sequence[tuple[int, Row]], cancels: Sequence[tuple[bytes, int]]) -> None:
        """Add dead letters of what the log has lost."""
        self._add(partial(self._delivery.rescue, timers))
        self._add(partial(self._outgoing.rescue_cancels, cancels))

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on cancels and replacements."""
        self._add(partial(self._outgoing.answer, verdicts))

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add requests that go cold."""
        self._add(partial(self._outgoing.forward, forwarded))

    def republish(self, rows: Sequence[Row]) -> None:
        """Add versions to the request log again."""
        self._add(partial(self._outgoing.republish, rows))
