"""The three Faust agents: they pass requests and ticks to the machines, and write ticks. Machines decide what fires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

import faust
from mode import Service

from timers.core.ticking import TICK_TIMEOUT_S, TICK_VALUE, Phase
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.worker.machines.pool import Pool
from timers.worker.ticks import NEXT_AFTER_S, TickJudge, TickSender, wait_until

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.2

AHEAD_S = 0.15
"""Seconds before a tick at which leaders are asked whether they answer: transactions that follow the tick use it."""


class TickScheduler(Service):
    """Wakes the oscillator agent just after the start of each of the broker's seconds.

    Args:
        due_ticks: channel to the oscillator agent.
        judge: judges the delivery reports.
        ask_ahead: called shortly before each tick.

    Attributes:
        missed: seconds without a tick of this worker; they are counted and never sent later.
        answered: the oscillator agent sets it when the next tick may begin.
    """

    def __init__(self, due_ticks: Any, judge: TickJudge, ask_ahead: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._ask_ahead = ask_ahead
        self._due_ticks = due_ticks
        self._judge = judge
        self._phase = Phase()
        self.missed = 0
        self._last_second: int | None = None
        self.answered = asyncio.Event()

    def broker_now_s(self) -> float | None:
        """The brokers' time from the reports of this worker's ticks, within a round trip; None before the first.

        Any thread. For measuring only: it never decides when a timer fires.
        """
        return self._phase.at(monotonic())

    @Service.task
    async def _schedule(self) -> None:
        while not self.should_stop:
            await wait_until(self._phase.next_second_at(monotonic()) - AHEAD_S)
            self._ask_ahead()
            await wait_until(self._phase.next_second_at(monotonic()))
            self.answered.clear()
            await self._due_ticks.put(int(self._phase.at(monotonic()) or 0))
            try:
                await asyncio.wait_for(self.answered.wait(), TICK_TIMEOUT_S + 1.0)
            except TimeoutError:
                logger.warning("the oscillator agent did not answer for %.0f s", TICK_TIMEOUT_S + 1.0)

    def on_acknowledged(self, sent_s: float, acked_s: float, append_ms: int, broker: int | None) -> bool:
        """Note the delivery report of a tick. Returns whether the tick counts.

        Args:
            sent_s: monotonic time of sending.
            acked_s: monotonic time of the acknowledgement.
            append_ms: its append time.
            broker: id of the broker that appended it; None: not known.
        """
        if not self._judge.counts(append_ms, broker):
            return False
        self._phase.observe(sent_s, acked_s, append_ms)
        second = append_ms // 1000
        if self._last_second is not None and second > self._last_second + 1:
            missed = second - self._last_second - 1
            self.missed += missed
            logger.warning("%d seconds had no tick of this worker; everything overdue fires now", missed)
        self._last_second = max(second, self._last_second or 0)
        return True


def register(
    app: faust.App, settings: Settings, pool: Callable[[], Pool], clock: Clock, judge: TickJudge
) -> tuple[TickScheduler, Any, Any]:
    """Add the agents to ``app``.

    Args:
        pool: returns the machines. They are made before the app starts its agents.

    Returns:
        What the app must start; the channels for the ticks that it reads, and for fetches of requests (partition,
        fetch).
    """
    oscillator_topic = app.topic(
        settings.oscillator_topic, key_serializer="raw", value_serializer="raw", acks=False, internal=False
    )
    due_ticks, read_ticks, read_batches = app.channel(maxsize=1), app.channel(maxsize=1000), app.channel(maxsize=16)

    def ask_ahead() -> None:
        producers = pool().producers
        producers.call_soon(producers.answers.ask_ahead)

    tick_scheduler = TickScheduler(due_ticks, judge, ask_ahead, loop=app.loop, beacon=app.beacon)

    @app.agent(read_batches, name="timer_request")
    async def timer_request(batches: faust.StreamT[Any]) -> None:
        """Give each fetched batch to the machine of its partition."""
        async for partition, fetched in batches:
            pool().deliver(partition, fetched)

    @app.agent(read_ticks, name="join")
    async def join(ticks: faust.StreamT[Any]) -> None:
        """Give each tick to every machine, which fires what is due."""
        async for tick in ticks:
            pool().tick(tick)

    async def send_tick(partition: int | None) -> bool:
        """Send a tick to a partition, or to any. Returns whether it counts."""
        sent_s, leaders = monotonic(), app.producer.leaders(settings.oscillator_topic)
        try:
            async with asyncio.timeout(TICK_TIMEOUT_S):
                key = str(int(clock.now_s())).encode()
                sending = await oscillator_topic.send(key=key, value=TICK_VALUE, partition=partition)
                # A tick that arrives after the timeout does no harm. Cancelling it makes Faust log a traceback.
                report = await asyncio.shield(sending)
        except Exception as error:
            logger.warning("a tick was not delivered: %r", error)
            return False
        acked_s, broker = monotonic(), leaders.get(report.partition)
        if broker != app.producer.leaders(settings.oscillator_topic).get(report.partition):
            broker = None
        return tick_scheduler.on_acknowledged(sent_s, acked_s, report.timestamp, broker)

    @app.agent(due_ticks, name="oscillator")
    async def oscillator(seconds: faust.StreamT[Any]) -> None:
        """Send one tick for each second. Its time is the broker's append time; its key is for human readers only.

        While ticks are held, one goes to each broker: their clocks are compared, and one of them may be right.
        """
        topic, producer = settings.oscillator_topic, app.producer
        sender = TickSender(
            send_tick, lambda: producer.leaders(topic), lambda: producer.learn_leaders(topic, NEXT_AFTER_S)
        )
        async for second in seconds:
            counts = not judge.holds and await sender.send(second)
            if not counts and judge.holds:
                counts = await sender.send_to_each_broker()
            if not counts:
                await asyncio.sleep(RETRY_PAUSE_S)
            tick_scheduler.answered.set()

    return tick_scheduler, read_ticks, read_batches
