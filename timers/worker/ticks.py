"""The ticks of a worker: how they are read, judged and written; and the Faust agents, which pass them to the machines.

Every worker reads the whole oscillator topic itself, outside the group. So the topic's partitions need not match those
of the request topics, and every worker gets every tick. Only the newest tick matters: reading starts at the end and
commits nothing. The machines decide what fires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from time import monotonic
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException
from mode import Service

from timers.core.clock_guard import ClockGuard, HeldTicks
from timers.core.keys import NOTHING_FIRED
from timers.core.ticking import TICK_TIMEOUT_S, TICK_VALUE, Phase, TickPartitions
from timers.core.timer import Tick
from timers.errors import TimersError
from timers.kafka import aiokafka_clients
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.leader_client import limit_updates
from timers.kafka.aiokafka_internals.metadata import start_patiently
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.periodic import every
from timers.wire.formats import LOG_APPEND_TIME
from timers.worker.machines.pool import Pool
from timers.worker.machines.runner import Runner

logger = logging.getLogger(__name__)

ABSENT_POLL_S = 0.5
RETRY_S = 0.5
POLL_MS = 1000
SEEK_S = 2.0

MAX_VALUE_BYTES = 4096
"""Ticks have no value, and that of a canary timer is short. Of a longer one, only the first bytes are read."""

NEW_LEADER_S = 2.0
"""For this many seconds after a change of a partition's leader, its records may be those of the former leader."""

FIRED_S = 2.0
"""Seconds between two reads of what the app has fired, while ticks are held after the start."""

MAX_TICK_SILENCE_S = 2.0
"""After this long without a counted tick, an error is logged and the worker's topics are looked up."""

NEXT_AFTER_S = 0.5
"""Without an acknowledgement within this time, the tick also goes to a partition of another broker."""

RETRY_PAUSE_S = 0.2

AHEAD_S = 0.15
"""Seconds before a tick at which leaders are asked whether they answer: transactions that follow the tick use it."""


class TopicFollower(Service):
    """Passes the records of a topic to :meth:`handle`.

    Args:
        partitions: returns how many partitions the topic has now; 0: it was deleted.
        client: end of the Kafka client id, after the worker's id.
    """

    def __init__(
        self, settings: Settings, topic: str, partitions: Callable[[], int], client: str, isolation: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._topic = topic
        self._partitions = partitions
        self._client = client
        self._isolation = isolation
        self._leaders: dict[TopicPartition, tuple[int | None, float]] = {}

    def broker_of(self, partition: TopicPartition) -> int | None:
        """Id of the broker that appended the records of the last poll; None if it is not known."""
        leader, since = self._leaders.get(partition, (None, -inf))
        return leader if monotonic() - since > NEW_LEADER_S else None

    @abstractmethod
    async def handle(self, records: dict[TopicPartition, list[Any]]) -> None:
        """Handle the records of a poll; there may be none."""

    @Service.task
    async def _read(self) -> None:
        fetch.install()
        failed = ""
        while not self.should_stop:
            count = self._partitions()
            if not count:  # aiokafka would ask for an absent topic without a pause
                await self.sleep(ABSENT_POLL_S)
                continue
            consumer = AIOKafkaConsumer(
                **aiokafka_clients.arguments(self._settings, self._client),
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                fetch_max_wait_ms=POLL_MS,
                isolation_level=self._isolation,
                # Otherwise aiokafka fails at a header whose name is not UTF-8. No record of such a topic must be read.
                key_deserializer=fetch.InPieces(lambda tp: MAX_VALUE_BYTES, on_unreadable=lambda tp, batch: True),
            )
            try:
                limit_updates(fetch.client_of(consumer))
                if not await start_patiently(consumer.start, f"the reader of {self._topic}", lambda: self.should_stop):
                    continue
                partitions = [TopicPartition(self._topic, partition) for partition in range(count)]
                consumer.assign(partitions)
                # A partition without a leader begins at its end as soon as it has one. The others do not wait for it.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(consumer.seek_to_end(*partitions), SEEK_S)
                while not self.should_stop and self._partitions() == count:
                    records = await consumer.getmany(timeout_ms=POLL_MS)
                    for partition in partitions:
                        leader = fetch.leader_of(consumer, partition)
                        known, _ = self._leaders.setdefault(partition, (leader, -inf))
                        if leader != known:
                            self._leaders[partition] = (leader, monotonic())
                    await self.handle(records)
                    failed = ""
            except KafkaError as error:
                if repr(error) != failed:  # such as a missing right, for as long as it is missing
                    logger.warning("reading %s failed (%r); trying until it succeeds", self._topic, error)
                failed = repr(error)
                await self.sleep(RETRY_S)
            except Exception:  # of a record that no code expects
                logger.exception("reading %s failed; trying again from its end", self._topic)
                await self.sleep(RETRY_S)
            finally:
                await fetch.stop(consumer)


# ---- reading ---------------------------------------------------------------------------------------------------------


class TickJudge:
    """Judges all ticks of a worker: those that it reads, and the delivery reports of its own. One event loop.

    Args:
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
    def holds(self) -> list[HeldTicks]:
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
        fired_s = [key[0] for key in fired if key != NOTHING_FIRED]
        if self.newest_fired_s is not None:
            fired_s.append(self.newest_fired_s)
        return None if self.app_is_new and not fired_s else fired_s

    def _log(self, held: Mapping[int | None, HeldTicks]) -> None:
        for broker in held.keys() - self._logged:
            logger.error("%s", held[broker].sentence)
        for broker in self._logged - held.keys():
            logger.info("no tick of broker %s is held any more", broker)
        self._logged = set(held)


class TickReader(TopicFollower):
    """Passes each new tick that counts to ``deliver``, and calls ``on_silence`` when none arrives.

    Args:
        partitions: returns how many the topic has now.
        on_silence: called when no tick was counted for :data:`MAX_TICK_SILENCE_S`.
        read_newest_fired: reads the newest second that has fired in the app. Blocks.
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
        async for _ in every(MAX_TICK_SILENCE_S / 2, self):
            if self.age_s > MAX_TICK_SILENCE_S and not self._silent:
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


# ---- writing ---------------------------------------------------------------------------------------------------------


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


# ---- agents ----------------------------------------------------------------------------------------------------------


async def wait_until(deadline_s: float) -> None:
    """Sleep until a monotonic time."""
    delay_s = deadline_s - monotonic()
    if delay_s > 0:
        await asyncio.sleep(delay_s)


class TickScheduler(Service):
    """Wakes the oscillator agent just after the start of each of the broker's seconds.

    Args:
        due_ticks: channel to the oscillator agent.
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
