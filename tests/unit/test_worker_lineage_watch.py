"""Machines commit soon after a leader of the progress topic has restarted, or is another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.harness.constants import Constants
from timers.worker.machines import lineage_watch
from timers.worker.machines.lineage_watch import LineageWatch

PLACE = ("app-progress", 0)


class SimLeaders:
    """Leaders of the progress topic. Each broker has one connection until it restarts."""

    def __init__(self) -> None:
        self.leader = 1
        self.connections: dict[int, object] = {1: object(), 2: object()}
        self.looks = 0
        self.silent = False

    async def by_leader(self, tps: Any) -> dict[int, Any]:
        return {self.leader: list(tps)}

    async def last_stable_offsets(self, leader: int, tps: Any) -> None:
        self.looks += 1
        if self.silent:
            raise KafkaConnectionError

    def connection_to(self, leader: int) -> object:
        return self.connections[leader]

    async def close(self) -> None: ...


async def nothing_parted(*_: Any, **__: Any) -> dict[Any, Any]:
    return {}


@pytest.mark.parametrize(
    "change",
    [
        lambda leaders: leaders.connections.update({1: object()}),
        lambda leaders: setattr(leaders, "leader", 2),
    ],
    ids=["restarted", "another"],
)
async def test_all_machines_commit_once_after_a_leader_of_the_progress_topic_has_changed(
    change: Callable[[SimLeaders], object], constants: Constants
) -> None:
    constants(lineage_watch, CHECK_S=0.001)
    leaders, commits = SimLeaders(), []
    lineages: Any = SimpleNamespace(client=leaders, parted=nothing_parted)
    runner: Any = SimpleNamespace(
        machine=SimpleNamespace(lineages=()), commit_soon=lambda: commits.append(leaders.looks)
    )
    watch = LineageWatch(lineages, lambda: {("requests", 0): runner}, (), lambda: [PLACE], lambda *_: None)

    async def look_on() -> None:
        seen = leaders.looks
        while leaders.looks < seen + 2:
            await asyncio.sleep(0.001)

    await look_on()
    assert commits == [], "nothing has changed"
    leaders.silent = True
    await look_on()
    leaders.silent = False
    change(leaders)
    await look_on()
    await look_on()
    await watch.close()
    assert len(commits) == 1
