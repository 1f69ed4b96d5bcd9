"""What a worker says while no broker answers, and what is wrong with the configuration of a topic."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from timers.errors import TimersError, TopicConfigError
from timers.kafka import topic_admin, topics
from timers.kafka.own_topics import (
    NOTE,
    RED,
    SNAPSHOTS,
    WARNING,
    WrongConfig,
    log_new,
    own_topics,
    wrong_configs,
    wrong_snapshots,
)
from timers.process.config.settings import Settings


def test_a_missing_broker_is_said_long_before_the_worker_gives_up(
    constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    assert topics.WARN_AFTER_S <= 2 < topics.TIMEOUT_S, "with Python's start it is within 3 s"
    constants(topics, WARN_AFTER_S=0.1, TIMEOUT_S=0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TopicConfigError, match=rf"^no broker answers at {address}: is it running"):
            topics.ensure(Settings.load({"TIMERS_BROKERS": address}))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"no broker answers yet at {address}; trying for 0 s more"]


SETTINGS = Settings(
    brokers="b:1", countdown_topic="countdowns", schedule_topics=("schedules",), hot_horizon_s=86_400, app_id="app"
)


def judged(changes: Mapping[str, Mapping[str, str]], replicas: int = 3, brokers: int = 3) -> list[WrongConfig]:
    """What is wrong if topics are as they must be, but for these changes."""
    safe = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "cleanup.policy": "compact"}
    found = [
        (topic, {**safe, **topic.config, **changes.get(topic.name, {})}, replicas) for topic in own_topics(SETTINGS)
    ]
    assert changes.keys() <= {topic.name for topic, _, _ in found}
    return wrong_configs("b:1", found, brokers)


def test_nothing_is_wrong_with_topics_as_the_worker_creates_them() -> None:
    assert judged({}) == []


@pytest.mark.parametrize(
    ("topic", "name", "value", "severity", "needed"),
    [
        ("timer-request", "cleanup.policy", "compact", RED, "delete"),
        ("timer-request-by-id", "cleanup.policy", "compact,delete", RED, "delete"),
        ("countdowns", "cleanup.policy", "compact", RED, "delete"),
        ("timer-dead-letter", "cleanup.policy", "compact", RED, "delete"),
        ("app-progress", "cleanup.policy", "delete", RED, "compact"),
        ("app-progress", "cleanup.policy", "compact,delete", RED, "compact"),
        ("timer-request", "retention.ms", "604800000", RED, "-1"),
        ("app-timer-retry", "retention.bytes", "1000", RED, "-1"),
        ("timer-cold", "retention.ms", "1000", RED, "-1"),
        ("countdowns", "retention.ms", "604800000", WARNING, "-1"),
        ("timer-request", "message.timestamp.type", "CreateTime", RED, "LogAppendTime"),
        ("app-timer-retry", "message.timestamp.type", "CreateTime", RED, "LogAppendTime"),
        ("oscillator", "message.timestamp.type", "CreateTime", RED, "LogAppendTime"),
        ("countdowns", "message.timestamp.type", "CreateTime", WARNING, "LogAppendTime"),
        ("timer-dead-letter", "message.timestamp.type", "CreateTime", WARNING, "LogAppendTime"),
        ("timer-verdict", "message.timestamp.type", "CreateTime", WARNING, "LogAppendTime"),
        ("app-progress", "message.timestamp.type", "CreateTime", WARNING, "LogAppendTime"),
        ("timer-cold", "max.message.bytes", "1000", RED, ""),
        ("timer-request", "min.insync.replicas", "1", WARNING, "2"),
        ("app-progress", "min.insync.replicas", "1", WARNING, "2"),
        ("timer-dead-letter", "unclean.leader.election.enable", "true", WARNING, "false"),
        ("schedules", "unclean.leader.election.enable", "true", WARNING, "false"),
        ("app-progress", "cleanup.policy", "", WARNING, "compact"),
        ("oscillator", "cleanup.policy", "", WARNING, "delete"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_the_value_needed_and_the_command(
    topic: str, name: str, value: str, severity: str, needed: str
) -> None:
    (wrong,) = judged({topic: {name: value}})
    assert (wrong.topic, wrong.name, wrong.value, wrong.severity) == (topic, name, value, severity)
    assert f"topic {topic!r} has {name}={value}, " in wrong.sentence
    assert wrong.sentence.startswith("topic ") and f"{needed}: kafka-configs" in wrong.sentence
    command = f"--bootstrap-server b:1 --alter --entity-type topics --entity-name {topic} --add-config {name}={needed}"
    assert command in wrong.sentence
    assert wrong.compacts == (name == "cleanup.policy" and "compact" in value)


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        ("oscillator", "retention.ms", "1000"),
        ("oscillator", "min.insync.replicas", "1"),
        ("timer-dead-letter", "retention.ms", "1000"),
        ("timer-verdict", "retention.ms", "1000"),
        ("app-progress", "retention.ms", "1000"),
        ("schedules", "retention.ms", "1000"),
        ("timer-request", "cleanup.policy", ""),
        ("timer-cold", "cleanup.policy", ""),
        ("timer-dead-letter", "cleanup.policy", ""),
        ("timer-verdict", "cleanup.policy", ""),
    ],
)
def test_a_setting_that_no_promise_needs_is_not_named(topic: str, name: str, value: str) -> None:
    assert judged({topic: {name: value}}) == [], "a topic that is only compacted has no retention"


def test_a_retention_has_no_effect_on_a_topic_of_which_nothing_is_deleted() -> None:
    assert judged({"timer-request": {"cleanup.policy": "", "retention.ms": "1000"}}) == []


def test_schedules_with_a_retention_are_a_warning() -> None:
    (wrong,) = judged({"schedules": {"cleanup.policy": "compact,delete", "retention.ms": "1000"}})
    assert (wrong.topic, wrong.severity, wrong.is_short_retention) == ("schedules", WARNING, True)


def test_one_replica_is_one_finding_and_on_one_broker_only_a_note() -> None:
    (wrong,) = judged({}, replicas=1)
    assert wrong.severity == WARNING and wrong.sentence.startswith("all rests on one copy: timer-request, ")
    assert "kafka-reassign-partitions.sh" in wrong.sentence and "oscillator" not in wrong.sentence
    (note,) = judged({"timer-request": {"min.insync.replicas": "1"}}, replicas=1, brokers=1)
    assert note.severity == NOTE and note.sentence.startswith("all rests on one copy: the cluster")


def test_the_worst_comes_first_and_each_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    changes = {"app-progress": {"min.insync.replicas": "1"}, "timer-request": {"cleanup.policy": "compact"}}
    found = judged(changes)
    assert [each.severity for each in found] == [RED, WARNING]
    log_new(found)
    log_new(found, found)
    log_new(found[1:], found)
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("ERROR", found[0].sentence),
        ("WARNING", found[1].sentence),
        ("INFO", "topic timer-request: cleanup.policy is right again"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("cleanup.policy", "compact", "delete"),
        ("retention.ms", "604800000", "-1"),
        ("retention.bytes", "1000", "-1"),
        ("unclean.leader.election.enable", "true", "false"),
        ("min.insync.replicas", "1", "2"),
    ],
)
def test_a_wrong_setting_of_a_topic_of_snapshots_is_named(name: str, value: str, needed: str) -> None:
    sound = {**SNAPSHOTS, "min.insync.replicas": "2"}
    assert wrong_snapshots("b:1", "t", {**sound, "max.message.bytes": "9000000", "segment.bytes": "1000000"}, 1) == []
    (sentence,) = wrong_snapshots("b:1", "t", {**sound, name: value}, 2)
    assert sentence.startswith(f"topic 't' has {name}={value}, ")
    assert sentence.endswith(f"--entity-name t --add-config {name}={needed}")


def test_partitions_that_a_topic_of_snapshots_may_not_be_given_are_a_finding_and_stop_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: Future[None] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    admin: Any = SimpleNamespace(create_partitions=lambda *_, **__: {"app-snapshot-requests": refused})
    partition = SimpleNamespace(replicas=[1, 2, 3])
    counts = {"requests": 12, "app-snapshot-requests": 8}
    found = {name: SimpleNamespace(partitions=[partition] * count) for name, count in counts.items()}
    config = {name: {**SNAPSHOTS, "min.insync.replicas": "2"} for name in found}
    monkeypatch.setattr(topics, "_describe", lambda *_: found)
    monkeypatch.setattr(topics, "configs", lambda *_: config)
    (sentence,) = topics.ensure_snapshots(admin, SETTINGS, "requests", "app-snapshot-requests")
    assert "'app-snapshot-requests' lacks partitions" in sentence
    assert "it must have 12 (" in sentence


def test_a_request_topic_that_was_deleted_gets_no_topic_of_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the whole worker with a KeyError, and no topic had timers any more."""
    monkeypatch.setattr(topics, "_describe", lambda *_: {})
    with pytest.raises(KafkaException, match="topic 'requests' was deleted"):
        topics.ensure_snapshots(cast(Any, None), SETTINGS, "requests", "app-snapshot-requests")


def test_of_several_topics_the_one_that_may_not_be_described_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"orders": None, "secret": KafkaError.TOPIC_AUTHORIZATION_FAILED, "none": KafkaError.UNKNOWN_TOPIC_OR_PART}

    class SimClient:
        def list_topics(self, topic: str, timeout: float) -> Any:
            code = errors[topic]
            found = SimpleNamespace(error=None if code is None else KafkaError(code), partitions={0: None})
            return SimpleNamespace(topics={topic: found})

    monkeypatch.setattr(topic_admin, "admin_client", lambda *_: SimClient())
    settings = Settings(brokers="localhost:1")
    assert topic_admin.missing(settings, ["orders", "none"]) == ["none"]
    with pytest.raises(TimersError, match=r"^topic 'secret' cannot be described: .*TOPIC_AUTHORIZATION_FAILED"):
        topic_admin.missing(settings, ["orders", "secret", "none"])


def test_a_worker_asks_about_its_own_topics_only() -> None:
    """It does so every 5 s, and other programs may have tens of thousands of partitions on the same cluster."""
    asked: set[str] = set()

    class Admin:
        def list_topics(self, topic: str, timeout: float) -> Any:
            asked.add(topic)
            return SimpleNamespace(cluster_id="c", brokers={1: None})

        def describe_topics(self, names: Any, **_: Any) -> dict[str, Future[Any]]:
            answers: dict[str, Future[Any]] = {}
            for name in names.topic_names:
                asked.add(name)
                answers[name] = Future()
                answers[name].set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return answers

    found = topics.existing_topics(cast(Any, Admin()), SETTINGS)
    assert found.cluster_id == "c" and asked == {topic.name for topic in own_topics(SETTINGS)}
