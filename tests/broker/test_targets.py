"""``timers targets``: a paused topic gets nothing, others get theirs, and after the resume each timer fires once."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.harness.command_line import command
from tests.harness.scrape import health, scrape, wait_equal
from tests.harness.system import PARTITIONS, System, soon, timers
from tests.harness.waiting import DEADLINE_S, done_in_time, due_in, wait_until
from tests.harness.worker import Worker
from timers.core.levels import FIRST_LEVEL, HOLDS_LEVEL
from timers.kafka import progress_log, records
from timers.kafka.clients import librdkafka
from timers.offline.targets import Request, give, look, pausing
from timers.wire.targets import TARGETS_PARTITION

pytestmark = pytest.mark.broker


class Operator:
    """Gives commands about targets, as a user does."""

    def __init__(self, console: pytest.CaptureFixture[str]) -> None:
        self._console = console

    def run(self, *arguments: str, code: int = 0) -> str:
        """Output of a command, and what it says."""
        got = command(self._console, *arguments)
        assert got.code == code, got
        return got.out + got.err

    def listed(self) -> dict[str, Any]:
        """Callback topic -> what the list says of it."""
        found = command(self._console, "targets", "list", "-o", "json")
        assert found.code == 0, found
        return {each["topic"]: each for each in map(json.loads, found.out.splitlines())}


@pytest.fixture
def operator(system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    system.use(monkeypatch)
    return Operator(capsys)


def started(system: System, monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = system.worker(quick=True)
    monkeypatch.setenv("TIMERS_WORKER_URL", f"http://127.0.0.1:{worker.port}")
    return worker.start().ready()


def red(worker: Worker) -> str:
    """What its page of partitions says is wrong."""
    status, body = health(worker.port, "partitions")
    assert (status == 503) == bool(body["red"]) and set(body["red"]) == set(body["lossy"])
    return " ".join(body["red"].values())


def test_a_paused_topic_waits_and_others_do_not(
    system: System, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = started(system, monkeypatch)
    paused, other = system.target(), system.target()
    operator.run("targets", "pause", paused, "--why", "provider down", "--wait")
    held, sent = system.send(*soon(paused, 50)), system.send(*soon(other, 50))
    system.fired(sent)
    assert not system.reader(paused).rest()
    shown = operator.listed()[paused]
    assert (shown["state"], shown["held"], shown["why"], shown["until_s"]) == ("paused", 50, "provider down", None)
    assert shown["waits_for"] == []
    assert shown["machines"].keys() >= {f"{system.request_topic}/{number}" for number in range(PARTITIONS)}
    assert red(worker) == ""
    metrics = scrape(worker.port)
    assert metrics.total("timers_paused_targets") == 1
    assert metrics.total("timers_held", topic=paused, reason="pause") == 50
    assert metrics.total("timers_oldest_overdue_seconds") == 0
    later = system.send(*timers(paused, 20, due_in(1), 3))
    operator.run("targets", "resume", paused, "--over", "3s", "--wait")
    system.fired([*held, *later])
    wait_until(lambda: not operator.listed(), "nothing is held any more")
    assert "is not paused" in operator.run("targets", "resume", paused, code=2)


def test_a_pause_ends_by_itself(system: System, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    started(system, monkeypatch)

    def attempt(pause_s: int) -> bool:
        target = system.target()
        operator.run("targets", "pause", target, "--for", "1h")
        operator.run("targets", "pause", target, "--for", f"{pause_s}s", "--over", "2s", "--wait")
        until_s = operator.listed().get(target, {"until_s": 0})["until_s"]
        requests = system.send(*soon(target, 8))
        fired = system.fired(requests, DEADLINE_S + pause_s)
        assert min(record.append_ms for record in fired.values()) >= 1000 * until_s
        return bool(until_s > requests[0].due_s)

    done_in_time(10, attempt)


@pytest.mark.parametrize("keeps_disk", [True, False], ids=["restart", "empty disk"])
def test_a_worker_that_is_killed_in_the_middle_of_a_release_goes_on_with_it(
    system: System, operator: Operator, monkeypatch: pytest.MonkeyPatch, keeps_disk: bool
) -> None:
    worker = started(system, monkeypatch)
    target = system.target()
    operator.run("targets", "pause", target, "--wait")
    requests = system.send(*soon(target, 4_000))
    wait_until(lambda: operator.listed()[target]["held"] == len(requests), "all are held")
    worker.kill()
    if not keeps_disk:
        shutil.rmtree(worker.data_dir)
    worker.start().ready()
    assert not system.reader(target).rest()
    operator.run("targets", "resume", target, "--over", "10s")
    reader = system.reader(target)
    reader.take(500)
    worker.kill()
    if not keeps_disk:
        shutil.rmtree(worker.data_dir)
    worker.start().ready()
    system.fired(requests)


def test_a_topic_of_targets_that_is_lost_or_damaged_turns_red_and_stops_nothing_else(
    system: System, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = started(system, monkeypatch)
    paused, other = system.target(), system.target()
    operator.run("targets", "pause", paused, "--wait")
    topic = system.settings.targets_topic
    system.delete_topic(topic)
    wait_until(lambda: "is only in the progress of a partition" in red(worker), "the partitions are red")
    assert f"timers targets pause {paused}" in red(worker)
    held = system.send(*soon(paused, 8))
    sent = [*system.send(*soon(other, 8))]
    system.fired(sent)
    assert not system.reader(paused).rest()
    assert "command 2" in operator.run("targets", "pause", paused)
    wait_equal(lambda: red(worker), "")

    damaged = [(other.encode(), b"\x08\x01damaged"), (b"no topic", b"\x08\x01")]
    records.write(librdkafka(system.settings), topic, TARGETS_PARTITION, damaged, 10)
    wait_until(lambda: f"timers targets resume {other}" in red(worker), "the damaged record is named")
    worker.kill()
    worker.start().ready()
    sent += system.send(*soon(other, 8))
    system.fired(sent)
    assert not system.reader(paused).rest()
    wait_until(lambda: f"timers targets resume {other}" in red(worker), "and after a restart")
    assert "cannot be read" in operator.run("targets", "list")
    operator.run("targets", "resume", other)
    operator.run("targets", "resume", paused)
    wait_equal(lambda: red(worker), "")
    system.fired(held)


def test_below_the_level_partitions_are_named_and_nothing_is_paused(
    system: System, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.create_own_topics()
    progress_log.allow(system.settings, FIRST_LEVEL)
    started(system, monkeypatch)
    target = system.target()
    refused = operator.run("targets", "pause", target, code=2)
    assert "below feature level 10" in refused and f"{system.request_topic}/0" in refused
    assert f"{system.request_topic}/3" in operator.run("targets", "list")
    system.fired(system.send(*soon(target, 8)))
    operator.run("levels", "--raise", str(HOLDS_LEVEL))

    def paused() -> bool:
        return command(operator._console, "targets", "pause", target, "--wait").code == 0

    wait_until(paused, "the workers raise the partitions")
    held = system.send(*soon(target, 8))
    system.wait_past(held[0].due_s)
    assert operator.listed()[target]["held"] == 8


def test_commands_that_are_given_at_the_same_moment_have_numbers_of_their_own(
    system: System, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(system, monkeypatch)
    targets = [system.target() for _ in range(4)]
    settings = system.settings

    def pause(target: str) -> int:
        return give(settings, pausing(settings, target, Request("ops"))).target.command.number

    with ThreadPoolExecutor(len(targets)) as threads:
        numbers = list(threads.map(pause, targets))
    assert sorted(numbers) == [1, 2, 3, 4]
    wait_until(lambda: not any(look(settings).shown(target)["waits_for"] for target in targets), "all are taken")
