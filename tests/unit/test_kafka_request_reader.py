"""The request reader while brokers do not answer. The broker tests read real logs."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.kafka import request_reader as module
from timers.kafka.request_reader import RequestReader


class SimConsumer:
    """A consumer whose brokers do not return the begin and end of the log."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def get_watermark_offsets(self, partition: Any, timeout: float, cached: bool) -> tuple[int, int]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_brokers_that_do_not_answer_end_the_transaction_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "reader", SimConsumer)
    request_reader = RequestReader(Settings(brokers="localhost:1"), ["timer-request"])
    with pytest.raises(Lost, match="timer-request/0 cannot be read for a dead letter"):
        request_reader.read(["timer-request/0/17"], lambda: True)
