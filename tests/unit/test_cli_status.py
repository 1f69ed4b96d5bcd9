"""``timers status``: what it prints and how it ends, with the workers' answers given."""

import json
from typing import Any

import pytest

from tests.harness.console_pages import ANSWERS, LOST
from timers.cli import main as program
from timers.cli import partitions
from timers.console.figures import judged
from timers.process.config.settings import Settings

OWNER: dict[str, Any] = {
    **ANSWERS,
    "assigned": {"t": [0, 1]},
    "firing": ["t/0", "t/1"],
    "machines": {"t/0": {"age_s": 61.0, "from": "store"}, "t/1": {"age_s": 2.5, "from": "snapshot"}},
}


@pytest.mark.parametrize(
    ("workers", "code", "words"),
    [
        ([OWNER], 0, "all timers fire"),
        ([{**OWNER, "red": {"t/1": "no leader"}}], 3, "some timers do not fire: the timers of t/1 wait"),
        ([{**OWNER, "assigned": {"t": [0]}, "firing": ["t/0"]}, LOST], 4, "it is not known whether all fire"),
    ],
)
def test_the_exit_code_says_whether_all_timers_fire(
    workers: list[Any], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def look(_: Any) -> dict[str, Any]:
        return {"state": judged(workers)._asdict(), "workers": workers}

    monkeypatch.setattr(partitions, "look", look)
    monkeypatch.setenv("TIMERS_BROKERS", "127.0.0.1:9")
    monkeypatch.setattr(partitions, "load_settings", Settings.load)
    assert program.main(["status", "-o", "json"]) == code
    said = capsys.readouterr()
    assert words in said.err
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert rows[0] == {"partition": "t/0", "worker": "w1", "state": "fires", "age_s": 61.0, "from": "store"}
    if LOST in workers:
        assert rows[-1] == {"partition": "t/1", "worker": "w2", "state": "unknown", "age_s": None, "from": None}
    assert program.main(["status"]) == code
    assert capsys.readouterr().out.splitlines()[1].split() == ["t/0", "w1", "fires", "61", "s", "store"]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"paused_targets": 2.0, "held": 12_408.0}, "2 callback topics are paused: 12,408 timers are held ("),
        ({"paused_targets": 1.0, "held": None}, "1 callback topic is paused: its timers wait ("),
        ({"paused_targets": 0.0, "held": 1.0}, "1 timer is held ("),
        ({"paused_targets": 0.0, "held": None}, ""),
    ],
)
def test_timers_that_are_held_are_said(figures: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    partitions._say_held([{**OWNER, **figures}, LOST])
    line = capsys.readouterr().err
    assert line.startswith(said) and ("timers targets list" in line) == bool(said)
