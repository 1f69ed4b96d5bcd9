"""An opening that ends while its partition is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from timers.core.timer import TopicPartition
from timers.worker.machines import openings
from timers.worker.machines.openings import Openings

REQUESTS = ("timer-request", 0)


class SimMachine:
    """An open machine, which may be closed again."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class SimTakeover:
    """A takeover that ends when :attr:`opened` has a result."""

    def __init__(self, *_: object) -> None:
        self.opened: asyncio.Future[SimMachine] = asyncio.get_running_loop().create_future()

    async def open(self, *_: object) -> SimMachine:
        return await self.opened

    async def in_thread(self, call: Callable[[], None]) -> None:
        call()


class SimListener:
    """Keeps the partitions that were reported as open."""

    def __init__(self) -> None:
        self.opened: list[TopicPartition] = []

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
