"""Reads ticks: every worker reads the whole oscillator topic itself, outside the group.

So the topic's partitions need not match those of the request topics, and every worker gets every tick. Only the newest
tick matters: reading starts at the end and commits nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

from aiokafka import TopicPartition
from confluent_kafka import KafkaException
from mode import Service

from timers.core.clock_guard import ClockGuard, Hold
from timers.core.keys import NEVER
from timers.core.ticking import TickPartitions
from timers.core.timer import Tick
from timers.errors import TimersError
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.periodic import every
from timers.wire.formats import LOG_APPEND_TIME
from timers.worker.machines.runner import Runner
from timers.worker.topic_follower import TopicFollower

logger = logging.getLogger(__name__)

FIRED_S = 2.0
"""Seconds between two reads of what the app has fired, while ticks are held after the start."""

SILENCE_S = 2.0
"""After this long without a counted tick, an error is logged and the worker's topics are looked up."""


class TickJudge:
    """Judges all ticks of a worker: those that it reads, and the delivery reports of its own. One event loop.

    Args:
        settings: of the worker.
        clock: of the machine.
        runners: returns the open machines; at the start, the first tick must follow what the app has fired.

    Attributes:
        newest_fired_s: newest second that has fired in the whole app, also by other workers; None: not known.
        app_is_new: whether nothing has fired in the whole app.
    """

    def __init__(
        self, settings: Settings, clock: Clock, runners: Callable[[], Mapping[TopicPartition, Runner]]
    ) -> None:
        self._guard = ClockGuard(settings.max_clock_leap_s, settings.accept_time_s)
        self._clock = clock
        self._runners = runners
        self.newest_fired_s: int | None = None
        self.app_is_new = False
        self._logged: set[int | None] = set()

    @property
    def holds(self) -> list[Hold]:
        """What is held now. Any thread."""
        return self._guard.holds(self._clock.boot_s())

    @property
    def is_waiting_for_the_first(self) -> bool:
        """Whether ticks are held, and none has counted since the start."""
        return self._guard.anchor is None and bool(self.holds)

    def counts(self, append_ms: int, broker: int | None) -> bool:
        """Whether a tick counts; ``broker`` is the id of the broker that appended it, if it is known."""
        fired_s = self._fired_s() if self._guard.anchor is None else ()
        counts = self._guard.counts(append_ms, broker, self._clock.read(), fired_s)
        held = {hold.broker: hold for hold in self.holds}
        if held.keys() != self._logged:
            self._log(held)
        return counts

    def _fired_s(self) -> list[int] | None:
        """Seconds up to which partitions of the app have fired; None if the app is new, and no partition has."""
        fired = [runner.machine.progress.fired_through for runner in self._runners().values()]
        fired_s = [key[0] for key in fired if key != NEVER]
        if self.newest_fired_s is not None:
            fired_s.append(self.newest_fired_s)
        return None if self.app_is_new and not fired_s else fired_s

    def _log(self, held: Mapping[int | None, Hold]) -> None:
        for broker in held.keys() - self._logged:
            logger.error("%s", held[broker].sentence)
        for broker in self._logged - held.keys():
            logger.info("no tick of broker %s is held any more", broker)
        self._logged = set(held)


class TickReader(TopicFollower):
    """Passes each new tick that counts to ``deliver``, and calls ``on_silence`` when none arrives.

    Args:
        settings: of the worker.
        partitions: returns how many the topic has now.
        judge: judges the ticks.
        deliver: gets each tick.
        on_silence: called when no tick was counted for :data:`SILENCE_S`.
        read_newest_fired: reads the newest second that has fired in the app. Blocks.

    Attributes:
        judge: judges the ticks.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: Callable[[], int],
        judge: TickJudge,
        deliver: Callable[[Tick], Awaitable[None]],
        on_silence: Callable[[], None],
        read_newest_fired: Callable[[], int | None],
        **kwargs: Any,
    ) -> None:
        # Ticks are never transactional, and an open transaction on the topic must not delay them.
        super().__init__(settings, settings.oscillator_topic, partitions, "ticks", "read_uncommitted", **kwargs)
        self.judge = judge
        self._deliver = deliver
        self._on_silence = on_silence
        self._read_newest_fired = read_newest_fired
        self._newest_ms = 0
        self._counted_at = monotonic()
        self._silent = False
        self._wrong_time = False

    @property
    def age_s(self) -> float:
        """Seconds since the last counted tick, or since the start. A tick is counted if its second differs from that of
        the tick before."""
        return monotonic() - self._counted_at

    @property
    def has_counted(self) -> bool:
        """Whether a tick was counted since the start."""
        return self._newest_ms > 0

    async def handle(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Pass on the newest tick that counts."""
        batches = {
            tp: [record.timestamp for record in batch if record.timestamp_type == LOG_APPEND_TIME]
            for tp, batch in records.items()
        }
        if not any(batches.values()):
            if records and not self._wrong_time:
                self._wrong_time = True
                logger.error(
                    "ticks on %s carry the producer's time, not the broker's: set message.timestamp.type=LogAppendTime",
                    self._settings.oscillator_topic,
                )
            return
        self._wrong_time = False
        # The last one of each partition: if the clock went back within a batch, earlier ones show the old time.
        # The newest partition first: then a slow broker is found to be behind.
        times = []
        for tp in sorted(batches, key=lambda tp: batches[tp][-1:], reverse=True):
            counted = [append_ms for append_ms in batches[tp] if self.judge.counts(append_ms, self.broker_of(tp))]
            times += counted[-1:]
        if not times:
            return
        # A tick older than the last one is passed on too: machines must learn that the broker's clock went back.
        newest = max(times)
        if newest // 1000 != self._newest_ms // 1000:
            self._counted_at = monotonic()
            if self._silent:
                self._silent = False
                logger.info("ticks are back on %s", self._settings.oscillator_topic)
        self._newest_ms = newest
        await self._deliver(Tick(newest))

    @Service.task
    async def _watch_silence(self) -> None:
        async for _ in every(SILENCE_S / 2, self):
            if self.age_s > SILENCE_S and not self._silent:
                self._silent = True
                self._on_silence()
                text = "no tick for %.1f s on %s: timers do not fire (docs/operations.md#timersnotick)"
                logger.error(text, self.age_s, self._settings.oscillator_topic)

    @Service.task
    async def _follow_the_app(self) -> None:
        """Let a worker whose own clock is wrong start: another one may have fired with a right clock."""
        async for _ in every(FIRED_S, self):
            if self.judge.is_waiting_for_the_first:
                try:
                    newest_s = await asyncio.to_thread(self._read_newest_fired)
                except (KafkaException, TimersError) as error:
                    logger.info("what the app has fired cannot be read: %s", error)
                else:
                    self.judge.newest_fired_s, self.judge.app_is_new = newest_s, newest_s is None


async def wait_until(deadline_s: float) -> None:
    """Sleep until a monotonic time."""
    delay_s = deadline_s - monotonic()
    if delay_s > 0:
        await asyncio.sleep(delay_s)


NEXT_AFTER_S = 0.5
"""Without an acknowledgement within this time, the tick also goes to a partition of another broker."""


class TickSender:
    """Tries one broker after the other. A tick that is acknowledged late does no harm: a duplicate has no effect.

    Args:
        send: sends a tick to a partition, or to any if it is None; returns whether the tick counts. It does not raise.
        leaders: returns partition -> id of its leader, without partitions that have none.
        learn: asks the brokers for the leaders; called while none is known.
    """

    def __init__(
        self,
        send: Callable[[int | None], Awaitable[bool]],
        leaders: Callable[[], Mapping[int, int]],
        learn: Callable[[], Awaitable[None]],
    ) -> None:
        self._send = send
        self._leaders = leaders
        self._learn = learn
        self._partitions = TickPartitions()
        self._under_way: set[asyncio.Task[bool]] = set()

    async def send(self, second: int) -> bool:
        """Send the tick of a second. Returns whether a broker took one that counts."""
        leaders = self._leaders()
        if not leaders:
            await self._learn()
            leaders = self._leaders()
        probed = self._partitions.probe(leaders, monotonic())
        if probed is not None:
            self._start(probed, leaders)
        waiting: set[asyncio.Task[bool]] = set()
        choices: list[int | None] = [*self._partitions.order(second, leaders)]
        for partition in choices or [None]:
            sending = self._start(partition, leaders)
            done, waiting = await asyncio.wait(
                {*waiting, sending}, timeout=NEXT_AFTER_S, return_when=asyncio.FIRST_COMPLETED
            )
            if any(task.result() for task in done):
                return True
            if sending in waiting and partition is not None:
                self._partitions.note_silent(leaders[partition], monotonic())
        return await self._any(waiting)

    async def send_to_each_broker(self) -> bool:
        """Send a tick to one partition of each broker. Returns whether one counts; others may still be under way."""
        leaders = self._leaders()
        return await self._any({self._start(each, leaders) for each in self._partitions.order(0, leaders)})

    @staticmethod
    async def _any(waiting: set[asyncio.Task[bool]]) -> bool:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                return True
        return False

    def _start(self, partition: int | None, leaders: Mapping[int, int]) -> asyncio.Task[bool]:
        async def send() -> bool:
            counts = await self._send(partition)
            if counts and partition is not None:
                self._partitions.note_answer(leaders[partition])
            return counts

        sending = asyncio.create_task(send())
        self._under_way.add(sending)
        sending.add_done_callback(self._under_way.discard)
        return sending
