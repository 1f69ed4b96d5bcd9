"""``timers snapshots`` looks at many snapshots with few clients, and with ``--now`` waits for new ones."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from timers.cli import snapshots as command
from timers.cli.snapshots import _SnapshotAges
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Unreadable
from timers.kafka import progress_log, snapshot_log, topic_offsets
from timers.machines.verifying import Verified
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


def test_a_comparison_says_of_each_partition_that_differs_what_may_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and stores of a log that was trimmed are the only copies of what was pending in what was deleted."""
    starts, rows = {0: 0, 1: 0, 2: 9_000_000}, {0: ("a row",), 1: (), 2: ("a row",)}
    log: Any = SimpleNamespace(starts=lambda _: {"t": starts})
    found = {("t", at): Progress(9) for at in starts}
    monkeypatch.setattr(command, "load_settings", lambda: Settings(app_id="app"))
    monkeypatch.setattr(command, "read_progress", lambda *_: (SimpleNamespace(cluster_id="cluster"), found))
    monkeypatch.setattr(command, "_verify", lambda _, __, tp: Verified(3, 9, 2, rows[tp[1]], len(rows[tp[1]])))
    monkeypatch.setattr(topic_offsets, "TopicOffsets", lambda _: log)
    run = partial(CliRunner().invoke, command.log)
    shown = [json.loads(line)["way_on"] for line in run(["verify", "--output", "json"]).stdout.splitlines()]
    whole, same, trimmed = shown
    assert "its log is whole" in whole and "#log-and-snapshots-differ" in whole
    assert same is None
    assert "begins at offset 9,000,000" in trimmed and "delete none of them" in trimmed
    assert "#log-and-snapshots-differ" not in trimmed
    done = run(["verify"])
    assert f"t/0: {whole}" in done.stdout and f"t/2: {trimmed}" in done.stdout
    assert done.exit_code == 1 and "#" not in str(done.exception), "the last sentence is for all of them"
