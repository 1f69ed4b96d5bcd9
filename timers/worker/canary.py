"""Canary timers: the worker requests them on the request topic and receives their callbacks, as users do.

Counters show what the worker did. Canaries measure what a receiver gets, through broker, acceptance, store, ticks,
transaction and a read_committed consumer. Each worker sends one to each request partition that it owns, once per
interval, and reads the whole canary topic: its own callbacks carry a token of this process. A callback names
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

from timers.process.config.settings import Settings
from timers.wire import future, headers
from timers.wire.topics import parse_source
from timers.worker.ticks import TopicFollower

logger = logging.getLogger(__name__)

DUE_AFTER_S = 2
"""Seconds from sending a canary to its due second: it waits in the store like other timers, and is not late."""

SEND_TIMEOUT_S = 5.0

_DUE = re.compile(rb"[0-9]{1,11}")

Send = Callable[[str, int, bytes, bytes], Awaitable[Any]]
"""Publishes a record: ``(topic, partition, key, value)``."""


@dataclass
class Observation:
    """The last callback of a partition's canary timers."""

    last_callback_at: float
    """Monotonic time of the last callback; before the first one, when the worker took the partition."""
    lag_s: float | None = None
    """Seconds from the start of that callback's due second to its arrival, by the brokers' clock."""


class Canary(TopicFollower):
    """Sends canary timers and measures their callbacks.

    Attributes:
        latest: request partition -> its observation. Any thread may read it: it is replaced, never changed.

    Args:
        send: publishes a request.
        owned: returns the request partitions that this worker owns now.
        now_s: returns the brokers' time; None if it is not known yet.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: Callable[[], int],
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
        self.latest: dict[int, Observation] = {}

    @Service.task
    async def _send_regularly(self) -> None:
        while not self.should_stop:
            now = monotonic()
            self.latest = {number: self.latest.get(number, Observation(now)) for number in sorted(self._owned())}
            now_s = self._now_s()
            if now_s is not None:
                await self._send_each(int(now_s) + DUE_AFTER_S)
            await self.sleep(self._settings.canary_interval_s)

    async def _send_each(self, due_s: int) -> None:
        value = future.encode(self._settings.canary_topic, self._settings.worker_id, self._token)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                for partition in list(self.latest):
                    await self._send(self._settings.request_topic, partition, b"%d" % due_s, value)
        except Exception as error:  # the worker goes on; timers_canary_age_seconds shows the failure
            if not self._failing:
                logger.warning("canary timers cannot be sent: %r", error)
            self._failing = True
        else:
            if self._failing:
                logger.info("canary timers are sent again")
            self._failing = False

    async def handle(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Measure the callbacks of this worker's canaries."""
        now_s = self._now_s()
        if now_s is None:
            return
        for record in (record for batch in records.values() for record in batch):
            partition, due_s = _partition_and_due_s(record.headers)
            # Skip canaries of other workers, of this one before its restart, and of partitions that it no longer owns.
            if record.value == self._token and partition in self.latest:
                self.latest = {**self.latest, partition: Observation(monotonic(), max(0.0, now_s - due_s))}


def _partition_and_due_s(record_headers: Iterable[headers.Header]) -> tuple[int, int]:
    """Request partition and due second of a callback; partition -1 if it does not have them."""
    values = {name: value or b"" for name, value in record_headers}
    # A timer with an id has a timer-source: its id may look like the source of a canary.
    id = b"" if headers.TIMER_SOURCE in values else values.get(headers.TIMER_ID, b"")
    source, due = parse_source(id.decode(errors="replace")), _DUE.fullmatch(values.get(headers.TIMER_DUE, b""))
    return (source[1], int(due[0])) if source and due else (-1, 0)
