"""Transactions over the simulated log: the worker's own policy and records, with simulated routes and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from timers.config.settings import Settings
from timers.core.chunk_size import ChunkSize
from timers.core.counters import Counters
from timers.core.ports import Lost, TooMuch
from timers.core.progress import Cuts, Progress
from timers.core.timer import Origin, Row, Tick, TopicPartition, id_bytes, key_bytes, origin_of
from timers.firing.policy import KEYLESS_S, CallbackRules, DeliveryProblem, policy_of
from timers.firing.transaction import BaseOutbox, Outgoing
from timers.testing import faults as f
from timers.testing.faults import Faults
from timers.testing.id_oracle import Violation
from timers.testing.log import RecordRefused, SimLog, SimProducer, TooLarge
from timers.testing.next_level import LEVEL, formats_at
from timers.wire import dead_letter, topics
from timers.wire import headers as h
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.partitioner import partitions_for

TOPIC_ID = b"simulated topic."
"""Kafka's topic ids are 16 bytes."""

PROGRESS_PARTITION = 0
"""All machines share one partition of the progress topic, so that open transactions of others delay its readers."""

CIRCUIT_OPEN_MS = 5_000


class Buffered(NamedTuple):
    """A record of the transaction that is being filled."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[h.Header]
    timestamp_ms: int


class SimRecords:
    """Implements :class:`timers.firing.transaction.Records`.

    Attributes:
        added: the records of the transaction, in order.
    """

    def __init__(self) -> None:
        self.added: list[Buffered] = []

    def size(self, key: bytes | None, value: bytes | None, headers: list[h.Header]) -> int:
        """The size that the simulated log compares with the limit of a topic."""
        return dead_letter.size(key, value, headers)

    def fire(
        self, topic: str, partitions: int, rows: Sequence[Row], id_prefix: bytes, last: list[h.Header], now_ms: int
    ) -> None:
        keys = [key_bytes(row[2]) for row in rows]
        chosen = partitions_for(keys, [row[0] for row in rows], partitions)
        for row, key, partition in zip(rows, keys, chosen, strict=True):
            origin = origin_of(row, 0, f"{id_prefix.decode()}{row[0]}")
            identity = h.identity(id_bytes(origin.timer_id), origin.request.encode())
            self.add(topic, partition, key, row[3], [*(row[4] or ()), *identity, *last], now_ms)

    def add_tombstones(
        self, topic: str, partition: int, tombstones: Iterable[tuple[bytes | None, list[h.Header]]], now_ms: int
    ) -> None:
        for key, headers in tombstones:
            self.add(topic, partition, key, None, headers, now_ms)

    def add(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[h.Header],
        now_ms: int,
    ) -> None:
        self.added.append(Buffered(topic, partition, key, value, headers, now_ms))


class SimRoutes:
    """Implements :class:`timers.firing.transaction.Topics`; shared by the machines of a worker.

    Attributes:
        chunks: how many timers fire in one transaction of each machine.
    """

    usable: ClassVar[Mapping[str, int]] = {}

    def __init__(self, log: SimLog) -> None:
        self._log = log
        self._answered: set[str] = set()
        self._avoided: set[TopicPartition] = set()
        self._open_until_ms: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.chunks: dict[TopicPartition, ChunkSize] = {}

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem | None:
        if topic not in self._answered:
            return None
        if topic in self._log.missing:
            return DeliveryProblem.unknown(topic)
        open_ms = self._open_until_ms.get(topic, 0) - self._log.clock.now_ms
        if 0 < open_ms <= CIRCUIT_OPEN_MS:  # it is longer only after the clock went back
            return DeliveryProblem("target-failing", f"{topic} fails", open_ms / 1000)
        return self._log.partitions

    def wait(self, topics: Iterable[str]) -> None:
        """Ask the brokers about topics."""
        if not self._log.is_silent:
            self._answered.update(topics)

    def partitions(self, topic: str) -> int:
        return self._log.partitions

    def available(self, topic: str, partition: int) -> int:
        """``partition``, or another one if it had no leader in an earlier transaction."""
        self._avoided &= self._log.leaderless
        others = ((partition + step) % self._log.partitions for step in range(self._log.partitions))
        return next((each for each in others if (topic, each) not in self._avoided), partition)

    def avoid(self, topic: str, partition: int) -> None:
        """Note that a partition has no leader."""
        self._avoided.add((topic, partition))

    def was_moved(self, topic: str, partition: int) -> bool:
        return False

    def open_circuit(self, topic: str) -> None:
        """Send nothing to a topic for ``CIRCUIT_OPEN_MS``."""
        self._open_until_ms[topic] = self._log.clock.now_ms + CIRCUIT_OPEN_MS


class SimRequests:
    """Implements :class:`timers.firing.transaction.Requests`."""

    def __init__(self, log: SimLog, formats: dict[str, RequestFormat]) -> None:
        self._log = log
        self._formats = formats

    def find(
        self, timers: Iterable[tuple[Row, Origin]], keep_waiting: Callable[[], bool]
    ) -> dict[str, RequestRecord | None]:
        """Source -> request, without the requests that compaction has removed."""
        found: dict[str, RequestRecord | None] = {}
        for row, origin in timers:
            place = topics.parse_source(origin.request)
            assert place is not None
            for record in self._log.fetch(*place, 1).records:
                sent = RequestRecord(record.offset, record.key, record.value, record.headers, record.timestamp)
                request_format = self.request_format(origin.request)
                is_request = request_format.is_request_of(sent, row, origin)
                # A KeepAlive does not hold the message; a log that was cut has other requests there.
                assert is_request or request_format.has_markers or self._log.was_cut
                if is_request:
                    found[origin.request] = sent
        return found

    def request_format(self, source: str) -> RequestFormat:
        return self._formats[source.rsplit("/", 2)[0]]


class SimOutbox(BaseOutbox):
    """Implements :class:`timers.core.ports.Outbox`."""

    new_records: ClassVar[type[SimRecords]] = SimRecords

    def __init__(
        self, log: SimLog, settings: Settings, machine: TopicPartition, faults: Faults, routes: SimRoutes
    ) -> None:
        self.counters = Counters()
        self.chunk = routes.chunks.setdefault(machine, ChunkSize())
        outgoing = Outgoing(settings, machine, routes, self.counters, lambda: log.clock.now_ms)
        super().__init__(outgoing, outgoing.delivery(policy_of(settings, machine[0]), CallbackRules(settings)))
        self._log = log
        self._settings = settings
        self._machine = machine
        self._faults = faults
        self._routes = routes
        self._requests = SimRequests(log, formats_at(settings, LEVEL))
        self._producer = SimProducer(log, topics.transactional_id(settings.app_id, *machine))
        self._records = self.new_records()
        self._tick = Tick(0)
        self._is_due = self._is_settled = False
        self._needs_key_until_s: dict[str, int] = {}
        """Topic that has refused a callback without a key -> until which second it must get no other one."""

    @property
    def is_fenced(self) -> bool:
        return self._producer.is_fenced

    def open(self) -> None:
        self._producer.init_transactions()
        self._faults.point("after fencing")

    def bind(self, cuts: Cuts, progress: Progress) -> None:
        """Set the cuts of the log, and the progress with which the machine opens."""
        self._outgoing.bind(cuts)
        self._witness.begin(progress, TOPIC_ID, self._now_s())

    def begin(self, tick: Tick) -> None:
        self._is_settled = False
        self._tick = tick
        self._records = self.new_records()
        self.counters.begin()
        self._begin(tick, self._records)

    def commit(self, progress: Progress) -> None:
        while refused := self._fill_and_send(progress):
            self._producer.abort()
            if not self._log.lists_refused and self._may_be_another(refused[0]):
                raise TooMuch("a record is refused", rolled_back=True)
            noted = [self._refuse(record.topic, record, "a record without key") for record in refused]
            if not any(noted):
                raise Lost("records are refused again")
            for topic in {record.topic for record in refused}:
                if self._tick.second < self._needs_key_until_s.get(topic, -1):
                    raise Violation(f"{topic} got another callback without a key")
                self._needs_key_until_s[topic] = self._tick.second + KEYLESS_S
            self._records = self.new_records()
            self.refill(self._tick, self._records)
        self._faults.point("before a commit")
        self._end()
        self._witness.note(progress, TOPIC_ID, self._now_s(), tried=self._is_due, sent=self._is_due)
        self.chunk.committed(0.0)
        self._is_settled = True
        self._faults.point("after a commit")

    def witness_due(self, progress: Progress) -> tuple[int, str] | None:
        """Offset and metadata that the group gets with a transaction; None if they can wait."""
        return self._witness.due(progress, TOPIC_ID, self._now_s())

    @property
    def has_old_witness(self) -> bool:
        return self._witness.is_old(self._now_s())

    def _now_s(self) -> float:
        return self._log.clock.boot_ms / 1000

    def close(self) -> None:
        """Commit what the group does not know yet."""
        left = self._witness.left()
        if left is not None and self._is_settled and not self.is_fenced:
            self._producer.begin()
            self._producer.send_offset(self._settings.app_id, self._machine, *left)
            self._producer.commit()

    def _may_be_another(self, refused: Buffered) -> bool:
        """Whether the refused record has others beside it for its partition, so that each of them may be the cause."""
        return sum(each[:2] == refused[:2] for each in self._records.added) > 1

    def _fill_and_send(self, progress: Progress) -> list[Buffered]:
        self._routes.wait(self._delivery.unanswered)
        self._delivery.end_wait()
        self._outgoing.add_given_up(self._requests, lambda: True)
        self._outgoing.add_progress(progress, TOPIC_ID, PROGRESS_PARTITION)
        # A producer sends to partitions in any order, so the progress may be sent first.
        self._records.added.insert(0, self._records.added.pop())
        self._faults.point("before a transaction")
        if self._faults.take(f.UNREACHABLE):
            raise Lost("no broker answers")
        self._producer.begin()
        return self._produce(progress)

    def _produce(self, progress: Progress) -> list[Buffered]:
        refused = []
        if len(self._records.added) > self._log.slow_above_records:
            raise TooMuch("no answer in time")
        due = self.witness_due(progress)
        self._is_due = due is not None
        if due is not None:
            self._producer.send_offset(self._settings.app_id, self._machine, *due)
        for record in self._records.added:
            topic, partition, key, value, headers, timestamp_ms = record
            if topic in self._log.failing:
                self._routes.open_circuit(topic)
                raise Lost(f"{topic} refuses")
            if (topic, partition) in self._log.leaderless:
                self._routes.avoid(topic, partition)
                raise Lost(f"{topic}/{partition} has no leader")
            created_ms = timestamp_ms if topic in self._settings.schedule_topics else None
            try:
                self._producer.produce(topic, key, value, headers, partition, created_ms)
            except RecordRefused:
                refused.append(record)
            except TooLarge as error:
                self._routes.max_message_bytes[topic] = error.limit
                raise Lost(str(error)) from None
            self._faults.point("inside a transaction")
        if self._faults.take(f.REFUSED):
            raise Lost("a delivery failed")
        return refused

    def _end(self) -> None:
        """Commit. If the outcome is unknown, the machine must be opened again [I5]."""
        if self._faults.take(f.REQUEST_LOST):
            raise Lost("the commit timed out")
        self._producer.commit()
        if self._faults.take(f.REPLY_LOST):
            raise Lost("the commit timed out")
