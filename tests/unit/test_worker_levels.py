"""A worker that ends does not wait for what it has asked the group: the answer may come after a rebalance."""

import asyncio
from types import SimpleNamespace
from typing import Any

from mode import Service

from timers.process.config.settings import Settings
from timers.worker.consumer.group_watch import GroupWatch


async def ends_at_once(watch: Service) -> None:
    await watch.start()
    await asyncio.sleep(0.05)  # it sleeps until its next look
    await asyncio.wait_for(watch.stop(), 5)


async def test_a_watch_of_the_group_that_is_stopped_in_its_sleep_asks_nothing() -> None:
    asked: list[Any] = []

    async def ask(*question: Any) -> None:
        asked.append(question)
        await asyncio.Event().wait()

    consumer: Any = SimpleNamespace(note_raised=lambda level: None, described=ask, in_group=True, dealt=frozenset())
    pool: Any = SimpleNamespace(runners={}, stopped={}, partitions={}, formats={})
    await ends_at_once(GroupWatch(Settings(), pool, consumer))
    assert asked == []
