"""Tells which partitions have no leader, or one that does not answer, and which topics may not be written to."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AclOperation, OffsetSpec

from timers.core.timer import TopicPartition
from timers.kafka.admin_client import AdminClient
from timers.kafka.connection import ErrorReports, partitions_of
from timers.kafka.error_codes import MOVING, NO_TOPIC, NOT_ALLOWED, UNREACHABLE, code_of

LEADERS_TIMEOUT_S = 3.0

LEADER_ANSWER_S = 2.0
"""Time for an answer of each leader."""

_GRACE_S = 1.0
"""librdkafka is given up this long after its time-out."""

FRESH_S = 0.5
"""Seconds for which answers of leaders count."""

SILENT_S = 5.0
"""Seconds after which the leader of a partition that did not answer is asked again."""

COUNT_S = 60.0
"""Seconds for which the number of a topic's partitions counts."""


class AnsweringLeaders:
    """Knows which partitions of topics can take records now. Metadata are not enough: brokers notice a dead or frozen
    leader only after seconds, and a transaction with one of its partitions ends only when it is back. One thread uses
    it.

    Attributes:
        answer: topic -> for each partition, in order, whether its leader answers. Topics that do not exist are left
            out.
    """

    def __init__(self, admin: AdminClient, reports: ErrorReports) -> None:
        self.answer: Mapping[str, list[bool]] = {}
        self._admin = admin
        self._reports = reports
        self._asked: AbstractSet[str] = frozenset()
        self._fresh_until = 0.0
        self._counts: dict[str, tuple[int, float]] = {}
        self._silent_until: dict[TopicPartition, float] = {}

    def ask(self, topics: AbstractSet[str]) -> None:
        """Ask the leaders of these topics, unless they answered just now. Blocks.

        Raises:
            KafkaException: no broker answers.
        """
        now_s = monotonic()
        if now_s < self._fresh_until and topics <= self._asked:
            return
        places = [(topic, number) for topic in topics for number in range(self._count(topic, now_s))]
        asked = [each for each in places if self._silent_until.get(each, 0.0) <= now_s]
        latest = {Place(*each): OffsetSpec.latest() for each in asked}  # type: ignore[no-untyped-call]
        futures = self._admin.list_offsets(latest, request_timeout=LEADER_ANSWER_S) if latest else {}
        wait(futures.values(), LEADER_ANSWER_S + _GRACE_S)
        answered = {(each.topic, each.partition) for each, future in futures.items() if _is_answered(future)}
        gone = {each.topic for each, future in futures.items() if _is_gone(future)}
        silent = [each for each in asked if each not in answered and each[0] not in gone]
        self._silent_until |= dict.fromkeys(silent, monotonic() + SILENT_S)
        for topic in gone:  # the topic was deleted, or made anew with fewer partitions: it is looked up again
            del self._counts[topic]
        answer: dict[str, list[bool]] = {}
        for topic, number in places:
            answer.setdefault(topic, []).append((topic, number) in answered)
        self.answer, self._asked, self._fresh_until = answer, topics, monotonic() + FRESH_S

    def _count(self, topic: str, now_s: float) -> int:
        """Number of partitions of a topic; 0 if it does not exist, or may not be described."""
        count, asked_s = self._counts.get(topic, (0, -COUNT_S))
        if count and now_s - asked_s < COUNT_S:
            return count
        try:
            count = partitions_of(self._admin, self._reports, topic, LEADERS_TIMEOUT_S)
        except KafkaException as error:
            if not count and code_of(error) not in NOT_ALLOWED:
                raise
        self._counts[topic] = count, now_s
        return count


def _is_answered(offset: Future[Any]) -> bool:
    """Whether a leader answered, though perhaps with a refusal."""
    if not offset.done():
        return False
    try:
        found: int = offset.result().offset
    except KafkaException as error:
        return code_of(error) not in UNREACHABLE | MOVING | NO_TOPIC
    return found != OFFSET_INVALID  # librdkafka 2.16 gives this offset, and no error, if a leader did not answer


def _is_gone(offset: Future[Any]) -> bool:
    """Whether the brokers said that a partition does not exist."""
    error = offset.exception() if offset.done() else None
    return isinstance(error, KafkaException) and code_of(error) in NO_TOPIC


_FORGOTTEN_S = 0.5

KNOWN_S = 60.0
"""Seconds for which it counts that a topic may be written to."""


class WriteAccess:
    """Knows to which topics this client may not write. A transaction that writes to such a topic fails as a whole, and
    the brokers do not say which record was the cause. One thread uses it.

    Attributes:
        denied: the topics that were asked for last and may not be written to.
    """

    def __init__(self, admin: AdminClient, timeout_s: float) -> None:
        self.denied: AbstractSet[str] = frozenset()
        self._admin = admin
        self._timeout_s = timeout_s
        self._allowed_until: dict[str, float] = {}

    def ask(self, topics: AbstractSet[str]) -> None:
        """Ask for those topics of which it is not known that they may be written to. Blocks.

        A topic for which no broker answers counts as allowed until the next question.
        """
        now_s = monotonic()
        asked = sorted(topic for topic in topics if self._allowed_until.get(topic, 0.0) <= now_s)
        denied = set()
        futures: dict[str, Future[Any]] = {}
        if asked:
            names = TopicCollection(asked)
            futures = self._admin.describe_topics(
                names, include_authorized_operations=True, request_timeout=self._timeout_s
            )
        answered, _ = wait(futures.values(), self._timeout_s + _FORGOTTEN_S)  # librdkafka may forget a question
        for topic, future in futures.items():
            if future not in answered:
                continue
            try:
                allowed = future.result().authorized_operations
            except KafkaException as error:
                if code_of(error) in NOT_ALLOWED:
                    denied.add(topic)
                continue
            if allowed is None or AclOperation.WRITE in allowed:  # brokers before 2.3 do not report it
                self._allowed_until[topic] = now_s + KNOWN_S
            else:
                denied.add(topic)
        self.denied = denied

    def forget(self) -> None:
        """Ask for all topics again, because a transaction failed."""
        self._allowed_until.clear()
