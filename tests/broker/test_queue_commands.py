"""``timers queue``: from a message to a dead letter and back, and a process that runs until it is stopped."""

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from tests.harness.process import Process, clean_environment, python
from tests.harness.scrape import scrape
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker.embedded import free_port
from timers.cli.main import main
from timers.queue import Queue

pytestmark = pytest.mark.broker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(running: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line of `timers queue` on the system's broker: exit code, stdout, stderr."""
    worker = running.workers[0]
    for name, value in {**running.environment, "TIMERS_WEB_PORT": str(worker.port)}.items():
        monkeypatch.setenv(name, value)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["queue", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def succeed(run: Run, *arguments: str) -> list[dict[str, Any]]:
    """The JSON objects that a command prints."""
    code, out, err = run(*arguments, "-o", "json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def stat(run: Run, name: str) -> dict[str, Any]:
    (found,) = succeed(run, "stat", name)
    return found


def test_a_rejected_message_is_listed_put_back_and_acknowledged(running: System, run: Run, tmp_path: Path) -> None:
    topic = running.target(partitions=2)
    name = f"{topic}-q"
    queue = ("--topic", topic, "--wait", f"{DEADLINE_S:.0f}s")
    lines = tmp_path / "messages"
    lines.write_bytes(b"first\nsecond\n\nlast")
    sources = [each["source"] for each in succeed(run, "send", topic, "--lines", str(lines), "--key", "k")]
    assert len(set(sources)) == 4
    assert stat(run, topic)["depth"] == 4, "a queue without a process is known by its topic"
    shown = succeed(run, "receive", name, *queue, "-n", "4")
    assert [each["value"] for each in shown] == ["first", "second", "", "last"]
    rejected = succeed(run, "receive", name, *queue, "-n", "3", "--reject", "no customer")
    assert [each["source"] for each in rejected] == sources[:3]
    found = stat(run, name)
    assert (found["topic"], found["depth"], found["delayed"], found["processes"]) == (topic, 1, 0, 0)
    assert 0 <= found["oldest_age_s"] < 600

    # They may be in several partitions, with the same time: then any of them comes first.
    letters = sorted(succeed(run, "dead", name), key=lambda each: each["source"])
    assert [(each["code"], each["source"], each["key"]) for each in letters] == [
        ("rejected", source, "k") for source in sources[:3]
    ]
    _, out, _ = run("dead", name)
    assert f"the queue '{name}' rejected it: no customer" in out
    position = letters[0]["position"].partition("/")[2]
    code, _, err = run("redrive", name, position)
    assert code == 2 and "add --yes" in err
    code, out, err = run("redrive", name, position, "--dry-run")
    assert (code, out, err) == (0, "", "1 message to put back\n")
    (again,) = succeed(run, "redrive", name, position, "--yes")
    assert again["source"] == sources[0]
    assert len(succeed(run, "redrive", name, "--all", "--yes")) == 2, "the first one was put back before"
    assert succeed(run, "redrive", name, "--all", "--yes") == []
    acked = succeed(run, "receive", name, "-n", "4", "--ack", *queue)
    assert {each["source"]: each["attempt"] for each in acked} == dict.fromkeys(sources, 1)
    assert {each["value"] for each in acked} == {"first", "second", "", "last"}
    assert stat(run, name)["depth"] == 0
    assert stat(run, topic)["depth"] == 4, "the other queue on the topic got nothing"


@pytest.mark.long
def test_purge_marks_all_messages_as_done_and_needs_an_idle_queue(running: System, run: Run) -> None:
    topic = running.target()
    succeed(run, "send", topic, "--value", "old")
    with Queue(topic) as queue:
        assert wait_until(lambda: queue.receive(1), "the message")
        code, _, err = run("purge", topic, "--yes")
        assert code == 1 and "has running processes (1)" in err
    assert succeed(run, "purge", topic, "--yes") == [{"name": topic, "topic": topic, "purged": 1}]
    succeed(run, "send", topic, "--value", "new")
    (received,) = succeed(run, "receive", topic, "--ack", "--wait", f"{DEADLINE_S:.0f}s")
    assert received["value"] == "new"
    assert {"name": topic, "topic": topic, "depth": 0, "oldest_age_s": None, "processes": 0} in succeed(run, "list")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("stat", "no-such-queue"), "there is no queue 'no-such-queue'"),
        (("stat", "a b"), "'a b' is no name of a queue"),
        (("send", "no-such-topic", "--value", "v"), "--create-topic creates it"),
        (("run", "jobs", "module"), "is not MODULE:FUNCTION"),
        (("run", "jobs", "no_such_module:f"), "there is no module 'no_such_module'"),
        (("run", "jobs", "tests.harness.queue_handlers:hanlde"), "has no 'hanlde'; it has "),
        (("run", "jobs", "tests.harness.queue_handlers:not_a_function"), "of type int"),
        (("run", "jobs", "tests.harness.queue_handlers:handle_in_task", "-p", "2"), "is async"),
        (("redrive", "jobs"), "say which"),
        (("receive", "jobs", "--ack", "--reject", "no"), "or none of them"),
    ],
)
def test_bad_input_is_said_with_the_way_out(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    code, out, err = run(*arguments)
    assert code == (1 if arguments[1] == "no-such-queue" else 2)
    assert out == "" and sentence in err


@pytest.mark.long
@pytest.mark.parametrize("how", [["-c", "2"], ["-p", "2"]], ids=["threads", "processes"])
def test_a_process_ends_when_its_handlers_have_returned(running: System, tmp_path: Path, how: list[str]) -> None:
    topic, release = running.target(), tmp_path / "release"
    environment = clean_environment(**running.environment)
    port = free_port()
    command = python("timers.cli.main", "queue", "run", topic, "tests.harness.queue_handlers:handle", *how)
    consumer = Process("queue run", [*command, "--metrics-port", str(port)], environment, tmp_path, tmp_path / "log")

    def metric(name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as page:
            (line,) = [each for each in page.read().decode().splitlines() if each.startswith(f"{name}{{")]
        return float(line.split()[-1])

    try:
        consumer.start().wait_for("metrics at http://")
        with Queue(topic, brokers=running.address) as queue:
            queue.send_many([(None, b"nothing", ()), (None, b"wait-for %b" % bytes(release), ())])
            queue.send(b"nothing")
            wait_until(lambda: metric("timers_queue_acked_total") == 2, "the other messages", 2 * DEADLINE_S)
            assert (metric("timers_queue_in_flight"), metric("timers_queue_depth")) == (1, 1)
            assert metric("timers_queue_ready") == 1
            consumer.send(signal.SIGTERM)
            consumer.wait_for("stopping when the running functions have returned")
            queue.send(b"nothing")
            assert consumer.running
            release.touch()
            assert consumer.exit_code() == 0
            assert "stopped: 3 acknowledged, 0 retried, 0 dead letters" in consumer.log
            assert queue.stats().depth == 1, "the message after the signal"
    finally:
        consumer.clean_up()


@pytest.mark.long
def test_commands_with_one_member_go_on_under_names_of_their_own(running: System, tmp_path: Path) -> None:
    """None of them ends, and each one that has lost its name says so."""
    topic, count = running.target(partitions=3), 60
    how = ("--member", "twin", "--retries", "1", "--first-delay", "0s")
    command = python("timers.cli.main", "queue", "run", topic, "tests.harness.queue_handlers:handle", *how)
    environment = clean_environment(**running.environment)
    ports = [free_port() for _ in range(3)]
    twins = [
        Process("twin", [*command, "--metrics-port", str(port)], environment, tmp_path, tmp_path / f"log-{port}")
        for port in ports
    ]
    try:
        for twin in twins:
            twin.start()
        for twin in twins:
            twin.wait_for("metrics at http://")

        def shares(metric: str) -> list[float]:
            return [scrape(port).total(metric) for port in ports]

        wait_until(lambda: min(shares("timers_queue_partitions")) > 0, "partitions for each", 3 * DEADLINE_S)
        with Queue(topic, brokers=running.address) as queue:
            queue.send_many((b"%d" % number, b"fail bad", ()) for number in range(count))
            # The depth is 0 before, while all retries are timers.
            wait_until(lambda: sum(shares("timers_queue_dead_total")) == count, "the dead letters", 3 * DEADLINE_S)
        for twin in twins:
            twin.send(signal.SIGTERM)
        assert [twin.exit_code() for twin in twins] == [0, 0, 0]
        ends = [re.search(r"stopped: 0 acknowledged, (\d+) retried, (\d+) dead letters", twin.log) for twin in twins]
        assert [sum(int(end[which]) for end in ends if end) for which in (1, 2)] == [count, count]
        assert any("took the name 'twin' (--member) of this one" in twin.log for twin in twins)
        assert not any("SystemError" in twin.log for twin in twins)
    finally:
        for twin in twins:
            twin.clean_up()


@pytest.mark.long
def test_readiness_names_the_partition_that_a_hanging_transaction_holds_back(running: System, tmp_path: Path) -> None:
    topic, port = running.target(), free_port()
    environment = clean_environment(**running.environment)
    command = python("timers.cli.main", "queue", "run", topic, "tests.harness.queue_handlers:handle")
    consumer = Process("queue run", [*command, "--metrics-port", str(port)], environment, tmp_path, tmp_path / "log")
    hanging = Producer(
        {**client_settings(running.address), "transactional.id": topic, "transaction.timeout.ms": 600_000}
    )

    def health(what: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/{what}", timeout=DEADLINE_S) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        consumer.start().wait_for("metrics at http://")
        wait_until(lambda: health("ready")[0] == 200, "readiness", 2 * DEADLINE_S)
        hanging.init_transactions(DEADLINE_S)
        hanging.begin_transaction()
        hanging.produce(topic, b"undecided")
        hanging.flush(DEADLINE_S)
        with Queue(topic, brokers=running.address) as queue:
            queue.send(b"nothing")
            wait_until(lambda: f"{topic}/0 could not be read" in health("ready")[1], "the partition", 2 * DEADLINE_S)
            assert (health("ready")[0], health("live")[0]) == (503, 200)
            hanging.abort_transaction(DEADLINE_S)
            wait_until(lambda: health("ready")[0] == 200, "readiness again", 2 * DEADLINE_S)
            wait_until(lambda: queue.stats().depth == 0, "the message", 2 * DEADLINE_S)
    finally:
        consumer.clean_up()
