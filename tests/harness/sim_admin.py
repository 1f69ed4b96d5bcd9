"""An admin client whose brokers give the answers that a test has planned."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tests.harness.waiting import DEADLINE_S


class SimAdmin:
    """An admin client with given metadata: topic -> leader of each partition."""

    def __init__(self, *_: Any) -> None:
        self.topics: dict[str, list[int]] = {}
        self.limits: dict[str, int] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.denied = False
        self.config_requests = 0
        self.metadata_requests = 0
        self.created: list[list[str]] = []
        self.refused: set[str] = set()
        self.may_answer = threading.Event()
        self.may_list = threading.Event()
        self.may_list.set()

    def list_topics(self, timeout: float) -> Any:
        self.metadata_requests += 1
        self.may_list.wait(DEADLINE_S)
        described = {
            name: SimpleNamespace(
                error=None, partitions={i: SimpleNamespace(leader=leader) for i, leader in enumerate(leaders)}
            )
            for name, leaders in self.topics.items()
        }
        return SimpleNamespace(topics=described)

    def create_topics(self, topics: list[Any], operation_timeout: float, request_timeout: float) -> dict[str, Any]:
        self.created.append([topic.topic for topic in topics])
        self.may_answer.wait(DEADLINE_S)

        def result(name: str) -> None:
            if name in self.refused:
                raise KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "no such names"))
            self.topics[name] = [1]

        return {topic.topic: SimpleNamespace(result=lambda _, name=topic.topic: result(name)) for topic in topics}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        self.config_requests += 1
        return {resource: SimpleNamespace(result=partial(self._describe, resource.name)) for resource in resources}

    def _describe(self, name: str, _: float) -> dict[str, Any]:
        if self.denied:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        if name not in self.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        config = {"segment.bytes": "1073741824", **self.configs.get(name, {})}
        if name in self.limits:
            config["max.message.bytes"] = str(self.limits[name])
        return {key: SimpleNamespace(value=value) for key, value in config.items()}
