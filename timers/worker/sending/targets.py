"""What is known of callback topics: which exist, which refuse us, which have small limits.

Judged when a timer fires, never when it is accepted [I4]: the world may change in between. Shared by all machines
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
"""A name that was looked for and not found is looked for again after this long: a flood for it costs little."""

MAX_UNKNOWN = 10_000
"""So many of them are remembered."""

ELECTION_S = 2.0
"""How long the circuit of a target opens at first if a partition has no leader or its leader does not answer."""

COMES_AND_GOES_S = 5.0
"""If the brokers list a topic but do not find it twice within this time, its circuit opens for ``ELECTION_S``."""

REFRESH_S = 300.0
"""As often as Java's producer asks for metadata again."""

ADMIN_TIMEOUT_S = 5.0


class Targets:
    """Directory of callback topics.

    Attributes:
        usable: topics that may be sent to without a question, each with its number of partitions; the hot path asks
            only this.
        max_message_bytes: topics that have refused a batch, each with its limit.
        circuit_breaker: topics that fail.
        rules: which may be targets at all.
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
        self._fresh = False
        self._refresh_at = monotonic() + REFRESH_S
        self.own = settings.own_topics.keys() - {settings.request_topic, settings.canary_topic}  # these may be targets
        self.usable: dict[str, int] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.circuit_breaker = CircuitBreaker()

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        """Number of partitions of ``topic``, created first if the settings say so; or why nothing can be sent there.

        Args:
            topic: of callbacks.
            retried: whether they come from the retry topic.

        Raises:
            Lost: the brokers do not say.
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
                # Only what was heard since this transaction began says that a topic is not there: a timer that was
                # asked for after its topic was made must find it. So a flood of names costs one look a transaction.
                if not self._fresh:
                    self._look()
                if topic not in self._known:
                    self._note_unknown(topic)
            if topic not in self._known and self._settings.create_target_topics:
                self._create(topic)
                self._look()
                if topic not in self._known:  # the broker that was asked has not heard of it yet
                    return DeliveryProblem(
                        "topic-unknown", f"callBackTopic {topic!r} was created just now", UNKNOWN_FOR_S
                    )
            if topic not in self._known:
                return DeliveryProblem("topic-unknown", f"callBackTopic {topic!r} does not exist", None)
            if topic not in self._leaderless:
                if topic not in self.circuit_breaker:
                    self.usable[topic] = self._known[topic]
                return self._known[topic]
            self._leaderless -= {topic}  # asked again when it is tried again
        self.open_circuit(topic, LeaderNotAvailableError())
        return self.circuit_breaker.problem(topic, retried=retried) or self._known[topic]

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic that has a :meth:`route`, as last heard."""
        return self._known.get(topic, 1)

    def open_circuit(self, topic: str, error: BaseException) -> None:
        """Send nothing to ``topic`` for a while, since it answered with ``error``."""
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
        """Spare the targets that made a transaction fail, unless the brokers themselves are in trouble.

        Args:
            culprits: topic -> why it did not take its records.
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
                continue  # our own topics fail too: the brokers are in trouble, not the targets
            elif isinstance(error, UnknownTopicOrPartitionError):
                self.forget(topic)
            else:
                self.open_circuit(topic, error)

    def forget(self, topic: str) -> None:
        """Ask the brokers again before the next sending: ``topic``, or a partition of it, was not there."""
        with self._lock:
            now = monotonic()
            # Several machines' word of one failure counts once: it is known again only if the brokers said so since.
            again = topic in self._known and now - self._forgotten.get(topic, -math.inf) < COMES_AND_GOES_S
            self._forgotten = {name: at for name, at in self._forgotten.items() if now - at < COMES_AND_GOES_S}
            self._forgotten[topic] = now
            self.usable.pop(topic, None)
            self.max_message_bytes.pop(topic, None)
            self._known.pop(topic, None)
            self._unknown.pop(topic, None)
            self._fresh = False
        if again:  # the brokers do not agree on it yet
            reason = f"{topic!r}, or a partition of it, comes and goes"
            self.circuit_breaker.enter(topic, "target-failing", reason, ELECTION_S)

    def failing(self, places: Iterable[tuple[str, int]]) -> dict[str, KafkaError]:
        """Topics of which a partition is not there any more or has no leader; none if the brokers do not answer.

        Args:
            places: (topic, partition) that give no answer.
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
        """Say that a transaction begins; ask again now and then, since topics get more partitions and other limits.

        If the brokers do not answer, nothing changes.
        """
        self._fresh = False
        if monotonic() < self._refresh_at:
            return
        self._refresh_at = monotonic() + REFRESH_S
        with contextlib.suppress(KafkaException):
            with self._lock:
                self._look()
                self.usable = {topic: self._known[topic] for topic in self.usable if topic in self._known}
                for topic in self.max_message_bytes.keys() - self._known.keys():
                    del self.max_message_bytes[topic]  # gone: asking for it would end the asking for the others
            for topic in list(self.max_message_bytes):
                self.learn_limit(topic)

    def _look(self) -> None:
        """Learn of all topics at once."""
        # All topics: asking for one by name would create it on brokers that allow it.
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        self._known = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        self._leaderless = frozenset(
            name for name, topic in found.items() if any(part.leader == -1 for part in topic.partitions.values())
        )
        self._fresh = True

    def _note_unknown(self, topic: str) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[topic] = monotonic() + UNKNOWN_FOR_S
        self.circuit_breaker.drop(topic, "does not exist any more")

    def _create(self, topic: str) -> None:
        future = self._admin.create_topics([NewTopic(topic, -1, -1)], operation_timeout=ADMIN_TIMEOUT_S)[topic]
        with contextlib.suppress(KafkaException, TimeoutError):  # whether it is there is asked next
            future.result(timeout=ADMIN_TIMEOUT_S)

    def learn_limit(self, topic: str) -> bool:
        """Ask how large a batch ``topic`` takes; remembered from then on.

        Returns:
            Whether that is news.

        Raises:
            KafkaException: the brokers do not answer, or not to us.
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
