"""``timers levels`` says how much workers will delete at the level of trimming, before it is allowed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from timers.cli import partitions as command
from timers.core.levels import BY_HEADERS, BY_HEADERS_TRIMMED, SNAPSHOTS, TRIMMING
from timers.core.progress import FEATURE_LEVEL, NamedSnapshot, Progress
from timers.errors import TimersError
from timers.kafka import progress_log, topic_offsets
from timers.offline.app_state import LevelsInUse
from timers.process.config.settings import Settings

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
    partitions = {f"{topic}/{at}": SNAPSHOTS for topic, at in progress}
    app = SimpleNamespace(allowed=SNAPSHOTS, workers={"worker-1": TRIMMING}, taken="")
    monkeypatch.setattr(command, "load_settings", Settings.load)
    monkeypatch.setattr(
        command, "levels_in_use", lambda settings: LevelsInUse(app.allowed, app.workers, partitions, app.taken)
    )
    monkeypatch.setattr(progress_log, "allow", lambda *_: None)
    monkeypatch.setattr(command, "read_progress", lambda *_: (None, progress))
    monkeypatch.setattr(command, "explained", lambda *_: nullcontext())
    monkeypatch.setattr(topic_offsets, "TopicOffsets", SimOffsets)
    return app


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


def test_the_level_that_does_not_trim_deletes_nothing_and_the_one_after_it_does(
    app: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    app.workers = {"worker-1": BY_HEADERS_TRIMMED}
    assert "workers delete" not in said(capsys, "--raise", str(BY_HEADERS))
    for app.allowed in (SNAPSHOTS, BY_HEADERS):
        assert f"at level {BY_HEADERS_TRIMMED}, workers delete 750 offsets" in said(capsys)
        assert f"at level {BY_HEADERS_TRIMMED}, workers delete" in said(capsys, "--raise", str(BY_HEADERS_TRIMMED))


def test_no_level_is_allowed_while_another_program_has_the_group(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The brokers do not tell then what the workers support."""
    app.workers, app.taken = {}, "another program is in the group 'timers': client 'c' at 10.0.0.1"
    shown = said(capsys)
    assert f"what the workers support is not known: {app.taken}" in shown and "levels --raise" not in shown
    with pytest.raises(TimersError, match="was not allowed, because what the workers support is not known: another"):
        said(capsys, "--raise", str(TRIMMING))


def test_without_workers_no_level_is_offered(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    app.workers = {}
    shown = said(capsys)
    assert "what the workers support is not known: none runs" in shown and "levels --raise" not in shown
