"""``timers list`` and ``timers cancel`` with a selection, over a simulated worker and client."""

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness.command_line import Run
from tests.harness.constants import Constants
from timers.cli import timers as command
from timers.client import AsyncTimersClient
from timers.core.keys import NOTHING_FIRED
from timers.core.timer import Origin, Row
from timers.errors import PublishError
from timers.process.config.settings import Settings
from timers.testing import SimTimers
from timers.wire import query as wire
from timers.wire.verdict import VerdictMessage

DUE_S = 1_900_000_000


def timer(id: str, topic: str = "timer-request-by-id", *, moved: bool = False) -> dict[str, Any]:
    offset = len(id)
    source = None if moved else f"{topic}/0/{offset}"
    origin = Origin(id, DUE_S, 1, f"timer-request-by-id/0/{offset}" if moved else source)
    row: Row = (offset, "orders", "key", b"v", None, origin if moved or topic != "timer-request" else None)
    return wire.describe(row, DUE_S, "timers-timer-retry" if moved else topic, 0, moved=moved, with_value=False)


class Fleet:
    """A worker that lists two timers a page, and a client whose cancels are noted."""

    def __init__(self, *timers: dict[str, Any], fails: tuple[str, ...] = (), missing: bool = False) -> None:
        self.timers = timers
        self.fails = fails
        self.missing = [{"partition": "timer-request/1", "reason": "no owner"}] if missing else []
        self.asked: list[dict[str, str]] = []
        self.cancelled: list[str] = []
        self.conditions: list[str | None] = []
        self.latest = {timer["id"]: timer["source"] for timer in timers}
        self._lock = threading.Lock()

    def ask(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append(dict(parameters))
        first = 2 * (len(self.asked) - 1)
        page = self.timers[first : first + 2]
        more = wire.cursor(wire.position_of(page[-1])) if first + 2 < len(self.timers) else None
        return {"timers": page, "next": more, "missing": self.missing}

    async def cancel(self, client: Any, id: str, *, if_source: str | None = None, **_: Any) -> VerdictMessage:
        if id in self.fails:
            raise PublishError(f"{id}: no verdict within 30 s")
        if if_source not in (None, self.latest[id]):
            return VerdictMessage(id, "changed", DUE_S + 604_800, self.latest[id])
        with self._lock:
            self.cancelled.append(id)
            self.conditions.append(if_source)
        return VerdictMessage(id, "cancelled", DUE_S)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(fleet: Fleet) -> Fleet:
        monkeypatch.setattr(command, "load_settings", Settings)
        monkeypatch.setattr(command, "WorkerToAsk", lambda named: fleet)
        monkeypatch.setattr(AsyncTimersClient, "cancel", lambda client, id, **named: fleet.cancel(client, id, **named))
        return fleet

    return use


def test_a_list_asks_for_its_selection(use: Any, run: Run) -> None:
    fleet = use(Fleet(timer("c-17/a")))
    options = ("--prefix", "c-17/", "--key", "", "--topic", "orders", "--from", "-1h", "--to=2030-01-31T12:00:00Z")
    code, out, _ = run("list", *options)
    assert code == 0 and "c-17/a" in out
    (asked,) = fleet.asked
    query = wire.parse_query(asked)
    assert (query.prefix, query.key, query.topic, query.to_s) == ("c-17/", "", "orders", 1_896_091_200)
    assert DUE_S - 10**9 < query.from_s < 1_896_091_200
    run("list")
    assert not {"prefix", "key", "topic", "to"} & fleet.asked[-1].keys()


MIXED = (
    timer("c-17/a"),
    timer("c-17/bb"),
    timer("timer-request/0/13", "timer-request"),
    timer("c-17/cccc", moved=True),
    timer("c-17/ddddd"),
)


def test_a_dry_run_lists_what_it_would_cancel_and_changes_nothing(use: Any, run: Run) -> None:
    fleet = use(Fleet(*MIXED))
    code, out, err = run("cancel", "--prefix", "c-17/", "--dry-run", "-o", "json")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["c-17/a", "c-17/bb", "c-17/ddddd"]
    assert "3 timers would be cancelled; 1 left out: without an id; 1 left out: fired, and waiting" in err
    assert fleet.cancelled == []


def test_all_timers_of_a_selection_that_have_an_id_are_cancelled(use: Any, run: Run) -> None:
    fleet = use(Fleet(*MIXED))
    code, out, err = run("cancel", "--prefix", "c-17/")
    assert code == 0 and len(out.splitlines()) == 3
    assert fleet.cancelled == ["c-17/a", "c-17/bb", "c-17/ddddd"]
    assert "3 cancelled; 1 left out: without an id" in err
    assert {asked["prefix"] for asked in fleet.asked} == {"c-17/"}


def test_a_timer_whose_next_occurrence_is_just_read_is_cancelled(use: Any, run: Run) -> None:
    """While it fires, no list has it."""
    fleet = use(Fleet(timer("c-17/a")))
    listing, late = fleet.ask, timer("c-17/repeats")

    def ask(path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        answer = listing(path, parameters)
        return answer if len(fleet.asked) == 1 else {**answer, "timers": [timer("c-17/a"), late]}

    fleet.latest[late["id"]] = late["source"]
    fleet.ask = ask
    code, _, err = run("cancel", "--prefix", "c-17/")
    assert (code, fleet.cancelled) == (0, ["c-17/a", "c-17/repeats"])
    assert "2 cancelled" in err


def test_a_command_does_not_keep_all_that_it_has_cancelled(constants: Constants) -> None:
    """It may be many millions, in the pod of a worker."""
    constants(command, _MAX_CANCELLED_REMEMBERED=2)
    asked = command._Asked()
    asked.add("changed", is_cancelled=False)
    for number in range(5):
        asked.add(f"{number}", is_cancelled=True)
    kept = [id for id in ("changed", *"01234") if id in asked]
    assert kept == ["changed", "3", "4"], "what was not cancelled is listed again, and not asked for again"


def test_a_held_timer_is_cancelled_without_a_condition(use: Any, run: Run) -> None:
    held = timer("c-17/held") | {"held": {"reason": "pause", "number": 7, "since": 1}}
    fleet = use(Fleet(timer("c-17/a"), held))
    code, _, err = run("cancel", "--prefix", "c-17/")
    assert (code, fleet.conditions) == (0, [timer("c-17/a")["source"], None])
    assert "2 cancelled (1 held: cancelled also if changed since they were listed)" in err


def test_a_timer_that_was_changed_since_is_not_cancelled(use: Any, run: Run) -> None:
    fleet = use(Fleet(*MIXED))
    fleet.latest["c-17/bb"] = "timer-request-by-id/0/99"
    code, out, err = run("cancel", "--to", "2031-01-01T00:00:00Z")
    assert (code, fleet.cancelled) == (5, ["c-17/a", "c-17/ddddd"])
    assert "c-17/bb: nothing was changed: another version is the latest" in out
    assert "2 cancelled, 1 changed" in err


@pytest.mark.parametrize("is_moved_since", [False, True])
def test_a_listed_source_is_the_condition_for_the_version_that_was_listed(is_moved_since: bool) -> None:
    timers = SimTimers()
    for delay in (60, 90):  # the second one replaces the first
        timers.schedule("orders", "key", b"v", delay=delay, id="c-17/a")
    waiting = [each for machine in timers._machines() for each in machine.waiting(NOTHING_FIRED)]
    (row,) = [row for _, rows in waiting for row in rows]
    listed = wire.describe(row, DUE_S, "timer-request-by-id", 0, moved=False, with_value=False)
    if is_moved_since:
        timers.schedule("orders", "key", b"v", delay=604_800, id="c-17/a")
    verdict = timers.cancel(listed["id"], if_source=listed["source"]).verdict
    assert (verdict, timers.pending) == (("changed", 1) if is_moved_since else ("cancelled", 0))


def test_a_missing_verdict_and_a_silent_partition_are_said(use: Any, run: Run) -> None:
    use(Fleet(*MIXED, fails=("c-17/bb",)))
    code, _, err = run("cancel", "--key", "key")
    assert code == 1
    assert "c-17/bb: no verdict within 30 s" in err and "1 cancel without a verdict: run the command again" in err
    use(Fleet(timer("c-17/a"), missing=True))
    code, _, err = run("cancel", "--topic", "orders")
    assert code == 1
    assert "1 cancelled" in err and "this is not all: no worker answers for" in err
    use(Fleet(timer("timer-request/0/13", "timer-request")))
    assert run("cancel", "--topic", "orders")[0] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say which: either ID, or at least one of"),
        (["order-17", "--prefix", "o"], "say which: either ID, or at least one of"),
        (["--prefix", "o", "--if-source", "a/0/1"], "--if-source goes with ID"),
        (["order-17", "--dry-run"], "--dry-run and --worker go with a selection"),
        (["--prefix", ""], "--prefix is empty"),
    ],
)
def test_wrong_use(arguments: list[str], said: str, use: Any, run: Run) -> None:
    fleet = use(Fleet(*MIXED))
    code, _, err = run("cancel", *arguments)
    assert (code, fleet.cancelled) == (2, [])
    assert said in err


@pytest.mark.parametrize("asked", ["list", "cancel"])
def test_an_unreadable_time_is_told_also_without_brokers(asked: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("TIMERS_BROKERS", "127.0.0.1:1")
    code, _, err = run(asked, "--from", "yesterday")
    assert code == 2
    assert "'yesterday' is not a time" in err
