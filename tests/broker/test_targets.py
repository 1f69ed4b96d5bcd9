"""``timers targets``: a paused topic gets nothing, others get theirs, and after the resume each timer fires once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.scrape import health
from tests.harness.system import System, soon, timers
from tests.harness.waiting import due_in, wait_until
from timers.cli.main import main

pytestmark = pytest.mark.broker


class Operator:
    """Gives commands about targets, as a user does."""

    def __init__(self, system: System, monkeypatch: pytest.MonkeyPatch, console: pytest.CaptureFixture[str]) -> None:
        self._console = console
        for name, value in system.environment.items():
            monkeypatch.setenv(name, value)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Output of a command, and what it says."""
        self._console.readouterr()
        got = main(["targets", *arguments])
        out, err = self._console.readouterr()
        assert got == code, out + err
        return out + err

    def listed(self) -> dict[str, Any]:
        """Callback topic -> what the list says of it."""
        self._console.readouterr()
        assert main(["targets", "list", "-o", "json"]) == 0
        found = [json.loads(line) for line in self._console.readouterr().out.splitlines()]
        return {each["topic"]: each for each in found}


@pytest.fixture
def operator(system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(system, monkeypatch, capsys)


def test_a_paused_topic_waits_and_others_do_not(system: System, operator: Operator) -> None:
    worker = system.worker().start().ready()
    paused, other = system.target(), system.target()
    operator.run("pause", paused, "--why", "provider down", "--wait")
    held, sent = system.send(*soon(paused, 50)), system.send(*soon(other, 50))
    system.fired(sent)
    assert not system.reader(paused).rest()
    shown = operator.listed()[paused]
    assert (shown["state"], shown["why"], shown["until_s"]) == ("paused", "provider down", None)
    assert health(worker.port, "partitions")[0] == 200
    later = system.send(*timers(paused, 20, due_in(1), 3))
    operator.run("resume", paused, "--over", "3s", "--wait")
    system.fired([*held, *later])
    wait_until(lambda: not operator.listed(), "nothing is held any more")
