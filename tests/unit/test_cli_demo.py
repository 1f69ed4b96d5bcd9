"""The demo goes on while no broker answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from timers.cli import run
from timers.cli.output import Output
from timers.errors import UnacknowledgedError, UnreachableError


class SilentClient:
    """A client whose brokers do not answer the first calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.scheduled: list[str] = []

    def schedule(self, topic: str, key: str, value: Any, **_: Any) -> str:
        if self.errors:
            raise self.errors.pop(0)
        self.scheduled.append(key)
        return key

    def schedule_many(self, requests: Any, **_: Any) -> int:
        return len(requests)


def test_a_broker_that_is_silent_for_a_while_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = SilentClient(UnacknowledgedError("no answer within 10 s"), UnreachableError("no broker answers"))
    now_s = 1_800_000_000.0
    monkeypatch.setattr(run, "time", SimpleNamespace(time=lambda: now_s, monotonic=lambda: now_s))

    def silence() -> Any:
        nonlocal now_s
        for _ in range(40):
            now_s += 1
            yield None

    checks: list[int] = []
    reader: Any = silence()
    running = run._Demo(client, reader, "t", Output(), lambda: checks.append(1))
    running.run()
    assert len(client.scheduled) > 20 and client.scheduled[0] == "demo-23", "two failed, and the others followed"
    said = capsys.readouterr().err
    assert "no answer within 10 s. Going on ..." in said and "no broker answers. Going on ..." in said
