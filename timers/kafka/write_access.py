"""Tells which topics this client may not write to."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from timers.kafka.error_codes import NOT_ALLOWED, code_of

_GRACE_S = 0.5

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
        answered, _ = wait(futures.values(), self._timeout_s + _GRACE_S)  # librdkafka may forget a question
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
