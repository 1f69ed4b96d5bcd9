"""``timers levels`` says how much workers will delete at the level of trimming, before it is allowed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from timers.cli import progress as command
from timers.config.settings import Settings
from timers.core.levels import SNAPSHOTS, TRIMMING
from timers.core.progress import FEATURE_LEVEL, NamedSnapshot, Progress
from timers.kafka import topic_offsets

NAMED = NamedSnapshot(b"id", 7, 10, 12, 900, 3, 2, b"digest")
KNOWN = replace(
    Progress(1000).with_setting(FEATURE_LEVEL, SNAPSHOTS), snapshot=NAMED, older_snapshot=NAMED._replace(applied=700)
)


class SimOffsets:
    def __init__(self, settings: Any) -> None: ...

    def starts(self, topics: list[str]) -> dict[str, dict[int, int]]:
        return {"timer-request": {0: 0, 1: 650}}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app with three partitions, one of a topic that is not trimmed."""
    progress = {("timer-request", 0): KNOWN, ("timer-request", 1): KNOWN, ("schedules", 0): KNOWN}
    found = command._Found(SNAPSHOTS, {"worker-1": TRIMMING}, {f"{topic}/{at}": SNAPSHOTS for topic, at in progress})
    monkeypatch.setattr(command, "load_settings", Settings.load)
    monkeypatch.setattr(command, "_look_up", lambda settings: found)
    monkeypatch.setattr(command, "_allow", lambda *_: None)
    monkeypatch.setattr(command, "_read", lambda *_: (None, progress))
    monkeypatch.setattr(command, "explained", lambda *_: nullcontext())
    monkeypatch.setattr(topic_offsets, "TopicOffsets", SimOffsets)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    command.levels.main(args=arguments, standalone_mode=False)
    return capsys.readouterr().out


def test_it_says_how_many_offsets_are_deleted_and_when(
    app: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"timers levels --raise {TRIMMING} allows level {TRIMMING}" in said(capsys)
    wanted = f"at level {TRIMMING}, workers delete 750 offsets of timer-request when they are 604800 s old"
    assert wanted in said(capsys)
    assert wanted in said(capsys, "--raise", str(TRIMMING))
    assert "schedules" not in said(capsys)
    monkeypatch.setenv("TIMERS_LOG_KEEP_S", "0")
    assert "750 offsets of timer-request at once" in said(capsys)
    monkeypatch.setenv("TIMERS_LOG_KEEP_S", "never")
    assert "workers delete" not in said(capsys)
