"""All machines of this worker: opened when partitions are assigned, closed when they are revoked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Protocol

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import Fenced, LogMismatch
from timers.kafka.last_stable_offsets import LastStableOffsets
from timers.kafka.request_reader import RequestReader
from timers.kafka.topics import Cluster
from timers.store.failures import Condemnations, StoreDamaged
from timers.store.memory_limit import RocksMemory
from timers.wire.formats import RequestFormat
from timers.worker.machines.making import Parts
from timers.worker.machines.recovery import Recoveries
from timers.worker.machines.runner import Runner
from timers.worker.machines.takeover import OpenMachine, Takeover
from timers.worker.partition_metrics import PartitionMetrics
from timers.worker.sending.producer_loop import ProducerLoop
from timers.worker.sending.targets import Targets

logger = logging.getLogger(__name__)

STALE_TICK_S = 2.0
"""A new machine starts with the last tick, unless it is older than this. If this worker was paused, another worker may
have fired later seconds, and then an old tick would look like a clock that went back."""

OWNER_TIMEOUT_S = 5.0
"""How long to wait for the coordinator's answer before asking again."""

OWNER_RETRY_S = 0.2

CLOSE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""


class RequestConsumer(Protocol):
    """The consumer that delivers fetches to the pool. Its methods run on the event loop."""

    def wake(self) -> None:
        """Fetch again at once, from partitions that :meth:`Pool.is_paused` does not name any more."""

    def read_again(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition again from ``offset``, soon."""

    async def owns(self, partition: TopicPartition) -> bool | None:
        """Ask the group's coordinator whether this worker owns a partition; None without an answer."""


class Pool:
    """Owns the machines. Methods run on the event loop, if they do not say otherwise; blocking calls run in threads.

    Attributes:
        formats: request topic -> request format.
        producers: the event loop of all machines' producers.
        condemnations: how many stores were condemned, by reason.
        partition_metrics: of every partition that this process has ever owned.
        closed: whether all machines are closed, and none will be opened.
    """

    _consumer: RequestConsumer
    _on_fatal: Callable[[BaseException], None]
    _log_ends: LastStableOffsets
    _loop: asyncio.AbstractEventLoop

    def __init__(self, formats: dict[str, RequestFormat], memory: RocksMemory) -> None:
        self.formats = formats
        self.producers = ProducerLoop()
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self.closed = False
        self._ending = False
        self._parts: Parts | None = None
        self.condemnations = Condemnations()
        self._takeover = Takeover(formats, memory, self.condemnations)
        self._recoveries = Recoveries()
        self._lock = asyncio.Lock()
        self._assigned: set[TopicPartition] = set()
        self._runners: dict[TopicPartition, Runner] = {}
        self._stopped: dict[TopicPartition, LogMismatch] = {}
        self._failed: list[tuple[Runner, Lost | Fenced]] = []
        self._last_tick: Tick | None = None
        self._last_tick_at = 0.0
        self._ticking_with_log_ends: asyncio.Task[None] | None = None

    def bind(
        self,
        settings: Settings,
        cluster: Cluster,
        consumer: RequestConsumer,
        on_fatal: Callable[[BaseException], None],
        now_s: Callable[[], float | None],
    ) -> None:
        """Set what is known after the brokers have answered. Call before the first :meth:`assign`.

        Args:
            settings: of the worker.
            cluster: the worker's topics.
            consumer: delivers fetches to the machines.
            on_fatal: called with an error after which the worker must end.
            now_s: the brokers' time; None if it is not known yet.
        """
        request_formats = {topic: self.formats[topic] for topic in self.formats.keys() - {settings.retry_topic}}
        targets, request_reader = Targets(settings, cluster.partitions), RequestReader(settings, request_formats)
        self._parts = Parts(settings, cluster, targets, request_reader, self.producers, now_s)
        self._consumer = consumer
        self._on_fatal = on_fatal
        self._log_ends = LastStableOffsets(settings)
        self._loop = asyncio.get_running_loop()

    @property
    def _bound(self) -> Parts:
        assert self._parts is not None, "call bind() first"
        return self._parts

    # ---- status: any thread -------------------------------------------------------------------------------------

    @property
    def runners(self) -> Mapping[TopicPartition, Runner]:
        """Open machines. A change replaces the mapping, like :attr:`stopped`."""
        return self._runners

    @property
    def stopped(self) -> Mapping[TopicPartition, LogMismatch]:
        """Machines of this worker that must not run, and why: an operator has to decide [I8]."""
        return self._stopped

    @property
    def complete(self) -> bool:
        """Whether every assigned partition has an open machine."""
        return self._assigned == self._runners.keys()

    @property
    def partitions(self) -> Mapping[str, int]:
        """Number of partitions of each of the worker's topics; empty before :meth:`bind`."""
        return {} if self._parts is None else self._parts.cluster.partitions

    @property
    def held(self) -> bool:
        """Whether a machine waits for the broker's clock to catch up."""
        return any(runner.machine.held for runner in self._runners.values())

    @property
    def open_circuits(self) -> int:
        """Number of callback topics to which nothing is sent now because they failed."""
        return 0 if self._parts is None else self._parts.targets.circuit_breaker.count

    # ---- ownership ----------------------------------------------------------------------------------------------

    async def assign(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Take over an assignment: close machines that are not in it, open those that are not open yet.

        Returns:
            Partition -> offset that its consumer must read from, without partitions that must not run.

        Raises:
            Fenced: a machine was taken over while it was opened.
        """
        assigned = set(tps)
        async with self._lock:
            await self._close(self._runners.keys() - assigned)
            self._assigned = assigned
            self._stopped = {}
            # Partitions of a deleted topic wait for renew().
            known = self._bound.cluster.topic_ids
            missing = sorted(tp for tp in assigned - self._runners.keys() if tp[0] in known)
            if missing:
                self._recoveries.begin()
                await self._open(missing)
                self._recoveries.report(lambda: self._runners.values())
            return {tp: runner.machine.position for tp, runner in self._runners.items()}

    async def _open(self, tps: list[TopicPartition]) -> None:
        metrics = {tp: self.partition_metrics.setdefault(tp, PartitionMetrics()) for tp in tps}
        for tp, opened in (await self._takeover.open(self._bound, tps, metrics)).items():
            if isinstance(opened, LogMismatch):
                self._stopped = {**self._stopped, tp: opened}
                logger.critical("%s", opened)
            else:
                self._start(tp, opened)

    def _start(self, tp: TopicPartition, opened: OpenMachine) -> None:
        name = "/".join(map(str, tp))
        runner = Runner(name, opened.machine, opened.close, opened.stop, self, self.partition_metrics[tp])
        self._runners = {**self._runners, tp: runner}
        self._consumer.wake()
        if self._last_tick is not None and monotonic() - self._last_tick_at < STALE_TICK_S:
            runner.tick(self._last_tick)
        runner.start()

    async def renew(self, cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        """Handle a change of the topics: close machines whose log was deleted, open those of a new log.

        Args:
            cluster: the topics now.
            suspended: partitions whose fetches were dropped meanwhile -> whether the position is out of range. If so,
                the machine is opened again, which finds the cause; if not, it reads on from its position.
        """
        async with self._lock:
            old = self._bound.cluster
            self._parts = replace(self._bound, cluster=cluster)
            gone = {topic for topic, topic_id in old.topic_ids.items() if cluster.topic_ids.get(topic) != topic_id}
            stale = [runner for (topic, _), runner in self._runners.items() if topic in gone]
            if stale:
                names = ", ".join(runner.name for runner in stale)
                logger.error("the topic of %s was deleted, and the timers in it", names)
            # Affects only formats that fix the number of partitions; opening them again checks the number.
            grown = {topic for topic, count in old.partitions.items() if cluster.partitions.get(topic, count) != count}
            fixed = {topic for topic, each in self.formats.items() if each.has_ids and not each.partitions_may_increase}
            changed = gone | (grown & fixed)
            await self._close(tp for tp in self._runners if tp[0] in changed or suspended.get(tp))
            for tp in suspended.keys() & self._runners.keys():
                self._consumer.read_again(tp, self._runners[tp].machine.position)
            present = {tp for tp in self._assigned if tp[1] < cluster.partitions.get(tp[0], 0)}
            await self._reopen(sorted(present - self._runners.keys() - self._stopped.keys()))

    async def revoke(self, tps: Iterable[TopicPartition] | None = None) -> None:
        """Close machines (None: all): each ends its present transaction, then releases store and producer."""
        async with self._lock:
            # Under the lock, because an assignment may have been opening machines until now.
            revoked = set(self._assigned) if tps is None else set(tps)
            self._assigned -= revoked
            self._stopped = {tp: reason for tp, reason in self._stopped.items() if tp not in revoked}
            await self._close(revoked)

    async def _close(self, tps: Iterable[TopicPartition]) -> None:
        """Close these machines if they are open. Under the lock: a new open waits for this close [I11]."""
        closing = {tp: self._runners[tp] for tp in tps if tp in self._runners}
        for runner in closing.values():
            runner.stop()
        self._runners = {tp: runner for tp, runner in self._runners.items() if tp not in closing}
        self._recoveries.forget(closing.values())
        joins = (self._takeover.in_thread(runner.join, CLOSE_TIMEOUT_S) for runner in closing.values())
        for runner, ended in zip(closing.values(), await asyncio.gather(*joins), strict=True):
            if not ended:
                logger.error("%s did not end within %d s", runner.name, CLOSE_TIMEOUT_S)

    async def _reopen(self, tps: list[TopicPartition]) -> None:
        """Open closed machines again, and read on from their positions. Under the lock."""
        if tps:
            await self._open(tps)
        for tp in tps:
            if tp in self._runners:
                self._consumer.read_again(tp, self._runners[tp].machine.position)

    async def close(self) -> None:
        """Close all machines, and open none later. The app calls it: Faust sends no revoked signal when it stops."""
        self._ending = True
        self._takeover.stop()
        self._recoveries.close()
        if self._ticking_with_log_ends is not None:
            self._ticking_with_log_ends.cancel()
        await self.revoke()
        if self._parts is not None:
            await self._takeover.in_thread(self._parts.request_reader.close)
        self.producers.close()
        self._takeover.close()
        self.closed = True

    # ---- requests and ticks -------------------------------------------------------------------------------------

    def is_paused(self, tp: TopicPartition) -> bool:
        """Whether to fetch nothing from a partition: too many fetches wait for its machine, or it is not open."""
        runner = self._runners.get(tp)
        return runner is None or runner.paused

    def deliver(self, tp: TopicPartition, fetched: Fetched) -> None:
        """Give a fetch to its machine. Without an open machine it is dropped: the next owner reads it again."""
        runner = self._runners.get(tp)
        if runner is not None:
            runner.deliver(fetched)

    def tick(self, tick: Tick) -> None:
        """Give a tick to every machine."""
        self._last_tick, self._last_tick_at = tick, monotonic()
        has_ids = False
        for (topic, _), runner in self._runners.items():
            if self.formats[topic].has_ids:
                has_ids = True
            else:
                runner.tick(tick)
        if has_ids and (self._ticking_with_log_ends is None or self._ticking_with_log_ends.done()):
            self._ticking_with_log_ends = self._loop.create_task(self._tick_with_log_ends())

    async def _tick_with_log_ends(self) -> None:
        """Give the last tick to the machines of timers with an id, with the present ends of their logs.

        One request to the brokers at a time: ticks that arrive meanwhile wait for the next one.
        """
        tick = None
        while tick != self._last_tick:
            tick = self._last_tick
            assert tick is not None
            ends = await self._log_ends.ask([each for each in self._runners if self.formats[each[0]].has_ids])
            for tp, runner in self._runners.items():
                if self.formats[tp[0]].has_ids:
                    runner.tick(tick, ends.get(tp))

    # ---- reports of runners, from their threads: timers.worker.machines.runner.Listener -----------------------------

    def on_resumed(self, runner: Runner) -> None:
        """Fetch again from a partition that was paused."""
        self._loop.call_soon_threadsafe(self._consumer.wake)

    def on_read_again(self, runner: Runner, position: int) -> None:
        """Read a partition again from the position of its machine."""
        logger.warning("%s: a fetch was dropped on the way; reading again from offset %d", runner.name, position)
        self._loop.call_soon_threadsafe(self._read_again, runner, position)

    def on_recovered(self, runner: Runner, seconds: float) -> None:
        """Log what was recovered and, once all machines fire, that the worker is ready."""
        self._loop.call_soon_threadsafe(self._report_recovered, runner, seconds)

    def on_failed(self, runner: Runner, error: BaseException) -> None:
        """Open a machine again after a failed transaction; end the worker after any other error."""
        asyncio.run_coroutine_threadsafe(self._handle_failure(runner, error), self._loop)

    # ---- reports on the event loop: a machine may have been closed meanwhile ------------------------------------

    def _partition_of(self, runner: Runner) -> TopicPartition | None:
        """The partition of an open machine; None if it was closed."""
        return next((tp for tp, each in self._runners.items() if each is runner), None)

    def _read_again(self, runner: Runner, position: int) -> None:
        tp = self._partition_of(runner)
        if tp is not None:
            self._consumer.read_again(tp, position)

    def _report_recovered(self, runner: Runner, seconds: float) -> None:
        if self._partition_of(runner) is not None:
            self._recoveries.log_recovered(runner, seconds, self._runners.values())

    async def _handle_failure(self, runner: Runner, error: BaseException) -> None:
        if self._partition_of(runner) is None and not isinstance(error, Fenced):
            logger.info("%s failed after it was told to stop: %s", runner.name, error)
            return
        try:
            if not isinstance(error, (Lost, Fenced)):
                raise error
            logger.warning("%s: %s; opening it again", runner.name, error)
            if isinstance(error, StoreDamaged):
                await asyncio.sleep(error.pause_s)  # 0 unless this store was condemned repeatedly
            self._failed.append((runner, error))
            async with self._lock:
                failed, self._failed = self._failed, []
                await self._open_failed(failed)
        except BaseException as fatal:
            self._ending = True
            self._takeover.stop()
            self._on_fatal(fatal)

    async def _open_failed(self, failed: Iterable[tuple[Runner, Lost | Fenced]]) -> None:
        """Open all failed machines again, together: if brokers do not answer, all machines fail. Under the lock.

        If a machine was fenced or this worker was paused, the machine may belong to another worker now. To open it
        would fence this new owner, so the group is asked first.
        """
        still_open: dict[TopicPartition, Lost | Fenced] = {}
        for runner, error in failed:
            tp = self._partition_of(runner)
            if tp is not None:
                still_open[tp] = error
            elif isinstance(error, Fenced):  # it fired after a rebalance gave its partition to another worker
                raise error
        await self._close(still_open)
        owned = []
        for tp, error in still_open.items():
            answer = await self._ask_owner(tp)
            if answer is None:
                return
            if answer:
                self.partition_metrics[tp].reopened += 1
                owned.append(tp)
            elif isinstance(error, Fenced):
                raise error
            # Else a rebalance is about to assign it to another worker.
        await self._reopen(sorted(owned))

    async def _ask_owner(self, tp: TopicPartition) -> bool | None:
        """Whether the group confirms that this worker owns a partition; None if the worker ends meanwhile.

        The end of the worker waits for the lock of this call, and the consumer's thread may have ended and not answer.
        """
        while not self._ending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OWNER_TIMEOUT_S):
                    owned = await self._consumer.owns(tp)
                if owned is not None:
                    return owned
            await asyncio.sleep(OWNER_RETRY_S)
        return None
