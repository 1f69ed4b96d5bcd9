"""How answers of the brokers about callback topics are used; one real broker does not give these answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaError, KafkaException

from timers.config.settings import Settings
from timers.core.delivery import DeliveryProblem
from timers.worker.sending import targets as module
from timers.worker.sending.targets import Targets


class SimAdmin:
    """An admin client with given metadata: topic -> leader of each partition."""

    def __init__(self, *_: Any) -> None:
        self.topics: dict[str, list[int]] = {}
        self.limits: dict[str, int] = {}
        self.metadata_requests = 0

    def list_topics(self, timeout: float) -> Any:
        self.metadata_requests += 1
        described = {
            name: SimpleNamespace(
                error=None, partitions={i: SimpleNamespace(leader=leader) for i, leader in enumerate(leaders)}
            )
            for name, leaders in self.topics.items()
        }
        return SimpleNamespace(topics=described)

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        (resource,) = resources
        if resource.name not in self.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        config = {
            "max.message.bytes": SimpleNamespace(value=str(self.limits[resource.name])),
            "segment.bytes": SimpleNamespace(value="1073741824"),
        }
        return {resource: SimpleNamespace(result=lambda: config)}


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Targets:
    monkeypatch.setattr(module, "AdminClient", SimAdmin)
    return Targets(Settings(brokers="localhost:1"), {"timer-request": 4})


def cluster(targets: Targets) -> SimAdmin:
    admin: Any = targets._admin
    return admin  # type: ignore[no-any-return]


def test_an_existing_topic_is_usable(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1, 1, 1]
    assert targets.route("t", retried=False) == 3
    assert targets.usable == {"t": 3}


def test_many_unknown_topics_cost_one_metadata_request_in_a_transaction(targets: Targets) -> None:
    targets.refresh()
    for number in range(100):
        route = targets.route(f"none-{number}", retried=False)
        assert isinstance(route, DeliveryProblem) and (route.code, route.open_s) == ("topic-unknown", None)
    assert cluster(targets).metadata_requests == 1


def test_the_circuit_of_a_topic_without_a_leader_is_open_briefly(targets: Targets) -> None:
    cluster(targets).topics.update(t=[1, -1], other=[1])
    route = targets.route("t", retried=False)
    assert isinstance(route, DeliveryProblem)
    assert route.code == "target-failing" and "no leader" in route.reason
    assert route.open_s is not None and 0 < route.open_s <= module.ELECTION_S
    assert targets.route("other", retried=False) == 1
    assert targets.usable == {"other": 1}


def test_the_circuit_of_a_topic_with_a_silent_leader_is_open_briefly(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    targets.open_circuit("t", NodeNotReadyError())
    route = targets.route("t", retried=False)
    assert isinstance(route, DeliveryProblem)
    assert route.code == "target-failing" and "does not answer" in route.reason
    assert route.open_s is not None and 0 < route.open_s <= module.ELECTION_S


def test_late_deliveries_are_explained_by_the_metadata(targets: Targets) -> None:
    cluster(targets).topics.update(t=[1, -1], other=[1], fewer=[1])
    failing = targets.failing([("t", 0), ("other", 0), ("gone", 0), ("fewer", 0), ("fewer", 1)])
    assert {topic: type(error) for topic, error in failing.items()} == {
        "t": LeaderNotAvailableError,
        "gone": UnknownTopicOrPartitionError,
        "fewer": UnknownTopicOrPartitionError,
    }


def test_a_topic_with_a_known_limit_stays_on_the_fast_path(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1]
    admin.limits["t"] = 2000
    assert targets.route("t", retried=False) == 1
    assert targets.learn_limit("t")
    assert targets.usable == {"t": 1}
    assert targets.max_message_bytes == {"t": 2000}
    assert not targets.learn_limit("t"), "the limit is not new: the caller must not repeat the transaction"


def test_limits_are_refreshed_at_intervals(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1, 1]
    admin.limits["t"] = 2000
    targets.learn_limit("t")
    admin.limits["t"] = 1_048_588
    targets.refresh()
    assert targets.max_message_bytes == {"t": 2000}
    monkeypatch.setattr(targets, "_refresh_at", 0.0)
    targets.refresh()
    assert targets.max_message_bytes == {"t": 1_048_588}


def test_a_deleted_topic_does_not_stop_the_refresh_of_other_limits(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = cluster(targets)
    for name in ("gone", "kept"):
        admin.topics[name] = [1]
        admin.limits[name] = 2000
        targets.learn_limit(name)
    del admin.topics["gone"]
    admin.limits["kept"] = 1_048_588
    monkeypatch.setattr(targets, "_refresh_at", 0.0)
    targets.refresh()
    assert targets.max_message_bytes == {"kept": 1_048_588}


def test_partition_numbers_are_refreshed_at_intervals(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1]
    targets.route("t", retried=False)
    admin.topics["t"] = [1, 1]
    monkeypatch.setattr(targets, "_refresh_at", 0.0)
    targets.refresh()
    assert targets.usable == {"t": 2}


def test_the_circuit_of_a_topic_that_comes_and_goes_is_opened(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    targets.forget("t")
    assert targets.route("t", retried=False) == 1
    targets.forget("t")
    assert isinstance(targets.route("t", retried=False), DeliveryProblem)


def test_one_failure_reported_by_several_machines_counts_once(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    targets.route("t", retried=False)
    for _ in range(4):
        targets.forget("t")
    assert targets.route("t", retried=False) == 1


def test_an_unexplained_refusal_opens_the_circuit_of_the_topic(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    targets.route("t", retried=False)
    targets.open_circuit("t", MessageSizeTooLargeError())
    route = targets.route("t", retried=False)
    assert isinstance(route, DeliveryProblem) and route.code == "message-too-large"
    assert targets.usable == {}


@pytest.mark.parametrize("open_format", [False, True])
def test_topics_of_disabled_request_formats_are_ordinary_targets(
    monkeypatch: pytest.MonkeyPatch, open_format: bool
) -> None:
    monkeypatch.setattr(module, "AdminClient", SimAdmin)
    settings = Settings(brokers="localhost:1", id_topic="timer-id-request" if open_format else "")
    targets = Targets(settings, {})
    targets.blame({settings.verdict_topic: TopicAuthorizationFailedError()})
    assert (settings.verdict_topic in targets.circuit_breaker) is not open_format
