"""What the simulator puts in the place of Kafka: a producer over the simulated log, and what brokers answer.

Policy and transaction are the product's own.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

from tests.simulation.kit import faults as f
from tests.simulation.kit.faults import Faults, Violation
from tests.simulation.kit.log import RecordRefused, SimLog, SimProducer, TooLarge
from tests.simulation.kit.next_level import LEVEL, formats_at
from timers.core.counters import Counters
from timers.core.limits import ChunkSize
from timers.core.ports import BatchesRefused, Deleted, DeliveryFailed, Lost, Unanswered
from timers.core.timer import Origin, Row, TopicPartition
from timers.machines.firing.breaker import DeliveryProblem
from timers.machines.firing.policy import KEYLESS_S, Policy, policy_of
from timers.machines.firing.ports import FirstRecord
from timers.machines.firing.transaction import Transaction
from timers.process.config.settings import Settings
from timers.testing.sim_timers import SimBatch
from timers.wire import dead_letter, topics
from timers.wire import headers as h
from timers.wire.formats import RequestFormat, RequestRecord

TOPIC_ID = b"simulated topic."
"""Kafka's topic ids are 16 bytes."""

PROGRESS_PARTITION = 0
"""All machines share one partition of the progress topic, so that open transactions of others delay its readers."""

CIRCUIT_OPEN_MS = 5_000


class NoLeader(Exception):
    """A partition has no leader."""


class SimTopics:
    """Implements :class:`timers.machines.firing.ports.Topics`; shared by the machines of a worker.

    Attributes:
        chunks: how many timers brokers take in one transaction of each machine.
    """

    usable: ClassVar[Mapping[str, int]] = {}
    own: ClassVar[frozenset[str]] = frozenset()
    """Only callbacks are refused in a run, and their topics may be those of the engine, too."""

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

    def wait(self, topics: Collection[str], may_wait: Callable[[], bool]) -> None:
        """Ask the brokers about topics."""
        if not self._log.is_silent:
            self._answered.update(topics)

    def limit_now(self, topic: str) -> int | None:
        return self.max_message_bytes.get(topic)

    def partitions(self, topic: str) -> int:
        return self._log.partitions

    def available(self, topic: str, partition: int) -> int:
        """``partition``, or another one if it had no leader in an earlier transaction."""
        self._avoided &= self._log.leaderless
        others = ((partition + step) % self._log.partitions for step in range(self._log.partitions))
        return next((each for each in others if (topic, each) not in self._avoided), partition)

    def was_moved(self, topic: str, partition: int) -> bool:
        return False

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Send nothing to a topic for ``CIRCUIT_OPEN_MS``."""
        self._open_until_ms[topic] = self._log.clock.now_ms + CIRCUIT_OPEN_MS

    def note_failed(self, failed: Mapping[str, BaseException]) -> None:
        for topic, error in failed.items():
            if isinstance(error, TooLarge):
                self.max_message_bytes[topic] = error.limit
            elif isinstance(error, NoLeader):
                self._avoided.add(error.args)
            else:
                self.open_circuit(topic, error)

    def note_silent(self, failure: Unanswered, *, few_records: bool) -> None:
        """Do nothing: the brokers are slow."""

    def note_worked(self, topics: Collection[str]) -> None:
        """Do nothing: a circuit closes after its time."""

    def note_timestamps_refused(self, topic: str) -> None:
        """Do nothing: simulated topics take all times."""

    def refresh(self) -> None:
        """Do nothing."""


class SimRequests:
    """Implements :class:`timers.machines.firing.ports.Requests`."""

    def __init__(self, log: SimLog, formats: dict[str, RequestFormat]) -> None:
        self._log = log
        self._formats = formats

    def find(
        self, timers: Iterable[tuple[Row, Origin]], may_wait: Callable[[], bool]
    ) -> dict[str, RequestRecord | None]:
        """Source -> request, without the requests that compaction has removed, or that were deleted."""
        found: dict[str, RequestRecord | None] = {}
        for row, origin in timers:
            place = topics.parse_source(origin.request)
            assert place is not None
            if place[2] < self._log.start(*place[:2]):
                continue
            for record in self._log.fetch(*place, 1).records:
                sent = RequestRecord(record.offset, record.key, record.value, record.headers, record.timestamp)
                request_format = self.request_format(origin.request)
                is_request = request_format.is_request_of(sent, row, origin)
                # A KeepAlive does not hold the message; a log that was cut has other requests there.
                assert is_request or request_format.has_markers or self._log.was_cut
                if is_request:
                    found[origin.request] = sent
        return found

    def read_again(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord | Deleted]:
        """Source -> request, without those that compaction has removed."""
        found: dict[str, RequestRecord | Deleted] = {}
        for source in sources:
            place = topics.parse_source(source)
            assert place is not None
            if place[2] < self._log.start(*place[:2]):
                found[source] = Deleted(self._log.end(*place[:2]))
            for each in self._log.fetch(*place, 1).records:
                if each.offset == place[2]:
                    found[source] = RequestRecord(each.offset, each.key, each.value, each.headers, each.timestamp)
        return found

    def request_format(self, source: str) -> RequestFormat:
        return self._formats[source.rsplit("/", 2)[0]]


class Bad(NamedTuple):
    """A record that brokers refuse: its place in its batch, and why."""

    place: int
    why: str


class SimRefusal(Exception):
    """What a broker says about a batch that it refuses, because a record has no key."""

    name, why, is_of_timestamps = "INVALID_RECORD", "a record without key", False

    def __init__(self, topic: str, records: Sequence[Bad]) -> None:
        super().__init__(topic)
        self.topic = topic
        self.records = records


class SimTransactions:
    """Implements :class:`timers.machines.firing.ports.Producer` on the simulated log, with faults."""

    throttled_s = 0.0
    write_callbacks = None
    size_alone = staticmethod(dead_letter.size)
    """The size that the simulated log compares with the limit of a topic."""

    def __init__(self, log: SimLog, settings: Settings, machine: TopicPartition, faults: Faults) -> None:
        self.producer = SimProducer(log, topics.transactional_id(settings.app_id, *machine))
        self._log = log
        self._settings = settings
        self._faults = faults
        self._machine = machine
        self.held_from: set[int] = set()
        self.newest_start: int | None = None
        self.transactions = 0
        self._needs_key_until_s: dict[str, int] = {}
        """Topic that has refused a callback without a key -> until which second it must get no other one."""

    def open(self) -> None:
        self.producer.init_transactions()
        self.held_from.clear()
        self._faults.point("after fencing")

    def close(self) -> None:
        """Do nothing."""

    def beat_and_may_wait(self) -> bool:
        return True

    def await_quota(self) -> None:
        """Do nothing: no broker throttles."""

    def batch(self, max_bytes: int, first: FirstRecord) -> SimBatch:
        return SimBatch(first)

    def transact(
        self, batches: Sequence[tuple[str, int, SimBatch]], offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> bool:
        if not batches:
            return self._commit_offsets(offsets)
        self._faults.point("before a transaction")
        if self._faults.take(f.UNREACHABLE):
            raise Lost("no broker answers")
        self.producer.begin()
        self.newest_start = None
        self.transactions += 1
        # A producer sends to partitions in any order, so the progress may be sent first.
        ordered = sorted(batches, key=lambda each: each[0] != self._settings.progress_topic)
        refused = self.send(ordered, offsets)
        if refused:
            self.producer.abort()
            if all(said.records or len(batch.offsets) == 1 for batch, said in refused):
                for topic in {said.topic for _, said in refused}:
                    self._note_refused(topic)
            raise BatchesRefused(refused)
        self._faults.point("before a commit")
        self._end()
        self._faults.point("after a commit")
        return bool(offsets)

    def _commit_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        if not self.producer.is_fenced:
            self.producer.begin()
            for machine, offset in offsets.items():
                self.producer.send_offset(self._settings.app_id, machine, *offset)
            self.producer.commit()
        return True

    def send(
        self, batches: Sequence[tuple[str, int, SimBatch]], offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> list[tuple[SimBatch, SimRefusal]]:
        """Send batches and offsets. Returns what the brokers refuse."""
        if sum(len(batch.records) for _, _, batch in batches) > self._log.slow_above_records:
            raise Unanswered(())
        for machine, offset in offsets.items():
            self.producer.send_offset(self._settings.app_id, machine, *offset)
        refused = []
        for topic, partition, batch in batches:
            if topic in self._log.failing:
                raise DeliveryFailed({topic: Lost(f"{topic} refuses")})
            if (topic, partition) in self._log.leaderless:
                raise DeliveryFailed({topic: NoLeader(topic, partition)})
            bad = self._produce(topic, partition, batch)
            if bad:
                refused.append((batch, SimRefusal(topic, bad if self._log.lists_refused else [])))
        if self._faults.take(f.REFUSED):
            raise Lost("a delivery failed")
        return refused

    def _produce(self, topic: str, partition: int, batch: SimBatch) -> list[Bad]:
        keeps_times = topic in self._settings.schedule_topics
        bad = []
        if (topic, partition) == self._machine and self.newest_start is None:
            self.newest_start = self._log.end(topic, partition)
            self.held_from.add(self.newest_start)
        for place, (timestamp_ms, key, value, headers) in enumerate(batch.records):
            try:
                self.producer.produce(topic, key, value, headers, partition, timestamp_ms if keeps_times else None)
            except RecordRefused:
                bad.append(Bad(place, ""))
                self._fired_s = int(dict(headers).get(h.TIMER_FIRED) or b"0") // 1000
            except TooLarge as error:
                raise DeliveryFailed({topic: error}) from None
            self._faults.point("inside a transaction")
        return bad

    _fired_s = 0

    def _note_refused(self, topic: str) -> None:
        if self._fired_s < self._needs_key_until_s.get(topic, -1):
            raise Violation(f"{topic} got another callback without a key")
        self._needs_key_until_s[topic] = self._fired_s + KEYLESS_S

    def _end(self) -> None:
        """Commit. If the outcome is unknown, the machine must be opened again [I5]."""
        if self._faults.take(f.REQUEST_LOST):
            raise Lost("the commit timed out")
        self.producer.commit()
        if self._faults.take(f.REPLY_LOST):
            raise Lost("the commit timed out")


class SimOutbox(NamedTuple):
    """The outbox of a simulated machine, and what is measured of it."""

    policy: Policy
    producer: SimTransactions
    counters: Counters

    @property
    def is_fenced(self) -> bool:
        """Whether another worker has taken over the machine."""
        return self.producer.producer.is_fenced


class RefusingOutbox:
    """Raises :class:`Violation` when a machine uses it: a recovery emits nothing [I15]."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*args: Any) -> NoReturn:
            raise Violation(f"recovery called {name} of its outbox")

        return refuse


def outbox_of(
    log: SimLog,
    settings: Settings,
    machine: TopicPartition,
    faults: Faults,
    known: SimTopics,
    producer_class: type[SimTransactions] = SimTransactions,
) -> SimOutbox:
    """The outbox of a machine: the product's own, with a simulated producer and simulated answers of brokers."""
    counters = Counters()
    producer = producer_class(log, settings, machine, faults)
    requests = SimRequests(log, formats_at(settings, LEVEL))
    clocks = lambda: (log.clock.now_ms + 0.5) / 1000, lambda: log.clock.boot_ms / 1000
    rest = counters, known.chunks.setdefault(machine, ChunkSize()), threading.Lock(), *clocks
    transaction = Transaction(settings, machine, known, requests, producer, *rest)
    policy = policy_of(settings, known, transaction)
    policy.transaction.bind(TOPIC_ID, PROGRESS_PARTITION)
    return SimOutbox(policy, producer, counters)
