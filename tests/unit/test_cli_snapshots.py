"""``timers snapshots`` looks at many snapshots with few clients, and with ``--now`` waits for new ones."""

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from timers.cli import snapshots as command
from timers.cli.snapshots import _SnapshotAges
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Unreadable
from timers.kafka import progress_log, snapshot_log
from timers.process.config.settings import Settings

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
        looks = _SnapshotAges(Settings(app_id="app"), stack)
        found = [looks.at((topic, partition), NAMED) for topic in ("a", "b") for partition in range(4)]
    assert [problem for _, problem in found] == 2 * [None, None, "it is gone", None]
    assert SimSnapshotLog.made == ["app-snapshot-a", "app-snapshot-b"]
    assert SimSnapshotLog.closed == 2


def test_it_waits_for_each_new_snapshot_and_says_which_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 0 gets its first one, 1 a newer one, 2 none; 3 cannot have one, and 4 is empty."""
    known = {("t", at): Progress(9 if at < 4 else 0, snapshot=NAMED if at else None) for at in range(5)}
    found: Any = known | {("t", at): Progress(9, snapshot=NAMED._replace(number=8)) for at in (0, 1)}
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(command, "read_progress", lambda *_: (SimpleNamespace(cluster_id="cluster"), known))
    monkeypatch.setattr(
        command, "ask", lambda *_: {"missing": [{"partition": "t/3", "reason": "its log is being read again"}]}
    )
    monkeypatch.setattr(progress_log, "read_all", lambda *_: found)
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(clock)))
    failed = command._take(Settings(app_id="app"), None)  # type: ignore[arg-type]
    assert failed.keys() == {"t/2", "t/3"}
    assert failed["t/3"] == "its log is being read again"
    assert "none was named within 120 s" in failed["t/2"]
