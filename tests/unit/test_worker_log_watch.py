"""Deleted topics that the worker may not create. The broker tests cover topics that it may create."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.errors import AccessError
from timers.kafka.own_topics import own_topics
from timers.kafka.topics import Cluster
from timers.worker.consumer import log_watch as module
from timers.worker.consumer.log_watch import LogWatch


async def test_the_worker_waits_for_a_topic_that_it_may_not_create(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(brokers="127.0.0.1:1")
    names = [topic.name for topic in own_topics(settings)]
    whole = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    seen = [Cluster("c", {}, {})]
    refused, renewed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def ensure(settings: Settings, *, user_topics: bool) -> Cluster:
        loop.call_soon_threadsafe(refused.set)
        raise AccessError("lacks Create")

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        if cluster.topic_ids:
            renewed.set()

    def look(*_: Any) -> Cluster:
        return seen[-1]

    monkeypatch.setattr(module, "GRACE_S", -1.0)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module.topics, "existing_topics", look)
    monkeypatch.setattr(module.topics, "ensure", ensure)
    watch = LogWatch(settings, whole, renew)
    await watch.start()
    try:
        watch.request_lookup()
        async with asyncio.timeout(30):
            await refused.wait()
            seen.append(Cluster("c", dict.fromkeys(names, b"2"), dict.fromkeys(names, 1)))
            await renewed.wait()
    finally:
        await watch.stop()
