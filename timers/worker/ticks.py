"""Reading time: every worker reads the oscillator topic itself, outside the group.

So nothing needs to be co-partitioned, and a worker with any request partition gets every tick. Ticks are read from the
newest and never committed: what counts is the latest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from aiokafka import TopicPartition
from mode import Service

from timers.config.settings import Settings
from timers.core.timer import Tick
from timers.worker.tailing import TopicTail

logger = logging.getLogger(__name__)

LOG_APPEND_TIME = 1
"""Kafka's code for a record time that the broker set."""

SILENCE_S = 2.0
"""Without a counted tick for this long, something is wrong: said in the log, and readiness turns red."""


class TickReader(TopicTail):
    """Hands each new tick to ``deliver``, and calls ``silent`` when none comes."""

    def __init__(
        self,
        settings: Settings,
        partitions: int,
        deliver: Callable[[Tick], Awaitable[None]],
        silent: Callable[[], None],
        **kwargs: Any,
    ) -> None:
        # Ticks are never transactional: somebody's open transaction must not hold time back.
        super().__init__(settings, settings.oscillator_topic, partitions, "ticks", "read_uncommitted", **kwargs)
        self._deliver = deliver
        self._tell_silent = silent
        self._newest_ms = 0
        self._counted_at = monotonic()
        self._silent = False
        self._wrong_time = False

    @property
    def age_s(self) -> float:
        """Seconds since a tick last moved time."""
        return monotonic() - self._counted_at

    async def take(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Count ticks."""
        # The last of each partition: had a clock gone back within a batch, an earlier record would show the old time.
        times = [batch[-1].timestamp for batch in records.values() if batch[-1].timestamp_type == LOG_APPEND_TIME]
        if not times:
            if records and not self._wrong_time:
                self._wrong_time = True
                logger.error(
                    "ticks on %s carry the producer's time, not the broker's: set message.timestamp.type=LogAppendTime",
                    self._settings.oscillator_topic,
                )
            return
        self._wrong_time = False
        # The latest read is the present: if the broker's clock went back, machines must hear of it.
        newest = max(times)
        if newest // 1000 != self._newest_ms // 1000:
            self._counted_at = monotonic()
            if self._silent:
                self._silent = False
                logger.info("ticks are back on %s", self._settings.oscillator_topic)
        self._newest_ms = newest
        await self._deliver(Tick(newest))

    @Service.task
    async def _alarm(self) -> None:
        while not self.should_stop:
            await self.sleep(SILENCE_S / 2)
            if self.age_s > SILENCE_S and not self._silent:
                self._silent = True
                self._tell_silent()
                logger.error(
                    "no tick for %.1f s on %s: timers do not fire", self.age_s, self._settings.oscillator_topic
                )


async def wait_until(deadline_s: float) -> None:
    """Sleep until a monotonic time."""
    delay_s = deadline_s - monotonic()
    if delay_s > 0:
        await asyncio.sleep(delay_s)
