"""Reading requests again for dead letters, where the brokers do not play along. The broker tests read real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.kafka import request_reader as module
from timers.kafka.request_reader import RequestReader


class SimConsumer:
    """The log begins behind what is asked for, and where it begins nobody says."""

    def __init__(self, *_: Any) -> None: ...

    def assign(self, partitions: list[Any]) -> None: ...

    def unassign(self) -> None: ...

    def poll(self, timeout: float) -> Any:
        return SimpleNamespace(error=lambda: KafkaError(KafkaError._AUTO_OFFSET_RESET))

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_brokers_that_fall_silent_cost_the_transaction_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Consumer", SimConsumer)
    request_reader = RequestReader(Settings(brokers="localhost:1"), ["timer-request"])
    with pytest.raises(Lost, match="timer-request/0 cannot be read for a dead letter"):
        request_reader.read(["timer-request/0/17"], lambda: True)
