"""All machines of this worker: opened when partitions are assigned, closed when they are revoked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import Fenced, LogMismatch
from timers.kafka.last_stable_offsets import LastStableOffsets
from timers.kafka.request_reader import RequestReader
from timers.kafka.topics import Cluster
from timers.store.memory_limit import RocksMemory
from timers.store.rocks import RocksStore
from timers.wire.formats import RequestFormat
from timers.worker.machines.making import Parts, closer
from timers.worker.machines.opening import open_stores
from timers.worker.machines.recovery import Recoveries
from timers.worker.machines.runner import Runner
from timers.worker.partition_metrics import PartitionMetrics
from timers.worker.sending.outbox import KafkaOutbox
from timers.worker.sending.producer import ProducerLoop
from timers.worker.sending.targets import Targets

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

REOPEN_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 10.0, 10.0)
"""Between tries to open machines while the brokers do not answer."""

OPEN_THREADS = 32

STALE_TICK_S = 2.0
"""A tick that came longer ago says nothing about now: this worker slept, or waited for its group. A machine that was
owned by another meanwhile would take it for a clock that went back."""

ANSWER_S = 5.0
"""The group answers at once, or is asked again."""

CLOSE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""


@dataclass(frozen=True)
class Events:
    """What the pool tells the transport and the app. Called on the event loop."""

    set_paused: Callable[[TopicPartition, bool], None]
    rewind: Callable[[TopicPartition, int], None]
    ours: Callable[[TopicPartition], Awaitable[bool | None]]
    """Whether the group says, asked now, that a partition is this worker's; None if nobody answers."""
    failed: Callable[[BaseException], None]


@dataclass(frozen=True)
class Bound(Parts):
    """What is known once the brokers have answered."""

    events: Events
    ends: LastStableOffsets
    loop: asyncio.AbstractEventLoop


class Pool:
    """Owns the machines. All methods run on the event loop; blocking work goes to threads.

    Attributes:
        formats: request topic -> how it is read.
        producers: the event loop of all machines' producers.
        partition_metrics: of every partition that this process has ever owned.
        closed: for good: there is nothing left that a rebalance could take.
    """

    def __init__(self, formats: dict[str, RequestFormat], memory: RocksMemory) -> None:
        self.formats = formats
        self._memory = memory
        self._runners: dict[TopicPartition, Runner] = {}
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self._assigned: set[TopicPartition] = set()
        self._stopped: dict[TopicPartition, LogMismatch] = {}
        self._failed: list[tuple[TopicPartition, Runner, Lost | Fenced]] = []
        self._lock = asyncio.Lock()
        self._threads = ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="timers-open")
        self.producers = ProducerLoop()
        self._bound: Bound | None = None
        self._last_tick: Tick | None = None
        self._last_tick_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._recoveries = Recoveries()
        self._ending = False
        self.closed = False
        self._opening: Collection[threading.Event] = ()

    @property
    def runners(self) -> dict[TopicPartition, Runner]:
        """Open machines. Read by any thread; replaced whole, as :attr:`stopped` is."""
        return self._runners

    @property
    def stopped(self) -> Mapping[TopicPartition, LogMismatch]:
        """Machines of this worker that must not run, and why: somebody has to decide [I8]."""
        return self._stopped

    @property
    def complete(self) -> bool:
        """Whether every assigned partition has its machine."""
        return self._assigned == self._runners.keys()

    @property
    def partitions(self) -> Mapping[str, int]:
        """Topic of ours -> how many partitions it has; empty before :meth:`bind`."""
        return {} if self._bound is None else self._bound.cluster.partitions

    @property
    def held(self) -> bool:
        """Whether a machine waits for the broker's clock to catch up."""
        return any(runner.machine.held for runner in self._runners.values())

    @property
    def open_circuits(self) -> int:
        """How many callback topics are spared now."""
        return 0 if self._bound is None else self._bound.targets.circuit_breaker.count

    def bind(self, settings: Settings, cluster: Cluster, events: Events, now_s: Callable[[], float | None]) -> None:
        """Say which cluster this is, who listens, and what the brokers' time is. Before the first :meth:`assign`."""
        targets = Targets(settings, cluster.partitions)
        request_reader = RequestReader(
            settings, {topic: self.formats[topic] for topic in self.formats.keys() - {settings.retry_topic}}
        )
        self._bound = Bound(
            settings,
            cluster,
            targets,
            request_reader,
            self.producers,
            now_s,
            events=events,
            ends=LastStableOffsets(settings),
            loop=asyncio.get_running_loop(),
        )

    @property
    def _world(self) -> Bound:
        assert self._bound is not None, "bind() comes first"
        return self._bound

    def owns(self, topic: str) -> bool:
        """Whether partitions of ``topic`` have machines."""
        return topic in self.formats

    # ---- ownership ----------------------------------------------------------------------------------------------

    async def assign(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Take over an assignment: close what is not in it, open what is not open yet.

        Returns:
            Where each machine's consumer must read from. One that must not run is missing.

        Raises:
            Fenced: a machine was taken over while it was opened.
        """
        wanted = set(tps)
        async with self._lock:
            await self._close([runner for tp, runner in self._runners.items() if tp not in wanted])
            self._assigned = wanted
            self._stopped = {}
            # One of a topic that was deleted waits for renew().
            known = self._world.cluster.topic_ids
            fresh = sorted(tp for tp in wanted - self._runners.keys() if tp[0] in known)
            if fresh:
                self._recoveries.begin()
                await self._open(fresh)
                self._recoveries.report(lambda: self._runners.values())
            return {tp: runner.machine.position for tp, runner in self._runners.items()}

    async def _open(self, fresh: list[TopicPartition]) -> None:
        """Open machines; tried again while the brokers do not answer, for as long as Faust waits for it. At the end of
        the worker none is opened any more."""
        for pause_s in (*REOPEN_PAUSES_S, None):
            if self._ending:
                return
            stops = {tp: threading.Event() for tp in fresh}
            self._opening = stops.values()
            partition_metrics = {tp: self.partition_metrics.setdefault(tp, PartitionMetrics()) for tp in fresh}
            outboxes = {tp: self._world.outbox(tp, stops[tp], partition_metrics[tp]) for tp in fresh}
            try:
                # First fence every former owner, then read: only then is the newest progress final.
                await asyncio.gather(*(self._in_thread(outbox.open) for outbox in outboxes.values()))
                opened = await self._in_thread(
                    open_stores, self._world.settings, self._world.cluster, self._memory, self.formats, fresh
                )
            except BaseException as error:
                for stop in stops.values():
                    stop.set()
                await asyncio.gather(*(self._in_thread(outbox.close) for outbox in outboxes.values()))
                if pause_s is None or not isinstance(error, (KafkaException, Lost)):
                    raise
                if self._ending:
                    return
                logger.warning("opening %d partitions failed (%s); trying again in %.0f s", len(fresh), error, pause_s)
                await asyncio.sleep(pause_s)
            else:
                self._opening = ()
                for tp, one in opened.items():
                    if isinstance(one, LogMismatch):
                        await self._in_thread(outboxes[tp].close)
                        self._stop(tp, one)
                    else:
                        self._start(tp, *one, outboxes[tp], stops[tp])
                return

    def _stop(self, tp: TopicPartition, why: LogMismatch) -> None:
        """Leave a machine closed; the others go on."""
        self._stopped = {**self._stopped, tp: why}
        self._world.events.set_paused(tp, True)
        logger.critical("%s", why)

    def _start(
        self, tp: TopicPartition, progress: Progress, store: RocksStore, outbox: KafkaOutbox, stop: threading.Event
    ) -> None:
        metrics = self.partition_metrics[tp]
        opened = self._world.machine(tp, self.formats[tp[0]], progress, store, outbox, metrics)
        name = "/".join(map(str, tp))
        runner = Runner(name, opened, closer(store, outbox), stop, _Listener(self, tp), metrics)
        self._runners = {**self._runners, tp: runner}
        self._world.events.set_paused(tp, False)
        if self._last_tick is not None and monotonic() - self._last_tick_at < STALE_TICK_S:
            runner.tick(self._last_tick)
        runner.start()

    async def renew(self, cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        """Take in what has become of our topics: machines of a log that is gone are closed, those of a new one opened.

        Args:
            cluster: the topics that are there now. suspended: machines whose fetches were dropped meanwhile; True:
            their position is not in the log, and opening
                them will say what that means. The others read on from where they stand.
        """
        async with self._lock:
            old = self._world.cluster
            self._bound = replace(self._world, cluster=cluster)
            gone = {topic for topic, topic_id in old.topic_ids.items() if cluster.topic_ids.get(topic) != topic_id}
            stale = [runner for tp, runner in self._runners.items() if tp[0] in gone]
            if stale:
                names = ", ".join(runner.name for runner in stale)
                logger.error("the topic of %s was deleted, and the timers in it", names)
            await self._close(stale)
            # Opening them says what that means where timers have ids; the others need not know.
            grown = {topic for topic, count in old.partitions.items() if cluster.partitions.get(topic, count) != count}
            grown = {topic for topic in grown if topic in self.formats and self._fixed(topic)}
            await self._close([runner for tp, runner in self._runners.items() if tp[0] in grown])
            await self._close([runner for tp, runner in self._runners.items() if suspended.get(tp)])
            for tp in suspended.keys() & self._runners.keys():
                self._world.events.rewind(tp, self._runners[tp].machine.position)
            await self._reopen(
                sorted(
                    tp
                    for tp in self._assigned - self._runners.keys() - self._stopped.keys()
                    if tp[1] < cluster.partitions.get(tp[0], 0)
                )
            )

    async def revoke(self, tps: Iterable[TopicPartition] | None = None) -> None:
        """Close machines (None: all): each ends its present transaction, then lets go of store and producer."""
        async with self._lock:
            # Looked up only now: an assignment may have been opening them until this moment.
            chosen = set(self._assigned) if tps is None else set(tps)
            self._assigned -= chosen
            self._stopped = {tp: why for tp, why in self._stopped.items() if tp not in chosen}
            await self._close([runner for tp, runner in self._runners.items() if tp in chosen])

    async def _close(self, closing: list[Runner]) -> None:
        """Under the lock: a second open waits for the first close [I11]."""
        for runner in closing:
            runner.stop()
        self._runners = {tp: runner for tp, runner in self._runners.items() if runner not in closing}
        self._recoveries.forget(closing)
        ended = await asyncio.gather(*(self._in_thread(runner.join, CLOSE_TIMEOUT_S) for runner in closing))
        for runner, done in zip(closing, ended, strict=True):
            if not done:
                logger.error("%s did not end within %d s", runner.name, CLOSE_TIMEOUT_S)

    async def _reopen(self, tps: list[TopicPartition]) -> None:
        """Open machines again that were closed, and read on from where they stand. Under the lock."""
        if tps:
            await self._open(tps)
        for tp in tps:
            if tp in self._runners:
                self._world.events.rewind(tp, self._runners[tp].machine.position)

    async def close(self) -> None:
        """Close all machines. Faust sends no revoked signal when it stops, so the app calls this."""
        self._ending = True
        for stop in self._opening:  # else this would wait for brokers that do not answer
            stop.set()
        self._recoveries.close()
        if self._asking is not None:
            self._asking.cancel()
        await self.revoke()
        if self._bound is not None:
            await self._in_thread(self._bound.request_reader.close)
        self.producers.close()
        self._threads.shutdown(wait=False)
        self.closed = True

    # ---- flow ---------------------------------------------------------------------------------------------------

    def deliver(self, tp: TopicPartition, fetched: Fetched) -> None:
        """Hand a fetch to its machine. One for a machine that is gone is dropped: its next owner reads it again."""
        runner = self._runners.get(tp)
        if runner is not None:
            runner.deliver(fetched)

    def tick(self, tick: Tick) -> None:
        """Hand the time to every machine, whichever oscillator partition it came from."""
        self._last_tick, self._last_tick_at = tick, monotonic()
        indexed = False
        for (topic, _), runner in self._runners.items():
            if self.formats[topic].has_ids:
                indexed = True
            else:
                runner.tick(tick)
        if indexed and (self._asking is None or self._asking.done()):
            self._asking = self._world.loop.create_task(self._tick_indexed())

    async def _tick_indexed(self) -> None:
        """Hand the time to the machines of timers with an id, with where each one's log ends now. One question at a
        time: ticks that come meanwhile are answered for by the next one."""
        tick = None
        while tick != self._last_tick:
            tick = self._last_tick
            assert tick is not None
            ends = await self._world.ends.ask([each for each in self._runners if self.formats[each[0]].has_ids])
            for tp, runner in self._runners.items():
                if self.formats[tp[0]].has_ids:
                    runner.tick(tick, ends.get(tp))

    # ---- what runners say, moved to the event loop ------------------------------------------------------------------

    def on_pause_changed(self, tp: TopicPartition, runner: Runner) -> None:
        """Pause or resume a partition. A machine that is gone has nothing to say about its successor."""
        if self._runners.get(tp) is runner:
            self._world.events.set_paused(tp, runner.paused)

    def on_out_of_place(self, tp: TopicPartition, position: int) -> None:
        """Read a partition again from where its machine stands."""
        logger.warning("%s/%d: a fetch was dropped on the way; reading again from offset %d", *tp, position)
        self._world.events.rewind(tp, position)

    def on_recovered(self, tp: TopicPartition, seconds: float) -> None:
        """Say what was recovered, and once all machines fire, that the worker is ready."""
        runner = self._runners.get(tp)
        if runner is not None:
            self._recoveries.say(runner, seconds, self._runners.values())

    async def on_failed(self, tp: TopicPartition, runner: Runner, error: BaseException) -> None:
        """Open a machine again whose transaction failed; anything else ends the worker.

        A machine that was fenced, or whose worker slept, may belong to somebody else by now, and opening it would fence
        them: the group says whether it is still ours.
        """
        if self._given_up(tp, runner) and not isinstance(error, Fenced):
            logger.info("%s ended after it was given up: %s", runner.name, error)
            return
        try:
            if not isinstance(error, (Lost, Fenced)):
                raise error
            logger.warning("%s: %s; opening it again", runner.name, error)
            self._failed.append((tp, runner, error))
            async with self._lock:
                failed, self._failed = self._failed, []
                await self._open_again(failed)
        except BaseException as fatal:
            self._ending = True
            self._world.events.failed(fatal)

    async def _open_again(self, failed: Iterable[tuple[TopicPartition, Runner, Lost | Fenced]]) -> None:
        """Open all machines at once that have failed by now: brokers that go away fail every one. Under the lock."""
        still: dict[TopicPartition, Lost | Fenced] = {}
        for tp, runner, error in failed:
            if not self._given_up(tp, runner):
                still[tp] = error
            elif isinstance(error, Fenced):  # a rebalance was faster, and yet it fired when another worker had it
                raise error
        await self._close([self._runners[tp] for tp in still])
        ours = []
        for tp, error in still.items():
            answer = await self._ask_for(tp)
            if answer is None:
                return
            if answer:
                self.partition_metrics[tp].reopened += 1
                ours.append(tp)
            elif isinstance(error, Fenced):
                raise error
            # Else the group is about to say who owns it.
        await self._reopen(sorted(ours))

    async def _ask_for(self, tp: TopicPartition) -> bool | None:
        """Whether a machine is still ours; None if the worker ends, which waits for the lock that is held here.

        The consumer's thread may be ending too, and then it answers nothing, not even that it cannot.
        """
        while not self._ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    ours = await self._world.events.ours(tp)
                if ours is not None:
                    return ours
            await asyncio.sleep(REOPEN_PAUSES_S[0])
        return None

    def _fixed(self, topic: str) -> bool:
        """Whether a topic must keep its number of partitions."""
        return self.formats[topic].has_ids and not self.formats[topic].partitions_may_increase

    def _given_up(self, tp: TopicPartition, runner: Runner) -> bool:
        return self._runners.get(tp) is not runner

    # ---- small ones -------------------------------------------------------------------------------------------------

    async def _in_thread(self, call: Callable[..., _T], *args: Any) -> _T:
        return await self._world.loop.run_in_executor(self._threads, call, *args)


class _Listener:
    """Moves a runner's words to the event loop."""

    def __init__(self, pool: Pool, tp: TopicPartition) -> None:
        self._pool = pool
        self._machine = tp
        self._loop = asyncio.get_running_loop()

    def on_pause_changed(self, runner: Runner) -> None:
        self._loop.call_soon_threadsafe(self._pool.on_pause_changed, self._machine, runner)

    def on_out_of_place(self, runner: Runner, position: int) -> None:
        self._loop.call_soon_threadsafe(self._pool.on_out_of_place, self._machine, position)

    def on_recovered(self, runner: Runner, seconds: float) -> None:
        self._loop.call_soon_threadsafe(self._pool.on_recovered, self._machine, seconds)

    def on_failed(self, runner: Runner, error: BaseException) -> None:
        asyncio.run_coroutine_threadsafe(self._pool.on_failed(self._machine, runner, error), self._loop)
