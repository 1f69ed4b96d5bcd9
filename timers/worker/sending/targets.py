"""Facts about callback topics: which ones exist, refuse records, or have small limits.

Used when a timer fires, never when it is accepted [I4], because topics change in between. Shared by all machines
of a worker; every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Iterable, Mapping
from time import monotonic

from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from timers.config.settings import Settings
from timers.core.delivery import DeliveryProblem
from timers.core.ports import Lost
from timers.kafka.aiokafka_internals.produce import RecordsRefused
from timers.kafka.clients import librdkafka
from timers.wire.callback_rules import CallbackRules
from timers.worker.sending.circuit_breaker import CircuitBreaker

logger = logging.getLogger(__name__)

UNKNOWN_FOR_S = 1.0
"""Seconds after which an unknown topic is looked up again. So many timers for it cause few requests."""

MAX_UNKNOWN = 10_000
"""Maximum number of unknown topics that are remembered."""

ELECTION_S = 2.0
"""Seconds for which a circuit opens at first, if a partition has no leader or its leader does not answer."""

MISSING_TWICE_S = 5.0
"""If a listed topic is missing twice within so many seconds, its circuit opens for ``ELECTION_S``."""

REFRESH_S = 300.0
"""Seconds between two requests for metadata; the same as in Java's producer."""

ADMIN_TIMEOUT_S = 5.0


class Targets:
    """The callback topics, as far as they are known.

    Attributes:
        usable: topic -> number of partitions, if records may be sent to it without a check; the hot path reads only
            this.
        max_message_bytes: topic that has refused a batch -> its limit.
        circuit_breaker: failing topics.
        rules: which topics may be targets.
        own: topics of the engine that are never targets.
    """

    def __init__(self, settings: Settings, partitions: Mapping[str, int]) -> None:
        self._settings = settings
        self._admin = AdminClient(librdkafka(settings))
        self._lock = threading.Lock()
        self.rules = CallbackRules(settings)
        self._known: dict[str, int] = dict(partitions)
        self._leaderless: frozenset[str] = frozenset()
        self._unknown: dict[str, float] = {}
        self._forgotten: dict[str, float] = {}
        self._is_fresh = False
        self._refresh_at = monotonic() + REFRESH_S
        self.own = settings.own_topics.keys() - {settings.request_topic, settings.canary_topic}  # these may be targets
        self.usable: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.circuit_breaker = CircuitBreaker()

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        """Number of partitions of ``topic``, created first if the settings say so; or why nothing can be sent there.

        Args:
            topic: a callback topic.
            retried: whether the timers come from the retry topic.

        Raises:
            Lost: the brokers do not answer.
        """
        try:
            return self._find_route(topic, retried=retried)
        except KafkaException as error:
            raise Lost(f"the brokers do not say whether topic {topic!r} exists: {error.args[0]}") from None

    def _find_route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        problem = self.circuit_breaker.problem(topic, retried=retried)
        if problem is not None:
            return problem
        with self._lock:
            if topic not in self._known and self._unknown.get(topic, 0.0) < monotonic():
                # A topic is unknown only if a list from this transaction lacks it: its timer may have been requested
                # just after it was created. So many unknown names cause one request for a transaction.
                if not self._is_fresh:
                    self._look()
                if topic not in self._known:
                    self._note_unknown(topic)
            if topic not in self._known and self._settings.create_target_topics:
                self._create(topic)
                self._look()
                if topic not in self._known:  # the broker that answered does not know it yet
                    return DeliveryProblem(
                        "topic-unknown", f"callBackTopic {topic!r} was created just now", UNKNOWN_FOR_S
                    )
            if topic not in self._known:
                return DeliveryProblem("topic-unknown", f"callBackTopic {topic!r} does not exist", None)
            if topic not in self._leaderless:
                if topic not in self.circuit_breaker:
                    self.usable[topic] = self._known[topic]
                return self._known[topic]
            self._leaderless -= {topic}  # looked up again before the next attempt
        self.open_circuit(topic, LeaderNotAvailableError())
        return self.circuit_breaker.problem(topic, retried=retried) or self._known[topic]

    def partitions(self, topic: str) -> int:
        """Last known number of partitions of a topic that has a :meth:`route`."""
        return self._known.get(topic, 1)

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Open the circuit of ``topic``, because of ``error``."""
        if isinstance(error, LeaderNotAvailableError):
            self.circuit_breaker.enter(topic, "target-failing", f"a partition of {topic!r} has no leader", ELECTION_S)
        elif isinstance(error, NodeNotReadyError):
            reason = f"the leader of a partition of {topic!r} does not answer"
            self.circuit_breaker.enter(topic, "target-failing", reason, ELECTION_S)
        elif isinstance(error, TopicAuthorizationFailedError):
            self.circuit_breaker.enter(topic, "topic-denied", f"not authorized to write to {topic!r}")
        elif isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
            reason = f"{topic!r} refuses a batch as too large and does not tell its limit"
            self.circuit_breaker.enter(topic, "message-too-large", reason)
        elif isinstance(error, RecordsRefused):
            why = next((record.why for record in error.records), error.why)
            reason = f"{topic!r} refuses its records: {error.name} ({why})"
            self.circuit_breaker.enter(topic, "target-failing", reason, ELECTION_S)
        else:
            self.circuit_breaker.enter(topic, "target-failing", f"{topic!r} does not take records ({error!r})")
        with self._lock:
            self.usable.pop(topic, None)

    def blame(self, culprits: Mapping[str, BaseException]) -> None:
        """Open the circuits of targets that made a transaction fail, unless the brokers are the cause.

        Args:
            culprits: topic -> its error.
        """
        for topic, error in culprits.items():
            if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
                try:
                    learned = self.learn_limit(topic)
                except KafkaException:
                    learned = False
                if not learned:
                    self.open_circuit(topic, error)
            elif self.own & culprits.keys():
                continue  # the engine's topics fail too, so the targets are not the cause
            elif isinstance(error, UnknownTopicOrPartitionError):
                self.forget(topic)
            else:
                self.open_circuit(topic, error)

    def forget(self, topic: str) -> None:
        """Look up ``topic`` again before the next sending: it, or a partition of it, was missing."""
        with self._lock:
            now = monotonic()
            # Reports of several machines about one failure count once: brokers must have listed it in between.
            is_repeated = topic in self._known and now - self._forgotten.get(topic, -math.inf) < MISSING_TWICE_S
            self._forgotten = {name: since for name, since in self._forgotten.items() if now - since < MISSING_TWICE_S}
            self._forgotten[topic] = now
            self.usable.pop(topic, None)
            self.max_message_bytes.pop(topic, None)
            self._known.pop(topic, None)
            self._unknown.pop(topic, None)
            self._is_fresh = False
        if is_repeated:  # the brokers do not agree on it yet
            reason = f"{topic!r}, or a partition of it, comes and goes"
            self.circuit_breaker.enter(topic, "target-failing", reason, ELECTION_S)

    def failing(self, places: Iterable[tuple[str, int]]) -> dict[str, KafkaError]:
        """Topic -> error, if a partition does not exist any more or has no leader; empty if brokers do not answer.

        Args:
            places: (topic, partition) without an answer.
        """
        try:
            with self._lock:
                self._look()
        except KafkaException:
            return {}
        failing: dict[str, KafkaError] = {}
        for topic, partition in places:
            if partition >= self._known.get(topic, 0):
                failing[topic] = UnknownTopicOrPartitionError()
            elif topic in self._leaderless:
                failing[topic] = LeaderNotAvailableError()
        return failing

    def refresh(self) -> None:
        """Note that a transaction begins. Every :data:`REFRESH_S`, look up partitions and limits of topics again.

        If the brokers do not answer, nothing changes.
        """
        self._is_fresh = False
        if monotonic() < self._refresh_at:
            return
        self._refresh_at = monotonic() + REFRESH_S
        with contextlib.suppress(KafkaException):
            with self._lock:
                self._look()
                self.usable = {topic: self._known[topic] for topic in self.usable if topic in self._known}
                for topic in self.max_message_bytes.keys() - self._known.keys():
                    del self.max_message_bytes[topic]  # deleted: its error would end the loop below
            for topic in list(self.max_message_bytes):
                self.learn_limit(topic)

    def _look(self) -> None:
        """Look up all topics."""
        # All of them: to ask for one name would create the topic, if the brokers allow it.
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        self._known = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        self._leaderless = frozenset(
            name for name, topic in found.items() if any(part.leader == -1 for part in topic.partitions.values())
        )
        self._is_fresh = True

    def _note_unknown(self, topic: str) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[topic] = monotonic() + UNKNOWN_FOR_S
        self.circuit_breaker.drop(topic, "does not exist any more")

    def _create(self, topic: str) -> None:
        future = self._admin.create_topics([NewTopic(topic, -1, -1)], operation_timeout=ADMIN_TIMEOUT_S)[topic]
        with contextlib.suppress(KafkaException, TimeoutError):  # the caller looks it up next
            future.result(timeout=ADMIN_TIMEOUT_S)

    def learn_limit(self, topic: str) -> bool:
        """Ask for the largest batch that ``topic`` takes, and store it.

        Returns:
            Whether the limit has changed.

        Raises:
            KafkaException: the brokers do not answer, or this worker may not ask.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = self._admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)[resource].result()
        limit = min(int(config[name].value) for name in ("max.message.bytes", "segment.bytes"))
        known = self.max_message_bytes.get(topic)
        with self._lock:
            self.max_message_bytes[topic] = limit
        if limit != known:
            logger.info("target %s takes batches of up to %d bytes", topic, limit)
        return limit != known
