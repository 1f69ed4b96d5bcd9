"""``timers snapshots`` looks at many snapshots with few clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

import pytest

from timers.cli.progress import _Looks
from timers.config.settings import Settings
from timers.core.progress import NamedSnapshot
from timers.core.snapshots import Unreadable
from timers.kafka import snapshot_log

NAMED = NamedSnapshot(b"id", 7, 0, 5, 0, 0, 0, b"")


class SimSnapshotLog:
    """Partition 2 has lost its snapshot."""

    made: ClassVar[list[str]] = []
    closed = 0

    def __init__(self, settings: Settings, topic: str, partition: int, check: Callable[[], None]) -> None:
        self.made.append(topic)
        self.partition = partition

    def written_ms(self, named: NamedSnapshot) -> int:
        if self.partition == 2:
            raise Unreadable("it is gone")
        return 0

    def close(self) -> None:
        type(self).closed += 1


def test_each_topic_has_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_log, "SnapshotLog", SimSnapshotLog)
    with ExitStack() as stack:
        looks = _Looks(Settings(app_id="app"), stack)
        found = [looks.at((topic, partition), NAMED) for topic in ("a", "b") for partition in range(4)]
    assert [problem for _, problem in found] == 2 * [None, None, "it is gone", None]
    assert SimSnapshotLog.made == ["app-snapshot-a", "app-snapshot-b"]
    assert SimSnapshotLog.closed == 2
