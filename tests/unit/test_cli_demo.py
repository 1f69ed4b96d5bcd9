"""The demo of ``timers run`` goes on while no broker answers."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from timers.cli import run
from timers.cli.output import Output
from timers.errors import UnacknowledgedError, UnreachableError


class SilentClient:
    """A client whose brokers do not answer its next calls: they raise these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.scheduled: list[str] = []
        self.headers: dict[str, str] = {}

    def schedule(self, topic: str, key: str, value: Any, *, at: int, headers: dict[str, str]) -> str:
        if self.errors:
            raise self.errors.pop(0)
        self.headers = headers
        self.scheduled.append(key)
        return key


def callback(headers: dict[str, str]) -> Any:
    """The callback of a timer with these headers, as confluent-kafka has it."""
    fields: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 0, "timestamp": (2, 0), "key": b"", "value": b""}
    encoded = [(name, value.encode()) for name, value in headers.items()]
    calls: dict[str, Any] = {name: lambda value=value: value for name, value in {**fields, "headers": encoded}.items()}
    return SimpleNamespace(**calls)


def test_a_short_silence_does_not_end_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = SilentClient(UnacknowledgedError("no answer within 10 s"))
    now_s = 1_800_000_000.0
    monkeypatch.setattr(run, "time", SimpleNamespace(time=lambda: now_s))
    checks: list[int] = []
    firing: list[int] = []

    def messages() -> Iterator[Any]:
        nonlocal now_s
        yield callback({"demo-run": "an earlier run"})
        assert not firing
        yield callback(client.headers)
        assert client.scheduled == [f"demo-{number}" for number in range(21)]
        client.errors = [UnreachableError("no broker answers")]
        for _ in range(40):
            now_s += 1
            yield None

    run.show_timers(client, messages(), "t", Output(), lambda: checks.append(1), lambda: firing.append(1))
    assert firing == [1] and len(checks) > 40
    assert client.scheduled[21] == "demo-22" and len(client.scheduled) > 40, "one failed, and the others followed"
    said = capsys.readouterr().err
    assert "no answer within 10 s. Going on ..." in said and "no broker answers. Going on ..." in said
