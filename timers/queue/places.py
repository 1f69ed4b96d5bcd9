"""Chooses partitions whose leaders answer, for the records of transactions.

A transaction ends with a marker in each of its partitions. If the leader of one is gone, it stays open until the leader
is back, and its process can begin no other. So a record whose key gives its partition waits, and all others go to a
partition whose leader answers: readers of timers and of dead letters read whole topics.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import compress, count
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from timers.kafka.leaders import AnsweringLeaders
from timers.queue import records
from timers.queue.settling import Job
from timers.wire.key_partition import partition_of


class Places:
    """The partitions of a process's transactions.

    Args:
        topic_of: returns the topic of a record.
        ledger_topic: topic of the copies, of which each transaction writes some.
        topics: others that the queue itself writes to.
    """

    def __init__(
        self,
        leaders: AnsweringLeaders,
        topic_of: Callable[[Any], str],
        ledger_topic: str,
        topics: set[str],
    ) -> None:
        self._leaders = leaders
        self._topic_of = topic_of
        self._ledger_topic = ledger_topic
        self._topics = topics | {ledger_topic}

    def ask_leaders(self, jobs: Iterable[Job]) -> None:
        """Ask the leaders of all topics that the jobs need. Blocks.

        Raises:
            KafkaException: no transaction can begin now.
        """
        self._leaders.ask(self._topics.union(self._topic_of(record) for job in jobs for record in job.records))
        if not all(self._leaders.answer.get(self._ledger_topic, [False])):
            text = f"the leader of topic {self._ledger_topic!r} does not answer"
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, text))

    @property
    def are_complete(self) -> bool:
        """Whether all leaders answer, so that each record has a place."""
        answer = self._leaders.answer
        return self._topics <= answer.keys() and all(map(all, answer.values()))

    def has_place(self, job: Job) -> bool:
        """Whether each record of a job can be written now, as far as is known."""
        return all(self._has_place(record) for record in job.records)

    def _has_place(self, record: Any) -> bool:
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
