"""Reads what the groups of queues have committed, in any process that reaches the brokers, without joining a group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

from timers.errors import QueryError, QueueError, TimersError, UnacknowledgedError
from timers.kafka import connection, topic_admin
from timers.kafka.clients import admin_client, reader
from timers.kafka.error_codes import NO_GROUP, UNREADABLE, code_of
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.http.asking import ask
from timers.queue import ledger_log
from timers.queue.metadata import Commit, Partition, Saved, encode, saved_by
from timers.queue.records import encode_copy
from timers.queue.transactions import commit_of
from timers.queue.transport import tag_of
from timers.wire import query, topics

MAX_DELAYED = query.MAX_LIMIT
"""Maximum number of timers that are counted for each topic: a worker needs long to count more."""

_TIMEOUT_S = 10.0
_WORKER_TIMEOUT_S = 3.0
_POLL_S = 0.2
_FETCH_BYTES = 16_384
"""Only the first message of each partition is needed. Brokers send at least one batch."""


@dataclass(frozen=True)
class PartitionStats:
    """One partition of a queue.

    Attributes:
        committed: all messages below this offset are done; None if nothing is committed for this log. It is that of
            the copy if the group has lost its offset.
        end: offset after the last message that is not in an open transaction.
        depth: messages that are not done.
        ledger_bytes: length of the metadata that says which messages above ``committed`` are done.
        may_run: of the messages that are not done, those that a process may have now, at most.
    """

    topic: str
    partition: int
    committed: int | None
    end: int
    depth: int
    ledger_bytes: int
    may_run: int = 0


@dataclass(frozen=True)
class QueueStats:
    """The state of a queue, over all its processes. It is as old as their last commits: 0.1 s if they work.

    Attributes:
        depth: messages that are not done, also those that receivers have now. Offsets without a message, such as
            markers of transactions, are counted if messages follow them that no process has read.
        delayed: timers that will bring a message, retries among them; None if no worker answers.
        delayed_at_least: whether there may be more than ``delayed``.
        in_flight: messages that receivers of this process have now; None in a process that does not receive.
        oldest_age_s: seconds since the oldest message that is not done came to its topic, by the clock of this
            machine; None if there is none.
        processes: members of the group.
        unread: partitions whose leaders do not answer. The other figures are without them.
    """

    name: str
    topic: str
    depth: int
    delayed: int | None
    delayed_at_least: bool
    in_flight: int | None
    oldest_age_s: float | None
    processes: int
    partitions: tuple[PartitionStats, ...]
    unread: tuple[str, ...] = ()


class Inspection:
    """Reads the commits, the logs and the members of queues.

    Raises:
        TimersError: no broker answers or accepts the login, or this user may not read that. So do the methods.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = connection.ErrorReports(settings)
        self._login = {**connection.librdkafka(settings), **self._reports.callbacks}
        self._admin = admin_client(settings, self._reports)
        self._offsets = TopicOffsets(settings, _TIMEOUT_S, skips_leaderless=True)

    def names(self) -> list[str]:
        """Return the names of all queues that have a group."""
        listed = self._result(self._admin.list_consumer_groups(request_timeout=_TIMEOUT_S), "groups cannot be listed")
        for error in listed.errors[:1]:
            raise self._reports.user_error(KafkaException(error), "groups cannot be listed", QueueError)
        names = (topics.queue_of_group(group.group_id) for group in listed.valid)
        return sorted(name for name in names if name is not None)

    def topic_of(self, name: str) -> str:
        """Return the topic of a queue: the one for which its group has commits, else the topic with its name.

        Raises:
            QueueError: there is no such topic, or there are several.
        """
        group = topics.queue_group(name)
        commits = self._commits(group) or self._copies(group)
        committed = {topic for topic, _ in commits} - {topics.queue_returns(group)}
        found = self._offsets.existing(committed) or self._offsets.existing([name])
        if len(found) == 1:
            return found[0]
        if found:
            raise QueueError(f"the queue {name!r} has commits for {', '.join(found)}: say which with --topic")
        raise QueueError(
            f"there is no queue {name!r} at {self._settings.brokers}: no group {group!r} has commits, and no topic has "
            "this name (`timers queue list` shows the queues)"
        )

    def stats(
        self, name: str, topic: str | None = None, *, in_flight: int | None = None, with_delayed: bool = True
    ) -> QueueStats:
        """Return the state of a queue.

        Args:
            topic: None takes that of :meth:`topic_of`.
            with_delayed: ask a worker for the timers of the queue.

        Raises:
            QueueError: there is no such queue, or a newer version wrote its metadata.
        """
        topic, both = self._topics(name, topic)
        group = topics.queue_group(name)
        commits, tags = self._commits(group, both), self._tags(both)
        starts, ends = self._offsets.starts(both), self._offsets.ends(both)
        places = [(each, number) for each in both for number in sorted(starts[each].keys() & ends[each].keys())]
        copied = self._copies(group) if any(place not in commits for place in places) else {}
        partitions = tuple(
            partition_stats(
                place,
                commits.get(place),
                copied.get(place),
                tags[place[0]],
                starts[place[0]][place[1]],
                ends[place[0]][place[1]],
            )
            for place in places
        )
        undone = {(each.topic, each.partition): each.committed or 0 for each in partitions if each.depth}
        times = self._times(undone)
        empty = {place for place, written_ms in times.items() if written_ms is None}
        partitions = tuple(
            replace(each, depth=0, may_run=0) if (each.topic, each.partition) in empty else each for each in partitions
        )
        oldest_ms = min((written_ms for written_ms in times.values() if written_ms is not None), default=None)
        delayed, at_least = (None, False)
        if with_delayed:
            delayed, at_least = count_delayed(self._settings, both, topic_admin.cluster_id(self._settings))
        return QueueStats(
            name=name,
            topic=topic,
            depth=sum(each.depth for each in partitions),
            delayed=delayed,
            delayed_at_least=at_least,
            in_flight=in_flight,
            oldest_age_s=None if oldest_ms is None else max(0.0, Clock().now_s() - oldest_ms / 1000),
            processes=self._members(group),
            partitions=partitions,
            unread=self._unread(both),
        )

    def purge(self, name: str, topic: str | None = None) -> None:
        """Mark all messages of a queue as done. Its timers are not cancelled.

        Raises:
            QueueError: the queue has processes, which would deliver the messages that they have read; or the leader of
                one of its partitions does not answer.
            UnacknowledgedError: the brokers did not answer, or refused the login, after it began: repeat it.
        """
        topic, both = self._topics(name, topic)
        group = topics.queue_group(name)
        if members := self._members(group):
            raise QueueError(f"the queue {name!r} has running processes ({members}): stop them first, then purge it")
        tags, ends = self._tags(both), self._offsets.ends(both)
        if unread := self._unread(both):
            raise QueueError(f"nothing was purged: the leader of {', '.join(unread)} does not answer; try again later")
        commits = {
            (each, number): Commit(end, encode(Saved(end), tags[each]) or "")
            for each in both
            for number, end in ends[each].items()
        }
        asked = [TopicPartition(*place, commit.offset, commit.metadata) for place, commit in commits.items()]
        (altered,) = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, asked)], request_timeout=_TIMEOUT_S
        ).values()
        failed = f"the offsets of group {group!r} cannot be set"
        for each in self._result(altered, failed, UnacknowledgedError).topic_partitions:
            if each.error is not None:
                raise self._reports.user_error(KafkaException(each.error), failed, QueueError)
        ledger_topic = topics.queue_ledger(group)
        if self._offsets.existing([ledger_topic]):  # the copies count when the group has lost its offsets
            copied = [encode_copy(group, *each) for each in commits.items()]
            with self._reports.explained(f"topic {ledger_topic!r} cannot be written", UnacknowledgedError):
                ledger_log.write(self._login, group, copied)

    # ---- what the brokers and workers know -----------------------------------------------------------------------

    def _topics(self, name: str, topic: str | None) -> tuple[str, list[str]]:
        """The queue's topic; and this topic with the returns topic, as far as they exist."""
        topic = topic or self.topic_of(name)
        both = self._offsets.existing([topic, topics.queue_returns(topics.queue_group(name))])
        if topic not in both:
            raise QueueError(f"topic {topic!r} does not exist at {self._settings.brokers}")
        return topic, both

    def _unread(self, names: list[str]) -> tuple[str, ...]:
        return tuple(topics.partition_name(*place) for place in sorted(self._offsets.unknown) if place[0] in names)

    def _tags(self, names: list[str]) -> dict[str, str]:
        described = self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
        return {name: tag_of(self._result(described[name], f"topic {name!r} cannot be described")) for name in names}

    def _commits(self, group: str, names: Collection[str] = ()) -> dict[Partition, Commit]:
        """The commits of a group for these topics; by default for all topics.

        A consumer asks for them: an admin client ends the process with SIGSEGV if the coordinator of the group moves
        while it asks (librdkafka's issue 5040).
        """
        with closing(reader(self._login, group_id=group, isolation_level="read_uncommitted")) as consumer:
            try:
                there = consumer.list_topics(timeout=_TIMEOUT_S).topics.items()
                known = [(name, topic.partitions) for name, topic in there if not names or name in names]
                asked = [TopicPartition(name, number) for name, numbers in known for number in numbers]
                found = consumer.committed(asked, timeout=_TIMEOUT_S) if asked else []
            except KafkaException as error:
                if code_of(error) in NO_GROUP:
                    return {}
                failed = f"the commits of group {group!r} cannot be read"
                raise self._reports.user_error(error, failed, QueueError) from error
        return {
            (each.topic, each.partition): commit_of(each) for each in found if each.offset >= 0 and each.error is None
        }

    def _copies(self, group: str) -> dict[Partition, Commit]:
        """What counts for partitions without a commit."""
        ledger_topic = topics.queue_ledger(group)
        if not self._offsets.existing([ledger_topic]):
            return {}
        with self._reports.explained(f"topic {ledger_topic!r} cannot be read", QueueError):
            return ledger_log.read(self._login, group).copies

    def _members(self, group: str) -> int:
        described = self._admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group]
        try:
            return len(connection.answer(described, connection.give_up_at(_TIMEOUT_S)).members)
        except KafkaException as error:
            if code_of(error) in NO_GROUP:
                return 0
            raise self._reports.user_error(error, f"group {group!r} cannot be described", QueueError) from error

    def _times(self, starts: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Time of the first message at or after these offsets, in epoch milliseconds; None if there is none. One that
        cannot be read, or has no time of its producer, is left out."""
        times: dict[Partition, int | None] = {}
        left = set(starts)
        if not starts:
            return times
        few = {"enable.partition.eof": True, "queued.min.messages": 1, "fetch.message.max.bytes": _FETCH_BYTES}
        with closing(reader(self._login | few)) as consumer:
            consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
            deadline = monotonic() + _TIMEOUT_S
            while left and monotonic() < deadline:
                record = consumer.poll(_POLL_S)
                if record is None:
                    continue
                error, place = record.error(), (record.topic() or "", record.partition() or 0)
                if error is None:
                    if place in left and record.timestamp()[1] > 0:
                        times[place] = record.timestamp()[1]
                elif error.code() == KafkaError._PARTITION_EOF:
                    times.setdefault(place, None)
                elif error.code() not in UNREADABLE:
                    raise self._reports.user_error(KafkaException(error), f"topic {record.topic()!r} cannot be read")
                left.discard(place)
                consumer.pause([TopicPartition(*place)])
        return times

    def _result(self, future: Future[Any], failed: str, kind: type[TimersError] = QueueError) -> Any:
        with self._reports.explained(failed, kind):
            return connection.answer(future, connection.give_up_at(_TIMEOUT_S))


def count_delayed(settings: Settings, callback_topics: Iterable[str], cluster_id: str) -> tuple[int | None, bool]:
    """Return how many timers a worker of this app and cluster knows for these topics, None if none answers; and whether
    there may be more."""
    count, at_least = 0, False
    for topic in callback_topics:
        asked = query.parameters_of(query.Query(topic, limit=MAX_DELAYED))
        try:
            answer = ask(settings, query.LIST_PATH, asked, cluster_id, _WORKER_TIMEOUT_S)
        except QueryError:
            return None, False
        count += len(answer["timers"])
        at_least = at_least or answer["next"] is not None or bool(answer["missing"])
    return count, at_least


def partition_stats(
    place: Partition, commit: Commit | None, copy: Commit | None, tag: str, start: int, end: int
) -> PartitionStats:
    """Return the figures of a partition whose log has the offsets from ``start`` to before ``end``."""
    saved, _ = saved_by(topics.partition_name(*place), commit, copy, tag)
    committed = None if saved is None else saved.offset
    saved = saved or Saved(start)
    first, ledger = max(saved.offset, start), commit or copy
    depth = _open(saved, first, end)
    may_run = _open(saved, max(first, saved.start.first), min(end, saved.start.end))
    return PartitionStats(*place, committed, end, depth, len(ledger.metadata) if ledger else 0, may_run)


def _open(saved: Saved, first: int, end: int) -> int:
    """Number of offsets from ``first`` to before ``end`` that are not done."""
    done = sum(max(0, min(each_end, end) - max(each_start, first)) for each_start, each_end in saved.done)
    return max(0, end - first - done)
