"""The threads that serve the retry topic in the engine on Spark. No brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from timers.config.settings import Settings
from timers.kafka.topics import Cluster
from timers.spark.engine import openings, retries
from timers.spark.engine.openings import Openings, Places
from timers.spark.engine.retries import Retries

SETTINGS = Settings(brokers="localhost:1")
CLUSTER = Cluster("cluster", {}, {SETTINGS.retry_topic: 1})


def test_a_thread_that_gets_no_consumer_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in a process with too many open files: the partitions of the thread would be served by nothing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    monkeypatch.setattr(retries, "reader", refuse)
    running: Any = SimpleNamespace(settings=Settings(brokers="localhost:1"), stop=threading.Event(), failure=None)
    retries._Server(running, [0]).run()
    assert f"the retries of {running.settings.retry_topic!r} failed" in str(running.failure)


def test_a_start_that_fails_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark repeats a task that failed, in the same process: a loop of each attempt would stay."""

    def refuse(*_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    starts: list[Callable[[], object]] = [
        lambda: Openings(Places(SETTINGS, CLUSTER, run=1)),
        lambda: Retries(SETTINGS, CLUSTER, lambda: None, lambda: None),
    ]
    monkeypatch.setattr(openings, "Targets", refuse)
    for start in starts:
        before = threading.active_count()
        with pytest.raises(KafkaException):
            start()
        assert threading.active_count() == before
