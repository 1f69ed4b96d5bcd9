"""A topic that was created is there when the call returns."""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigSource, NewTopic

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from timers.kafka import connection, topic_admin, topics
from timers.kafka.admin_client import AdminClient
from timers.kafka.error_codes import code_of
from timers.kafka.snapshot_log import SnapshotLog
from timers.machines.log_trimmer import LogTrimmer
from timers.process.config.settings import Settings


@pytest.mark.parametrize(("shown", "is_new"), [([0, 0, 3], True), ([0] * 99, False)], ids=["late", "never"])
def test_create_if_missing_waits_some_time_until_the_brokers_show_the_topic(
    shown: list[int], is_new: bool, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    """The controller answers before the brokers have the topic in their metadata."""
    now_s, left = count(), iter(shown)
    monkeypatch.setattr(connection, "metadata", lambda *_: None)
    constants(connection, CALL_RETRY_S=0)
    monkeypatch.setattr(connection, "partitions_of", lambda *_: next(left))
    monkeypatch.setattr(topic_admin, "create", lambda *_: is_new)
    monkeypatch.setattr(topic_admin, "monotonic", lambda: float(next(now_s)))
    assert topic_admin.create_if_missing(Settings.load({}), "new", partitions=3) is is_new
    assert (list(left) == []) == is_new


REPLICAS, IN_SYNC = "default.replication.factor", "min.insync.replicas"
SET = ConfigSource.STATIC_BROKER_CONFIG
CHOSEN_IN_SYNC = {IN_SYNC: ("1", SET)}
OF_CLUSTER = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
THREE = [4, 5, 6]


def created(admin: SimAdmin, asked: int, config: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Replicas and settings with which a topic is created if it is asked for with these."""
    admin.may_answer.set()
    assert topic_admin.create(cast("AdminClient", admin), NewTopic("t", 2, asked, config=config))
    (new,) = admin.new
    assert (new.topic, new.num_partitions) == ("t", 2)
    return new.replication_factor, dict(new.config or {})


@pytest.mark.parametrize(
    ("brokers", "config", "asked", "made", "in_sync"),
    [
        (THREE, {}, -1, 3, "2"),
        (THREE, {}, 3, 3, "2"),
        (THREE, {}, 1, 1, None),
        (THREE, {}, 2, 2, None),
        (THREE, {REPLICAS: ("1", SET)}, -1, -1, None),
        (THREE, {REPLICAS: ("2", SET)}, -1, -1, None),
        (THREE, {REPLICAS: ("3", SET)}, -1, 3, "2"),
        (THREE, {REPLICAS: ("5", SET), **CHOSEN_IN_SYNC}, -1, 5, None),
        (THREE, CHOSEN_IN_SYNC, -1, 3, None),
        (THREE, CHOSEN_IN_SYNC, 3, 3, None),
        (THREE, {IN_SYNC: ("1", OF_CLUSTER)}, -1, 3, "2"),
        (THREE, {IN_SYNC: ("3", OF_CLUSTER)}, -1, 3, None),
        (THREE[:2], {}, -1, -1, None),
        (THREE[:1], {}, -1, -1, None),
    ],
    ids=str,
)
def test_a_new_topic_outlives_a_broker_unless_an_operator_has_decided_otherwise(
    brokers: list[int], config: dict[str, tuple[str, ConfigSource]], asked: int, made: int, in_sync: str | None
) -> None:
    admin = SimAdmin()
    admin.nodes = brokers
    admin.broker_config.update(config)
    expected = {"cleanup.policy": "delete"} | ({} if in_sync is None else {IN_SYNC: in_sync})
    assert created(admin, asked, {"cleanup.policy": "delete"}) == (made, expected)


@pytest.mark.parametrize(
    ("brokers", "config", "asked", "warned"),
    [
        (THREE[:2], {}, -1, True),
        (THREE[:2], {}, 2, False),
        (THREE[:2], {REPLICAS: ("1", SET)}, -1, False),
        (THREE[:1], {}, -1, False),
        (THREE, {}, -1, False),
    ],
    ids=str,
)
def test_one_replica_because_a_broker_may_be_down_is_said(
    brokers: list[int],
    config: dict[str, tuple[str, ConfigSource]],
    asked: int,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = SimAdmin()
    admin.nodes = brokers
    admin.broker_config.update(config)
    created(admin, asked, {})
    assert ("1 new topics, such as 't', get one replica, because 2 brokers run" in caplog.text) == warned


def test_a_topic_that_says_all_itself_asks_nothing() -> None:
    admin = SimAdmin()
    admin.nodes, admin.denied = THREE, True
    assert created(admin, 3, {IN_SYNC: "3"}) == (3, {IN_SYNC: "3"})


@pytest.mark.parametrize("asked", [-1, 3])
@pytest.mark.parametrize("silent", [False, True], ids=["no right", "another kind of broker"])
def test_who_may_not_see_the_settings_of_brokers_creates_topics_with_a_warning(
    asked: int, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    admin = SimAdmin()
    admin.nodes, admin.denied = THREE, not silent
    if silent:
        admin.broker_config.clear()
    assert created(admin, asked, {}) == (asked, {})
    assert "TIMERS_REPLICATION=3 and min.insync.replicas=2 (docs/operations.md#replicas)" in caplog.text


FORGETFUL: Any = SimpleNamespace(
    create_topics=lambda new, **_: {each.topic: Future() for each in new},
    delete_records=lambda places, **_: {each: Future() for each in places},
    describe_configs=lambda resources, **_: {each: Future() for each in resources},
    describe_topics=lambda *_, **__: {"t": Future()},
    list_offsets=lambda places, **_: {each: Future() for each in places},
    list_topics=lambda **_: SimpleNamespace(topics={}),
)
"""An admin client that forgets each question, as librdkafka may."""


def trimmer() -> LogTrimmer:
    trimmer = LogTrimmer.__new__(LogTrimmer)
    trimmer._admin = FORGETFUL
    return trimmer


def snapshots() -> SnapshotLog:
    log = SnapshotLog.__new__(SnapshotLog)
    log._admin, log._topic, log.partition = FORGETFUL, "t", 0
    return log


@pytest.mark.parametrize(
    "call",
    [
        lambda: topic_admin.create(FORGETFUL, NewTopic("t", 1, 1), 0.0),
        lambda: topic_admin.configs(FORGETFUL, ["t"], 0.0),
        lambda: topic_admin.identity(FORGETFUL, "t", 0.0),
        lambda: topics._describe(FORGETFUL, ["t"], None, 0.0),
        lambda: trimmer().ends(("t", 0)),
        lambda: trimmer().delete_below({("t", 0): 7}, 0.0),
        lambda: snapshots().delete_before(7),
    ],
)
def test_a_forgotten_question_ends_without_an_answer(call: Callable[[], object], constants: Constants) -> None:
    constants(connection, GRACE_S=0.01)
    constants("timers.machines.log_trimmer", TIMEOUT_S=0.0)
    constants("timers.kafka.snapshot_log", METADATA_ANSWER_S=0.0)
    with pytest.raises(KafkaException) as error:
        call()
    assert code_of(error.value) == KafkaError._TIMED_OUT
