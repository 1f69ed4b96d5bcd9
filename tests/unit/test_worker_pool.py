"""Machines that fail, and machines that are being opened when the worker ends."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.constants import Constants
from tests.harness.sim_admin import answered
from timers.cli.broker.embedded import free_port
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import DoubtfulLog, Fenced, LogMismatch, StoreError
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.own_topics import RED, WrongConfig
from timers.kafka.topics import Cluster
from timers.machines.life import ON_ITS_WAY, State
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import store_path
from timers.process.config.settings import Settings
from timers.wire.key_partition import partition_of
from timers.worker.machines import openings
from timers.worker.machines import pool as pools
from timers.worker.machines.openings import Partition
from timers.worker.machines.pool import Pool
from timers.worker.machines.recoveries import Recoveries
from timers.worker.metrics import METRICS

REQUESTS = ("timer-request", 0)
NO_TOPICS = Cluster("", {}, {"timers-progress": 1})


class SimRunner:
    """A runner that has ended, or is told to."""

    tp, name = REQUESTS, "timer-request/0"
    fires = is_recovered = True
    reads_ahead = False

    def __init__(self, *, recovering: bool = False) -> None:
        self.is_stopped = self.commits_soon = False
        self.asked: list[Any] = []
        self.machine: Any = SimpleNamespace(recovering=recovering, position=7, committed=Progress(7))

    def stop(self) -> None:
        self.is_stopped = True

    def join(self, timeout_s: float) -> bool:
        return True

    def commit_soon(self) -> None:
        self.commits_soon = True

    def tick(self, tick: Tick) -> None: ...

    def deliver(self, fetched: Fetched) -> None: ...

    def ask(self, question: Any) -> Future[bool]:
        self.asked.append(question)
        return answered(True)


class SimConsumer:
    """A consumer whose group answers by ``owns``.

    Attributes:
        forgotten: partitions that are read no more.
    """

    def __init__(self, owns: Callable[[TopicPartition], Awaitable[bool | None]]) -> None:
        self.owns = owns
        self.forgotten: list[TopicPartition] = []

    def wake(self) -> None: ...

    def read_from(self, partition: TopicPartition, offset: int) -> None: ...

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        self.forgotten += partitions


async def owns(tp: TopicPartition) -> bool | None:
    """The answer of a group that has dealt the partition to this worker."""
    return True


def pool_of(
    settings: Settings, cluster: Cluster, owns: Callable[[TopicPartition], Awaitable[bool | None]], failures: list[Any]
) -> Pool:
    """A pool whose group answers by ``owns``; errors that end the worker are appended to ``failures``."""
    pool = Pool(settings, cluster, RocksMemory(16 * 1024 * 1024), failures.append, lambda: None)
    consumer: Any = SimConsumer(owns)
    pool.consumer = consumer
    return pool


def let_run(pool: Pool, runners: dict[TopicPartition, Any]) -> None:
    """Let a pool have open machines, which were dealt to it."""
    for tp, runner in runners.items():
        pool._lives[tp] = partition = Partition(tp)
        partition.life.state, partition.runner, runner.tp = State.OPEN, runner, tp
    pool.runners = {**pool.runners, **runners}


def on_their_way(pool: Pool) -> set[TopicPartition]:
    """The partitions that are being opened."""
    return {tp for tp, each in pool._lives.items() if each.life.state in ON_ITS_WAY}


def settings_for(tmp_path: Path, port: int = 1) -> Settings:
    return Settings.load({"TIMERS_BROKERS": f"127.0.0.1:{port}", "TIMERS_DATA_DIR": str(tmp_path)})


async def test_expected_partitions_are_those_of_all_enabled_request_formats(tmp_path: Path) -> None:
    """An alert compares them with the owned partitions: a missing topic would hide partitions without an owner."""

    settings = settings_for(tmp_path)
    expected = {settings.request_topic: 4, settings.retry_topic: 3, settings.id_topic: 2}
    counts = {**expected, settings.oscillator_topic: 4, settings.progress_topic: 1}
    pool = pool_of(settings, Cluster("", {}, counts), owns, [])
    status: Any = SimpleNamespace(pool=pool)
    (entry,) = (entry for entry in METRICS if entry.name == "timers_topic_partitions")
    assert dict(entry.read(status)) == {(topic,): count for topic, count in expected.items()}
    await pool.close()


async def test_the_places_of_ids_are_counted_once_a_machine_has_recovered(tmp_path: Path) -> None:
    """While a machine reads its log again, the records may be of a topic with fewer partitions."""
    settings = settings_for(tmp_path)
    pool = pool_of(settings, Cluster("", {}, {settings.id_topic: 2, settings.request_topic: 2}), owns, [])
    runners: dict[TopicPartition, Any] = {
        (topic, 0): SimRunner() for topic in (settings.id_topic, settings.request_topic)
    }
    let_run(pool, runners)
    at_zero = next(key for key in (b"%d" % n for n in range(9)) if partition_of(key, 2) == 0)
    at_one = next(key for key in (b"%d" % n for n in range(9)) if partition_of(key, 2) == 1)
    fetched = Fetched(0, 2, [SimpleNamespace(key=at_zero), SimpleNamespace(key=at_one)], 1)
    counted = []
    for is_recovered in (False, True):
        for tp, runner in runners.items():
            runner.is_recovered = is_recovered
            pool.deliver(tp, fetched)
        counted.append([(each.metrics.ids_in_place, each.metrics.ids_elsewhere) for each in pool._lives.values()])
    assert counted == [[(0, 0), (0, 0)], [(1, 1), (0, 0)]]
    await pool.close()


@pytest.mark.parametrize("state", [*State])
async def test_each_partition_of_a_worker_is_in_exactly_one_gauge(state: State, tmp_path: Path) -> None:
    """The alert about partitions that no worker has compares the sum of the gauges with the partitions there are."""
    pool = pool_of(settings_for(tmp_path), NO_TOPICS, owns, [])
    pool._lives[REQUESTS] = partition = Partition(REQUESTS)
    partition.life.state = state
    if state is State.STOPPED:
        partition.mismatch = LogMismatch("it has lost 3 records")
    if state in (State.READING, State.OPEN, State.LEAVING):
        runner: Any = SimRunner()
        runner.reads_ahead = state is State.READING
        pool.runners = {REQUESTS: runner}
    status: Any = SimpleNamespace(pool=pool)
    names = ("timers_partitions", "timers_partitions_opening", "timers_partitions_stopped", "timers_partitions_waiting")
    entries = [entry for entry in METRICS if entry.name in names]
    assert len(entries) == len(names)
    counted = sum(value for entry in entries for _, value in entry.read(status) if isinstance(value, int))
    assert counted == (state not in (State.AWAY, State.CLOSING))
    pool.runners = {}
    pool._lives.clear()
    await pool.close()


async def test_the_end_of_a_planned_handover_is_no_transaction_that_failed(tmp_path: Path) -> None:
    pool = pool_of(settings_for(tmp_path), NO_TOPICS, owns, [])
    runner: Any = SimRunner()
    let_run(pool, {REQUESTS: runner})
    metrics = pool._lives[REQUESTS].metrics
    await pool.take(frozenset())
    metrics.transaction_failed("fenced")  # as the producer does
    metrics.transaction_failed("unknown")
    assert metrics.failed == {"unknown": 1}
    await pool.take(frozenset({REQUESTS}))
    metrics.transaction_failed("fenced")
    assert metrics.failed == {"unknown": 1, "fenced": 1}, "it is this worker's again: another one has taken it"
    await pool.close()


async def test_the_end_does_not_wait_for_a_group_that_does_not_answer(tmp_path: Path, constants: Constants) -> None:
    """The thread of the consumer ends with the worker and does not answer its last request."""
    constants(pools, OWNER_TIMEOUT_S=0.1)
    asked = asyncio.Event()
    failures: list[BaseException] = []

    async def never(tp: TopicPartition) -> bool | None:
        asked.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, never, failures)
    runner: Any = SimRunner()
    let_run(pool, {REQUESTS: runner})
    pool.on_failed(runner, Fenced("taken over"))
    async with asyncio.timeout(30):
        await asked.wait()
        await pool.close()
    assert failures == []


async def test_the_end_does_not_wait_for_a_client_that_does_not_close(tmp_path: Path, constants: Constants) -> None:
    constants(sessions, END_S=0.05)

    may_end = asyncio.Event()

    async def hang() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, owns, [])
    for client in (pool._log_end_ticks._client, pool._lineage_watch._lineages.client):
        client._client = SimpleNamespace(close=hang)
    ended, _ = await asyncio.wait({asyncio.create_task(pool.close())}, timeout=30)
    may_end.set()
    assert ended
    with pytest.raises(RuntimeError, match="has ended"):
        pool.producers.submit(hang())


@pytest.mark.parametrize("error", [Fenced("taken over"), Lost("timed out")])
async def test_a_failed_machine_waits_for_the_deal_that_gives_its_partition_to_another_worker(
    tmp_path: Path, error: Fenced | Lost, constants: Constants
) -> None:
    """It ends no worker: while the group rebalances, it is not known who owns the partition."""
    constants(pools, OWNER_RETRY_S=0.001)
    failures: list[BaseException] = []
    asked = 0

    async def denies(tp: TopicPartition) -> bool | None:
        nonlocal asked
        asked += 1
        return False

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, denies, failures)
    runner: Any = SimRunner()
    let_run(pool, {REQUESTS: runner})
    pool.on_failed(runner, error)
    async with asyncio.timeout(30):
        while asked < 3:
            await asyncio.sleep(0)
        assert on_their_way(pool) == {REQUESTS} and not pool.runners, "it fires nothing, and waits"
        await pool.take(frozenset())
        assert on_their_way(pool) == set()
        await pool.close()
    assert failures == []


class SimOpened:
    """What an opening has opened."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_unforeseen_failures_are_counted_and_end_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    pool = pool_of(settings_for(tmp_path), NO_TOPICS, owns, failures)
    errors = [KeyError("offset"), Lost("no leader"), Fenced("another worker"), LogMismatch("it has lost 3 records")]

    async def fails(opening: Partition) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(pool._openings, "open", fails)
    runner: Any = SimRunner()
    let_run(pool, {REQUESTS: runner})
    pool.on_failed(runner, RuntimeError("of another kind"))
    async with asyncio.timeout(30):
        while not pool.stopped:
            await asyncio.sleep(0.001)
    assert pool._lives[REQUESTS].metrics.unforeseen == 2 and not failures
    assert pool.opening == 0 and str(pool.stopped[REQUESTS]) == "it has lost 3 records"
    await pool.close()


async def test_an_error_that_ends_the_worker_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    pool = pool_of(settings_for(tmp_path), NO_TOPICS, owns, failures)
    pool.parts = replace(pool.parts, cluster=Cluster("", {REQUESTS[0]: b"id"}, {REQUESTS[0]: 1}))
    runner: Any = SimRunner()
    let_run(pool, {REQUESTS: runner})
    pool.on_failed(runner, error := StoreError("no space"))
    async with asyncio.timeout(30):
        await asyncio.wait([pool._lives[REQUESTS].task])
        assert failures == [error] and pool.opening == 1, "it does not become ready"
        await pool.close()


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_partition_that_is_revoked_when_its_opening_has_just_ended_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    pool = pool_of(settings_for(tmp_path), NO_TOPICS, owns, [])
    pool.parts = replace(pool.parts, cluster=Cluster("", {REQUESTS[0]: b"id"}, {REQUESTS[0]: 1}))
    results: list[asyncio.Future[Any]] = []

    async def read_ahead(opening: Partition) -> Any:
        results.append(result := asyncio.get_running_loop().create_future())
        return await result

    monkeypatch.setattr(pool._openings, "read_ahead", read_ahead)
    await pool.take(frozenset([REQUESTS]))
    async with asyncio.timeout(30):
        while not results:
            await asyncio.sleep(0)
        opened = SimOpened()
        away = asyncio.create_task(pool.take(frozenset()))  # before the opening can go on
        results[0].set_result(opened)
        await asyncio.sleep(0)
        if comes_back:
            await pool.take(frozenset([REQUESTS]))
            while len(results) < 2:
                await asyncio.sleep(0.001)
        await away
        assert opened.is_closed and not pool.runners and len(results) == 1 + comes_back
        if comes_back:
            results[1].set_result(None)
        await pool.close()


async def test_the_end_does_not_wait_for_brokers_while_machines_are_being_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, constants: Constants
) -> None:
    constants(openings, LEADERS_TIMEOUT_S=0.3)
    failures: list[BaseException] = []

    async def confirms(tp: TopicPartition) -> bool | None:
        return True

    settings = settings_for(tmp_path, free_port())
    topics = (settings.request_topic, settings.progress_topic)
    cluster = Cluster("", dict.fromkeys(topics, bytes(16)), dict.fromkeys(topics, 1))
    pool = pool_of(settings, cluster, confirms, failures)
    async with asyncio.timeout(60):
        await pool.take(frozenset([REQUESTS]))
        while not pool.waiting:
            await asyncio.sleep(0.01)
        assert pool.waiting[REQUESTS].reason == "brokers"
        await pool.close()
    assert failures == []
    gc.collect()
    assert "Unclosed" not in caplog.text


async def test_machines_learn_whether_their_topic_is_compacted(tmp_path: Path) -> None:
    """One that reads its log again is closed, and what was refused is tried again after a change."""

    class SimMachineRunner(SimRunner):
        def __init__(self, name: str, recovering: bool) -> None:
            super().__init__()
            self.name = name
            self.told: list[bool] = []
            doubts = SimpleNamespace(note=self.note)
            self.machine = SimpleNamespace(position=7, committed=Progress(7), recovering=recovering, doubts=doubts)

        def note(self, worker: str, *, is_compacted: bool) -> None:
            self.told.append(is_compacted)

        def ask(self, question: Callable[[Any], Any]) -> Future[bool]:
            question(self.machine)
            return super().ask(question)

    settings = settings_for(tmp_path)
    wrong = WrongConfig("timer-request", "cleanup.policy", "compact", RED, "it is compacted")
    right = Cluster("c", {"timer-request": b"1"}, {"timer-request": 3, "timers-progress": 1})
    compacted = replace(right, wrong_configs=(wrong,))
    pool = pool_of(settings, right, owns, [])
    whole, reading = SimMachineRunner("timer-request/0", False), SimMachineRunner("timer-request/1", True)
    runners: Any = {("timer-request", 0): whole, ("timer-request", 1): reading}
    let_run(pool, runners)
    let_run(pool, {("timer-request", 2): SimRunner()})
    refused = pool._lives["timer-request", 2]
    pool.on_failed(cast(Any, refused.runner), DoubtfulLog("it may lack requests", None))
    await refused.task
    assert {*pool.stopped} == {refused.tp}
    await pool.renew(compacted, {})
    assert (whole.told, reading.told) == ([True], [])
    assert {*pool.runners} == {("timer-request", 0)} and not pool.stopped and refused.mismatch is None
    await pool.renew(replace(compacted, unseen=frozenset({"oscillator"})), {})
    await pool.renew(right, {})
    assert whole.told == [True, False]
    await pool.close()


async def no_answer(tp: TopicPartition) -> bool | None:
    return None


async def test_a_pool_knows_of_which_partitions_its_disk_has_a_store(tmp_path: Path) -> None:
    """The leader of the group prefers a member with a store; how far it was read is known only in this process."""
    settings = settings_for(tmp_path)
    for age_s, name in enumerate(("1", "3", "2", "not-a-partition")):
        path = store_path(settings, ("timer-request", 0)).parent / name
        path.mkdir(parents=True)
        (path / "LOG").touch()
        os.utime(path / "LOG", (1000 - age_s, 1000 - age_s))
    pool = pool_of(
        settings, Cluster("c", {"timer-request": b"1"}, {"timer-request": 4, "timers-progress": 1}), no_answer, []
    )
    of = [("timer-request", number) for number in range(4)]
    assert pool.stores == {of[2]: 0, of[3]: 1, of[1]: 2}, "after a start, it had that of 1 last"
    runner: Any = SimRunner(recovering=True)
    runner.machine.position = 70
    let_run(pool, {of[3]: runner})
    assert pool.stores == {of[2]: 0, of[3]: 70, of[1]: 2}
    await pool.take(frozenset())
    assert pool.stores[of[3]] == 70, "closed in this process"
    await pool.close()


def open_pool(tmp_path: Path, *runners: SimRunner) -> Pool:
    """A pool with open machines of ``timer-request``, which were dealt to it."""
    settings = settings_for(tmp_path)
    pool = pool_of(settings, NO_TOPICS, no_answer, [])
    let_run(pool, {("timer-request", number): runner for number, runner in enumerate(runners)})
    return pool


async def test_a_machine_fires_until_its_new_owner_fences_it(tmp_path: Path) -> None:
    fires, recovers, kept = SimRunner(), SimRunner(recovering=True), SimRunner()
    pool = open_pool(tmp_path, fires, recovers, kept)
    await pool.take(frozenset({("timer-request", 2)}))
    assert (fires.is_stopped, recovers.is_stopped, kept.is_stopped) == (False, True, False)
    assert {*pool.runners} == {("timer-request", 0), ("timer-request", 2)}, "who does not fire has nothing to hand over"
    pool.tick(Tick(1000))
    assert (fires.commits_soon, kept.commits_soon) == (True, False), "one without timers finds out that it is fenced"
    runner: Any = fires
    pool.on_failed(runner, Fenced("taken over"))
    await asyncio.sleep(0.01)
    assert {*pool.runners} == {("timer-request", 2)} and not on_their_way(pool), "it is not opened again"
    consumer: Any = pool.consumer
    assert sorted(consumer.forgotten) == [("timer-request", 0), ("timer-request", 1)]
    assert not kept.commits_soon
    await pool.take(frozenset({("timer-request", 2)}), anew=True)
    assert kept.commits_soon and not kept.is_stopped, "another worker may have fenced it"
    await pool.close()
    await pool.take(frozenset({("timer-request", 2)}))
    assert kept.is_stopped and not pool.runners, "a deal that comes late opens nothing"


async def test_a_machine_that_has_just_read_ahead_is_closed_by_a_deal_that_takes_it_away(tmp_path: Path) -> None:
    """Its thread has not reported yet that it has read ahead. It was never fenced, so it has nothing to hand over."""
    ahead = SimRunner()
    pool = open_pool(tmp_path, ahead)
    pool._lives[REQUESTS].life.state = State.READING
    await pool.take(frozenset())
    assert ahead.is_stopped and not pool.runners and not on_their_way(pool)
    await pool.close()


@pytest.mark.parametrize("error", [Lost("no leader"), StoreError("no space"), KeyError("offset")])
async def test_a_failure_of_a_machine_that_is_leaving_ends_no_worker(tmp_path: Path, error: Exception) -> None:
    """It is not opened again here, so no pause of this worker depends on it."""
    failures: list[BaseException] = []
    leaving: Any = SimRunner()
    pool = open_pool(tmp_path, leaving)
    pool._on_fatal = failures.append
    await pool.take(frozenset())
    pool.on_failed(leaving, error)
    await asyncio.wait([pool._lives[REQUESTS].task])
    assert pool._lives[REQUESTS].life.state is State.AWAY
    assert not failures and pool._lives[REQUESTS].metrics.unforeseen == 0
    await pool.close()


async def test_a_deal_does_not_wait_for_machines_that_an_earlier_one_closes(tmp_path: Path) -> None:
    """One that waits for brokers takes up to 20 s to close."""
    runner, released = SimRunner(recovering=True), Event()
    runner.join = released.wait  # type: ignore[method-assign, assignment]
    pool = open_pool(tmp_path, runner)
    first = asyncio.create_task(pool.take(frozenset()))
    async with asyncio.timeout(30):
        while not runner.is_stopped:
            await asyncio.sleep(0)
        await pool.take(frozenset({("timer-request", 1)}))
        assert not first.done()
        released.set()
        await first
        await pool.close()


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_partition_that_comes_back_opens_when_its_former_machine_has_released_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """Two open stores of one machine would be two owners of one directory [I11]."""
    runner, released = SimRunner(recovering=not is_fenced), Event()
    runner.join = released.wait  # type: ignore[method-assign, assignment]
    pool = open_pool(tmp_path, runner)
    pool.parts = replace(pool.parts, cluster=Cluster("", {REQUESTS[0]: b"id"}, {REQUESTS[0]: 1}))
    begun: list[TopicPartition] = []

    async def read_ahead(opening: Partition) -> None:
        begun.append(opening.tp)

    monkeypatch.setattr(pool._openings, "read_ahead", read_ahead)
    away = asyncio.create_task(pool.take(frozenset()))
    async with asyncio.timeout(30):
        await asyncio.sleep(0)
        if is_fenced:
            pool.on_failed(runner, Fenced("taken over"))  # type: ignore[arg-type]
        back = asyncio.create_task(pool.take(frozenset({REQUESTS})))
        while on_their_way(pool) != {REQUESTS}:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        assert not begun
        released.set()
        while not begun:
            await asyncio.sleep(0)
        await asyncio.gather(away, back)
        await pool.close()


async def test_a_machine_whose_new_owner_does_not_come_is_closed(tmp_path: Path, constants: Constants) -> None:
    constants(pools, HANDOVER_S=0.05)
    lost, comes_back = SimRunner(), SimRunner()
    pool = open_pool(tmp_path, lost, comes_back)
    await pool.take(frozenset())
    await pool.take(frozenset({("timer-request", 1)}))
    async with asyncio.timeout(30):
        while not lost.is_stopped:
            await asyncio.sleep(0.01)
            pool.tick(Tick(1000))
    assert not comes_back.is_stopped and {*pool.runners} == {("timer-request", 1)}, "it was dealt to this worker again"
    await pool.close()


async def test_a_worker_waits_for_its_successors_when_it_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = SimRunner()
    pool = open_pool(tmp_path, machine)
    await pool.settle()
    assert machine.asked, "what it has accepted is committed, so its store can be used again"
    asked = 0

    async def has_others() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            runner: Any = machine
            pool.on_failed(runner, Fenced("taken over"))
        return True

    async with asyncio.timeout(30):
        with caplog.at_level("INFO"):
            await pool.hand_over(has_others)
    assert not pool.runners and not machine.is_stopped
    assert "have taken over 1 of 1 partitions" in caplog.text
    await pool.close()


async def test_a_machine_that_is_closed_when_its_time_ends_is_not_counted_as_taken_over(
    tmp_path: Path, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(pools, HANDOVER_S=0.1)
    pool = open_pool(tmp_path, SimRunner())

    async def has_others() -> bool:
        await asyncio.sleep(0.2)
        pool.tick(Tick(1000))
        return True

    with caplog.at_level("INFO"):
        await pool.hand_over(has_others)
    assert not pool.runners and "have taken over 0 of 1 partitions" in caplog.text
    await pool.close()


async def test_a_silent_coordinator_is_not_taken_for_an_empty_group(tmp_path: Path, constants: Constants) -> None:
    constants(pools, UNKNOWN_S=0.5)
    pool = open_pool(tmp_path, SimRunner())
    asked = 0

    async def has_others() -> bool | None:
        nonlocal asked
        asked += 1
        return None

    async with asyncio.timeout(20):
        await pool.hand_over(has_others)
    assert asked > 1 and pool.runners
    await pool.close()


async def test_a_machine_that_is_let_go_anew_has_all_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the first hand-over, after which it was dealt back, says nothing about the second one."""
    now_s = 0.0
    monkeypatch.setattr(pools, "monotonic", lambda: now_s)
    machine = SimRunner()
    pool = open_pool(tmp_path, machine)
    (tp,) = pool.runners
    await pool.take(frozenset())
    now_s += 0.6 * pools.HANDOVER_S
    await pool.take(frozenset([tp]))
    assert machine.commits_soon, "another worker may have fenced it meanwhile"
    await pool.take(frozenset())
    now_s += 0.8 * pools.HANDOVER_S
    pool.tick(Tick(1000))
    assert tp in pool.runners and not machine.is_stopped
    now_s += 0.3 * pools.HANDOVER_S
    pool.tick(Tick(1000))
    assert tp not in pool.runners
    await pool.close()


async def test_the_last_worker_of_a_group_does_not_wait_for_others(tmp_path: Path) -> None:
    pool = open_pool(tmp_path, SimRunner())

    async def has_others() -> bool:
        return False

    async with asyncio.timeout(30):
        await pool.hand_over(has_others)
    assert pool.runners
    await pool.close()


async def test_a_worker_is_ready_after_the_last_recovery_was_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A machine may fire before the event loop has logged what it recovered."""
    machine = SimpleNamespace(pending=0, replayed=0)
    runners: Any = {name: SimpleNamespace(name=name, machine=machine, is_recovered=False) for name in ("t/0", "t/1")}
    recoveries = Recoveries(lambda: runners.values(), lambda: 0)
    recoveries.begin()
    with caplog.at_level("INFO"):
        for runner in runners.values():
            recoveries.log_recovered(runner, 0.1)
    recoveries.close()
    assert [message.split()[0].strip(":") for message in caplog.messages] == ["recovered", "recovered", "ready"]
