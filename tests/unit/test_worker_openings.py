"""An opening that ends while its partition is revoked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.ports import Lost
from timers.core.store_validity import StoreTooOld
from timers.core.timer import TopicPartition
from timers.errors import Fenced, LogMismatch
from timers.process.partition_metrics import PartitionMetrics
from timers.worker.machines import openings
from timers.worker.machines.openings import Opening, Openings
from timers.worker.machines.runner import ReadAhead

REQUESTS = ("timer-request", 0)


class SimMachine:
    """An open machine, which may be closed again."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class SimOpenings(Openings):
    """An opening ends when :attr:`result` has a result; before, if there is :attr:`ahead`, when that has one."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.ahead: asyncio.Future[Any] | None = None
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read_ahead(self, opening: object) -> Any:
        return None if self.ahead is None else await self.ahead

    async def open(self, opening: object) -> Any:
        return await self.result


class SimPool:
    """Keeps the partitions that were reported as open."""

    def __init__(self) -> None:
        self.opened: list[TopicPartition] = []
        self.owns_it: bool | None = True
        self.stopped: list[tuple[TopicPartition, LogMismatch]] = []
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self.consumer = SimpleNamespace(owns=self._owns)
        self.recoveries = SimpleNamespace(check_ready=lambda: None)
        self.parts = SimpleNamespace(settings=None)

    async def _owns(self, tp: TopicPartition) -> bool | None:
        return self.owns_it

    def on_opened(self, tp: TopicPartition, opened: object, again: bool) -> None:
        self.opened.append(tp)

    def on_mismatch(self, tp: TopicPartition, mismatch: LogMismatch) -> None:
        self.stopped.append((tp, mismatch))


async def test_a_partition_that_is_revoked_when_its_takeover_has_just_ended_does_not_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool: Any = SimPool()
    opening = SimOpenings(pool)
    opening.begin(REQUESTS)
    await asyncio.sleep(0)  # its takeover has begun
    machine = SimMachine()
    opening.result.set_result(machine)
    async with asyncio.timeout(30):
        await asyncio.gather(opening.end([REQUESTS]))
    assert pool.opened == []
    assert machine.closed
    assert opening.partitions == set()


async def test_an_opening_waits_until_the_former_machine_has_released_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool: Any = SimPool()
    opening = SimOpenings(pool)
    opening.result.set_result(SimMachine())
    released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    opening.begin(REQUESTS, released)
    for _ in range(10):
        await asyncio.sleep(0)
    assert pool.opened == []
    released.set_result(None)
    async with asyncio.timeout(30):
        while not pool.opened:
            await asyncio.sleep(0)


async def test_a_store_that_is_too_old_is_read_ahead_once_it_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    """Else nobody would fire while the whole log is read."""
    machine: Any = SimMachine()
    stores = ["old", "empty"]

    class SimStores(Openings):
        async def _open(self, opening: object, *, fences: bool) -> Any:
            assert not fences
            if stores.pop(0) == "old":
                raise StoreTooOld("the store has not read its log for 101 s")
            return machine

    pool: Any = SimPool()
    opening: Any = SimpleNamespace(tp=REQUESTS)
    with caplog.at_level("INFO"):
        assert await SimStores(pool).read_ahead(opening) is machine
    assert "timer-request/0: the store has not read its log for 101 s" in caplog.text


class SimRunner:
    """A runner that has ended."""

    name = "timer-request/0"
    machine = SimpleNamespace(replayed=7)

    def join(self, timeout_s: float) -> bool:
        return True


async def test_a_machine_whose_log_lacks_records_stops_alone() -> None:
    """It is found when the log is read again: the worker goes on, and the machine is not opened again."""
    pool: Any = SimPool()
    runner: Any = SimRunner()
    opening = SimOpenings(pool)
    opening.begin_again(REQUESTS, runner, mismatch := LogMismatch("it has lost 3 records"))
    async with asyncio.timeout(30):
        while opening.partitions:
            await asyncio.sleep(0)
    assert (pool.opened, pool.stopped) == ([], [(REQUESTS, mismatch)])


async def test_failures_that_no_code_expects_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    pool: Any = SimPool()
    runner: Any = SimRunner()
    opening = SimOpenings(pool)
    opening.result.set_result(SimMachine())
    for error in (KeyError("offset"), Lost("no leader"), Fenced("another worker")):
        opening.begin_again(REQUESTS, runner, error)
        async with asyncio.timeout(30):
            while opening.partitions:
                await asyncio.sleep(0)
    assert pool.opened == [REQUESTS] * 3
    assert pool.partition_metrics[REQUESTS].unforeseen == 1


async def test_a_log_is_read_ahead_once_before_its_owner_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = SimPool()
    opening = SimOpenings(pool)
    opening.ahead = asyncio.get_running_loop().create_future()
    opening.ahead.set_result(SimMachine())
    opening.begin(REQUESTS)
    async with asyncio.timeout(30):
        while not pool.opened:
            await asyncio.sleep(0)
    assert not opening.result.done() and opening.partitions == set(), "its machine reads, and nothing is fenced"

    runner: Any = SimRunner()
    opening.result.set_result(SimMachine())
    monkeypatch.setattr(openings, "OWNER_RETRY_S", 0.001)
    pool.owns_it = False
    opening.begin_again(REQUESTS, runner, ReadAhead())
    await asyncio.sleep(0.02)
    assert len(pool.opened) == 1, "the worker was paused, and another one has the partition"
    pool.owns_it = True
    async with asyncio.timeout(30):
        while len(pool.opened) < 2:
            await asyncio.sleep(0)


async def test_an_opening_waits_for_the_coordinator_no_longer_than_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openings, "OWNER_RETRY_S", 0.001)
    pool: Any = SimPool()
    pool.owns_it = None
    opening = SimOpenings(pool)
    runner: Any = SimpleNamespace(
        name="timer-request/0", machine=SimpleNamespace(replayed=7), join=lambda timeout_s: True
    )
    opening.begin_again(REQUESTS, runner, ReadAhead())
    async with asyncio.timeout(30):
        while not opening.waiting:
            await asyncio.sleep(0)
        pool.owns_it = True
        while opening.waiting:  # it opens now, which takes a while
            await asyncio.sleep(0)
        assert opening.partitions == {REQUESTS}
        opening.result.set_result(SimMachine())
        while not pool.opened:
            await asyncio.sleep(0)


async def test_an_opening_that_was_ended_while_it_waited_for_a_thread_asks_nothing() -> None:
    """Else each one asks brokers that do not answer, one after the other, while the worker ends."""
    pool: Any = SimpleNamespace(parts=SimpleNamespace(settings=None), capacity=None)
    taken, opening = Openings(pool), Opening(REQUESTS, PartitionMetrics())
    opening.end()
    with pytest.raises(Lost, match="told to stop"):
        await taken.open(opening)
