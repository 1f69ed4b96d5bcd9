"""What a worker says while no broker answers, and what is wrong with the configuration of a topic."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import client
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import CoordinatorNotAvailableError, KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.metadata import MetadataRequest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.sim_admin import answered
from tests.harness.waiting import DEADLINE_S
from timers.errors import TimersError, TopicConfigError
from timers.kafka import clients, connection, topic_admin, topics
from timers.kafka.aiokafka_internals import metadata
from timers.kafka.own_topics import (
    NOTE,
    RED,
    SNAPSHOT_TOPIC_CONFIG,
    TRANSACTION_LOG,
    WARNING,
    WrongConfig,
    log_new,
    own_topics,
    wrong_configs,
    wrong_snapshots,
)
from timers.process.config.settings import Settings


def test_a_missing_broker_is_said_long_before_the_end(constants: Constants, caplog: pytest.LogCaptureFixture) -> None:
    assert topics.WARN_AFTER_S <= 2 < topics.TOPICS_TIMEOUT_S, "with Python's start it is within 3 s"
    constants(topics, WARN_AFTER_S=0.1, TOPICS_TIMEOUT_S=0.2)
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
        (topic, {**safe, **topic.config, **changes.get(topic.name, {})}, replicas)
        for topic in [*own_topics(SETTINGS), TRANSACTION_LOG]
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
        ("__transaction_state", "min.insync.replicas", "1", WARNING, "2"),
        ("__transaction_state", "unclean.leader.election.enable", "true", WARNING, "false"),
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
        ("__transaction_state", "cleanup.policy", "delete"),
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


def test_what_the_loss_of_an_end_of_a_transaction_does_is_said() -> None:
    both = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    for wrong in judged({TRANSACTION_LOG.name: both}):
        assert "a transaction may be committed in some partitions and aborted in others; it must be " in wrong.sentence
    (wrong,) = wrong_configs("b:1", [(TRANSACTION_LOG, {"min.insync.replicas": "1"}, 1)], 3)
    assert wrong.severity == WARNING and "__transaction_state has one replica, and a lost disk" in wrong.sentence
    assert "loses the ends of transactions" in wrong.sentence


class LogOfTransactions:
    """Brokers with the topics of a worker, and with a log of transactions as weak as it can be.

    Attributes:
        error: the code that this login gets when it asks for the log of transactions; None: it may see it.
        asks: for this, ``describe_topics`` or ``describe_configs``.
    """

    def __init__(self) -> None:
        self.error: int | None = None
        self.asks = "describe_topics"

    def _answer(self, asks: str, name: str, value: Any) -> Future[Any]:
        error = self.error if name == TRANSACTION_LOG.name and asks == self.asks else None
        return answered(value if error is None else KafkaException(KafkaError(error)))

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(cluster_id="c", brokers={1: None, 2: None, 3: None})

    def describe_topics(self, names: Any, **_: Any) -> dict[str, Future[Any]]:
        id = SimpleNamespace(get_most_significant_bits=lambda: 1, get_least_significant_bits=lambda: 1)
        found = SimpleNamespace(topic_id=id, partitions=[SimpleNamespace(replicas=[1, 2, 3])])
        return {name: self._answer("describe_topics", name, found) for name in names.topic_names}

    def describe_configs(self, resources: Any, **_: Any) -> dict[Any, Future[Any]]:
        own = {topic.name: topic.config for topic in own_topics(SETTINGS)}
        weak = {TRANSACTION_LOG.name: {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}}
        config = {name: {"delete.retention.ms": "86400000", **each} for name, each in {**own, **weak}.items()}
        return {
            each: self._answer(
                "describe_configs",
                each.name,
                {name: SimpleNamespace(value=value) for name, value in config[each.name].items()},
            )
            for each in resources
        }


@pytest.mark.parametrize("asks", ["describe_topics", "describe_configs"])
@pytest.mark.parametrize(
    "error",
    [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION],
)
def test_a_weak_log_of_transactions_is_a_warning_and_one_that_may_not_be_seen_is_none(error: int, asks: str) -> None:
    """It is no topic of the worker: its absence, or a lost right on it, is not said, and takes no warning back."""
    brokers = LogOfTransactions()
    admin: Any = brokers
    known = topics.existing_topics(admin, SETTINGS)
    brokers.error, brokers.asks = error, asks
    unseen = topics.existing_topics(admin, SETTINGS, known)
    assert (unseen.wrong_configs, unseen.unseen) == ((), frozenset())
    brokers.error = None
    seen = topics.existing_topics(admin, SETTINGS, known)
    (wrong,) = seen.wrong_configs
    assert (wrong.topic, wrong.name, wrong.severity) == ("__transaction_state", "min.insync.replicas", WARNING)
    assert "__transaction_state" not in {**seen.topic_ids, **seen.partitions}
    kept = topics.existing_topics(admin, SETTINGS, seen, with_transactions=False)
    assert kept.wrong_configs == (wrong,)
    assert topics.existing_topics(admin, SETTINGS, known, with_transactions=False).wrong_configs == ()
    brokers.error = error
    again = topics.existing_topics(admin, SETTINGS, seen)
    assert (again.wrong_configs, again.unseen) == ((wrong,), frozenset())


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
    sound = {**SNAPSHOT_TOPIC_CONFIG, "min.insync.replicas": "2"}
    assert wrong_snapshots("b:1", "t", {**sound, "max.message.bytes": "9000000", "segment.bytes": "1000000"}, 1) == []
    (sentence,) = wrong_snapshots("b:1", "t", {**sound, name: value}, 2)
    assert sentence.startswith(f"topic 't' has {name}={value}, ")
    assert sentence.endswith(f"--entity-name t --add-config {name}={needed}")


def test_partitions_that_a_topic_of_snapshots_may_not_get_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = answered(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    admin: Any = SimpleNamespace(create_partitions=lambda *_, **__: {"app-snapshot-requests": refused})
    partition = SimpleNamespace(replicas=[1, 2, 3])
    counts = {"requests": 12, "app-snapshot-requests": 8}
    found = {name: SimpleNamespace(partitions=[partition] * count) for name, count in counts.items()}
    config = {name: {**SNAPSHOT_TOPIC_CONFIG, "min.insync.replicas": "2"} for name in found}
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
            asked.update(names.topic_names)
            unknown = answered(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return dict.fromkeys(names.topic_names, unknown)

    found = topics.existing_topics(cast(Any, Admin()), SETTINGS)
    assert found.cluster_id == "c" and asked == {topic.name for topic in own_topics(SETTINGS)}


# ---- questions to any broker -----------------------------------------------------------------------------------------


METADATA = MetadataRequest.API_KEY


def test_metadata_requests_of_aiokafka_create_no_topics() -> None:
    metadata.install()
    request = client.MetadataRequest(["orders"])
    assert request.prepare({METADATA: (0, 12)}).allow_auto_topic_creation is False
    assert request.prepare({METADATA: (0, 12)}).topics == ["orders"]


def test_librdkafka_clients_of_the_worker_create_no_topics() -> None:
    settings = Settings(brokers="127.0.0.1:1")
    assert clients.librdkafka(settings)["allow.auto.create.topics"] is False
    assert clients.admin_client(settings, connection.ErrorReports(settings)) is not None


class SimClient:
    """The parts of aiokafka's client that update the metadata.

    Args:
        brokers: id -> "ok", "new": has no data yet, "dead": takes no connection, "frozen": answers nothing, "breaks":
            its connection breaks.
    """

    def __init__(self, **brokers: str) -> None:
        self.brokers = brokers
        self.asked: list[str] = []
        self.updates: list[Any] = []
        self.closed: list[str] = []
        self._conns: dict[Any, Any] = {}
        known = [SimpleNamespace(nodeId=broker, host=broker, port=9092) for broker in brokers if broker != "bootstrap"]
        self._bootstrap_servers = [f"{broker.host}:{broker.port}" for broker in known]
        self.cluster = SimpleNamespace(
            brokers=lambda: known, update_metadata=self.updates.append, failed_update=self.updates.append
        )
        if "bootstrap" in brokers:
            self._conns[metadata._BOOTSTRAP] = SimpleNamespace(close=lambda: self.closed.append("bootstrap"))

    async def _get_conn(self, broker: str) -> Any:
        state = self.brokers[broker]

        async def send(request: Any) -> Any:
            self.asked.append(broker)
            if state == "frozen":
                await asyncio.Event().wait()
            if state == "breaks":
                raise KafkaConnectionError
            code = CoordinatorNotAvailableError.errno if state == "new" else 0
            return SimpleNamespace(brokers=[] if state == "new" else [broker], error_code=code, coordinator_id=7)

        return None if state == "dead" else SimpleNamespace(send=send)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> Callable[[SimClient], Any]:
    """An update that asks the last broker first, in a process that has asked none yet."""
    constants(metadata, NEXT_AFTER_S=0.01)
    monkeypatch.setattr(metadata, "_silent_until", {})
    monkeypatch.setattr("random.shuffle", lambda brokers: None)

    async def update(sim: SimClient) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await metadata.update(sim, sim.cluster, ["orders"])

    return update


async def test_a_frozen_broker_delays_no_update_of_metadata(in_order: Callable[[SimClient], Any]) -> None:
    metadata.install()
    assert AIOKafkaClient._metadata_update is metadata.update
    sim = SimClient(a="ok", b="breaks", c="frozen", d="dead")
    assert await in_order(sim)
    assert sim.asked == ["c", "b", "a"]
    assert [found.brokers for found in sim.updates] == [["a"]]


async def test_a_broker_that_was_silent_is_asked_last_by_all_clients_for_some_time(
    in_order: Callable[[SimClient], Any], constants: Constants
) -> None:
    await in_order(SimClient(a="ok", b="ok", c="frozen"))
    other = SimClient(a="ok", b="ok", c="ok")
    for _ in range(8):  # aiokafka's order of hosts is random
        assert [host for host, *_ in metadata.hosts(other)][-1] == "c"
    await in_order(other)
    assert other.asked == ["b"]
    constants(metadata, SILENT_S=0.0)
    metadata._silent_until.clear()
    await in_order(SimClient(a="ok", b="ok", c="frozen"))
    await in_order(other)
    assert other.asked == ["b", "c"], "it is asked again later"


async def test_metadata_are_as_before_without_a_broker_that_answers(in_order: Callable[[SimClient], Any]) -> None:
    silent = SimClient(a="dead", b="breaks")
    assert not await in_order(silent)
    assert silent.updates == [None], "aiokafka notes the failure"
    new = SimClient(a="new")
    assert not await in_order(new)
    assert new.updates == []


async def test_the_first_connection_is_closed_once_brokers_are_known(in_order: Callable[[SimClient], Any]) -> None:
    sim = SimClient(bootstrap="ok", a="dead")
    assert await in_order(sim)
    assert sim.closed == ["bootstrap"] and sim._conns == {}


async def test_a_frozen_broker_delays_no_lookup_of_a_coordinator(in_order: Callable[[SimClient], Any]) -> None:
    metadata.install()
    assert AIOKafkaClient.coordinator_lookup is metadata.look_up_coordinator
    async with asyncio.timeout(DEADLINE_S):
        assert await metadata.look_up_coordinator(SimClient(a="ok", b="frozen"), 0, "timers") == 7
    with pytest.raises(CoordinatorNotAvailableError):
        await metadata.look_up_coordinator(SimClient(a="new"), 0, "timers")
    with pytest.raises(NodeNotReadyError):
        await metadata.look_up_coordinator(SimClient(a="dead", b="breaks"), 0, "timers")
