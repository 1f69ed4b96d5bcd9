"""The Kafka clients of a queue: topics, the consumer of the group, and the commits that a plan asks for."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from enum import Enum
from functools import partial
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)

from timers.client.config import Connection
from timers.errors import QueueError, TimersError
from timers.kafka import connection
from timers.kafka.clients import LIBRDKAFKA_LOG, admin_client, max_message_bytes, reader
from timers.kafka.topic_admin import create_if_missing
from timers.queue import records
from timers.queue.settling import Commit, Job, Partition, Plan
from timers.wire import topics

TRANSACTION_TIMEOUT_MS = 5000
"""An open transaction holds back the next owner of a partition."""

_TIMEOUT_S = 10.0
_WRITE_TIMEOUT_S = 4.0
_TAG_CHARACTERS = 8
_log = logging.getLogger("timers.queue")


class Outcome(Enum):
    """What became of a plan."""

    COMMITTED = 1
    REFUSED = 2
    UNKNOWN = 3


class Transport:
    """The clients of one process for one queue. Only the thread of the queue uses it, after :meth:`open`.

    Args:
        member: part of the transactional id: unique among the processes of the group, and stable over restarts.
    """

    def __init__(self, kafka: Connection, topic: str, group: str, member: str, session_timeout_s: float) -> None:
        self.topic = topic
        self.group = group
        self.returns_topic = topics.queue_returns(group)
        self.ledger_topic = topics.queue_ledger(group)
        self._kafka = kafka
        self._settings = kafka.settings
        self._member = member
        self._session_timeout_s = session_timeout_s
        self._reports = connection.ErrorReports(kafka.settings)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._logs: dict[str, str] = {}
        self._refused: list[Job] = []
        self._request_partitions = 1

    # ---- opening -------------------------------------------------------------------------------------------------

    def open(self, assigned: Callable[[list[TopicPartition]], None], revoked: Callable[..., None]) -> None:
        """Create the internal topics and join the group.

        Args:
            assigned: called in :meth:`poll` with new partitions.
            revoked: called in :meth:`poll` with lost ones, and ``lost=True`` if another member may own them already.

        Raises:
            QueueError: the topic does not exist, or the brokers do not answer.
        """
        admin = admin_client(self._settings, self._reports)
        try:
            count = connection.partitions_of(admin, self._reports, self.topic)
            if not count:
                raise QueueError(f"topic {self.topic!r} does not exist at {self._settings.brokers}: create it")
            # They exist before the process joins: partitions of a topic that appears later have no owner for a while.
            # To ask first needs fewer rights: brokers refuse to create a topic before they look whether it exists.
            if not connection.partitions_of(admin, self._reports, self.returns_topic):
                create_if_missing(self._settings, self.returns_topic, partitions=count)
            if not connection.partitions_of(admin, self._reports, self.ledger_topic):
                create_if_missing(self._settings, self.ledger_topic, partitions=1, cleanup_policy="compact")
            self._logs = self._topic_tags(admin)
        except KafkaException as error:
            raise self._reports.user_error(error, f"the queue {self.topic!r} cannot be opened", QueueError) from error
        self._consumer = Consumer(
            {
                **self._login(),
                "group.id": self.group,
                "client.id": f"{self.group}-{self._member}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",  # committed() then waits for undecided transactions, too
                "auto.offset.reset": "error",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(self._session_timeout_s * 1000),
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 20,
                "queued.max.messages.kbytes": 16_384,
                "error_cb": self._reports,
            },
            logger=LIBRDKAFKA_LOG,
        )
        self._consumer.subscribe(
            [self.topic, self.returns_topic],
            on_assign=lambda _, partitions: assigned(partitions),
            on_revoke=lambda _, partitions: revoked(partitions, lost=False),
            on_lost=lambda _, partitions: revoked(partitions, lost=True),
        )

    def _login(self) -> dict[str, Any]:
        return {**connection.librdkafka(self._settings), "allow.auto.create.topics": False}

    def _topic_tags(self, admin: Any) -> dict[str, str]:
        """Return a few characters of each topic's id, which differs from that of a deleted topic of the same name."""
        names = [self.topic, self.returns_topic]
        described = admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
        return {name: str(described[name].result().topic_id)[:_TAG_CHARACTERS] for name in names}

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def member(self) -> Any:
        """Return the metadata of this process as a member of the group. Call it in callbacks of rebalances only."""
        return self.consumer.consumer_group_metadata()

    def log_tag(self, topic: str) -> str:
        """Return what the metadata of partitions of this topic is marked with."""
        return self._logs[topic]

    def close(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._producer = None

    # ---- reading -------------------------------------------------------------------------------------------------

    def poll(self, most: int, wait_s: float) -> list[Any]:
        """Return up to ``most`` records and ends of partitions. Callbacks of rebalances run in this call."""
        first = self.consumer.poll(wait_s)
        if first is None:
            return []
        return [first, *self.consumer.consume(most - 1, 0)] if most > 1 else [first]

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]:
        """Return what is committed, once no transaction on it is undecided.

        Raises:
            KafkaException: the brokers do not answer, or a transaction stays undecided.
        """
        asked = [TopicPartition(*each) for each in partitions]
        found = {}
        for each in self.consumer.committed(asked, timeout=3 * _TIMEOUT_S) if asked else ():
            if each.error is not None:
                raise KafkaException(each.error)
            none = each.offset < 0
            found[each.topic, each.partition] = None if none else Commit(each.offset, each.metadata or "")
        return found

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset of a partition's log, and its end."""
        low, high = self.consumer.get_watermark_offsets(TopicPartition(*partition), timeout=_TIMEOUT_S)
        return low, high

    def copies(self) -> dict[Partition, Commit]:
        """Return the newest copy of each partition's commit. Groups without members lose their offsets after 7 days."""
        consumer = reader(self._login(), LIBRDKAFKA_LOG, enable_partition_eof=True)
        found: dict[Partition, Commit] = {}
        with closing(consumer):
            consumer.assign([TopicPartition(self.ledger_topic, 0, 0)])
            while (record := consumer.poll(_TIMEOUT_S)) is not None:
                error = record.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return found
                    raise KafkaException(error)
                copy = records.decode_copy(record.key(), record.value())
                if copy is not None:
                    found[copy[0]] = copy[1]
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    # ---- committing ----------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> Outcome:
        """Carry out a plan. Blocks for milliseconds, and for seconds if the brokers do not answer."""
        return self._transact(plan) if plan.in_transaction else self._commit(plan)

    def _commit(self, plan: Plan) -> Outcome:
        try:
            results = self.consumer.commit(offsets=_offsets(plan.commits), asynchronous=False)
        except KafkaException as error:
            _log.warning("a commit of %s failed: %s", self.group, error.args[0])
            answered = error.args[0].code() in _REFUSALS
            return Outcome.REFUSED if answered else Outcome.UNKNOWN
        errors = [each.error for each in results or () if each.error is not None]
        for each in errors[:1]:
            _log.warning("a commit of %s was refused: %s", self.group, each)
        return Outcome.REFUSED if errors else Outcome.COMMITTED

    def _transact(self, plan: Plan) -> Outcome:
        try:
            producer = self._producer or self._new_producer()
            producer.begin_transaction()
        except KafkaException as error:
            _log.warning("a transaction of %s cannot begin: %s", self.group, error.args[0])
            self._producer = None
            return Outcome.REFUSED
        try:
            self._write(producer, plan)
            producer.send_offsets_to_transaction(_offsets(plan.commits), plan.member, _TIMEOUT_S)
        except (KafkaException, BufferError) as error:
            _log.warning("a transaction of %s is repeated: %s", self.group, error.args[0])
            self._abort(producer)
            return Outcome.REFUSED
        return self._end(producer)

    def _end(self, producer: Producer) -> Outcome:
        for _ in range(3):
            try:
                producer.commit_transaction(_TIMEOUT_S)
                return Outcome.COMMITTED
            except KafkaException as failure:
                error = failure.args[0]
                _log.warning("a transaction of %s is not committed yet: %s", self.group, error)
                if error.txn_requires_abort():
                    self._abort(producer)
                    return Outcome.REFUSED
                if not error.retriable():
                    break
        self._producer = None
        return Outcome.UNKNOWN

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(_TIMEOUT_S)
        except KafkaException:
            self._producer = None  # the next producer's init_transactions aborts it

    def take_refused(self) -> list[Job]:
        """Return the jobs with records that the brokers refuse, once."""
        refused, self._refused = self._refused, []
        return refused

    def end_unknown(self) -> None:
        """Return when no transaction of this process is undecided.

        Raises:
            KafkaException: the brokers do not answer.
        """
        self._new_producer()

    def _new_producer(self) -> Producer:
        self._producer = None
        producer = Producer(
            {
                **self._login(),
                "client.id": f"{self.group}-{self._member}",
                "transactional.id": f"{self.group}-{self._member}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": int(_WRITE_TIMEOUT_S * 1000),
                "message.max.bytes": max_message_bytes(self._settings),
                "linger.ms": 1,
                "topic.metadata.propagation.max.ms": 2000,  # an output to a missing topic fails then, not after 30 s
                "partitioner": "murmur2_random",  # outputs of one key go to one partition
                "error_cb": self._reports,
            },
            logger=LIBRDKAFKA_LOG,
        )
        producer.init_transactions(_TIMEOUT_S)
        self._request_partitions = max(
            1, connection.partitions_of(producer, self._reports, self._kafka.request_topic, _TIMEOUT_S)
        )
        self._producer = producer
        return producer

    def _write(self, producer: Producer, plan: Plan) -> None:
        """Write copies of the commits, and the records of the jobs.

        The copies come first: the brokers' time of the last one is later than each call of ``retry``, so that delays
        which are counted from it are never too short, whatever the clocks of this machine say.
        """
        written = _Deliveries(self._refused)
        for partition, commit in plan.commits.items():
            key, value = records.encode_copy(partition, commit)
            producer.produce(self.ledger_topic, value, key, 0, on_delivery=written)
        written.wait(producer)
        kind, now_ms = written.timestamp
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            raise QueueError(f"topic {self.ledger_topic!r} needs message.timestamp.type=LogAppendTime")
        for job in plan.jobs:
            self._write_job(producer, job, now_ms, written)
        written.wait(producer)

    def _write_job(self, producer: Producer, job: Job, now_ms: int, written: _Deliveries) -> None:
        for each in job.records:
            key: bytes | None
            partition, refusals = -1, _RECORD_REFUSALS
            if isinstance(each, records.Later):
                topic, key = self._kafka.request_topic, records.due_key(now_ms, each.after_ms)
                partition = random.randrange(self._request_partitions)  # spreads a second with many retries
            elif isinstance(each, records.Output):
                topic, key, refusals = each.topic, each.key, _OUTPUT_REFUSALS
            else:
                topic, key = self._settings.dead_letter_topic, records.due_key(now_ms, 0) if each.has_key else None
            note = partial(written, job=job, refusals=refusals)
            while True:
                try:
                    producer.produce(topic, each.value, key, partition, on_delivery=note, headers=list(each.headers))
                    break
                except BufferError:
                    producer.poll(0.05)
                except KafkaException as error:
                    note(error.args[0], None)
                    break

    def user_error(self, error: KafkaException, failed: str) -> TimersError:
        """Return librdkafka's error as a sentence for users."""
        return self._reports.user_error(error, failed, QueueError)


class _Deliveries:
    """Delivery reports of one transaction."""

    def __init__(self, refused: list[Job]) -> None:
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
            self._refused.append(job)
        self._error = error

    def wait(self, producer: Producer) -> None:
        """Wait for all reports.

        Raises:
            KafkaException: a record was not written.
        """
        left = producer.flush(_WRITE_TIMEOUT_S)
        if self._error is not None or left:
            raise KafkaException(self._error or KafkaError(KafkaError._TIMED_OUT))


def _offsets(commits: Mapping[Partition, Commit]) -> list[TopicPartition]:
    return [TopicPartition(*each, commit.offset, commit.metadata) for each, commit in commits.items()]


_RECORD_REFUSALS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Errors of one record, which would fail each transaction that holds it."""

_OUTPUT_REFUSALS = _RECORD_REFUSALS | {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""The handler chose the topic, so a missing one is the message's trouble."""

_REFUSALS = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Answers with which the brokers refuse a commit. After any other error it may have been committed."""
