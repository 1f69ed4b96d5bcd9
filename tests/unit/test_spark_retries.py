"""The threads that serve the retry topic in the engine on Spark. No brokers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.config.settings import Settings
from timers.spark.engine import retries


def test_a_thread_that_gets_no_consumer_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in a process with too many open files: the partitions of the thread would be served by nothing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    monkeypatch.setattr(retries, "reader", refuse)
    running: Any = SimpleNamespace(settings=Settings(brokers="localhost:1"), stop=threading.Event(), failure=None)
    retries._Server(running, [0]).run()
    assert f"the retries of {running.settings.retry_topic!r} failed" in str(running.failure)
