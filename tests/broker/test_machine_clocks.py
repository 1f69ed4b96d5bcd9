"""The clock of a machine is two hours wrong, and the brokers' is right: each record of ours has the brokers' time.

Here the broker's clock is changed, which is the same for every process on this machine.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message

from tests.harness.broker_clock import ahead_by
from tests.harness.brokers import NEVER_KILLED, brokers, ended, start
from tests.harness.cluster import client_settings
from tests.harness.command_line import Ran, command
from tests.harness.console_process import ConsoleProcess
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.records import Record
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.client import Backoff, TimersClient
from timers.core import levels
from timers.queue import Queue

pytestmark = [pytest.mark.broker]

HOURS_S = 2 * 3600
MOST_OFF_S = 300
"""A record's time may be so far from the brokers', for a busy machine. It is far below what a clock is wrong."""


@dataclass
class Clocks:
    """A broker whose clock is ``ahead_s`` ahead of this machine's, and a worker."""

    system: System
    ahead_s: int
    target: str
    """A topic whose records have the times of their producers."""
    run: Callable[..., Ran]

    @property
    def now_s(self) -> float:
        """The broker's time."""
        return time.time() + self.ahead_s

    def of(self, topic: str, count: int = 1) -> list[Record]:
        """All records of a topic, at least so many, after a check of their times."""
        with closing(self.system.reader(topic, append_time=False)) as reader:
            found = [*reader.take(count), *reader.rest()]
        for each in found:
            assert abs(each.append_ms / 1000 - self.now_s) < MOST_OFF_S, each
        return found

    def letters(self, code: str) -> list[Record]:
        """The dead letters with a code."""
        found = self.of(self.system.settings.dead_letter_topic)
        return [each for each in found if each.text("timer-error") == code]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(-HOURS_S, id="machine ahead"),
        pytest.param(HOURS_S, id="machine behind", marks=pytest.mark.long),
    ],
)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, int]]:
    directory = tmp_path_factory.mktemp("clocks")
    (broker,) = brokers(directory, 1, NEVER_KILLED)
    with ended(broker):
        system = System(
            start(broker, ahead_by(request.param, directory)),
            directory,
            TIMERS_ID_TOPIC="request-by-id",
            TIMERS_PARTITIONS="1",
        )
        try:
            system.worker().start().ready()
            yield system, request.param
        finally:
            system.close()


@pytest.fixture
def clocks(started: tuple[System, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Clocks:
    system, ahead_s = started
    system.use(monkeypatch, TIMERS_WEB_PORT=str(system.workers[0].port))
    target = system.target(message_timestamp_type="CreateTime")
    return Clocks(system, ahead_s, target, lambda *given: command(capsys, *given))


def callback_of(clocks: Clocks) -> Message:
    """A callback, as a receiver gets it."""
    with TimersClient(timeout_s=30) as client:
        client.schedule(clocks.target, "key", b"v", at=int(clocks.now_s))
    consumer = Consumer(
        {**client_settings(clocks.system.address), "group.id": clocks.target, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([clocks.target])
    message = wait_until(lambda: consumer.poll(1), "the callback")
    consumer.close()
    return message


def test_what_workers_and_receivers_write(clocks: Clocks) -> None:
    """Callbacks, verdicts, dead letters and progress."""
    settings = clocks.system.settings
    with TimersClient(timeout_s=30) as client:
        client.schedule(clocks.target, "key", b"v", at=int(clocks.now_s) + 1000, id="a")
        assert client.cancel("a").verdict == "cancelled"
        assert client.retry_later(callback_of(clocks), backoff=Backoff(retries=0)) is None
    clocks.of(clocks.target)
    clocks.of(settings.verdict_topic)
    clocks.of(settings.progress_topic)
    (letter,) = clocks.letters("retries-exhausted")
    assert abs(int(letter.key or b"") - clocks.now_s) < MOST_OFF_S, "its request is due at once"


def test_what_queues_write(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    """Messages, outputs, dead letters and retries; also where the topic of dead letters is as it was before."""
    letters = clocks.system.settings.dead_letter_topic
    clocks.system.configure(letters, message_timestamp_type="CreateTime")
    outputs = clocks.system.target(message_timestamp_type="CreateTime")
    with Queue(clocks.target, backoff=Backoff(first_s=1, retries=1), **PATIENT) as queue:
        with caplog.at_level(logging.WARNING):
            queue.send_many([b"done", b"bad", b"again"])
        assert any("s off the brokers'" in said for said in caplog.messages)
        for message in receive(queue, 3):
            if message.value == b"done":
                message.output(outputs, b"output")
                message.ack()
            elif message.value == b"bad":
                message.reject("no customer")
            else:
                message.retry()
        (again,) = receive(queue, 1)
        assert (again.value, again.attempt) == (b"again", 2)
        again.ack()
        queue.settle()
    clocks.of(clocks.target, 3)
    clocks.of(outputs)
    clocks.of(f"queue.{clocks.target}-returns")
    clocks.of(f"queue.{clocks.target}-ledger")
    assert clocks.letters("rejected")
    clocks.system.configure(letters, message_timestamp_type="LogAppendTime")


def test_what_commands_write(clocks: Clocks) -> None:
    """Messages, dead letters that are retried, with their marks, and the level that is allowed."""
    settings = clocks.system.settings
    with TimersClient(timeout_s=30) as client:
        client.schedule("missing", "key", b"v", at=int(clocks.now_s))
    wait_until(lambda: clocks.letters("topic-unknown"), "the dead letter")
    for arguments in (
        ("queue", "send", clocks.target, "--value", "v"),
        ("dead-letters", "retry", "--topic", "missing", "--yes"),
        ("levels", "--raise", str(levels.RAISED_TO_LEVEL)),
    ):
        ran = clocks.run(*arguments)
        assert ran.code == 0, ran.err
    for topic in (clocks.target, settings.retried_topic, settings.progress_topic):
        clocks.of(topic)


def test_what_a_console_writes(clocks: Clocks, tmp_path: Path) -> None:
    """Timers, and the log of changes."""
    due_s = int(clocks.now_s) + 1000
    console = ConsoleProcess(tmp_path / "console", {**clocks.system.environment, "TIMERS_CONSOLE_WRITE": "1"})
    try:
        console.start().wait_for("console: http")
        status, answer = console.ask("PUT", "/v1/timer?id=by-http", {"topic": clocks.target, "value": "v", "at": due_s})
        assert status in (200, 201), answer
    finally:
        console.clean_up()
    clocks.of(clocks.system.settings.console_log_topic)
    clocks.of(clocks.system.settings.id_topic)
