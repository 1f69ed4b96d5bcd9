"""The three agents of the design. Thin: each takes something, hands it on, and decides nothing about time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from time import monotonic
from typing import Any

import faust
from faust.serializers.schemas import Schema
from mode import Service

from timers.config.settings import Settings
from timers.core.ticking import Phase
from timers.worker.clock import Clock
from timers.worker.machines.pool import Pool
from timers.worker.ticks import wait_until

logger = logging.getLogger(__name__)

TICK_VALUE = b"1"

TICK_TIMEOUT_S = 5.0
"""A tick that was not acknowledged by then is given up: the next one says all that it would have said."""


RETRY_PAUSE_S = 0.2


class BatchSchema(Schema):
    """Passes a batch through. Faust never decodes what users sent: on an error it would drop it without a word."""

    def loads_key(self, app: Any, message: Any, **kwargs: Any) -> None:
        """Batches have no key."""

    def loads_value(self, app: Any, message: Any, **kwargs: Any) -> Any:
        """The batch, as the transport made it."""
        return message.value


class TickScheduler(Service):
    """Wakes the oscillator agent just after each turn of the broker's second.

    Attributes:
        phase: what the agent learns from its delivery reports.
        missed: seconds that passed without a tick of ours; counted, never replayed.
    """

    def __init__(self, due_ticks: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._due_ticks = due_ticks
        self.phase = Phase()
        self.missed = 0
        self._last_second: int | None = None
        self._acknowledged = asyncio.Event()

    @Service.task
    async def _beat(self) -> None:
        while not self.should_stop:
            await wait_until(self.phase.next_turn(monotonic()))
            self._acknowledged.clear()
            await self._due_ticks.put(self.phase.second_at(monotonic()) or 0)
            try:
                await asyncio.wait_for(self._acknowledged.wait(), TICK_TIMEOUT_S + 1.0)
            except TimeoutError:
                logger.warning("the oscillator agent did not answer for %.0f s", TICK_TIMEOUT_S + 1.0)

    def acknowledged(self, sent_s: float, acked_s: float, append_ms: int) -> None:
        """Take a delivery report."""
        self.phase.observe(sent_s, acked_s, append_ms)
        second = append_ms // 1000
        if self._last_second is not None and second > self._last_second + 1:
            missed = second - self._last_second - 1
            self.missed += missed
            logger.warning("%d seconds had no tick of this worker; everything overdue fires now", missed)
        self._last_second = max(second, self._last_second or 0)
        self._acknowledged.set()

    def failed(self) -> None:
        """A tick was not delivered."""
        self._acknowledged.set()


def register(app: Any, settings: Settings, pool: Pool, clock: Clock, formats: Collection[str]) -> TickScheduler:
    """Add the agents to ``app``.

    Args:
        formats: topics that timers come in by.

    Returns:
        The tick scheduler that drives the oscillator; the app starts it.
    """
    requests = app.topic(*formats, schema=BatchSchema(), acks=False, internal=False)
    oscillator_topic = app.topic(
        settings.oscillator_topic, key_serializer="raw", value_serializer="raw", acks=False, internal=False
    )
    due_ticks = app.channel(maxsize=1)
    app.ticks = app.channel(maxsize=1000)
    tick_scheduler = TickScheduler(due_ticks, loop=app.loop, beacon=app.beacon)

    @app.agent(requests, name="timer_request")
    async def timer_request(batches: faust.StreamT[Any]) -> None:
        """Hand each fetched batch to the machine of its partition."""
        async for event in batches.noack().events():
            message = event.message
            pool.deliver((message.topic, message.partition), event.value)

    @app.agent(app.ticks, name="join")
    async def join(ticks: faust.StreamT[Any]) -> None:
        """Tell every machine that a second has passed: each fires what is due."""
        async for tick in ticks:
            pool.tick(tick)

    @app.agent(due_ticks, name="oscillator")
    async def oscillator(seconds: faust.StreamT[Any]) -> None:
        """Emit one tick per epoch second. Its time is the broker's append time; the key only informs."""
        async for _ in seconds:
            sent_s = monotonic()
            try:
                async with asyncio.timeout(TICK_TIMEOUT_S):
                    sending = await oscillator_topic.send(key=str(int(clock.now_s())).encode(), value=TICK_VALUE)
                    # Given up, it may still arrive: harmless, and a cancelled one is a traceback of Faust's.
                    report = await asyncio.shield(sending)
            except Exception as error:
                logger.warning("a tick was not delivered: %r", error)
                await asyncio.sleep(RETRY_PAUSE_S)
                tick_scheduler.failed()
            else:
                tick_scheduler.acknowledged(sent_s, monotonic(), report.timestamp)

    return tick_scheduler
