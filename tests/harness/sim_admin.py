"""An admin client whose brokers give the answers that a test has planned: the one of all tests without brokers."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigSource, NewTopic, ResourceType

from tests.harness.waiting import DEADLINE_S

LOST = "lost"
"""The answer that a client does not even keep a place for."""


class SimAdmin:
    """An admin client with given metadata: topic -> leader of each partition.

    Attributes:
        topics: topic -> leader of each partition; -1: none.
        error: of the next metadata and groups.
        offsets: partition -> the offset that its leader answers, or the error; None: no answer; :data:`LOST`.
        offset: the answer of all other leaders.
        needs_s: time after which a leader answers that is silent; None: it does not.
        failures: errors of the next questions for offsets, of all that they ask for.
        asked: the partitions of each question for offsets, or the topics of each question for rights.
        allowed: topic -> operations that the client may do, or the code of the error; :data:`LOST`.
        members: client ids in each group.
        is_dead: what the classic request says of a group of another kind.
        nodes: numbers of the brokers.
        broker_config: setting of a broker -> its value, and where it is from.
        new: the topics of all requests to create some.
        looks: how often groups were listed; ``members_asked``: how often those of another kind were asked for.
    """

    def __init__(self, *_: Any, **topics: int) -> None:
        self.topics: dict[str, list[int]] = {name: [1] * count for name, count in topics.items()}
        self.error: KafkaError | str | None = None
        self.offsets: dict[tuple[str, int], int | Exception | str | None] = {}
        self.offset = 7
        self.needs_s: float | None = None
        self.failures: list[Exception] = []
        self.asked: list[list[Any]] = []
        self.allowed: dict[str, Any] = {}
        self.members: list[str] = []
        self.is_dead = False
        self.looks = self.members_asked = 0
        self.limits: dict[str, int] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.denied = False
        self.config_requests = 0
        self.metadata_requests = 0
        self.created: list[list[str]] = []
        self.nodes = [1]
        kafkas_own = "1", ConfigSource.DEFAULT_CONFIG
        self.broker_config = dict.fromkeys(("default.replication.factor", "min.insync.replicas"), kafkas_own)
        self.new: list[NewTopic] = []
        self.refused: set[str] = set()
        self.may_answer = threading.Event()
        self.may_list = threading.Event()
        self.may_list.set()

    def poll(self, timeout: float) -> None:
        """Do nothing: its answers are there at once."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self.metadata_requests += 1
        self.may_list.wait(DEADLINE_S)
        if self.error is not None:
            raise KafkaException(self.error)
        names = self.topics if topic is None else [topic]
        return SimpleNamespace(topics={name: self._described(name) for name in names}, brokers=self.nodes)

    def _described(self, name: str) -> Any:
        leaders = dict(enumerate(self.topics.get(name, ())))
        error = None if name in self.topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(error=error, partitions={i: SimpleNamespace(leader=each) for i, each in leaders.items()})

    def list_offsets(self, asked: Iterable[Any], request_timeout: float, **_: Any) -> dict[Any, Future[Any]]:
        places = list(asked)
        self.asked.append([(place.topic, place.partition) for place in places])
        failure = self.failures.pop(0) if self.failures else None
        answers = {place: failure or self._offset(place.topic, place.partition) for place in places}
        if self.needs_s is not None and request_timeout > self.needs_s:
            answers = {
                place: SimpleNamespace(offset=self.offset) if each is None else each for place, each in answers.items()
            }
        return {place: answered(answer) for place, answer in answers.items() if answer != LOST}

    def _offset(self, topic: str, partition: int) -> Any:
        if self.topics and partition >= len(self.topics.get(topic, ())):
            return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        answer = self.offsets.get((topic, partition), self.offset)
        return SimpleNamespace(offset=answer) if isinstance(answer, int) else answer

    def describe_topics(self, topics: Any, *, include_authorized_operations: bool, **_: Any) -> dict[str, Future[Any]]:
        assert include_authorized_operations
        self.asked.append(sorted(topics.topic_names))
        allowed = {name: self.allowed[name] for name in topics.topic_names if self.allowed[name] != LOST}
        return {
            name: answered(
                KafkaException(KafkaError(each))
                if isinstance(each, int)
                else SimpleNamespace(authorized_operations=each)
            )
            for name, each in allowed.items()
        }

    def list_groups(self, group: str, timeout: float) -> Any:
        self.looks += 1
        members = [] if self.is_dead else [_member(each) for each in self.members]
        state = "Dead" if self.is_dead else "Stable"
        other = SimpleNamespace(id="other", error=None, members=[_member("other")], state="Stable")
        return [other, SimpleNamespace(id=group, error=self.error, members=members, state=state)]

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        self.members_asked += 1
        return {groups[0]: answered(SimpleNamespace(members=[_member(each) for each in self.members]))}

    def create_topics(self, topics: list[Any], operation_timeout: float, request_timeout: float) -> dict[str, Any]:
        self.created.append([topic.topic for topic in topics])
        self.new += topics
        self.may_answer.wait(DEADLINE_S)

        def result(name: str) -> None:
            if name in self.refused:
                raise KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "no such names"))
            self.topics[name] = [1]

        return {topic.topic: SimpleNamespace(result=lambda _, name=topic.topic: result(name)) for topic in topics}

    def describe_cluster(self, request_timeout: float) -> Future[Any]:
        return answered(SimpleNamespace(nodes=[SimpleNamespace(id=number) for number in self.nodes]))

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        if resources[0].restype == ResourceType.BROKER:
            return {each: answered(self._broker(each.name)) for each in resources}
        self.config_requests += 1
        return {resource: SimpleNamespace(result=partial(self._describe, resource.name)) for resource in resources}

    def _broker(self, number: str) -> Any:
        assert int(number) in self.nodes
        if self.denied:
            return KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
        found = self.broker_config.items()
        return {name: SimpleNamespace(value=value, source=source.value) for name, (value, source) in found}

    def _describe(self, name: str, _: float) -> dict[str, Any]:
        if self.denied:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        if name not in self.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        config = {"segment.bytes": "1073741824", **self.configs.get(name, {})}
        if name in self.limits:
            config["max.message.bytes"] = str(self.limits[name])
        return {key: SimpleNamespace(value=value) for key, value in config.items()}


def answered(answer: Any) -> Future[Any]:
    """A future with an answer, or with an error; None: there is no answer."""
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    elif answer is not None:
        future.set_result(answer)
    return future


def _member(client_id: str) -> Any:
    return SimpleNamespace(client_id=client_id, client_host="/10.0.0.1", host="/10.0.0.1")
