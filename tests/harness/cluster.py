"""Topics, end offsets and committed offsets of the brokers under test, through the admin client."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic, OffsetSpec

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.kafka.admin_client import AdminClient
from timers.kafka.topic_admin import Identity, identity_of

CLIENT = {"log_level": 0}
"""Librdkafka writes nothing to stderr, because the error of a call contains the reason."""

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
"""Records of the topic carry the broker's time."""

_MOVING = (
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # a broker that has just started does not know its partitions yet
    KafkaError._NOENT,  # librdkafka knows no leaders
    KafkaError._TIMED_OUT,  # it asked a broker that went away meanwhile
)
"""Errors while an overloaded broker is briefly not in the cluster."""

_CREATED = 1

ANSWER_S = 10.0
"""A leader that has not said its offsets by then is asked again."""


def client_settings(brokers: str, **more: Any) -> dict[str, Any]:
    """Settings of a quiet Kafka client; ``_`` in the names of ``more`` stands for a dot."""
    return {**CLIENT, "bootstrap.servers": brokers, **{name.replace("_", "."): more[name] for name in more}}


class Cluster:
    """Admin access to the brokers: it joins no group and reads no records.

    Attributes:
        admin: the admin client, for other calls.
    """

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self.admin = AdminClient(client_settings(brokers))

    # ---- topics -------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return sorted(self.admin.list_topics(timeout=DEADLINE_S).topics)

    def partitions(self, topic: str) -> list[int]:
        """Partitions of a topic; none if it does not exist."""
        found = self.admin.list_topics(timeout=DEADLINE_S).topics.get(topic)
        return sorted(found.partitions) if found is not None else []

    def create(self, topic: str, partitions: int, config: Mapping[str, str] = APPEND_TIME) -> None:
        """Create a topic, and wait until the brokers list it."""
        assert not self.partitions(topic), f"{topic} exists"
        self._created(topic, partitions, config)  # False: a busy broker has asked its controller twice
        wait_until(lambda: len(self.partitions(topic)) == partitions, f"the brokers list {topic}")

    def create_anew(self, topic: str, partitions: int, config: Mapping[str, str] = APPEND_TIME) -> None:
        """Delete a topic if it exists, and create it; also if a program under test creates it in between."""

        def created() -> bool:
            self.delete([topic] if self.partitions(topic) else [])
            return self._created(topic, partitions, config)

        wait_until(created, f"{topic} can be created")
        wait_until(lambda: len(self.partitions(topic)) == partitions, f"the brokers list {topic}")

    def _created(self, topic: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Create a topic; False if it exists."""

        def answer() -> int | None:
            created = self.admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config))])[topic]
            try:
                created.result(DEADLINE_S)
            except KafkaException as error:
                code: int = error.args[0].code()
                if code in (*_MOVING, KafkaError.INVALID_REPLICATION_FACTOR):  # no broker is in the cluster
                    return None
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return code
            return _CREATED

        return wait_until(answer, f"the brokers create {topic}") == _CREATED

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics, and wait until the broker that answers knows it: the controller answers before it does.

        Topics that a program under test has created since then under these names are left.
        """
        former = self._identities(topics)
        for deleted in self.admin.delete_topics([*topics], operation_timeout=DEADLINE_S).values() if topics else ():
            deleted.result(DEADLINE_S)
        ids = {identity.id for identity in former.values()}
        wait_until(
            lambda: ids.isdisjoint(identity.id for identity in self._identities(topics).values()),
            f"the brokers list none of {', '.join(topics[:3])}",
        )

    def _identities(self, topics: Sequence[str]) -> dict[str, Identity]:
        """The identity of each topic that exists."""
        asked = self.admin.describe_topics(TopicCollection([*topics]), request_timeout=DEADLINE_S) if topics else {}
        return {topic: found for topic, answer in asked.items() if (found := identity_of(answer)) is not None}

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records of partitions before an offset; -1: all records."""
        places = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for deleted in self.admin.delete_records(places).values():
            deleted.result(DEADLINE_S)

    # ---- offsets ------------------------------------------------------------------------------------------------

    def ends(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """End offset of each partition; with ``committed`` only up to the first open transaction."""
        return self._offsets(topic, OffsetSpec.latest(), committed=committed)  # type: ignore[no-untyped-call]

    def starts(self, topic: str) -> dict[int, int]:
        """First offset of each partition that was not deleted."""
        return self._offsets(topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(self, topic: str, spec: OffsetSpec, *, committed: bool = False) -> dict[int, int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(topic, partition): spec for partition in self.partitions(topic)}

        def look() -> dict[int, int] | None:
            answers = self.admin.list_offsets(wanted, isolation_level=level, request_timeout=ANSWER_S)
            try:
                return {place.partition: answer.result(DEADLINE_S).offset for place, answer in answers.items()}
            except KafkaException as error:
                if error.args[0].code() not in _MOVING:
                    raise
                return None

        return wait_until(look, f"the leaders of {topic} answer") or {} if wanted else {}

    def end(self, topic: str, *, committed: bool = False) -> int:
        """Sum of the end offsets of a topic."""
        return sum(self.ends(topic, committed=committed).values())

    def committed(self, group: str, topic: str) -> int:
        """Sum of the committed offsets of a consumer group on a topic; 0 for a missing group."""
        request = [ConsumerGroupTopicPartitions(group)]
        try:
            found = self.admin.list_consumer_group_offsets(request)[group].result(DEADLINE_S)
        except KafkaException:
            return 0
        return sum(max(0, place.offset) for place in found.topic_partitions if place.topic == topic)
