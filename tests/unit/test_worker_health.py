"""Liveness: a thread with work and without progress is reported; an idle thread is not.

Readiness and red partitions: a worker that was ready stays ready when a partition stops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from timers.core.progress import Progress
from timers.core.timer import Tick
from timers.partition_metrics import Heartbeat, PartitionMetrics, keep_heartbeat
from timers.worker import health
from timers.worker.consumer.group_watch import UnownedPartitions
from timers.worker.machines.runner import Runner

STUCK_S = 0.3


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STUCK_S", STUCK_S)


class SimMachine:
    """A machine that hangs while it fires, until ``go_on`` is set."""

    clock_is_behind = recovering = False
    may_accept = True
    oldest_due_s = released_s = None

    def __init__(self) -> None:
        self.fires = threading.Event()
        self.go_on = threading.Event()

    def observe(self, tick: Tick, end: int | None) -> None: ...

    def fire_chunk(self) -> bool:
        self.fires.set()
        self.go_on.wait()
        return False

    def commit_progress(self, even_if_idle: bool) -> bool:
        return True


@pytest.fixture
def machine() -> SimMachine:
    return SimMachine()


@pytest.fixture
def metrics() -> PartitionMetrics:
    return PartitionMetrics()


@pytest.fixture
def runner(machine: SimMachine, metrics: PartitionMetrics) -> Iterator[Runner]:
    listener: Any = SimpleNamespace(on_recovered=lambda *_: None, on_resumed=lambda *_: None, on_failed=lambda *_: None)
    runner = Runner("requests/3", machine, lambda: None, threading.Event(), listener, metrics)  # type: ignore[arg-type]
    machine.go_on.set()
    runner.start()
    yield runner
    machine.go_on.set()
    runner.stop()
    assert runner.join(10)


def stuck(metrics: PartitionMetrics, consumer: Heartbeat | None = None) -> list[str]:
    pool = SimpleNamespace(
        producers=SimpleNamespace(heartbeat=Heartbeat()), partition_metrics={("requests", 3): metrics}
    )
    status: Any = SimpleNamespace(pool=pool, consumer_heartbeat=consumer)
    return health.stuck(status)


def test_a_thread_that_hangs_in_a_step_is_reported_until_it_goes_on(
    machine: SimMachine, metrics: PartitionMetrics, runner: Runner
) -> None:
    runner.tick(Tick(1_000_000))
    assert machine.fires.wait(10)
    wait_until(lambda: metrics.heartbeat.silent_s == 0, "it has nothing to do")
    machine.go_on.clear()
    runner.tick(Tick(2_000_000))
    (reason,) = wait_until(lambda: stuck(metrics), "it is reported")
    assert reason.startswith("the thread of requests/3 has made no progress for ")
    machine.go_on.set()
    wait_until(lambda: not stuck(metrics), "it goes on")


def test_a_thread_without_work_is_alive_however_long(
    machine: SimMachine, metrics: PartitionMetrics, runner: Runner
) -> None:
    wait_until(lambda: metrics.heartbeat.silent_s == 0, "it has nothing to do")
    silent = threading.Event()
    assert not silent.wait(2 * STUCK_S)
    assert stuck(metrics) == []


def test_a_worker_that_was_ready_stays_ready_when_a_partition_stops() -> None:
    stopped = {("requests", 3): "lost records"}
    progress = Progress(7, (4_000_000_000, 3))
    runner = SimpleNamespace(machine=SimpleNamespace(recovering=False, progress=progress))
    pool = SimpleNamespace(stopped={}, waiting={}, opening=False, runners={}, clock_is_behind=False)
    status: Any = SimpleNamespace(
        pool=pool,
        tick_age_s=0.0,
        in_group=True,
        was_assigned=False,
        missing_topics=[],
        topic_problems=[],
        refusal=None,
        unowned=UnownedPartitions(),
        was_ready=False,
    )
    health.unready(status)
    status.was_assigned, pool.stopped = True, stopped
    assert health.unready(status) == ["lost records"], "it has not been ready: it had not joined its group"
    pool.stopped = {}
    health.unready(status)
    pool.stopped = stopped
    assert health.unready(status) == ["lost records"], "it has not been ready: it had no partition in a rebalance"
    pool.stopped, pool.runners = {}, {("requests", 2): runner}
    assert health.unready(status) == [] and health.red_partitions(status) == {}
    pool.stopped = stopped
    assert health.unready(status) == []
    assert health.red_partitions(status) == stopped
    status.topic_problems = ["topic 't' is wrong"]
    assert health.unready(status) == ["topic 't' is wrong"]
    status.topic_problems, pool.clock_is_behind = [], True
    assert "new requests wait until it shows 2096-10-02T07:06:40Z, the last second" in health.unready(status)[0]


async def test_a_blocked_event_loop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.partition_metrics.HEARTBEAT_PAUSE_S", 0.01)
    heartbeat = Heartbeat()
    beating = asyncio.create_task(keep_heartbeat(heartbeat))
    while heartbeat.silent_s == 0 or stuck(PartitionMetrics(), heartbeat):
        await asyncio.sleep(0.01)
    threading.Event().wait(1.5 * STUCK_S)  # blocks the event loop
    (reason,) = stuck(PartitionMetrics(), heartbeat)
    assert reason.startswith("the consumer's event loop has made no progress for ")
    beating.cancel()
