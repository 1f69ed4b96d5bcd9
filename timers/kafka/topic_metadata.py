"""What the brokers report about callback topics: existence, partitions, leaders and limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from timers.kafka.topic_admin import configs

REFRESH_S = 300.0
"""Age at which the brokers are asked again: the default of Java's producer."""


class Topic(NamedTuple):
    """A topic that exists."""

    partitions: int
    leaderless: frozenset[int]
    """Partitions without a leader."""


class TopicMetadata:
    """Asks the brokers about topics. Each call sends a request and may raise ``KafkaException``."""

    def __init__(self, admin: AdminClient, timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s

    def topics(self, timeout_s: float | None = None) -> dict[str, Topic]:
        """All topics. A request for one name would create the topic on brokers that allow it."""
        found = self._admin.list_topics(timeout=timeout_s or self._timeout_s).topics
        return {
            name: Topic(
                len(topic.partitions),
                frozenset(number for number, partition in topic.partitions.items() if partition.leader == -1),
            )
            for name, topic in found.items()
            if topic.error is None
        }

    def max_message_bytes(self, name: str) -> int:
        """Largest batch that a topic takes."""
        config = configs(self._admin, [name], self._timeout_s)[name]
        return min(int(config["max.message.bytes"]), int(config["segment.bytes"]))

    def oldest_ms(self, names: Iterable[str], timeout_s: float) -> dict[str, int]:
        """How old a record may be in topics that keep producers' times, without topics that may not be described."""
        found = configs(self._admin, names, timeout_s, skip_denied=True)
        limits = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")  # the latter before Kafka 4
        return {
            name: min(int(config[limit]) for limit in limits if limit in config)
            for name, config in found.items()
            if config.get("message.timestamp.type") == "CreateTime"
        }
