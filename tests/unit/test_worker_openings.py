"""An opening that ends while its partition is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.timer import TopicPartition
from timers.worker.machines import openings
from timers.worker.machines.openings import Openings
from timers.worker.machines.runner import ReadAhead

REQUESTS = ("timer-request", 0)


class SimMachine:
    """An open machine, which may be closed again."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class SimTakeover:
    """A takeover that ends when :attr:`opened` has a result; before, if there is :attr:`ahead`, when that has one."""

    def __init__(self, *_: object) -> None:
        self.ahead: asyncio.Future[SimMachine] | None = None
        self.opened: asyncio.Future[SimMachine] = asyncio.get_running_loop().create_future()

    async def read_ahead(self, *_: object) -> SimMachine | None:
        return None if self.ahead is None else await self.ahead

    async def open(self, *_: object) -> SimMachine:
        return await self.opened

    async def in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)


class SimListener:
    """Keeps the partitions that were reported as open."""

    def __init__(self) -> None:
        self.opened: list[TopicPartition] = []
        self.owns_it: bool | None = True

    async def owns(self, tp: TopicPartition) -> bool | None:
        return self.owns_it

    def on_opened(self, tp: TopicPartition, opened: object, again: bool) -> None:
        self.opened.append(tp)

    def on_progress(self) -> None: ...


async def test_a_partition_that_is_revoked_when_its_takeover_has_just_ended_does_not_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openings, "Takeover", SimTakeover)
    listener: Any = SimListener()
    unused: Any = None
    opening = Openings({}, unused, unused, unused, listener, lambda tp: unused)
    opening.begin(lambda: unused, REQUESTS)
    await asyncio.sleep(0)  # its takeover has begun
    takeover: Any = opening._takeover
    machine = SimMachine()
    takeover.opened.set_result(machine)
    async with asyncio.timeout(30):
        await asyncio.gather(opening.end([REQUESTS]))
    assert listener.opened == []
    assert machine.closed
    assert opening.partitions == set()


async def test_an_opening_waits_until_the_former_machine_has_released_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openings, "Takeover", SimTakeover)
    listener: Any = SimListener()
    unused: Any = None
    opening = Openings({}, unused, unused, unused, listener, lambda tp: unused)
    takeover: Any = opening._takeover
    takeover.opened.set_result(SimMachine())
    released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    opening.begin(lambda: unused, REQUESTS, released)
    for _ in range(10):
        await asyncio.sleep(0)
    assert listener.opened == []
    released.set_result(None)
    async with asyncio.timeout(30):
        while not listener.opened:
            await asyncio.sleep(0)


async def test_a_log_is_read_ahead_once_before_its_owner_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "Takeover", SimTakeover)
    listener: Any = SimListener()
    unused: Any = None
    opening = Openings({}, unused, unused, unused, listener, lambda tp: unused)
    takeover: Any = opening._takeover
    takeover.ahead = asyncio.get_running_loop().create_future()
    takeover.ahead.set_result(SimMachine())
    opening.begin(lambda: unused, REQUESTS)
    async with asyncio.timeout(30):
        while not listener.opened:
            await asyncio.sleep(0)
    assert not takeover.opened.done() and opening.partitions == set(), "its machine reads, and nothing is fenced"

    class SimRunner:
        name = "timer-request/0"
        machine = SimpleNamespace(replayed=7)

        def join(self, timeout_s: float) -> bool:
            return True

    runner: Any = SimRunner()
    takeover.opened.set_result(SimMachine())
    monkeypatch.setattr(openings, "OWNER_RETRY_S", 0.001)
    listener.owns_it = False
    opening.begin_again(lambda: unused, REQUESTS, runner, ReadAhead())
    await asyncio.sleep(0.02)
    assert len(listener.opened) == 1, "the worker was paused, and another one has the partition"
    listener.owns_it = True
    async with asyncio.timeout(30):
        while len(listener.opened) < 2:
            await asyncio.sleep(0)


async def test_an_opening_waits_for_the_coordinator_no_longer_than_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openings, "Takeover", SimTakeover)
    monkeypatch.setattr(openings, "OWNER_RETRY_S", 0.001)
    listener: Any = SimListener()
    listener.owns_it = None
    unused: Any = None
    opening = Openings({}, unused, unused, unused, listener, lambda tp: unused)
    runner: Any = SimpleNamespace(
        name="timer-request/0", machine=SimpleNamespace(replayed=7), join=lambda timeout_s: True
    )
    opening.begin_again(lambda: unused, REQUESTS, runner, ReadAhead())
    async with asyncio.timeout(30):
        while not opening.waiting:
            await asyncio.sleep(0)
        listener.owns_it = True
        while opening.waiting:  # it opens now, which takes a while
            await asyncio.sleep(0)
        assert opening.partitions == {REQUESTS}
        takeover: Any = opening._takeover
        takeover.opened.set_result(SimMachine())
        while not listener.opened:
            await asyncio.sleep(0)
