"""The topic of the console's log is made anew after it was deleted. No brokers."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from timers.console import kafka_cluster
from timers.console.kafka_cluster import KafkaCluster
from timers.errors import UnacknowledgedError
from timers.process.config.settings import Settings


class SimLog:
    """A producer of entries whose topic may be missing; then none is acknowledged."""

    def __init__(self) -> None:
        self.exists = self.is_open = True
        self.written: list[bytes] = []
        self.keys: set[bytes] = set()
        self.made = self.closed = 0

    def write(self, topic: str, key: bytes, value: bytes, headers: None) -> Future[str]:
        assert key not in self.keys, "a compacted topic keeps all entries"
        self.keys.add(key)
        future: Future[str] = Future()
        if self.exists:
            self.written.append(value)
            future.set_result("log/0/1")
        else:
            future.set_exception(UnacknowledgedError("no broker acknowledged"))
        return future

    def close(self) -> None:
        self.closed += 1

    def make(self) -> bool:
        was_missing, self.exists = not self.exists, True
        self.made += was_missing
        return was_missing


@pytest.fixture
def log() -> tuple[KafkaCluster, SimLog]:
    cluster, log = KafkaCluster(Settings(brokers="b:1")), SimLog()

    async def opened() -> Any:
        return log

    cluster._open_log = opened  # type: ignore[method-assign]
    cluster._make_log = log.make  # type: ignore[method-assign]
    return cluster, log


async def test_an_entry_that_finds_no_topic_makes_it_anew(log: tuple[KafkaCluster, SimLog]) -> None:
    """All entries that failed meanwhile are written, and the topic is made once."""
    cluster, sim = log
    await cluster.record(b"first")
    sim.exists = False
    await asyncio.gather(*(cluster.record(b"%d" % number) for number in range(3)))
    assert sorted(sim.written) == [b"0", b"1", b"2", b"first"] and sim.made == sim.closed == 1


async def test_a_log_whose_producer_has_ended_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the topic was deleted since: the attempt to open creates it. All changes that wait share the attempt."""
    opened: list[SimLog] = []

    def open_log(_: KafkaCluster) -> SimLog:
        opened.append(SimLog())
        return opened[-1]

    monkeypatch.setattr(KafkaCluster, "_new_log", open_log)
    cluster = KafkaCluster(Settings(brokers="b:1"))
    await cluster.record(b"first")
    opened[0].is_open = False
    await asyncio.gather(*(cluster.record(b"later") for _ in range(20)))
    assert [log.written for log in opened] == [[b"first"], [b"later"] * 20]
    assert [log.closed for log in opened] == [1, 0]


async def test_an_entry_that_brokers_do_not_take_is_an_error(
    log: tuple[KafkaCluster, SimLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, sim = log
    monkeypatch.setattr(kafka_cluster.KafkaCluster, "_make_log", lambda _: False)
    cluster._make_log = lambda: False  # type: ignore[method-assign]
    sim.exists = False
    with pytest.raises(UnacknowledgedError):
        await cluster.record(b"entry")
