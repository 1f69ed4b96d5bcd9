"""Tells which partitions have no leader."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.kafka.clients import asking_admin

TIMEOUT_S = 3.0


def leaderless(admin: AdminClient) -> frozenset[TopicPartition]:
    """All partitions without a leader, as one broker knows them. Blocks.

    Raises:
        KafkaException: no broker answers.
    """
    # All topics: to ask for one name would create the topic, if the brokers allow it.
    found = admin.list_topics(timeout=TIMEOUT_S).topics
    return frozenset(
        (name, number)
        for name, topic in found.items()
        for number, partition in topic.partitions.items()
        if partition.leader == -1
    )


def admin_of(settings: Settings) -> AdminClient:
    """A client for :func:`leaderless`."""
    return asking_admin(settings)
