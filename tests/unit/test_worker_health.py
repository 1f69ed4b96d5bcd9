"""Liveness: a thread with work and without progress is reported; an idle thread is not.

Readiness and red partitions: a worker that was ready stays ready when a partition stops.
"""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.core.counters import Counters
from timers.core.progress import Progress
from timers.core.timer import Tick
from timers.errors import LevelTooHigh, LogMismatch
from timers.kafka.own_topics import RED, WARNING, WrongConfig
from timers.machines.life import BROKERS, STORE, UNFORESEEN, Waiting
from timers.process.config.settings import Settings
from timers.process.partition_metrics import Heartbeat, PartitionMetrics, keep_heartbeat
from timers.worker import health
from timers.worker.consumer.group_watch import UnownedPartitions
from timers.worker.machines.runner import OpenMachine, Runner

STUCK_S = 0.3

NO_VIEW: Any = None


@pytest.fixture(autouse=True)
def shorter(constants: Constants) -> None:
    constants(health, STUCK_S=STUCK_S)


class SimMachine:
    """A machine that hangs while it fires, until ``go_on`` is set."""

    clock_is_behind = recovering = must_ask_end = False
    rescue_count = 0
    may_accept = is_drained = True
    oldest_due_s = released_s = None
    position = 0
    counters = Counters()
    progress = Progress()

    def __init__(self) -> None:
        self.fires = threading.Event()
        self.go_on = threading.Event()

    def observe(self, tick: Tick, end: int | None) -> None: ...

    def take(self, commands: object) -> bool:
        return False

    def release_chunk(self) -> bool:
        return False

    def fire_chunk(self) -> bool:
        self.fires.set()
        self.go_on.wait()
        return False

    def commit_progress(self, even_if_idle: bool = False) -> bool:
        return True


@pytest.fixture
def machine() -> SimMachine:
    return SimMachine()


@pytest.fixture
def metrics() -> PartitionMetrics:
    return PartitionMetrics()


@pytest.fixture
def runner(machine: SimMachine, metrics: PartitionMetrics) -> Iterator[Runner]:
    nothing, consumer = lambda *_: None, SimpleNamespace(wake=lambda: None)
    pool: Any = SimpleNamespace(on_recovered=nothing, on_failed=nothing, consumer=consumer)
    transaction: Any = SimpleNamespace(has_old_witness=False)
    held: Any = machine
    opened = OpenMachine(held, transaction, lambda: None, threading.Event(), NO_VIEW, lambda topics: None)
    runner = Runner(("requests", 3), opened, pool, lambda call, *args: call(*args), metrics)
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
    status: Any = SimpleNamespace(pool=pool, consumer=SimpleNamespace(heartbeat=consumer or Heartbeat()))
    return health.stuck(status)


def test_a_thread_that_hangs_in_a_step_is_reported_until_it_goes_on(
    machine: SimMachine, metrics: PartitionMetrics, runner: Runner
) -> None:
    runner.tick(Tick(1_000_000))
    assert machine.fires.wait(DEADLINE_S)
    wait_until(lambda: metrics.heartbeat.silent_s == 0, "it has nothing to do")
    machine.go_on.clear()
    runner.tick(Tick(2_000_000))
    (reason,) = wait_until(lambda: stuck(metrics), "it is reported")
    assert reason.startswith("the thread of requests/3 has made no progress for ")
    machine.go_on.set()
    wait_until(lambda: not stuck(metrics), "it goes on")


def test_a_thread_without_work_is_alive(machine: SimMachine, metrics: PartitionMetrics, runner: Runner) -> None:
    runner.tick(Tick(1_000_000))
    assert machine.fires.wait(DEADLINE_S)
    silent = threading.Event()
    assert not silent.wait(2 * STUCK_S)
    wait_until(lambda: not stuck(metrics), "it is not reported")  # at once, unless it does something just now


REQUESTS = ("requests", 3)
LOST_RECORDS = LogMismatch("lost records")


def started() -> Any:
    """The status of a worker that has joined its group, with one open partition."""
    progress = Progress(7, (4_000_000_000, 3))
    runner = SimpleNamespace(machine=SimpleNamespace(recovering=False, progress=progress))
    pool = SimpleNamespace(stopped={}, waiting={}, opening=0, runners={("requests", 2): runner}, clock_is_behind=False)
    pool.unreadable = SimpleNamespace(sentences={})
    return SimpleNamespace(
        settings=Settings(brokers="b:1"),
        pool=pool,
        tick_reader=SimpleNamespace(age_s=0.0, has_counted=True, judge=SimpleNamespace(holds=[])),
        consumer=SimpleNamespace(in_group=True, was_dealt=True, taken=""),
        log_watch=SimpleNamespace(missing=[], problems={}, refusal="", failed=""),
        group_watch=SimpleNamespace(refusal=None, unowned=UnownedPartitions()),
        was_ready=False,
    )


def test_a_worker_is_ready_when_it_has_joined_was_dealt_its_partitions_and_has_counted_a_tick() -> None:
    status = started()
    status.pool.runners, status.tick_reader.has_counted, status.consumer.was_dealt = {}, False, False
    assert health.unready(status) == ["no tick was counted since the worker started", "the worker joins its group"]
    status.tick_reader.age_s = 7.0
    assert health.unready(status) == ["no tick was counted for 7.0 s", "the worker joins its group"]
    status.tick_reader.age_s, status.tick_reader.has_counted = 0.1, True
    assert health.unready(status) == ["the worker joins its group"]
    status.consumer.was_dealt, status.pool.opening = True, 2
    assert health.unready(status) == ["partitions are being opened"]
    status.pool.opening = 0
    assert health.unready(status) == [], "it may also have got no partition"
    assert not status.was_ready, "a question changes nothing"


@pytest.mark.parametrize(
    ("why", "is_ready"),
    [
        (LOST_RECORDS, True),
        (LevelTooHigh(9, 3, "requests/3"), False),
        (Waiting(BROKERS, "no leader"), True),
        (Waiting(STORE, "the store is damaged"), False),
        (Waiting(UNFORESEEN, "it failed"), False),
    ],
    ids=["lost", "level", "leaderless", "store", "unforeseen"],
)
def test_a_partition_beyond_help_keeps_no_worker_unready(why: LogMismatch | Waiting, is_ready: bool) -> None:
    status = started()
    if isinstance(why, Waiting):
        status.pool.waiting = {REQUESTS: why}
    else:
        status.pool.stopped = {REQUESTS: why}
    assert (not health.unready(status)) == is_ready
    assert list(health.red_partitions(status)) == [REQUESTS]


def test_a_worker_whose_partitions_all_wait_for_brokers_is_not_ready_before_it_has_been() -> None:
    status = started()
    runners, status.pool.runners = status.pool.runners, {}
    status.pool.waiting = {REQUESTS: Waiting(BROKERS, "no leader")}
    assert health.unready(status) == ["partitions are being opened"]
    status.pool.runners, status.pool.waiting = runners, {}
    assert health.unready(status) == []
    status.was_ready = True
    status.pool.runners, status.pool.waiting = {}, {REQUESTS: Waiting(BROKERS, "no leader")}
    assert health.unready(status) == [], "it is red on the page of partitions only"


def test_a_worker_that_was_ready_stays_ready_when_a_partition_turns_red() -> None:
    status = started()
    assert health.unready(status) == [] and health.red_partitions(status) == {}
    status.was_ready = True
    status.pool.stopped = {REQUESTS: LevelTooHigh(9, 3, "requests/3")}
    status.pool.waiting = {("requests", 4): Waiting(UNFORESEEN, "it failed")}
    assert health.unready(status) == []
    assert list(health.red_partitions(status)) == [("requests", 4), REQUESTS]
    status.log_watch.problems = {"t": "topic 't' is wrong"}
    assert health.unready(status) == ["topic 't' is wrong"]
    status.log_watch.problems, status.log_watch.missing = {}, ["t"]
    status.log_watch.refusal, status.log_watch.failed = "User:ada lacks Create", "no broker answers at b:1"
    gone, refused, silent = health.unready(status)
    assert (gone.split(" (")[0], refused) == ("topics were deleted: t", "they cannot be created: User:ada lacks Create")
    assert silent.startswith("no broker answers at b:1; ")
    status.log_watch.missing, status.log_watch.refusal, status.log_watch.failed = [], "", ""
    status.pool.clock_is_behind = True
    assert "new requests wait until it shows 2096-10-02T07:06:40Z, the last second" in health.unready(status)[0]
    status.pool.clock_is_behind, status.consumer.in_group = False, False
    assert health.unready(status) == ["partitions are being assigned"]


async def test_a_blocked_event_loop_is_reported(constants: Constants) -> None:
    constants("timers.process.partition_metrics", HEARTBEAT_PAUSE_S=0.01)
    heartbeat = Heartbeat()
    beating = asyncio.create_task(keep_heartbeat(heartbeat))
    while heartbeat.silent_s == 0 or stuck(PartitionMetrics(), heartbeat):
        await asyncio.sleep(0.01)
    threading.Event().wait(1.5 * STUCK_S)  # blocks the event loop
    (reason,) = stuck(PartitionMetrics(), heartbeat)
    assert reason.startswith("the consumer's event loop has made no progress for ")
    beating.cancel()


def test_a_setting_that_loses_timers_turns_the_partitions_red_that_rest_on_it() -> None:
    def wrong(topic: str, name: str, value: str, severity: str) -> WrongConfig:
        return WrongConfig(topic, name, value, severity, f"{topic} is wrong")

    def machine(pending: int) -> Any:
        return SimpleNamespace(machine=SimpleNamespace(pending=pending))

    runners = {("requests", 0): machine(1), ("countdowns", 0): machine(1), ("countdowns", 1): machine(0)}
    pool = SimpleNamespace(runners=runners, stopped={("requests", 1): "lost records"}, waiting={})
    pool.unreadable = SimpleNamespace(sentences={})
    log_watch = SimpleNamespace(cluster=SimpleNamespace(wrong_configs=[]), made_anew={})
    lost: dict[tuple[str, int], str] = {}
    pool.partition_metrics = {tp: PartitionMetrics() for tp in runners}
    status: Any = SimpleNamespace(
        pool=pool,
        settings=SimpleNamespace(progress_topic="progress"),
        log_watch=log_watch,
        lost_snapshots=lambda: lost,
    )
    for found, red in (
        ([wrong("requests", "cleanup.policy", "compact", RED)], ["requests/0", "requests/1"]),
        (
            [wrong("progress", "cleanup.policy", "delete", RED)],
            [f"{topic}/{n}" for topic, n in sorted({*runners, ("requests", 1)})],
        ),
        ([wrong("dead-letters", "cleanup.policy", "compact", RED)], ["dead-letters"]),
        ([wrong("countdowns", "retention.ms", "604800000", WARNING)], []),
        ([wrong("countdowns", "retention.ms", "1000", WARNING)], ["countdowns/0"]),
        ([wrong("requests", "min.insync.replicas", "1", WARNING)], []),
    ):
        log_watch.cluster.wrong_configs = found
        assert health.lossy(status) == dict.fromkeys(red, f"{found[0].topic} is wrong")
    log_watch.cluster.wrong_configs = []
    log_watch.made_anew["cold"] = "cold was made anew"
    lost["requests", 0] = "its snapshots are lost"
    assert health.lossy(status) == {"cold": "cold was made anew", "requests/0": "its snapshots are lost"}
