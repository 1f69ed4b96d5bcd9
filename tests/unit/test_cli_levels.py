"""``timers levels`` offers and allows a level only if it is known that all workers support it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from timers.cli import partitions as command
from timers.core.levels import FIRST_LEVEL, HOLDS_LEVEL
from timers.errors import TimersError
from timers.kafka import progress_log
from timers.offline.app_state import LevelsInUse
from timers.process.config.settings import Settings


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app with two partitions."""
    partitions = {f"timer-request/{partition}": FIRST_LEVEL for partition in range(2)}
    app = SimpleNamespace(allowed=FIRST_LEVEL, workers={"worker-1": HOLDS_LEVEL}, taken="")
    monkeypatch.setattr(command, "load_settings", Settings.load)
    monkeypatch.setattr(
        command, "levels_in_use", lambda settings: LevelsInUse(app.allowed, app.workers, partitions, app.taken)
    )
    monkeypatch.setattr(progress_log, "allow", lambda *_: None)
    monkeypatch.setattr(command, "explained", lambda *_: nullcontext())
    return app


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    command.levels.main(args=arguments, standalone_mode=False)
    return capsys.readouterr().out


def test_the_highest_level_that_all_workers_support_is_offered(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"timers levels --raise {HOLDS_LEVEL} allows level {HOLDS_LEVEL}" in said(capsys)
    assert "levels --raise" not in said(capsys, "--raise", str(HOLDS_LEVEL))


def test_no_level_is_allowed_while_another_program_has_the_group(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The brokers do not tell then what the workers support."""
    app.workers, app.taken = {}, "another program is in the group 'timers': client 'c' at 10.0.0.1"
    shown = said(capsys)
    assert f"what the workers support is not known: {app.taken}" in shown and "levels --raise" not in shown
    with pytest.raises(TimersError, match="was not allowed, because what the workers support is not known: another"):
        said(capsys, "--raise", str(HOLDS_LEVEL))


def test_without_workers_no_level_is_offered(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    app.workers = {}
    shown = said(capsys)
    assert "what the workers support is not known: none runs" in shown and "levels --raise" not in shown
