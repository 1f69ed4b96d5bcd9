"""Two clusters side by side: nothing of one is shown or changed with the address of a worker of the other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.brokers import NEVER_KILLED
from tests.harness.command_line import Ran, command, set_environment
from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import free_port
from timers.kafka import topic_admin

pytestmark = pytest.mark.broker

Clusters = tuple[System, System]


def system_at(address: str, directory: Path, **settings: str) -> System:
    """A system of the same app in each cluster, as two operators with the same settings have them."""
    topics = {"TIMERS_ID_TOPIC": "two-by-id", "TIMERS_VERDICT_TOPIC": "two-verdict", "TIMERS_QUERIES": "values"}
    return System(address, directory, app_id="two", TIMERS_CONSOLE_WRITE="1", **topics, **settings)


@pytest.fixture
def clusters(broker_address: str, tmp_path: Path) -> Iterator[Clusters]:
    """Two systems. The worker of the first one announces the address of the second one's worker."""
    with EmbeddedBroker(tmp_path / "broker", port=0, properties=NEVER_KILLED) as broker:
        other = system_at(broker.start(), tmp_path / "other")
        worker = other.worker().start()
        url = f"http://127.0.0.1:{worker.port}"
        own = system_at(broker_address, tmp_path / "own", TIMERS_ADVERTISED_URL=url)
        try:
            own.worker().start().ready()
            worker.ready()
            own.environment["TIMERS_WORKER_URL"] = other.environment["TIMERS_WORKER_URL"] = url
            yield own, other
        finally:
            own.close()
            other.close()


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: System, *words: str) -> Ran:
    """A command with the settings of a system."""
    system.use(monkeypatch)
    return command(capsys, *words)


def test_a_worker_of_another_cluster_is_not_asked(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = clusters
    ids = [topic_admin.cluster_id(each.settings) for each in clusters]
    url = own.environment["TIMERS_WORKER_URL"]
    why = f"the worker at {url} is of app 'two' and cluster {ids[1]}, and not of app 'two' and cluster {ids[0]}"

    def ran(system: System, *words: str) -> Ran:
        return run(monkeypatch, capsys, system, *words)

    timer = ("schedule", "--topic", "orders", "--value", "", "--in", "1d", "--create-topic")
    assert ran(own, *timer, "--id", "own").code == ran(other, *timer, "--id", "others").code == 0
    wait_until(lambda: "others" in ran(other, "list").out, "its own cluster's commands show it")
    for words in (("list",), ("get", "others"), ("get", "own"), ("list", "-o", "json")):
        found = ran(own, *words)
        assert (found.code, found.out) == (1, "") and why in found.err, words
    stat = ran(own, "queue", "stat", "orders")
    assert "unknown" in stat.out and stat.code == 0, "the timers of the other cluster are not counted"
    assert ran(own, "cancel", "others").code == 4, "brokers of the own cluster decide"
    assert "others" in ran(other, "list").out

    console = ConsoleProcess(tmp_path / "console", own.environment)
    try:
        console.start().wait_for("console: ")
        check_console(console, why)
    finally:
        console.end()

    nowhere = {**own.environment, "TIMERS_BROKERS": f"127.0.0.1:{free_port()}"}
    set_environment(monkeypatch, nowhere)
    assert command(capsys, "list").out == ""
    named = command(capsys, "list", "--worker", url)
    assert named.code == 0 and "others" in named.out and f"cluster {ids[1]}" in named.err


def check_console(console: ConsoleProcess, why: str) -> None:
    """Check that a console shows and changes nothing of the other cluster."""
    timer: dict[str, Any] = {"topic": "orders", "value": "", "at": due_in(3600)}
    for method, path, body in (
        ("GET", "/v1/timers", None),
        ("GET", "/v1/timer?id=others", None),
        ("GET", "/v1/pending?by=hour", None),
        ("POST", "/v1/timers/cancel", {"prefix": "others"}),
        ("PATCH", "/v1/timer?id=others", {"at": timer["at"]}),
    ):
        status, answer = console.ask(method, path, body)
        assert status == 503 and why in answer["detail"], (path, answer)
    (worker,) = console.ask("GET", "/v1/workers")[1]["workers"]
    assert worker["ready"] is None and worker["why"].startswith(why)
    lateness = console.ask("GET", "/v1/lateness")[1]
    assert lateness["ways"] == {} and why in lateness["missing"][0]["reason"]
    status, answer = console.ask("GET", "/v1/health/ready")
    assert status == 200 and any(why in each for each in answer["reasons"])
