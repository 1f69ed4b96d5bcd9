"""Canary timers: requested like any timer on the request topic, and received like any callback.

Counters show what a worker believes it did; canaries show what a receiver gets: broker, acceptance, store, ticks,
transaction and a read_committed consumer all take part. Each worker sends them to the request partitions that it owns,
one per interval, and reads the whole canary topic: its own callbacks carry a token of this process. A callback names
its request and its due second, so only the latest observation of each partition is kept.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from aiokafka import TopicPartition
from mode import Service

from timers.config.settings import Settings
from timers.wire import future, headers
from timers.worker.tailing import TopicTail

logger = logging.getLogger(__name__)

AHEAD_S = 2
"""Seconds from sending a canary to its due second: it waits in the store like other timers, and is not late."""

SEND_TIMEOUT_S = 5.0

_SOURCE = re.compile(rb"[^/]+/([0-9]+)/[0-9]+")
_DUE = re.compile(rb"[0-9]+")

Send = Callable[[str, int, bytes, bytes], Awaitable[Any]]
"""Publishes: topic, partition, key, value."""


@dataclass
class Sight:
    """The last observation of one partition."""

    seen_at: float
    """Monotonic time of the last callback; before the first one, when the worker took the partition."""
    lag_s: float | None = None
    """From the start of that callback's due second to its arrival, by the brokers' clock."""


class Canary(TopicTail):
    """Sends canary timers and measures their callbacks.

    Attributes:
        sights: request partition -> last observation. Any thread may read it; it is never changed in place.

    Args:
        settings: of the worker.
        partitions: number of partitions of the canary topic.
        send: publishes a request.
        owned: returns the request partitions that this worker owns now.
        now_s: returns the brokers' time; None if it is not known yet.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: int,
        send: Send,
        owned: Callable[[], Iterable[int]],
        now_s: Callable[[], float | None],
        **kwargs: Any,
    ) -> None:
        super().__init__(settings, settings.canary_topic, partitions, "canary", "read_committed", **kwargs)
        self._send = send
        self._owned = owned
        self._now_s = now_s
        self._token = secrets.token_bytes(8)
        self._failing = False
        self.sights: dict[int, Sight] = {}

    @property
    def interval_s(self) -> int:
        """Seconds between two canaries of a partition."""
        return self._settings.canary_interval_s

    @Service.task
    async def _send_regularly(self) -> None:
        while not self.should_stop:
            now = monotonic()
            self.sights = {partition: self.sights.get(partition, Sight(now)) for partition in sorted(self._owned())}
            now_s = self._now_s()
            if now_s is not None:
                await self._send_each(int(now_s) + AHEAD_S)
            await self.sleep(self.interval_s)

    async def _send_each(self, due_s: int) -> None:
        value = future.encode(self._settings.canary_topic, self._settings.worker_id, self._token)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                for partition in list(self.sights):
                    await self._send(self._settings.request_topic, partition, b"%d" % due_s, value)
        except Exception as error:  # never ends the worker; timers_canary_age_seconds shows that none arrived
            if not self._failing:
                logger.warning("canary timers cannot be sent: %r", error)
            self._failing = True
        else:
            if self._failing:
                logger.info("canary timers are sent again")
            self._failing = False

    async def take(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Measure the callbacks of this worker's canaries."""
        now_s = self._now_s()
        if now_s is None:
            return
        for record in (record for batch in records.values() for record in batch):
            partition, due_s = _origin(record.headers)
            # Others are of another worker, of this one before its restart, or of a partition that it no longer owns.
            if record.value == self._token and partition in self.sights:
                self.sights = {**self.sights, partition: Sight(monotonic(), max(0.0, now_s - due_s))}


def _origin(record_headers: Iterable[headers.Header]) -> tuple[int, int]:
    """Request partition and due second of a callback; partition -1 if it has not the headers of a callback."""
    known = {name: value or b"" for name, value in record_headers}
    found = _SOURCE.fullmatch(known.get(headers.TIMER_ID, b"")), _DUE.fullmatch(known.get(headers.TIMER_DUE, b""))
    return (int(found[0][1]), int(found[1][0])) if found[0] and found[1] else (-1, 0)
