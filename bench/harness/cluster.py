"""Topics, end offsets and committed offsets of the broker under test, through the admin client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

TIMEOUT_S = 15.0


def quiet(brokers: str, **more: Any) -> dict[str, Any]:
    """Client settings that do not chatter on stderr when a broker goes away."""
    return {"bootstrap.servers": brokers, "log_level": 2, **more}


class Cluster:
    """A view from outside: it neither joins a group nor reads a record."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self._admin = AdminClient(quiet(brokers))

    def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until the broker lists it."""
        for future in self._admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))]).values():
            future.result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.partitions(topic)) != partitions:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker does not list topic {topic} after creating it")
            time.sleep(0.1)

    def topics(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def partitions(self, topic: str) -> list[int]:
        """Partitions of a topic; none if it does not exist."""
        found = self._admin.list_topics(timeout=TIMEOUT_S).topics.get(topic)
        return sorted(found.partitions) if found is not None else []

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics so that their bytes do not weigh on the next run."""
        if topics:
            for future in self._admin.delete_topics(list(topics)).values():
                try:
                    future.result(TIMEOUT_S)
                except KafkaException as error:
                    raise RuntimeError(f"deleting a topic of the last run failed: {error}") from error

    def ends(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """End offset of each partition; with ``committed`` the last stable one."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): latest for partition in self.partitions(topic)}
        found = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=TIMEOUT_S)
        return {place.partition: future.result(TIMEOUT_S).offset for place, future in found.items()}

    def end(self, topic: str) -> int:
        """Sum of the end offsets of a topic."""
        return sum(self.ends(topic).values())

    def committed(self, group: str, topic: str) -> int:
        """Sum of what a consumer group has committed on a topic; 0 for a group that does not exist yet."""
        request = [ConsumerGroupTopicPartitions(group)]
        try:
            found = self._admin.list_consumer_group_offsets(request)[group].result(TIMEOUT_S)
        except KafkaException:
            return 0
        return sum(max(0, place.offset) for place in found.topic_partitions if place.topic == topic)
