"""The consumer of a queue: its topics, its group, and plain commits."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import partial
from time import monotonic, sleep
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition

from timers.client.config import Connection
from timers.config.settings import Settings
from timers.errors import QueueError, TimersError
from timers.kafka import connection
from timers.kafka.clients import LIBRDKAFKA_LOG, admin_client, reader
from timers.kafka.topic_admin import configs, create_if_missing
from timers.queue import records
from timers.queue.settling import Commit, Partition, Plan
from timers.queue.transactions import Outcome, Transactions, login, offsets
from timers.wire import topics

_TIMEOUT_S = 10.0
_COMMITTED_TIMEOUT_S = 3.0
"""Short, because this process commits nothing while it waits for the transactions of others."""

_HEARTBEAT_MS = 500
"""A member learns of a rebalance by the answer to a heartbeat. Partitions that move to it wait so long. The client's
default is 3 s."""

_TAG_CHARACTERS = 8
_RETURNS_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_log = logging.getLogger("timers.queue")


class Transport:
    """The clients of one process for one queue. After :meth:`open` only the thread of the queue uses it, and for
    :meth:`execute` and :meth:`committed` the thread of a commit.

    Attributes:
        transactions: for commits with records.

    Args:
        member: part of the transactional id: unique among the processes of the group, and stable over restarts.
    """

    def __init__(self, kafka: Connection, topic: str, group: str, member: str, session_timeout_s: float) -> None:
        self.topic = topic
        self.group = group
        self.returns_topic = topics.queue_returns(group)
        self.ledger_topic = topics.queue_ledger(group)
        self._settings = kafka.settings
        self._member = member
        self._session_timeout_s = session_timeout_s
        self._reports = connection.ErrorReports(kafka.settings)
        self._admin: Any = None
        self._described: dict[str, Any] = {}
        self._consumer: Consumer | None = None
        self._logs: dict[str, str] = {}
        self._count = self._seen_count = self._returns_count = 0
        self.transactions = Transactions(kafka, self._reports, group, member, self.ledger_topic)

    # ---- opening -------------------------------------------------------------------------------------------------

    def open(self, assigned: Callable[[list[Partition]], None], revoked: Callable[..., None]) -> None:
        """Create the internal topics and join the group.

        Args:
            assigned: called in :meth:`poll` with new partitions, which are not read before :meth:`start`.
            revoked: called in :meth:`poll` with lost ones, and ``lost=True`` if another member may own them already.

        Raises:
            QueueError: the topic does not exist, or the brokers do not answer.
        """
        self._admin = admin = admin_client(self._settings, self._reports)
        try:
            self._count = self._seen_count = count = connection.partitions_of(admin, self._reports, self.topic)
            if not count:
                raise QueueError(f"topic {self.topic!r} does not exist at {self._settings.brokers}: create it")
            # To ask first needs fewer rights: brokers refuse to create a topic before they look whether it exists.
            self._returns_count = connection.partitions_of(admin, self._reports, self.returns_topic)
            if not self._returns_count:
                create_if_missing(self._settings, self.returns_topic, partitions=count, config=_RETURNS_CONFIG)
                self._returns_count = count
            if not connection.partitions_of(admin, self._reports, self.ledger_topic):
                create_if_missing(self._settings, self.ledger_topic, partitions=1, cleanup_policy="compact")
            self._logs = self._topic_tags(admin)
            self._check_returns(admin)
        except KafkaException as error:
            raise self._reports.user_error(error, f"the queue {self.topic!r} cannot be opened", QueueError) from error
        self.transactions.open()
        self._consumer = Consumer(
            {
                **login(self._settings),
                "group.id": self.group,
                "client.id": f"{self.group}-{self._member}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",  # committed() then waits for undecided transactions, too
                "auto.offset.reset": "error",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(self._session_timeout_s * 1000),
                "heartbeat.interval.ms": _HEARTBEAT_MS,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 20,
                "queued.max.messages.kbytes": 16_384,
                "error_cb": self._reports,
            },
            logger=LIBRDKAFKA_LOG,
        )
        self._consumer.subscribe(
            [self.topic],
            on_assign=partial(self._on_assign, assigned),
            on_revoke=lambda _, partitions: revoked(self._with_returns(partitions), lost=False),
            on_lost=lambda _, partitions: revoked(self._with_returns(partitions), lost=True),
        )

    def _on_assign(
        self, assigned: Callable[[list[Partition]], None], _: Consumer, partitions: list[TopicPartition]
    ) -> None:
        assigned(self._with_returns(partitions))
        self.consumer.incremental_assign([])  # without this call the client chooses the offset to read from

    def _with_returns(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Add to partitions of the queue's topic those of the returns topic with the same numbers.

        The group assigns only the queue's topic. If it assigned both topics, one process could get all partitions of
        one topic, and another process all of the other. The returns topic may have more partitions if the queue's topic
        was deleted and created again with fewer.
        """
        numbers = {each.partition for each in partitions}
        returned = (number for number in range(self._returns_count) if number % self._count in numbers)
        return [*((self.topic, each) for each in numbers), *((self.returns_topic, each) for each in returned)]

    def _topic_tags(self, admin: Any) -> dict[str, str]:
        """Return a few characters of each topic's id, which differs from that of a deleted topic of the same name."""
        give_up = monotonic() + _TIMEOUT_S
        while True:
            try:
                return {name: tag_of(future.result()) for name, future in self._describe(admin).items()}
            except KafkaException as error:  # a broker may not know a new topic yet
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or monotonic() > give_up:
                    raise
                sleep(0.1)

    def _describe(self, admin: Any) -> dict[str, Any]:
        names = TopicCollection([self.topic, self.returns_topic])
        described: dict[str, Any] = admin.describe_topics(names, request_timeout=_TIMEOUT_S)
        return described

    def _check_returns(self, admin: Any) -> None:
        """Log an error if the brokers may delete returned messages that were not received."""
        found = configs(admin, [self.returns_topic], skip_denied=True).get(self.returns_topic, {})
        wrong = {name: value for name, value in found.items() if _RETURNS_CONFIG.get(name, value) != value}
        if wrong:
            _log.error(
                "topic %s has %s: the brokers may delete retried messages that no process received. Set %s with "
                "kafka-configs.sh --alter",
                *(self.returns_topic, wrong, _RETURNS_CONFIG),
            )

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def member(self) -> Any:
        """Return the metadata of this process as a member of the group. Call it in callbacks of rebalances only."""
        return self.consumer.consumer_group_metadata()

    def log_tag(self, topic: str) -> str:
        """Return the text that marks the metadata of partitions of this topic as that of the present log."""
        return self._logs[topic]

    def close(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._admin = None
        self._described = {}
        self.transactions.close()

    # ---- reading -------------------------------------------------------------------------------------------------

    def poll(self, limit: int, wait_s: float) -> list[Any]:
        """Return up to ``limit`` records and ends of partitions. Callbacks of rebalances run in this call."""
        records: list[Any] = self.consumer.consume(limit, wait_s)
        return records

    def start(self, positions: Mapping[Partition, int]) -> None:
        """Read new partitions from these offsets on."""
        self.consumer.incremental_assign([TopicPartition(*each, offset) for each, offset in positions.items()])

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no more. Call it in the callback that revokes them, also for none."""
        self.consumer.incremental_unassign([TopicPartition(*each) for each in partitions])

    def pause(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self.consumer.pause([TopicPartition(*each) for each in partitions])

    def resume(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self.consumer.resume([TopicPartition(*each) for each in partitions])

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue to read at an offset. If this fails, the records before it are read and skipped."""
        with contextlib.suppress(KafkaException):
            self.consumer.seek(TopicPartition(*partition, offset))

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]:
        """Return what is committed, once no transaction on it is undecided.

        Raises:
            KafkaException: the brokers do not answer, or a transaction stays undecided.
        """
        asked = [TopicPartition(*each) for each in partitions]
        found = {}
        for each in self.consumer.committed(asked, timeout=_COMMITTED_TIMEOUT_S) if asked else ():
            if each.error is not None:
                raise KafkaException(each.error)
            none = each.offset < 0
            found[each.topic, each.partition] = None if none else Commit(each.offset, each.metadata or "")
        return found

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset of a partition's log, and its end."""
        low, high = self.consumer.get_watermark_offsets(TopicPartition(*partition), timeout=_TIMEOUT_S)
        return low, high

    def first_offset(self, partition: Partition) -> int:
        """Return the first offset of the log; 0 if the brokers do not answer."""
        with contextlib.suppress(KafkaException):
            return self.bounds(partition)[0]
        return 0

    def check_topics(self) -> int:
        """Ask for the topics, without waiting, and look at the answers to the call before; return how many partitions
        were added to the queue's topic since the check before.

        Raises:
            QueueError: a topic was deleted and created again.
        """
        added = 0
        for name, future in self._described.items():
            if not future.done() or future.exception() is not None:
                continue
            if tag_of(future.result()) != self._logs[name]:
                raise QueueError(f"topic {name!r} was deleted and created again. Open the queue again")
            if name == self.topic:
                count, self._seen_count = self._seen_count, len(future.result().partitions)
                added = self._seen_count - count
        self._described = self._describe(self._admin)
        return added

    def delete_below(self, offsets: Mapping[Partition, int]) -> None:
        """Ask the brokers to delete the records below these offsets, without waiting. They may refuse."""
        if offsets:
            self._admin.delete_records([TopicPartition(*each, offset) for each, offset in offsets.items()])

    def end(self, partition: Partition) -> int:
        """Return the end of a partition's log, as of the last fetch; a negative number if it is not known."""
        _, high = self.consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        return high

    def copies(self) -> dict[Partition, Commit]:
        """Return the newest copy of each partition's commit."""
        return copies(self._settings, self.ledger_topic)

    # ---- committing ----------------------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> Outcome:
        """Carry out a plan. Blocks for milliseconds, and for seconds if the brokers do not answer."""
        return self.transactions.execute(plan) if plan.in_transaction else self._commit(plan)

    def _commit(self, plan: Plan) -> Outcome:
        try:
            results = self.consumer.commit(offsets=offsets(plan.commits), asynchronous=False)
        except KafkaException as error:
            _log.warning("a commit of %s failed: %s", self.group, error.args[0])
            answered = error.args[0].code() in _REFUSALS
            return Outcome.REFUSED if answered else Outcome.UNKNOWN
        errors = [each.error for each in results or () if each.error is not None]
        for each in errors[:1]:
            _log.warning("a commit of %s was refused: %s", self.group, each)
        return Outcome.REFUSED if errors else Outcome.COMMITTED

    def user_error(self, error: KafkaException, failed: str) -> TimersError:
        """Return librdkafka's error as a sentence for users."""
        return self._reports.user_error(error, failed, QueueError)


def copies(settings: Settings, ledger_topic: str) -> dict[Partition, Commit]:
    """Return the newest copy of each partition's commit. Groups without members lose their offsets after 7 days.

    Raises:
        KafkaException: the brokers do not answer, or the topic cannot be read.
    """
    found: dict[Partition, Commit] = {}
    with closing(reader(login(settings), LIBRDKAFKA_LOG, enable_partition_eof=True)) as consumer:
        consumer.assign([TopicPartition(ledger_topic, 0, 0)])
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


def tag_of(described: Any) -> str:
    """Return a few characters of a topic's id, which differs from that of a deleted topic of the same name."""
    return str(described.topic_id)[:_TAG_CHARACTERS]


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
