"""The engine on Spark reads the progress of workers, also while a partition changes its leader."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import progress_log

engine: Any = importlib.import_module("timers.cli.spark.engine")
SETTINGS = Settings()
CLUSTER = SimpleNamespace(partitions={SETTINGS.request_topic: 1}, topic_ids={})


def brokers(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """Make brokers that answer after some failures."""
    left = iter(range(failures))

    class Log:
        def __init__(self, *_: Any) -> None:
            pass

        def read(self, machines: Any) -> dict[Any, bytes]:
            if next(left, None) is not None:
                raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
            return {}

        def close(self) -> None:
            pass

    monkeypatch.setattr(progress_log, "ProgressLog", Log)
    monkeypatch.setattr(engine, "PROGRESS_RETRY_S", 0.0)


def test_the_engine_waits_for_a_leader_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers(monkeypatch, failures=3)
    assert engine._workers_progress(SETTINGS, CLUSTER) == {}


def test_brokers_that_do_not_answer_raise_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers(monkeypatch, failures=10**6)
    monkeypatch.setattr(engine, "PROGRESS_TIMEOUT_S", 0.0)
    with pytest.raises(TimersError, match=r"the progress of workers cannot be read from .*: Broker: Not leader"):
        engine._workers_progress(SETTINGS, CLUSTER)
