"""The machines of the retry topic in the engine on Spark. No brokers."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.harness.waiting import wait_until
from timers.core.ports import Lost
from timers.core.timer import Tick, TopicPartition
from timers.errors import CheckpointMismatch, LogMismatch, StoreInUse
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.spark.engine import machines
from timers.spark.engine.machines import Openings, Places
from timers.spark.engine.query import Driver
from timers.spark.engine.retries import Retries

SETTINGS = Settings(brokers="localhost:1")
TP = (SETTINGS.retry_topic, 0)
CLUSTER = Cluster("cluster", {}, {SETTINGS.retry_topic: 1})


def retries_over(opening: Callable[[TopicPartition, Any], Any]) -> tuple[Retries, Any]:
    """Retries whose machines are opened by a function, at a second at which the topic has one record; the driver."""
    openings = Mock(open=opening, stop=threading.Event())
    openings.snapshots.asks.return_value = False
    read_logs = SimpleNamespace(ends_of=lambda tps: dict.fromkeys(tps, 1))
    driver: Any = SimpleNamespace(openings=openings, read_logs=read_logs, failure=None)
    return Retries(SETTINGS, CLUSTER, driver, Mock(tick=Tick(1_000_000_000))), driver


@pytest.mark.parametrize(
    "error",
    [
        Lost("the brokers do not answer"),
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        StoreInUse("another process has it open"),
        CheckpointMismatch("the log cannot be read"),
        RuntimeError("no code expects this"),
    ],
)
def test_a_machine_that_failed_is_opened_again(error: Exception) -> None:
    opened: list[TopicPartition] = []

    def opening(tp: TopicPartition, known: object) -> None:
        opened.append(tp)
        raise error if len(opened) == 1 else LogMismatch("records are missing")

    running, driver = retries_over(opening)
    with running:
        wait_until(lambda: driver.failure is not None, "the second opening has failed")
    assert opened[:2] == [TP, TP]
    assert "records are missing" in str(driver.failure)


def test_what_waits_is_known_as_of_the_last_run_also_while_a_machine_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of the retry topic is away: its timers are overdue, which an alert must see."""
    runs = iter([SimpleNamespace(pending=3, oldest_due_s=1_000, seconds=()), None])

    def go(run: machines.MachineRun) -> None:
        if (known := next(runs)) is None:
            raise Lost("the brokers do not answer")
        run.known = known  # type: ignore[assignment]

    monkeypatch.setattr(machines.MachineRun, "go", go)
    running, _ = retries_over(Mock())
    assert running.waiting == {}
    for _ in range(2):
        running._run(TP, 1, Tick(1_000_000_000))
        assert running.waiting == {TP: (3, 1_000)}
    assert running._known[TP] is None


def test_an_error_in_the_thread_of_all_machines_ends_the_engine() -> None:
    """Such as in a process that may have no more threads: nothing would run the machines."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    running, driver = retries_over(Mock())
    running._threads.call = refuse  # type: ignore[assignment, method-assign]
    running._serve()
    assert f"the retries of {SETTINGS.retry_topic!r} failed" in str(driver.failure)


def test_a_start_that_fails_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark repeats a task that failed, in the same process: a loop of each attempt would stay."""

    def refuse(*_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    starts: list[Callable[[], object]] = [
        lambda: Openings(Places(SETTINGS, CLUSTER, run=1)),
        lambda: Driver(SETTINGS, CLUSTER, 1, Mock()),
    ]
    monkeypatch.setattr(machines, "Targets", refuse)
    for start in starts:
        before = {*threading.enumerate()}
        with pytest.raises(KafkaException):
            start()
        assert {*threading.enumerate()} <= before
