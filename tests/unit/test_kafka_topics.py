"""What a worker says while no broker answers. Broker tests check the topics themselves."""

from __future__ import annotations

import logging
import socket

import pytest

from timers.config.settings import Settings
from timers.errors import TopicConfigError
from timers.kafka import topics


def test_a_missing_broker_is_said_long_before_the_worker_gives_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert topics.WARN_AFTER_S <= 2 < topics.TIMEOUT_S, "with Python's start it is within 3 s"
    monkeypatch.setattr(topics, "WARN_AFTER_S", 0.1)
    monkeypatch.setattr(topics, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TopicConfigError, match=rf"^TIMERS_BROKERS='{address}' did not answer or refused"):
            topics.ensure(Settings.load({"TIMERS_BROKERS": address}))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"no broker answers yet at {address}; trying for 0 s more"]
