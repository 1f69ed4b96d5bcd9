"""Writes the records of jobs, and the offsets, in one Kafka transaction, to partitions whose leaders answer."""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from functools import partial
from itertools import compress, count
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer, TopicPartition

from timers.client.config import Connection
from timers.errors import QueueError
from timers.kafka import connection
from timers.kafka.clients import LIBRDKAFKA_LOG, admin_client, flush, max_message_bytes
from timers.kafka.error_codes import FENCED, UNREACHABLE, code_of
from timers.kafka.leaders import LEADER_ANSWER_S, AnsweringLeaders, WriteAccess
from timers.process.config.settings import Settings
from timers.process.threads import call_in_thread
from timers.queue.metadata import Commit, Partition
from timers.queue.port import CommitAnswer, Job, Outcome, Plan
from timers.queue.records import Kind, Record, encode_copy
from timers.wire.formats import future_by_id
from timers.wire.headers import OneContext
from timers.wire.key_partition import partition_of

_log = logging.getLogger("timers.queue")

_DISPENSABLE = (Kind.OUTPUT, Kind.GUARD)
"""Records that the queue can do without, if the brokers refuse them."""


class AnsweringPlaces:
    """The partitions of a process's transactions: those whose leaders answer.

    A transaction ends with a marker in each of its partitions. If the leader of one is gone, it stays open until the
    leader is back, and its process can begin no other. So a record whose key gives its partition waits, and all others
    go to a partition whose leader answers: readers of timers and of dead letters read whole topics.

    Args:
        access: to which topics the process may not write.
        ledger_topic: topic of the copies, of which each transaction writes some.
    """

    def __init__(self, kafka: Connection, leaders: AnsweringLeaders, access: WriteAccess, ledger_topic: str) -> None:
        self._leaders = leaders
        self._access = access
        self._ledger_topic = ledger_topic
        settings = kafka.settings
        guard_topic = settings.id_topic  # empty if there are no timers with ids
        self._own = {
            Kind.RETRY: kafka.request_topic,
            Kind.LETTER: settings.dead_letter_topic,
            Kind.GUARD: guard_topic,
        }
        self._topics = {*self._own.values(), ledger_topic} - {""}
        self._effects = {
            **dict.fromkeys(self._topics, "retries and dead letters for it wait"),
            guard_topic: "there are no guards, so a message whose partition moves is delivered again at once",
        }
        """What this process does if it may not write to a topic of its own."""
        self._said: AbstractSet[str] = frozenset()

    def topic_of(self, record: Record) -> str:
        return record.topic or self._own[record.kind]

    def ask_leaders(self, jobs: Iterable[Job]) -> None:
        """Ask the leaders of all topics that the jobs need, and whether they may be written to. Blocks.

        Raises:
            KafkaException: no transaction can begin now.
        """
        topics = self._topics.union(self.topic_of(record) for job in jobs for record in job.records)
        self._leaders.ask(topics)
        self._access.ask(topics)
        for topic in sorted(self._access.denied - self._said):
            effect = self._effects.get(topic, "messages with outputs for it become dead letters")
            _log.warning("this process lacks the ACL Write on topic %r: %s", topic, effect)
        self._said = self._access.denied
        if self._ledger_topic in self._access.denied:
            text = f"this process lacks the ACL Write on topic {self._ledger_topic!r}"
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text))
        if not all(self._leaders.answer.get(self._ledger_topic, [False])):
            text = f"the leader of topic {self._ledger_topic!r} does not answer"
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, text))

    @property
    def are_complete(self) -> bool:
        """Whether all leaders answer, so that each record has a place."""
        answer = self._leaders.answer
        return not self._access.denied and self._topics <= answer.keys() and all(map(all, answer.values()))

    def denied(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs with an output or a guard whose topic may not be written to."""
        denied = self._access.denied
        needless = ((job, each) for job in jobs for each in job.records if each.kind in _DISPENSABLE)
        return list(dict.fromkeys(job for job, each in needless if self.topic_of(each) in denied))

    def forget(self) -> None:
        """Ask again to which topics the process may write, because a transaction failed."""
        self._access.forget()

    def has_place(self, job: Job) -> bool:
        """Whether each record of a job can be written now, as far as is known."""
        return all(self._has_place(record) for record in job.records)

    def _has_place(self, record: Record) -> bool:
        if self.topic_of(record) in self._access.denied:
            return False
        answering = self._leaders.answer.get(self.topic_of(record))
        if answering is None:  # the topic does not exist: an output to it is refused, and becomes a dead letter
            return record.kind is Kind.OUTPUT
        return any(answering) if record.key is None else answering[partition_of(record.key, len(answering))]

    def partition(self, record: Record) -> int:
        """Return a random partition for a record without a key that decides; -1 lets the client choose by the key."""
        answering = self._leaders.answer.get(self.topic_of(record), ())
        if record.key is not None or not any(answering):
            return -1
        return random.choice(list(compress(count(), answering)))


TRANSACTION_TIMEOUT_MS = 5000
"""An open transaction holds back the next owner of a partition."""

_TIMEOUT_S = 10.0
_OVERRUN_S = 5.0
"""A call of librdkafka is given up this many seconds after its time-out."""
_WRITE_TIMEOUT_S = 4.0
_CLOSE_S = 2.0


class Transactions:
    """The transactional producer of one process. One thread at a time uses it.

    Attributes:
        places: the partitions of its records; known when it is open.

    Args:
        member: part of the transactional id: unique among the processes of the group, and stable over restarts.
        ledger_topic: where copies of the commits go.
    """

    def __init__(
        self, kafka: Connection, reports: connection.ErrorReports, group: str, member: str, ledger_topic: str
    ) -> None:
        self._kafka = kafka
        self._settings = kafka.settings
        self._reports = reports
        self._group = group
        self._member = member
        self._id = f"{group}-{member}"
        self._ledger_topic = ledger_topic
        self._opened: tuple[Producer, Future[None]] | None = None  # the producer, and the call that connects it
        self._is_silent = False
        """Whether the last transaction failed because the brokers did not answer."""
        self._refused: dict[Job, KafkaError] = {}
        self.places: AnsweringPlaces
        self._append_ms = 0

    def open(self) -> None:
        """Begin to connect. librdkafka needs about half a second for it. Without this call the first transaction would
        wait so long, and the messages of that time too."""
        admin = admin_client(self._settings, self._reports, LEADER_ANSWER_S)
        leaders, access = AnsweringLeaders(admin, self._reports), WriteAccess(admin, LEADER_ANSWER_S)
        self.places = AnsweringPlaces(self._kafka, leaders, access, self._ledger_topic)
        self._opened = self._begin_opening()

    def close(self) -> None:
        """Disconnect. No transaction may be open."""
        if self._opened is not None:  # if it connected later, it would fence the next producer of this id
            wait([self._opened[1]], _CLOSE_S)
        self._opened = None
        with contextlib.suppress(AttributeError):  # it was never opened
            del self.places  # this also closes the connections with which places asked

    def ask_leaders(self, jobs: Iterable[Job]) -> AnsweringPlaces:
        """As :meth:`timers.queue.port.Port.ask_leaders`."""
        self.places.ask_leaders(jobs)
        return self.places

    def execute(self, plan: Plan) -> CommitAnswer:
        """Carry out a plan in a transaction. Blocks for milliseconds, and for seconds if the brokers do not answer."""
        self._append_ms, self._refused = 0, {}
        outcome = self._execute(plan)
        return CommitAnswer(outcome, self._append_ms, self._refused)

    def _execute(self, plan: Plan) -> Outcome:
        try:
            producer = self.connect()
            with _fatal_errors():
                producer.begin_transaction()
        except KafkaException as error:
            _log.warning("a transaction of %s cannot begin: %s", self._group, self._reason(error))
            self._opened = None
            self._gave_up_after(error)
            return Outcome.REFUSED
        try:
            with _fatal_errors():
                self._write(producer, plan)
            _end(_begin(producer.send_offsets_to_transaction, offsets(plan.commits), plan.member))
        except (KafkaException, BufferError) as error:
            _log.warning("a transaction of %s is repeated: %s", self._group, self._reason(error))
            if not self._gave_up_after(error):
                self._abort(producer)
            was_silent = self._is_silent
            self._is_silent = isinstance(error, KafkaException) and code_of(error) in UNREACHABLE
            if was_silent and self._is_silent:  # twice: after one silence, a single leader may be away
                self._opened = None  # the producer may have lost the addresses of all brokers: see lost_brokers
            return Outcome.REFUSED
        self._is_silent = False
        return self._commit(producer)

    def _commit(self, producer: Producer) -> Outcome:
        for _ in range(3):
            try:
                _end(_begin(producer.commit_transaction))
                return Outcome.COMMITTED
            except KafkaException as failure:
                error = failure.args[0]
                _log.warning("a transaction of %s is not committed yet: %s", self._group, self._reason(failure))
                if self._gave_up_after(failure):
                    return Outcome.UNKNOWN
                if error.txn_requires_abort():
                    self._abort(producer)
                    return Outcome.REFUSED
                if not error.retriable():
                    break
        self._opened = None
        return Outcome.UNKNOWN

    def _abort(self, producer: Producer) -> None:
        self.places.forget()
        try:
            _end(_begin(producer.abort_transaction))
        except KafkaException as error:
            self._opened = None  # the next producer's init_transactions aborts it
            self._gave_up_after(error)

    def _gave_up_after(self, error: Exception) -> bool:
        """Give up the producer after an error, if a call of it may still run: the next producer's ``init_transactions``
        ends what is open. Or if another producer has taken the name of this process, which then goes on under a name of
        its own: with the old name, each of the two would abort the transactions of the other. An open transaction of
        the old name was decided when it was taken.

        Returns:
            Whether there is no producer any more.
        """
        is_fenced = isinstance(error, KafkaException) and code_of(error) in FENCED
        if is_fenced:
            self._id = f"{self._group}-{self._member}-{uuid.uuid4().hex[:8]}"
            _log.error(
                "another process of %s took the name %r (--member) of this one, or this process was stopped for more "
                "than %g s in a transaction: its transactions go on under the name %r. Give each process a name of its "
                "own",
                *(self._group, self._member, TRANSACTION_TIMEOUT_MS / 1000, self._id),
            )
        if is_fenced or isinstance(error, Overrun):
            self._opened = None
        return self._opened is None

    def _reason(self, error: Exception) -> object:
        return self._reports.reason(error.args[0]) if isinstance(error, KafkaException) else error

    def connect(self) -> Producer:
        """Return the producer when it is connected: a new one if the last one was given up, or could not connect. Then
        no transaction of the last one is undecided.

        Raises:
            KafkaException: the brokers do not answer.
        """
        if self._opened is None or (self._opened[1].done() and self._opened[1].exception() is not None):
            self._opened = self._begin_opening()
        producer, connecting = self._opened
        try:
            _end(connecting)
        except KafkaException as error:
            self._opened = None
            self._gave_up_after(error)
            raise
        return producer

    def _begin_opening(self) -> tuple[Producer, Future[None]]:
        producer = Producer(
            {
                **login(self._settings),
                "client.id": self._id,
                "transactional.id": self._id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": int(_WRITE_TIMEOUT_S * 1000),
                "message.max.bytes": max_message_bytes(self._settings),
                "linger.ms": 1,
                "topic.metadata.propagation.max.ms": 2000,  # an output to a missing topic fails then, not after 30 s
                "partitioner": "murmur2_random",  # outputs of one key go to one partition
                **self._reports.callbacks,
            },
            logger=LIBRDKAFKA_LOG,
        )
        return producer, _begin(producer.init_transactions)

    def _write(self, producer: Producer, plan: Plan) -> None:
        """Write copies of the commits, and the records of the jobs.

        The copies come first: the brokers' time of the last one is later than each call of ``retry``, so that delays
        which are counted from it are never too short, whatever the clocks of this machine say. All records get this
        time: brokers refuse a time that is an hour ahead of theirs (``message.timestamp.after.max.ms``).
        """
        written = _Deliveries(self._refused)
        for partition, commit in plan.commits.items():
            key, value = encode_copy(self._group, partition, commit)
            producer.produce(self._ledger_topic, value, key, 0, on_delivery=written)
        written.wait(producer)
        kind, now_ms = written.timestamp
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            raise QueueError(f"topic {self._ledger_topic!r} needs message.timestamp.type=LogAppendTime")
        self._append_ms = now_ms
        for job in plan.jobs:
            self._write_job(producer, job, now_ms, written)
        written.wait(producer)

    def _write_job(self, producer: Producer, job: Job, now_ms: int, written: _Deliveries) -> None:
        for each in job.records:
            topic, partition = self.places.topic_of(each), self.places.partition(each)
            key, headers = each.key, OneContext(each.headers)
            if each.kind is Kind.GUARD:
                headers += future_by_id.encode_headers(int(due_key(now_ms, each.after_ms)))
            elif each.after_ms is not None:
                key = due_key(now_ms, each.after_ms)
            refusals = _OUTPUT_REFUSALS if each.kind in _DISPENSABLE else _RECORD_REFUSALS
            note = partial(written, job=job, refusals=refusals)
            while True:
                try:
                    producer.produce(
                        topic, each.value, key, partition, on_delivery=note, timestamp=now_ms, headers=headers
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
                except KafkaException as error:
                    note(error.args[0], None)
                    break


def due_key(append_ms: int, after_ms: int) -> bytes:
    """Return the record key of a request that is due ``after_ms`` after an append time, rounded up to whole seconds."""
    return b"%d" % -(-(append_ms + after_ms) // 1000)


class _Deliveries:
    """Delivery reports of one transaction."""

    def __init__(self, refused: dict[Job, KafkaError]) -> None:
        self.timestamp = (0, 0)
        self._refused = refused
        self._error: KafkaError | None = None

    def __call__(
        self, error: KafkaError | None, message: Any, job: Job | None = None, refusals: Collection[int] = ()
    ) -> None:
        if error is None:
            self.timestamp = message.timestamp()
            return
        if job is not None and error.code() in refusals:
            self._refused[job] = error
        self._error = error

    def wait(self, producer: Producer) -> None:
        """Wait for all reports.

        Raises:
            KafkaException: a record was not written.
        """
        left = flush(producer, _WRITE_TIMEOUT_S)
        if self._error is not None or left:
            raise KafkaException(self._error or KafkaError(KafkaError._TIMED_OUT))


class Overrun(KafkaException):
    """A call of librdkafka did not return in time, and may still run: its producer must not be used again."""


def _begin(method: Callable[..., None], *arguments: Any) -> Future[None]:
    """Call a producer's method that takes a time-out, in a thread of its own; :func:`_end` waits for it.

    librdkafka 2.16 does not keep the time-out of ``send_offsets_to_transaction`` if the broker is killed and started
    again meanwhile: without a second bound, the queue would wait for ever.
    """
    return call_in_thread("queue-transaction", method, *arguments, _TIMEOUT_S)


def _end(call: Future[None]) -> None:
    """Return when the method has returned.

    Raises:
        Overrun: it does not return.
        KafkaException: it failed.
    """
    try:
        with _fatal_errors():
            call.result(_TIMEOUT_S + _OVERRUN_S)
    except TimeoutError:
        text = f"librdkafka did not answer within {_TIMEOUT_S + _OVERRUN_S:g} s"
        raise Overrun(KafkaError(KafkaError._TIMED_OUT, text)) from None


@contextlib.contextmanager
def _fatal_errors() -> Iterator[None]:
    """Let a fatal error of librdkafka, such as that of a fenced producer, be a KafkaException.

    confluent-kafka raises it in any call that serves callbacks. If it serves a delivery report after it, Python hides
    the error behind a SystemError.
    """
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):  # one for each report
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, KafkaException):
            raise cause from None
        if cause is None:  # seen in `flush`: the error was lost, and the producer's next call repeats it
            raise KafkaException(KafkaError(KafkaError._FATAL, "a fatal error of librdkafka")) from None
        raise


def login(settings: Settings) -> dict[str, Any]:
    """Return how to connect, as properties of librdkafka."""
    return {**connection.librdkafka(settings), "allow.auto.create.topics": False}


FOREIGN = "?"
"""Stands for metadata that cannot be read: no queue wrote them, because a queue writes ASCII."""


def commit_of(committed: TopicPartition) -> Commit:
    """Returns a commit as the brokers have it.

    confluent-kafka does not end short metadata of other programs, such as the 12 characters of Kafka Streams. What
    stands behind them in its memory may be no text, which shows when they are read.
    """
    try:
        return Commit(committed.offset, committed.metadata or "")
    except UnicodeDecodeError:
        return Commit(committed.offset, FOREIGN)


def offsets(commits: Mapping[Partition, Commit]) -> list[TopicPartition]:
    """Return commits as the client's."""
    return [TopicPartition(*each, commit.offset, commit.metadata) for each, commit in commits.items()]


_RECORD_REFUSALS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP})
"""Errors of one record, which would fail each transaction that holds it."""

_OUTPUT_REFUSALS = _RECORD_REFUSALS | {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""If the topic of an output is missing, the message becomes a dead letter, because its handler chose the topic. If that
of a guard is missing, or this process may not write to it, there is no guard."""
