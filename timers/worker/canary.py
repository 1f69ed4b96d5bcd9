"""Canary timers: asked for as anybody asks, on the request topic, and waited for as a receiver waits.

Counters say what a worker believes it did; a canary says what somebody outside gets: broker, acceptance, store, ticks,
transaction and read_committed reader all have their share in it. Each worker sends them on the request partitions that
it owns, one each now and then, and reads all that come back: its own carry a token of this process. No state but the
latest of each partition, for a callback says by itself which request it comes from and when it was due.
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
"""A canary is due so many seconds after the one it is sent in: it waits in the store as others do, and is never late
by its own doing."""

SEND_TIMEOUT_S = 5.0

_SOURCE = re.compile(rb"[^/]+/([0-9]+)/[0-9]+")
_DUE = re.compile(rb"[0-9]+")

Send = Callable[[str, int, bytes, bytes], Awaitable[Any]]
"""Publishes: topic, partition, key, value."""


@dataclass
class Sight:
    """What has been seen of one partition."""

    seen_at: float
    """Monotonic time of the last callback; until the first one, of when the worker took the partition."""
    lag_s: float | None = None
    """From the start of the last one's due second to its arrival, by the brokers' clock."""


class Canary(TopicTail):
    """Sends canary timers and measures those that come back.

    Attributes:
        sights: request partition -> what was seen. Read by any thread; replaced whole.

    Args:
        settings: of the worker.
        partitions: of the canary topic.
        send: publishes a request.
        owned: request partitions of this worker at present.
        now_s: the brokers' time, if it is known.
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
        """Between two canaries of a partition."""
        return self._settings.canary_interval_s

    @Service.task
    async def _ask(self) -> None:
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
        except Exception as error:  # whatever it is, the worker has better things to do: its age says that none came
            if not self._failing:
                logger.warning("canary timers cannot be sent: %r", error)
            self._failing = True
        else:
            if self._failing:
                logger.info("canary timers are sent again")
            self._failing = False

    async def take(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Measure those that this worker has sent."""
        now_s = self._now_s()
        if now_s is None:
            return
        for record in (record for batch in records.values() for record in batch):
            partition, due_s = _origin(record.headers)
            # Else it is another's, or one of this worker's before it restarted, or the partition is another's by now.
            if record.value == self._token and partition in self.sights:
                self.sights = {**self.sights, partition: Sight(monotonic(), max(0.0, now_s - due_s))}


def _origin(said: Iterable[headers.Header]) -> tuple[int, int]:
    """Request partition and due second of a callback; partition -1 if it was not one of ours that wrote it."""
    known = {name: value or b"" for name, value in said}
    found = _SOURCE.fullmatch(known.get(headers.TIMER_ID, b"")), _DUE.fullmatch(known.get(headers.TIMER_DUE, b""))
    return (int(found[0][1]), int(found[1][0])) if found[0] and found[1] else (-1, 0)
