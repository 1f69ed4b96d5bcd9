"""What is known of callback topics: which exist, which refuse us, which have small limits.

Judged when a timer fires, never when it is accepted (rule 4): the world may change in between. Shared by all machines
of a worker; every method may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from timers.settings import Settings
from timers.worker.kafka import librdkafka

UNKNOWN_FOR_S = 1.0
"""A topic that was not there is looked for again after this long, so that a flood for it costs one request a second."""

QUARANTINE_S = 30.0
"""How long a failing target is spared: its timers take the way of the retry topic meanwhile."""

REFRESH_S = 300.0
"""As often as Java's producer asks for metadata again."""

ADMIN_TIMEOUT_S = 5.0


class Targets:
    """Directory of callback topics.

    Attributes:
        usable: topics that may be sent to without a question, each with its number of partitions; the hot path asks
            only this.
        max_message_bytes: topics that have refused a batch, each with its limit.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = AdminClient(librdkafka(settings))
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._unknown: dict[str, float] = {}
        self._quarantined: dict[str, tuple[float, str]] = {}
        self._own = frozenset(
            {
                settings.request_topic,
                settings.oscillator_topic,
                settings.dead_letter_topic,
                settings.progress_topic,
                settings.retry_topic,
            }
        )
        self.usable: dict[str, int] = {}
        self._refresh_at = monotonic() + REFRESH_S
        self.max_message_bytes: dict[str, int] = {}

    def denied(self, topic: str) -> str | None:
        """Why a callback may never go to ``topic``: the engine's own topics, and Kafka's."""
        if topic in self._own or topic.startswith("__"):
            return f"callBackTopic {topic!r} is internal: callbacks may not go there"
        return None

    def quarantined(self, topic: str) -> str | None:
        """Why ``topic`` is spared for now, None if it is not."""
        entry = self._quarantined.get(topic)
        if entry is None:
            return None
        until, reason = entry
        if monotonic() < until:
            return reason
        with self._lock:
            self._quarantined.pop(topic, None)
        return None

    def quarantine(self, topic: str, reason: str) -> None:
        """Send nothing to ``topic`` for a while."""
        with self._lock:
            self._quarantined[topic] = (monotonic() + QUARANTINE_S, reason)
            self.usable.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Ask the broker again before the next sending."""
        with self._lock:
            self.usable.pop(topic, None)

    def exists(self, topic: str) -> bool:
        """Whether ``topic`` is there, creating it if the settings say so.

        Raises:
            KafkaException: the brokers do not answer.
        """
        if topic in self.usable or (topic in self.max_message_bytes and topic in self._counts):
            return True
        if self._unknown.get(topic, 0.0) > monotonic():
            return False
        with self._lock:
            found = self._topics()
            if topic not in found and self._settings.create_target_topics and self._create(topic):
                found = self._topics()
            if topic in found:
                self._unknown.pop(topic, None)
                partitions = found[topic].partitions
                if any(partition.leader == -1 for partition in partitions.values()):
                    self._quarantined[topic] = (monotonic() + UNKNOWN_FOR_S, f"{topic}: a partition has no leader")
                elif topic not in self._quarantined and topic not in self.max_message_bytes:
                    self.usable[topic] = len(partitions)
                self._counts[topic] = len(partitions)
                return True
            self._unknown = {t: until for t, until in self._unknown.items() if until > monotonic()}
            self._unknown[topic] = monotonic() + UNKNOWN_FOR_S
        return False

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic that :meth:`exists`.

        Raises:
            KafkaException: the brokers do not answer.
        """
        if topic not in self._counts:
            with self._lock:
                self._counts = {name: len(found.partitions) for name, found in self._topics().items()}
        return self._counts[topic]

    def gone(self, topics: Iterable[str]) -> set[str]:
        """Which of ``topics`` are not there any more; none if the brokers do not answer."""
        try:
            found = self._topics()
        except KafkaException:
            return set()
        return {topic for topic in topics if topic not in found}

    def refresh(self) -> None:
        """Ask again now and then: topics get more partitions."""
        if monotonic() > self._refresh_at:
            self._refresh_at = monotonic() + REFRESH_S
            self.usable = {}

    def _topics(self) -> dict[str, Any]:
        # All topics: asking for one by name would create it on brokers that allow it.
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        return {name: topic for name, topic in found.items() if topic.error is None}

    def _create(self, topic: str) -> bool:
        future = self._admin.create_topics([NewTopic(topic, -1, -1)], operation_timeout=ADMIN_TIMEOUT_S)[topic]
        try:
            future.result(timeout=ADMIN_TIMEOUT_S)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def learn_limit(self, topic: str) -> int:
        """Ask for ``topic``'s ``max.message.bytes`` after it refused a batch; remembered from then on.

        Raises:
            KafkaException: the brokers do not answer.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = self._admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)[resource].result()
        limit = int(config["max.message.bytes"].value)
        with self._lock:
            self.max_message_bytes[topic] = limit
            self.usable.pop(topic, None)
        return limit
