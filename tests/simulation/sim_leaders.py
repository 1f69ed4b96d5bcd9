"""The leaders of the simulated log, as :class:`timers.kafka.log_lineage.LogLineages` asks them."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from aiokafka.errors import OffsetOutOfRangeError

from tests.harness.one_leader import OneLeader, header
from tests.simulation.kit import SimLog
from timers.core.lineage import EpochEnd
from timers.kafka.aiokafka_internals.leader_client import RawFetch
from timers.kafka.log_lineage import LogLineages

_APPEND_TIME = 0x08


class SimLeaders(OneLeader):
    """Answers as :class:`timers.kafka.aiokafka_internals.leader_client.LeaderClient` does. Each record is a batch."""

    def __init__(self, log: SimLog) -> None:
        self._log = log

    def connection_to(self, leader: int) -> object:
        return self._log.restarts

    async def epoch_ends(self, leader: int, epochs: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], EpochEnd]:
        return {tp: self._log.epoch_end(*tp, epoch) for tp, epoch in epochs.items()}

    async def last_stable_offsets(self, leader: int, tps: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {tp: self._log.last_stable(*tp) for tp in tps}

    async def offset_at(self, leader: int, tp: tuple[str, int], timestamp_ms: int) -> int | None:
        offset = self._log.offset_at(*tp, timestamp_ms - 1)
        return offset if offset < self._log.end(*tp) else None

    async def fetch(self, leader: int, tp: tuple[str, int], offset: int, max_bytes: int) -> RawFetch:
        end = self._log.end(*tp)
        if offset > end:
            raise OffsetOutOfRangeError
        found = self._log.fetch(*tp, offset, 1, committed=False).passed
        data = b""
        for epoch, batch in found:
            data = header(batch, epoch, _APPEND_TIME).ljust(max_bytes, b"\0")
        return RawFetch(0, end, data)


class SimLineages(LogLineages):
    """The product's questions and comparisons over a simulated log."""

    def __init__(self, log: SimLog) -> None:
        client: Any = SimLeaders(log)
        super().__init__(client)


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine to its end."""
    future: Future[Any] = Future()
    try:
        future.set_result(asyncio.run(coroutine))
    except Exception as error:
        future.set_exception(error)
    return future
