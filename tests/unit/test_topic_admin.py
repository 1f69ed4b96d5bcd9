"""A topic that was created is there when the call returns."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from tests.harness.constants import Constants
from timers.kafka import connection, topic_admin, topics
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
    constants(connection, AGAIN_S=0)
    monkeypatch.setattr(connection, "partitions_of", lambda *_: next(left))
    monkeypatch.setattr(topic_admin, "create", lambda *_: is_new)
    monkeypatch.setattr(topic_admin, "monotonic", lambda: float(next(now_s)))
    assert topic_admin.create_if_missing(Settings.load({}), "new", partitions=3) is is_new
    assert (list(left) == []) == is_new


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
def test_a_question_that_is_forgotten_ends_as_one_without_an_answer(
    call: Callable[[], object], constants: Constants
) -> None:
    constants(connection, GRACE_S=0.01)
    constants("timers.machines.log_trimmer", TIMEOUT_S=0.0)
    constants("timers.kafka.snapshot_log", SILENT_S=0.0)
    with pytest.raises(KafkaException) as error:
        call()
    assert code_of(error.value) == KafkaError._TIMED_OUT
