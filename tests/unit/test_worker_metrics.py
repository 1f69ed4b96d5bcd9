"""Computed metrics. The broker tests check those of a running worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from timers.config.settings import Settings
from timers.request_formats import enabled_formats
from timers.worker.metrics.catalog import METRICS


def test_expected_partitions_are_those_of_all_enabled_request_formats() -> None:
    """An alert compares them with the owned partitions: a missing topic would hide partitions without an owner."""
    settings = Settings(brokers="localhost:1", id_topic="timer-request-by-id")
    formats = {settings.request_topic: 4, settings.retry_topic: 3, settings.id_topic: 2}
    known = {**formats, settings.oscillator_topic: 4}
    status: Any = SimpleNamespace(
        settings=settings, pool=SimpleNamespace(formats=enabled_formats(settings), partitions=known)
    )
    (entry,) = (entry for entry in METRICS if entry.name == "timers_topic_partitions")
    assert dict(entry.read(status)) == {(topic,): count for topic, count in formats.items()}
