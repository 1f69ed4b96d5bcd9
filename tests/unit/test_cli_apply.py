"""``timers apply`` over a simulated worker and client: what it shows, sets and cancels."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from timers.cli import apply as command
from timers.cli.main import main
from timers.client import AsyncTimersClient, TimerRequest
from timers.core.operation import CANCELLED, REPLACED, UNKNOWN
from timers.errors import PublishError, QueryError
from timers.process.config.settings import Settings
from timers.wire import query as wire
from timers.wire.headers import SET
from timers.wire.verdict import VerdictMessage

FILE = """
set: billing
timers:
  - {id: daily, repeat: {cron: "0 9 * * 1-5", zone: Europe/Paris}, topic: reports, value: daily}
  - {id: load, repeat: {every: 15m}, topic: reports, value: load, headers: {trace: "1"}}
"""


class Fleet:
    """A worker, and a client that sets what it says.

    Attributes:
        timers: id -> what is set.
        queries: as the setting of the worker.
        sent: ids that were set or cancelled.
    """

    def __init__(self) -> None:
        self.timers: dict[str, dict[str, Any]] = {}
        self.queries = "values"
        self.fails: set[str] = set()
        self.sent: list[str] = []

    def ask(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        with_value = parameters.get("value") == "1"
        if with_value and self.queries != "values":
            raise QueryError(
                "this worker shows no values of callbacks: set TIMERS_QUERIES=values, or ask without value=1"
            )
        if path == wire.FIND_PATH:
            found = [each for each in self.timers.values() if each["id"] == parameters["id"]]
        else:
            name = wire.parse_query(parameters).set
            found = [each for each in self.timers.values() if (SET, name) in map(tuple, each["headers"])]
        hidden = () if with_value else ("value", "headers")
        shown = [{name: part for name, part in each.items() if name not in hidden} for each in found]
        return {"timers": shown, "next": None, "missing": []}

    async def update(self, request: TimerRequest, *_: Any, **__: Any) -> VerdictMessage:
        assert request.id is not None and request.repeat is not None
        if request.id in self.fails:
            raise PublishError("no verdict within 10 s")
        self.sent.append(request.id)
        former = self.timers.get(request.id)
        self.timers[request.id] = self.shown(request)
        places = {"version": "", "source": ""}
        same = former is not None and former | places == self.timers[request.id] | places
        verdict = UNKNOWN if former is None else "unchanged" if same else REPLACED
        return VerdictMessage(request.id, verdict, None, self.timers[request.id]["version"])  # type: ignore[arg-type]

    async def cancel(self, id: str, *, if_source: str | None = None, **_: Any) -> VerdictMessage:
        assert if_source == self.timers[id]["version"]
        del self.timers[id]
        self.sent.append(id)
        return VerdictMessage(id, CANCELLED, None)

    def shown(self, request: TimerRequest) -> dict[str, Any]:
        """A timer as a worker describes it."""
        assert request.repeat is not None
        value = request.value.encode() if isinstance(request.value, str) else bytes(request.value)
        pairs: Any = request.headers
        headers = [[name, each.decode() if isinstance(each, bytes) else each] for name, each in pairs]
        return {
            "id": request.id,
            "state": wire.PENDING,
            "due": 1_900_000_000,
            "source": f"timer-request-by-id/0/{len(self.sent)}",
            "version": f"timer-request-by-id/0/{len(self.sent)}",
            "repeat": request.repeat.to_header().decode(),
            "topic": request.topic,
            "key": request.key,
            "value": base64.b64encode(value).decode(),
            "headers": headers,
        }


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    fleet = Fleet()
    monkeypatch.setattr(command, "load_settings", Settings)
    monkeypatch.setattr(command, "WorkerToAsk", lambda named: fleet)
    monkeypatch.setattr(command, "say_zone_data", lambda settings: None)
    monkeypatch.setattr(command, "warn_of_missing_topics", lambda settings, topics: None)
    monkeypatch.setattr(AsyncTimersClient, "update_if", lambda client, *given, **named: fleet.update(*given, **named))
    monkeypatch.setattr(AsyncTimersClient, "cancel", lambda client, id, **named: fleet.cancel(id, **named))
    return fleet


class Runs:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path, self._capsys = path, capsys

    def __call__(self, text: str, *options: str) -> tuple[int, str, str]:
        """Code, output and messages of a command."""
        self._path.write_text(text)
        code = main(["apply", "-f", str(self._path), *options])
        return code, *self._capsys.readouterr()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tmp_path / "schedules.yaml", capsys)


def test_a_second_run_changes_nothing(fleet: Fleet, run: Runs) -> None:
    code, out, _ = run(FILE, "--dry-run")
    assert (code, fleet.sent) == (command.CHANGES_CODE, [])
    assert out.startswith("daily: to set\n+ repeat.cron: 0 9 * * 1-5\n+ repeat.zone: Europe/Paris\n+ topic: reports\n")
    code, out, err = run(FILE)
    assert (code, out) == (0, "daily: set\nload: set\n") and "2 set" in err
    assert sorted(fleet.sent) == ["daily", "load"]
    code, out, err = run(FILE)
    assert (code, out, len(fleet.sent)) == (0, "", 2) and "2 unchanged" in err
    assert run(FILE, "--dry-run")[:2] == (0, "daily: unchanged\nload: unchanged\n")


def test_only_what_differs_is_set_and_shown_as_a_difference(fleet: Fleet, run: Runs) -> None:
    run(FILE)
    later = FILE.replace("0 9 * *", "30 8 * *")
    code, out, _ = run(later, "--dry-run", "-o", "json")
    first, second = map(json.loads, out.splitlines())
    assert (code, first["action"], second["action"]) == (command.CHANGES_CODE, "change", "unchanged")
    assert first["diff"][:2] == ["- repeat.cron: 0 9 * * 1-5", "+ repeat.cron: 30 8 * * 1-5"]
    code, out, err = run(later)
    assert (code, out, fleet.sent[2:]) == (0, "daily: replaced\n", ["daily"])
    assert "+ repeat.cron: 30 8 * * 1-5" in err and "1 replaced, 1 unchanged" in err


def test_only_timers_of_this_set_are_cancelled(fleet: Fleet, run: Runs) -> None:
    run(FILE)
    run(FILE.replace("billing", "other").replace("id: ", "id: other-"))
    less = "\n".join(line for line in FILE.splitlines() if "load" not in line)
    code, _, err = run(less)
    assert (code, len(fleet.sent)) == (0, 4) and "1 timer of billing is not in the file, such as load" in err
    code, out, _ = run(less, "--prune", "--dry-run")
    assert code == command.CHANGES_CODE and "load: to cancel\n- repeat.every: 900\n" in out and len(fleet.sent) == 4
    code, out, _ = run(less, "--prune")
    assert (code, out) == (0, "load: cancelled\n")
    assert sorted(fleet.timers) == ["daily", "other-daily", "other-load"]


def test_a_timer_that_fires_just_now_is_pruned_too(fleet: Fleet, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list has it until its next occurrence is read."""
    run(FILE)
    less = "\n".join(line for line in FILE.splitlines() if "load" not in line)
    listing, lists = fleet.ask, list[int]()

    def ask(path: str, parameters: Any) -> dict[str, Any]:
        answer = listing(path, parameters)
        lists.append(1)
        timers = [each for each in answer["timers"] if each["id"] != "load" or len(lists) > 1]
        return {**answer, "timers": timers}

    monkeypatch.setattr(fleet, "ask", ask)
    code, out, _ = run(less, "--prune")
    assert (code, out) == (0, "load: cancelled\n")


def test_a_single_timer_with_the_header_of_the_set_is_not_cancelled(fleet: Fleet, run: Runs) -> None:
    """A receiver that copies headers of its callback to another timer has made it."""
    run(FILE)
    single = {name: part for name, part in fleet.timers["load"].items() if name != "repeat"}
    fleet.timers["reminder"] = {**single, "id": "reminder"}
    code, out, err = run(FILE, "--prune")
    assert (code, out) == (0, "") and "reminder" not in err
    assert sorted(fleet.timers) == ["daily", "load", "reminder"]


def test_a_rule_that_is_over_refuses_no_file_and_is_not_cancelled(fleet: Fleet, run: Runs) -> None:
    run(FILE)
    over = FILE.replace("every: 15m", 'every: 15m, until: "2020-01-31T12:00:00Z"')
    code, _, err = run(over, "--prune")
    assert code == 0 and "line 5: load is over since 2020-01-31T12:00:00Z, and is not set" in err
    assert "load" in fleet.timers


def test_a_topic_of_the_engine_is_refused_before_anything_is_asked(fleet: Fleet, run: Runs) -> None:
    code, _, err = run(FILE.replace("topic: reports", "topic: timer-request"), "--dry-run")
    assert code == 2 and "is one of the engine" in err


def test_a_timer_of_another_set_or_of_none_is_taken_over_and_shown_so(fleet: Fleet, run: Runs) -> None:
    run(FILE.replace("billing", "other"))
    _, out, _ = run(FILE, "--dry-run")
    assert '- header timers-set: "other"\n+ header timers-set: "billing"\n' in out


def test_without_values_all_are_sent_and_the_verdicts_say_what_changed(fleet: Fleet, run: Runs) -> None:
    run(FILE)
    fleet.queries = "on"
    code, out, err = run(FILE.replace("value: load", "value: other"))
    assert (code, out) == (0, "daily: unchanged\nload: replaced\n")
    assert "values and headers are not compared" in err


def test_what_others_have_set_is_safe_on_a_terminal(fleet: Fleet, run: Runs) -> None:
    run(FILE)
    fleet.timers["daily"] |= {"topic": "a\x1b[31m\u202e", "repeat": "cron=0 1 * * *; zone=\x1b[31m"}
    _, out, _ = run(FILE, "--dry-run")
    assert "\x1b" not in out and "\u202e" not in out and "- topic: a" in out


def test_a_timer_without_a_verdict_is_named(fleet: Fleet, run: Runs) -> None:
    fleet.fails = {"load"}
    code, out, err = run(FILE)
    assert (code, out) == (1, "daily: set\n")
    assert "load: no verdict within 10 s" in err and "1 timer without a verdict: use the command again" in err


def test_a_wrong_file_changes_nothing(fleet: Fleet, run: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "-f", "no-such-file.yaml"]) == 2
    assert "no-such-file.yaml: No such file" in capsys.readouterr().err
    code, out, err = run(FILE.replace("Europe/Paris", "Europe/Pari"))
    assert (code, out, fleet.sent) == (2, "", [])
    assert [line[:7] for line in err.splitlines()[:1]] == ["line 4:"] and "Europe/Pari" in err and "\\n" not in err
