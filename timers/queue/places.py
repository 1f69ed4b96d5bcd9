"""Chooses partitions whose leaders answer, for the records of transactions.

A transaction ends with a marker in each of its partitions. If the leader of one is gone, it stays open until the leader
is back, and its process can begin no other. So a record whose key gives its partition waits, and all others go to a
partition whose leader answers: readers of timers and of dead letters read whole topics.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from itertools import compress, count
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from timers.kafka.leaders import AnsweringLeaders, WriteAccess
from timers.key_partition import partition_of
from timers.queue import records
from timers.queue.settling import Job

_log = logging.getLogger("timers.queue")


class Places:
    """The partitions of a process's transactions.

    Args:
        access: to which topics the process may not write.
        topic_of: returns the topic of a record.
        ledger_topic: topic of the copies, of which each transaction writes some.
        topics: others that the queue itself writes to.
        guard_topic: topic of guards; empty if there are none.
    """

    def __init__(
        self,
        leaders: AnsweringLeaders,
        access: WriteAccess,
        topic_of: Callable[[Any], str],
        ledger_topic: str,
        topics: set[str],
        guard_topic: str,
    ) -> None:
        self._leaders = leaders
        self._access = access
        self._topic_of = topic_of
        self._ledger_topic = ledger_topic
        self._topics = {*topics, ledger_topic, guard_topic} - {""}
        self._guard_topic = guard_topic
        self._said: AbstractSet[str] = frozenset()

    def ask_leaders(self, jobs: Iterable[Job]) -> None:
        """Ask the leaders of all topics that the jobs need, and whether they may be written to. Blocks.

        Raises:
            KafkaException: no transaction can begin now.
        """
        topics = self._topics.union(self._topic_of(record) for job in jobs for record in job.records)
        self._leaders.ask(topics)
        self._access.ask(topics)
        for topic in sorted(self._access.denied - self._said):
            _log.warning("this process lacks the ACL Write on topic %r: %s", topic, self._effect_without(topic))
        self._said = self._access.denied
        if self._ledger_topic in self._access.denied:
            text = f"this process lacks the ACL Write on topic {self._ledger_topic!r}"
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text))
        if not all(self._leaders.answer.get(self._ledger_topic, [False])):
            text = f"the leader of topic {self._ledger_topic!r} does not answer"
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, text))

    def _effect_without(self, topic: str) -> str:
        """What this process does if it may not write to a topic."""
        if topic == self._guard_topic:
            return "there are no guards, so a message whose partition moves is delivered again at once"
        if topic in self._topics:
            return "retries and dead letters for it wait"
        return "messages with outputs for it become dead letters"

    @property
    def are_complete(self) -> bool:
        """Whether all leaders answer, so that each record has a place."""
        answer = self._leaders.answer
        return not self._access.denied and self._topics <= answer.keys() and all(map(all, answer.values()))

    def denied(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs with an output or a guard whose topic may not be written to."""
        denied = self._access.denied
        return [job for job in jobs if denied and any(self._is_refused(record) for record in job.records)]

    def _is_refused(self, record: Any) -> bool:
        """Whether the brokers refuse a record, and the queue can do without it."""
        is_needed = not isinstance(record, records.Output | records.Guarding)
        return not is_needed and self._topic_of(record) in self._access.denied

    def forget(self) -> None:
        """Ask again to which topics the process may write, because a transaction failed."""
        self._access.forget()

    def has_place(self, job: Job) -> bool:
        """Whether each record of a job can be written now, as far as is known."""
        return all(self._has_place(record) for record in job.records)

    def _has_place(self, record: Any) -> bool:
        if self._topic_of(record) in self._access.denied:
            return False
        answering = self._leaders.answer.get(self._topic_of(record))
        if answering is None:  # the topic does not exist: an output to it is refused, and becomes a dead letter
            return isinstance(record, records.Output)
        key = _key(record)
        return any(answering) if key is None else answering[partition_of(key, len(answering))]

    def partition(self, record: Any) -> int:
        """Return a random partition for a record without a key that decides; -1 lets the client choose by the key."""
        answering = self._leaders.answer.get(self._topic_of(record), ())
        if _key(record) is not None or not any(answering):
            return -1
        return random.choice(list(compress(count(), answering)))


def _key(record: Any) -> bytes | None:
    """The key that decides the partition of a record; None if any partition will do."""
    if isinstance(record, records.Guarding):
        return record.id.encode()
    return record.key if isinstance(record, records.Output) else None
