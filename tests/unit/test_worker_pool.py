"""Machines that fail, and machines that are being opened when the worker ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import NodeNotReadyError

from timers.broker.config import free_port
from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.errors import DoubtfulLog, Fenced, NameTakenError
from timers.kafka.own_topics import RED, WrongConfig
from timers.kafka.topics import Cluster
from timers.request_formats import enabled_formats
from timers.store.memory_limit import RocksMemory
from timers.store.opening import store_path
from timers.worker.machines import openings
from timers.worker.machines.pool import Pool

REQUESTS = ("timer-request", 0)
NO_TOPICS = Cluster("", {}, {})


class SimRunner:
    """A runner that has ended."""

    name = "timer-request/0"

    def stop(self) -> None: ...

    def join(self, timeout_s: float) -> bool:
        return True


class SimConsumer:
    """A consumer whose group answers by ``owns``.

    Attributes:
        on_asked_for_name: called when the group is asked who has the worker's name.
    """

    def __init__(self, owns: Callable[[TopicPartition], Awaitable[bool | None]]) -> None:
        self.owns = owns
        self.on_asked_for_name: Callable[[], None] = lambda: None

    async def ask_for_name(self) -> None:
        self.on_asked_for_name()

    def wake(self) -> None: ...

    def read_again(self, partition: TopicPartition, offset: int) -> None: ...


def pool_of(
    settings: Settings, cluster: Cluster, owns: Callable[[TopicPartition], Awaitable[bool | None]], failures: list[Any]
) -> Pool:
    """A pool whose group answers by ``owns``; errors that end the worker are appended to ``failures``."""
    pool = Pool(enabled_formats(settings), RocksMemory(16 * 1024 * 1024))
    consumer: Any = SimConsumer(owns)
    pool.bind(settings, cluster, consumer, failures.append, lambda: None)
    return pool


def settings_for(tmp_path: Path, port: int = 1) -> Settings:
    return Settings.load({"TIMERS_BROKERS": f"127.0.0.1:{port}", "TIMERS_DATA_DIR": str(tmp_path)})


async def test_the_end_does_not_wait_for_a_group_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the consumer ends with the worker and does not answer its last request."""
    monkeypatch.setattr(openings, "OWNER_TIMEOUT_S", 0.1)
    asked = asyncio.Event()
    failures: list[BaseException] = []

    async def never(tp: TopicPartition) -> bool | None:
        asked.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, never, failures)
    runner: Any = SimRunner()
    pool._runners = {REQUESTS: runner}
    pool.on_failed(runner, Fenced("taken over"))
    async with asyncio.timeout(30):
        await asked.wait()
        await pool.close()
    assert failures == []


@pytest.mark.parametrize("error", [Fenced("taken over"), Lost("timed out")])
async def test_the_loss_of_a_machine_to_another_worker_ends_the_worker_only_if_it_was_fenced(
    tmp_path: Path, error: Fenced | Lost
) -> None:
    """Without fencing, a rebalance is about to assign the machine to another worker."""
    failures: list[BaseException] = []

    async def denies(tp: TopicPartition) -> bool | None:
        return False

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, denies, failures)
    runner: Any = SimRunner()
    pool._runners = {REQUESTS: runner}
    pool._assigned = {REQUESTS}
    pool.on_failed(runner, error)
    async with asyncio.timeout(30):
        while REQUESTS in pool.runners or pool._openings.partitions:
            await asyncio.sleep(0)
        await pool.close()
    assert failures == ([error] if isinstance(error, Fenced) else [])
    assert pool.runners == {}


async def test_a_worker_whose_machine_was_fenced_says_first_that_another_one_has_its_name(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    async def denies(tp: TopicPartition) -> bool | None:
        return False

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, denies, failures)
    taken, fenced = NameTakenError("taken"), Fenced("taken over")
    consumer: Any = pool._consumer
    consumer.on_asked_for_name = lambda: failures.append(taken)
    closed: Any = SimRunner()
    pool.on_failed(closed, fenced)
    pool.on_failed(closed, Fenced("another one"))
    async with asyncio.timeout(30):
        while len(failures) < 2:
            await asyncio.sleep(0)
        await pool.close()
    assert failures == [taken, fenced], "the first one is the reason"


@pytest.mark.parametrize("error", [NodeNotReadyError(), TimeoutError()])
async def test_without_an_answer_about_its_name_the_worker_ends_because_it_was_fenced(
    tmp_path: Path, error: Exception
) -> None:
    failures: list[BaseException] = []

    async def denies(tp: TopicPartition) -> bool | None:
        return False

    def fail() -> None:
        raise error

    pool = pool_of(settings_for(tmp_path), NO_TOPICS, denies, failures)
    consumer: Any = pool._consumer
    consumer.on_asked_for_name = fail
    fenced = Fenced("taken over")
    pool.on_fatal(fenced)
    async with asyncio.timeout(30):
        await pool.close()
    assert failures == [fenced]


async def test_the_end_does_not_wait_for_brokers_while_machines_are_being_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timers.kafka.leaders.TIMEOUT_S", 0.3)
    failures: list[BaseException] = []

    async def confirms(tp: TopicPartition) -> bool | None:
        return True

    settings = settings_for(tmp_path, free_port())
    topics = (settings.request_topic, settings.progress_topic)
    cluster = Cluster("", dict.fromkeys(topics, bytes(16)), dict.fromkeys(topics, 1))
    pool = pool_of(settings, cluster, confirms, failures)
    async with asyncio.timeout(60):
        assert await pool.assign([REQUESTS]) == {}
        while not pool.waiting:
            await asyncio.sleep(0.01)
        assert pool.waiting[REQUESTS].reason == "brokers"
        await pool.close()
    assert failures == []
    gc.collect()
    assert "Unclosed" not in caplog.text


async def test_machines_learn_whether_their_topic_is_compacted(tmp_path: Path) -> None:
    """One that reads its log again is closed, and what was refused is tried again after a change."""

    async def owns(tp: TopicPartition) -> bool | None:
        return True

    class SimMachineRunner(SimRunner):
        def __init__(self, name: str, recovering: bool) -> None:
            self.name = name
            self.told: list[bool] = []
            self.machine = SimpleNamespace(position=7, recovering=recovering, doubts=SimpleNamespace(note=self.note))

        def note(self, worker: str, *, is_compacted: bool) -> None:
            self.told.append(is_compacted)

        def ask(self, question: Callable[[Any], None]) -> None:
            question(self.machine)

    settings = settings_for(tmp_path)
    wrong = WrongConfig("timer-request", "cleanup.policy", "compact", RED, "it is compacted")
    right = Cluster("c", {"timer-request": b"1"}, {"timer-request": 3})
    compacted = replace(right, wrong_configs=(wrong,))
    pool = pool_of(settings, right, owns, [])
    whole, reading = SimMachineRunner("timer-request/0", False), SimMachineRunner("timer-request/1", True)
    runners: Any = {("timer-request", 0): whole, ("timer-request", 1): reading}
    pool._runners = runners
    pool._stopped = {("timer-request", 2): DoubtfulLog("it may lack requests", None)}
    await pool.renew(compacted, {})
    assert (whole.told, reading.told) == ([True], [])
    assert {*pool.runners} == {("timer-request", 0)} and not pool.stopped
    await pool.renew(replace(compacted, unseen=frozenset({"oscillator"})), {})
    await pool.renew(right, {})
    assert whole.told == [True, False]
    await pool.close()


async def no_answer(tp: TopicPartition) -> bool | None:
    return None


async def test_a_pool_knows_of_which_partitions_its_disk_has_a_store(tmp_path: Path) -> None:
    """The leader of the group prefers a member with a store; how far it was read is known only in this process."""
    settings = settings_for(tmp_path)
    for name in ("3", "not-a-partition"):
        (store_path(settings, ("timer-request", 0)).parent / name).mkdir(parents=True)
    pool = pool_of(settings, Cluster("c", {"timer-request": b"1"}, {"timer-request": 4}), no_answer, [])
    assert pool.stores == {("timer-request", 3): 0}
    runner: Any = SimRunner()
    runner.machine = SimpleNamespace(position=70)
    pool._runners = {("timer-request", 3): runner}
    assert pool.stores == {("timer-request", 3): 70}
    await pool.revoke([("timer-request", 3)])
    assert pool.stores == {("timer-request", 3): 70}, "closed in this process"
    await pool.close()
