"""A topic that was created is there when the call returns."""

from __future__ import annotations

import pytest

from timers.kafka import connection, topic_admin
from timers.process.config.settings import Settings


def test_create_if_missing_returns_when_the_brokers_show_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller answers before the brokers have the topic in their metadata."""
    shown = iter([0, 0, 3])
    monkeypatch.setattr(connection, "metadata", lambda *_: None)
    monkeypatch.setattr(connection, "AGAIN_S", 0)
    monkeypatch.setattr(connection, "partitions_of", lambda *_: next(shown))
    monkeypatch.setattr(topic_admin, "create", lambda *_: True)
    assert topic_admin.create_if_missing(Settings.load({}), "new", partitions=3) is True
    assert list(shown) == []


def test_create_if_missing_does_not_wait_forever_for_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(100))
    monkeypatch.setattr(connection, "metadata", lambda *_: None)
    monkeypatch.setattr(connection, "AGAIN_S", 0)
    monkeypatch.setattr(connection, "partitions_of", lambda *_: 0)
    monkeypatch.setattr(topic_admin, "create", lambda *_: False)
    monkeypatch.setattr(topic_admin, "monotonic", lambda: float(next(now_s)))
    assert topic_admin.create_if_missing(Settings.load({}), "hidden", partitions=3) is False
