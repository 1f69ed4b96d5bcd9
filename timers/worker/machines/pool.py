"""All machines of this worker: opened when the group deals their partitions to it, closed when another worker gets
them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import starmap
from time import monotonic
from typing import Any

from timers.core.lineage import Leader
from timers.core.machine import Machine
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import DoubtfulLog, Fenced, LogMismatch
from timers.kafka import log_lineage
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.log_lineage import AskLog, LogLineages
from timers.kafka.progress_rules import progress_partition
from timers.kafka.request_formats import enabled_formats
from timers.kafka.request_reader import RequestReader
from timers.kafka.topics import Cluster
from timers.machines.firing.topics import Targets
from timers.machines.machine_parts import Parts
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import stored_partitions
from timers.process.config.settings import Settings
from timers.process.counted import per_second
from timers.process.partition_metrics import PartitionMetrics
from timers.process.threads import log_failure
from timers.wire.topics import partition_name
from timers.worker.machines.capacity import Capacity
from timers.worker.machines.failures import Waiting
from timers.worker.machines.lineage_watch import LineageWatch
from timers.worker.machines.log_end_ticks import TIMEOUT_S, LogEndTicks
from timers.worker.machines.openings import Openings
from timers.worker.machines.runner import Ended, OpenMachine, RequestConsumer, Runner
from timers.worker.machines.unreadable import Unreadable

logger = logging.getLogger(__name__)

STALE_TICK_S = 2.0
"""A new machine starts with the last tick, unless it is older than this. If this worker was paused, another worker may
have fired later seconds, and then an old tick would look like a clock that went back."""

HANDOVER_S = 30.0
"""How long a machine fires that the group has dealt to another worker, which fences it when it has read ahead."""

HANDOVER_POLL_S = 0.2

UNKNOWN_S = 10.0
"""How long the machines of a worker that has left fire while the group's coordinator does not answer."""

SETTLE_TIMEOUT_S = 3.0

REPORT_S = 2.0
"""Seconds between two lines about machines that recover."""

MAX_BYTES_OF_ALL = 32 * 1024 * 1024
"""While the fetches that wait for all machines have unpacked to more, a partition is fetched only if none waits."""


class Pool:
    """Owns the machines. Methods run on the event loop, if they do not say otherwise; blocking calls run in threads.

    Args:
        settings: of the worker.
        cluster: the worker's topics.
        memory: of the stores.
        on_fatal: called with an error after which the worker must end.
        now_s: the brokers' time; None if it is not known yet.

    Attributes:
        consumer: delivers fetches to the machines. Set it before the first :meth:`take`.
        formats: request topic -> request format.
        capacity: how many machines fit into the process.
        producers: the event loop of all machines' producers.
        parts: what machines share. A change of the topics replaces it.
        partition_metrics: of every partition that this process has ever owned.
        committed: machine that this worker has closed -> the ``next_offset`` that it had committed.
        held: partition whose newest requests an open transaction holds back -> a sentence.
        runners: open machines. Any thread may read it and ``stopped``: a change replaces the mapping.
        stopped: machines of this worker that must not run, and why: an operator has to decide [I8].
        unreadable: open machines whose log cannot be read on.
        recoveries: logs what machines have recovered.
    """

    consumer: RequestConsumer

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        memory: RocksMemory,
        on_fatal: Callable[[BaseException], None],
        now_s: Callable[[], float | None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._ended = False
        self._dealt: frozenset[TopicPartition] = frozenset()
        self.formats = formats = enabled_formats(settings)
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self.runners: Mapping[TopicPartition, Runner] = {}
        self.stopped: Mapping[TopicPartition, LogMismatch] = {}
        self.unreadable = Unreadable(settings.accept_loss, formats, lambda tp: self.runners.get(tp), self.fail)
        self.held: Mapping[TopicPartition, str] = {}
        self.committed: dict[TopicPartition, int] = {}
        self._closing: dict[TopicPartition, asyncio.Future[Any]] = {}
        """Partition -> done when its former machine or opening has released the store: a new opening waits [I11]."""
        self._leaving: dict[TopicPartition, float] = {}
        """Machine that was let go -> when it is closed at the latest, by the monotonic clock."""
        # How far they were written is not known before they are opened: those used last are the ones to get back.
        self._closed_stores = {tp: age for age, tp in enumerate(stored_partitions(settings, formats))}
        self._last_tick: Tick | None = None
        self._last_tick_at = 0.0
        self.capacity = Capacity()
        self.producers = ProducerLoop()
        self.recoveries = Recoveries(self)
        compacted = {topic for topic, each in formats.items() if each.topic_is_compacted}
        lineages = LogLineages(LeaderClient(arguments(settings, "log-lineages"), log_lineage.TIMEOUT_S))
        topic = settings.progress_topic

        def progress() -> list[TopicPartition]:
            return [(topic, each) for each in range(self.count(topic))]

        self._lineage_watch = LineageWatch(lineages, lambda: self.runners, compacted, progress, self.fail)
        self._log_end_ticks = LogEndTicks(
            LeaderClient(arguments(settings, "last-stable-offsets"), TIMEOUT_S), self._indexed
        )
        request_formats = {topic: formats[topic] for topic in formats.keys() - {settings.retry_topic}}
        request_reader = RequestReader(settings, request_formats, value_limit=self.value_limit)
        ask_log = AskLog(lineages, partial(asyncio.run_coroutine_threadsafe, loop=self._loop), compacted)
        others = Targets(settings, cluster.partitions), request_reader, self.producers, now_s, ask_log
        self.parts = Parts(settings, cluster, memory, Condemnations(), formats, *others, committed=self.committed)
        self._openings = Openings(self)

    # ---- status: any thread -------------------------------------------------------------------------------------

    def value_limit(self, partition: TopicPartition) -> int | None:
        """The size in bytes above which no value of an open partition is accepted, at any offset; else None."""
        runner = self.runners.get(partition)
        return None if runner is None else runner.machine.value_limit

    @property
    def waiting(self) -> Mapping[TopicPartition, Waiting]:
        """Partitions of this worker whose timers wait until the cause is gone -> why.

        They are closed after a failure, and will be opened again; or open, without knowing the end of their log.
        """
        return {**self._log_end_ticks.waiting, **self._openings.waiting}

    @property
    def closed(self) -> Mapping[TopicPartition, str]:
        """Partitions of this worker that no query can read now -> why."""
        waiting = {tp: why.sentence for tp, why in self.waiting.items() if tp not in self.runners}
        stopped = dict.fromkeys(self.stopped, "it is stopped: see /health/ready of its worker")
        return stopped | {tp: f"its worker cannot open it now: {why}" for tp, why in waiting.items()}

    @property
    def opening(self) -> int:
        """Number of this worker's partitions that are neither open nor stopped and do not wait after a failure."""
        return len(self._dealt - self.runners.keys() - self.stopped.keys() - self.waiting.keys())

    def count(self, topic: str) -> int:
        """Number of partitions of a topic now; 0: it was deleted."""
        return self.parts.cluster.partitions.get(topic, 0)

    @property
    def partitions(self) -> Mapping[str, int]:
        """Number of partitions of each request topic that exists, and of the retry topic."""
        counts = self.parts.cluster.partitions
        return {topic: counts[topic] for topic in self.formats if topic in counts}

    @property
    def stores(self) -> Mapping[TopicPartition, int]:
        """Stores on this worker's disk -> offset up to which each was written. That is not known of those not opened
        since the start: then small numbers, the greatest one for the store that was used last."""
        open_ones = {tp: runner.machine.position for tp, runner in self.runners.items()}
        return {**self._closed_stores, **open_ones}

    @property
    def clock_is_behind(self) -> bool:
        """Whether a machine waits for the broker's clock to catch up."""
        return any(runner.machine.clock_is_behind for runner in self.runners.values())

    @property
    def open_circuits(self) -> int:
        """Number of callback topics that failed, and have taken no timer since."""
        return self.parts.targets.circuit_breaker.count

    # ---- ownership ----------------------------------------------------------------------------------------------

    async def take(self, dealt: frozenset[TopicPartition], *, anew: bool = False) -> None:
        """Take over what the group has dealt to this worker: close machines that are not in it, and begin to open those
        that are not open yet. The others do not notice.

        Each partition is opened by itself: one that cannot be opened does not delay the others.

        Args:
            dealt: this worker's partitions.
            anew: whether the group had removed this worker before, so that others may have had them.
        """
        if self._ended:
            return
        for tp in (dealt - self._dealt) & self.runners.keys():
            self.runners[tp].commit_soon()  # it was let go before: another worker may have fenced it meanwhile
        self._dealt = dealt
        self._leaving = {tp: at for tp, at in self._leaving.items() if tp not in dealt}
        self.stopped = {}
        closing = self._close(({*self.runners} | self._openings.partitions) - dealt - self._let_go())
        # Partitions of a deleted topic wait for renew().
        self._open_missing(lambda topic, _: topic in self.parts.cluster.topic_ids)
        if anew:
            for runner in self.runners.values():
                runner.commit_soon()
        await asyncio.wait([closing])  # no other deal waits for it

    def _let_go(self) -> set[TopicPartition]:
        """The machines that fire and are not this worker's any more: each fires until its new owner, which reads ahead,
        fences it, and is closed after :data:`HANDOVER_S` at the latest."""
        gone = {tp for tp, each in self.runners.items() if tp not in self._dealt and not each.machine.recovering}
        for tp in gone:
            self._leaving.setdefault(tp, monotonic() + HANDOVER_S)
        return gone

    async def hand_over(self, has_others: Callable[[], Awaitable[bool | None]]) -> None:
        """Let all machines fire until their new owners fence them, for :data:`HANDOVER_S` at most. Then :meth:`close`.

        Args:
            has_others: whether the group, which this worker has left, still has members; None: its coordinator does
                not answer. Then the machines fire for :data:`UNKNOWN_S`.
        """
        self._ended, self._dealt = True, frozenset()
        await asyncio.wait([self._close(({*self.runners} | self._openings.partitions) - self._let_go())])
        began_at, fired = monotonic(), {*self.runners}
        known_at = began_at
        while self.runners and monotonic() < began_at + HANDOVER_S:
            others = await has_others()
            known_at = known_at if others is None else monotonic()
            if others is False or monotonic() > known_at + UNKNOWN_S:
                break
            await asyncio.sleep(HANDOVER_POLL_S)
        if fired:
            taken, seconds = len(fired - self._leaving.keys()), monotonic() - began_at
            logger.info("other workers have taken over %d of %d partitions in %.2f s", taken, len(fired), seconds)

    async def settle(self) -> None:
        """Commit what all machines have accepted, so that their stores can be used when this worker comes back."""
        asked = [
            runner.ask(Machine.commit_progress) for runner in self.runners.values() if not runner.machine.recovering
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await asyncio.gather(*map(asyncio.wrap_future, asked), return_exceptions=True)

    def _open_missing(self, exists: Callable[[str, int], bool]) -> None:
        """Begin to open this worker's partitions that exist and are closed."""
        closed = self._dealt - self.runners.keys() - self.stopped.keys() - self._openings.partitions
        missing = sorted(tp for tp in closed if exists(*tp))
        if missing:
            self.recoveries.begin()
        for tp in missing:
            self._openings.begin(tp, self._closing.get(tp))

    async def renew(self, cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        """Handle a change of the topics: close machines whose log was deleted, open those of a new log.

        Args:
            cluster: the topics now.
            suspended: partitions whose fetches were dropped meanwhile -> whether the position is out of range. If so,
                the machine is opened again, which finds the cause; if not, it reads on from its position.
        """
        old = self.parts.cluster
        self.parts = replace(self.parts, cluster=cluster)
        self.parts.targets.learn(cluster.partitions)
        self._commit_elsewhere(old, cluster)
        gone = {topic for topic, topic_id in old.topic_ids.items() if cluster.topic_ids.get(topic) != topic_id}
        stale = [runner for (topic, _), runner in self.runners.items() if topic in gone]
        if stale:
            names = ", ".join(runner.name for runner in stale)
            logger.error("the topic of %s was deleted, and the timers in it", names)
        # Affects only formats that fix the number of partitions; opening them again checks the number.
        grown = {topic for topic, count in old.partitions.items() if cluster.partitions.get(topic, count) != count}
        fixed = {topic for topic, each in self.formats.items() if each.has_ids and not each.partitions_may_increase}
        changed = gone | (grown & fixed)
        own = {*self.runners} | self._openings.partitions
        doubtful = self._compare_compacted(old.compacted.keys(), cluster.compacted.keys())
        self._close(tp for tp in own if tp[0] in changed or suspended.get(tp) or tp in doubtful)
        for tp in suspended.keys() & self.runners.keys():
            self.consumer.read_from(tp, self.runners[tp].machine.position)
        self._open_missing(lambda topic, partition: partition < self.count(topic))

    def _commit_elsewhere(self, old: Cluster, cluster: Cluster) -> None:
        """Let all machines commit to a progress topic that was made anew, or where it has more partitions: there their
        next owners look for it."""
        topic = self.parts.settings.progress_topic
        before, now = ((each.topic_ids.get(topic), each.partitions.get(topic)) for each in (old, cluster))
        if now != before and all(now):
            for tp, runner in self.runners.items():
                runner.commit_to(progress_partition(tp, cluster, self.parts.settings))

    def _compare_compacted(self, before: Collection[str], now: Collection[str]) -> set[TopicPartition]:
        """Tell the machines of topics that are compacted now, or are not any more [I29].

        Returns:
            Those that read their log again: compaction may delete what they have not read. No store is whole then, so
            they must not be opened again without an operator.
        """
        if before != now:  # what was refused because of it is tried again
            self.stopped = {tp: why for tp, why in self.stopped.items() if not isinstance(why, DoubtfulLog)}
        doubtful = set()
        for (topic, partition), runner in self.runners.items():
            if topic in now and runner.machine.recovering:
                doubtful.add((topic, partition))
            elif (topic in now) != (topic in before):
                worker, is_compacted = self.parts.settings.worker_id, topic in now
                asked = runner.ask(partial(_note_compaction, worker=worker, is_compacted=is_compacted))
                asked.add_done_callback(log_failure("a machine does not know whether its topic is compacted", Ended))
        return doubtful

    def _close(self, tps: Iterable[TopicPartition]) -> asyncio.Future[Any]:
        """Begin to close these machines, and to end their openings: each machine ends its present transaction, then
        releases store and producer. What is returned is done then."""
        closing = {tp: self.runners.get(tp) for tp in tps}
        runners = [runner for runner in closing.values() if runner is not None]
        for runner in runners:
            runner.stop()
        self.runners = {tp: runner for tp, runner in self.runners.items() if tp not in closing}
        if closing:
            self.consumer.forget(closing.keys())
        self._note_closed({tp: each for tp, each in closing.items() if each is not None})
        released = asyncio.gather(self._openings.end(closing), self._openings.join(runners))
        self._let_openings_wait(closing, released)
        return released

    def _note_closed(self, runners: Mapping[TopicPartition, Runner]) -> None:
        for tp in runners:
            self.unreadable.forget(tp)
        self._closed_stores |= {tp: each.machine.position for tp, each in runners.items()}
        self.committed |= {tp: each.machine.committed.next_offset for tp, each in runners.items()}

    def _let_openings_wait(self, tps: Iterable[TopicPartition], released: asyncio.Future[Any]) -> None:
        """Let new openings of these partitions wait until ``released`` is done [I11]."""
        tps = list(tps)
        self._closing |= dict.fromkeys(tps, released)

        def forget(_: object) -> None:
            self._closing = {tp: each for tp, each in self._closing.items() if each is not released}

        released.add_done_callback(forget)

    async def close(self) -> None:
        """Close all machines, and open none later."""
        self._openings.end_all()
        self.recoveries.close()
        self._ended, self._dealt, self.stopped = True, frozenset(), {}
        await asyncio.wait([self._close({*self.runners} | self._openings.partitions), *self._closing.values()])
        reader_closed = self._openings.in_thread(self.parts.request_reader.close)
        try:
            await asyncio.gather(self._log_end_ticks.close(), self._lineage_watch.close(), reader_closed)
        finally:
            self.producers.close()
            self._openings.close()

    # ---- requests and ticks -------------------------------------------------------------------------------------

    def with_room(self) -> set[TopicPartition]:
        """The partitions to fetch from: open ones, for whose machines few fetches wait. While many bytes wait for all
        machines together, only those of idle machines."""
        runners = self.runners
        is_full = sum(runner.waiting_bytes for runner in runners.values()) >= MAX_BYTES_OF_ALL
        return {tp for tp, each in runners.items() if not each.paused and not (is_full and each.waiting_bytes)}

    def deliver(self, tp: TopicPartition, fetched: Fetched) -> None:
        """Give a fetch to its machine. Without an open machine it is dropped: the next owner reads it again."""
        runner = self.runners.get(tp)
        if runner is not None:
            runner.deliver(fetched)

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        """Treat an error of the consumer with the records of one partition as a failure of its machine."""
        runner = self.runners.get(tp)
        if runner is not None:
            runner.stop()
            self.on_failed(runner, error)

    def tick(self, tick: Tick) -> None:
        """Give a tick to every machine, but close those that no new owner has fenced within :data:`HANDOVER_S`."""
        self._last_tick, self._last_tick_at = tick, monotonic()
        left = {tp for tp in self._leaving.keys() & self.runners.keys() if self._leaving[tp] <= monotonic()}
        if left:
            names = ", ".join(starmap(partition_name, sorted(left)))
            logger.info("%s: no new owner has begun within %.0f s", names, HANDOVER_S)
            self._close(left)
        for tp in self.runners.keys() - self._dealt:
            self.runners[tp].commit_soon()  # else one without timers would not learn that it is fenced
        for (topic, _), runner in self.runners.items():
            if not self.formats[topic].has_ids:
                runner.tick(tick)
        self._log_end_ticks.tick(tick)

    def _indexed(self) -> dict[TopicPartition, Runner]:
        """The open machines of timers with an id."""
        return {tp: runner for tp, runner in self.runners.items() if self.formats[tp[0]].has_ids}

    # ---- reports of runners: their machines may have been closed meanwhile ---------------------------------------

    def _partition_of(self, runner: Runner) -> TopicPartition | None:
        """The partition of an open machine; None if it was closed."""
        return next((tp for tp, each in self.runners.items() if each is runner), None)

    def on_read_again(self, runner: Runner, position: int) -> None:
        """A fetch was lost: read a partition again from the position of its machine [I7]."""
        logger.warning("%s: a fetch was dropped on the way; reading again from offset %d", runner.name, position)
        tp = self._partition_of(runner)
        if tp is not None:
            self.consumer.read_from(tp, position)

    def on_new_leader(self, runner: Runner, leader: Leader) -> None:
        """Let a new leader's log be compared with the one that was read. Its fetches wait for :meth:`Runner.trust`."""
        tp = self._partition_of(runner)
        if tp is not None:
            self._lineage_watch.ask(tp, runner, leader)

    def on_end_held_back(self, runner: Runner) -> None:
        """Ask for the end of a log again: the machine's own transaction held it back [I17]."""
        tp = self._partition_of(runner)
        if tp is not None:
            self._log_end_ticks.ask_again(tp)

    def on_recovered(self, runner: Runner, seconds: float) -> None:
        """Log what was recovered in so many seconds and, once all machines fire, that the worker is ready."""
        if self._partition_of(runner) is not None:
            self.recoveries.log_recovered(runner, seconds)

    def on_failed(self, runner: Runner, error: BaseException) -> None:
        """Open a machine again, unless the group has dealt its partition to another worker."""
        tp = self._partition_of(runner)
        if tp is not None:
            self.runners = {other: each for other, each in self.runners.items() if each is not runner}
            self._note_closed({tp: runner})
            if tp not in self._dealt:
                if isinstance(error, Fenced):
                    self._leaving.pop(tp, None)
                    logger.info("%s: its new owner has taken over (%s)", runner.name, error)
                else:  # opened again here, it would fence the new owner
                    logger.warning("%s stopped before its new owner was ready: %s", runner.name, error)
                self.consumer.forget([tp])
                self._let_openings_wait([tp], asyncio.ensure_future(self._openings.join([runner])))
                return
            self._openings.begin_again(tp, runner, error)
        else:  # it may have been fenced: the group has dealt its partition to another worker
            logger.info("%s failed after it was told to stop: %s", runner.name, error)

    # ---- reports of openings ------------------------------------------------------------------------------------

    def on_opened(self, tp: TopicPartition, opened: OpenMachine, again: bool) -> None:
        """Start the thread of a machine, and read its log on from its position.

        Args:
            again: whether its former machine in this worker had failed.
        """
        metrics = self.partition_metrics[tp]
        metrics.reopened += again
        parts = self.parts
        opened.machine.doubts.note(parts.settings.worker_id, is_compacted=tp[0] in parts.cluster.compacted)
        runner = Runner(partition_name(*tp), opened, self, self._loop.call_soon_threadsafe, metrics)
        self.runners = {**self.runners, tp: runner}
        self.consumer.read_from(tp, opened.machine.position)
        self.consumer.wake()
        if self._last_tick is not None and monotonic() - self._last_tick_at < STALE_TICK_S:
            runner.tick(self._last_tick)
        runner.start()

    def check_ready(self) -> None:
        """Log that the worker is ready, if an opening that has ended, or waits, was the last one."""
        self.recoveries.check_ready()

    def on_mismatch(self, tp: TopicPartition, mismatch: LogMismatch) -> None:
        """Note why a partition must not run."""
        self.stopped = {**self.stopped, tp: mismatch}
        logger.critical("%s", mismatch)

    def on_fatal(self, error: BaseException) -> None:
        """End the worker."""
        self._openings.end_all()
        self._on_fatal(error)


def _note_compaction(machine: Machine, worker: str, *, is_compacted: bool) -> None:
    machine.doubts.note(worker, is_compacted=is_compacted)


class Recoveries:
    """Logs when each machine of a pool that was opened for an assignment fires, and when all of them do."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._began_at = monotonic()
        self._ready_logged = True
        self._reporting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Note that machines will be opened now, and log their progress until all of them fire. On the event loop."""
        self.close()
        self._began_at = monotonic()
        self._ready_logged = False
        self._reporting = asyncio.create_task(self._report())

    def log_recovered(self, runner: Runner, seconds: float) -> None:
        """Log what was recovered and, when all machines fire, that the worker is ready."""
        machine, runner.is_recovered = runner.machine, True
        logger.info(
            "recovered %s: %d pending, %d records read again in %.2f s%s",
            runner.name,
            machine.pending,
            machine.replayed,
            seconds,
            f", {per_second(machine.replayed / seconds)}" if machine.replayed and seconds else "",
        )
        self.check_ready()

    def check_ready(self) -> None:
        """Log once that the worker is ready: no partition is being opened, and all open machines fire."""
        runners = self._pool.runners.values()
        is_open = not self._ready_logged and runners and not self._pool.opening
        if is_open and all(each.is_recovered for each in runners):
            self._ready_logged = True
            logger.info(
                "ready: %d partitions, %d timers pending, %.2f s after assignment",
                len(runners),
                sum(each.machine.pending for each in runners),
                monotonic() - self._began_at,
            )

    async def _report(self) -> None:
        """Log a line regularly until no machine recovers and no partition is being opened any more."""
        last_replayed = 0
        while True:
            await asyncio.sleep(REPORT_S)
            machines, opening = [runner.machine for runner in self._pool.runners.values()], self._pool.opening
            recovering = [machine for machine in machines if machine.recovering]
            if not recovering and not opening:
                return
            replayed = sum(machine.replayed for machine in machines)
            logger.info(
                "recovering %d of %d partitions: %s records read again, %s/s, %s offsets to go",
                len(recovering) + opening,
                len(machines) + opening,
                f"{replayed:,}",
                f"{max(0, replayed - last_replayed) / REPORT_S:,.0f}",
                f"{sum(machine.left_to_replay for machine in recovering):,}",
            )
            last_replayed = replayed

    def close(self) -> None:
        """End the reports."""
        if self._reporting is not None:
            self._reporting.cancel()
