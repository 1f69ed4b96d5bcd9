"""All machines of this worker: opened when the group deals their partitions to it, closed when another worker gets
them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from aiokafka.errors import KafkaError

from timers.core import fired
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
from timers.machines.life import (
    ON_ITS_WAY,
    RELEASING,
    TRYING,
    UNFORESEEN,
    Command,
    Event,
    ReadAhead,
    State,
    Waiting,
    kind_of,
    taken_away,
)
from timers.machines.machine_parts import Parts
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import delete_copies, stored_partitions
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.process.threads import log_failure
from timers.wire.topics import partition_name
from timers.worker.machines import id_places
from timers.worker.machines.capacity import Capacity
from timers.worker.machines.lineage_watch import LineageWatch
from timers.worker.machines.log_end_ticks import LOG_END_TIMEOUT_S, LogEndTicks
from timers.worker.machines.openings import Openings, Partition
from timers.worker.machines.recoveries import Recoveries
from timers.worker.machines.runner import Ended, OpenMachine, RequestConsumer, Runner
from timers.worker.machines.unreadable import UnreadablePartitions

logger = logging.getLogger(__name__)

STALE_TICK_S = 2.0
"""A new machine starts with the last tick, unless it is older than this. If this worker was paused, another worker may
have fired later seconds, and then an old tick would look like a clock that went back."""

HANDOVER_S = 30.0
"""How long a machine fires that the group has dealt to another worker, which fences it when it has read ahead."""

HANDOVER_POLL_S = 0.2

OWNER_TIMEOUT_S = 5.0
"""How long to wait for the coordinator's answer before asking again."""

OWNER_RETRY_S = 0.2

UNKNOWN_S = 10.0
"""How long the machines of a worker that has left fire while the group's coordinator does not answer."""

SETTLE_TIMEOUT_S = 3.0

MAX_BYTES_OF_ALL = 32 * 1024 * 1024
"""While the fetches that wait for all machines have unpacked to more, a partition is fetched only if none waits."""


class Pool:
    """Owns the machines. Methods run on the event loop, if they do not say otherwise; blocking calls run in threads.

    Args:
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
        commands: about targets, for each machine, ascending by number.
        held: partition whose newest requests an open transaction holds back -> a sentence.
        runners: machines that run. Any thread may read it: a change replaces the mapping.
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
        self.formats = formats = enabled_formats(settings)
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self.runners: Mapping[TopicPartition, Runner] = {}
        self.unreadable = UnreadablePartitions(
            settings.accept_loss, formats, lambda tp: self.runners.get(tp), self.fail
        )
        self.held: Mapping[TopicPartition, str] = {}
        self.commands: Sequence[fired.Command] = ()
        self.committed: dict[TopicPartition, int] = {}
        # How far they were written is not known before they are opened: those used last are the ones to get back.
        delete_copies(settings)
        stores = enumerate(stored_partitions(settings, formats))
        self._lives = {tp: Partition(tp, applied=age) for age, tp in stores}
        """Each partition that this worker has ever had, or has a store of."""
        self._taken_over = 0
        """How many machines were fenced by their new owners."""
        self._last_tick: Tick | None = None
        self._last_tick_at = 0.0
        self.capacity = Capacity()
        self.producers = ProducerLoop()
        self.recoveries = Recoveries(lambda: self.runners.values(), lambda: self.opening)
        compacted = {topic for topic, each in formats.items() if each.topic_is_compacted}
        lineages = LogLineages(LeaderClient(arguments(settings, "log-lineages"), log_lineage.LINEAGE_TIMEOUT_S))
        topic = settings.progress_topic

        def progress() -> list[TopicPartition]:
            return [(topic, each) for each in range(self.count(topic))]

        self._lineage_watch = LineageWatch(lineages, lambda: self.runners, compacted, progress, self.fail)
        self._log_end_ticks = LogEndTicks(
            LeaderClient(arguments(settings, "last-stable-offsets"), LOG_END_TIMEOUT_S), self._indexed
        )
        request_formats = {topic: formats[topic] for topic in formats.keys() - {settings.retry_topic}}
        request_reader = RequestReader(settings, request_formats, value_limit=self.value_limit)
        ask_log = AskLog(lineages, partial(asyncio.run_coroutine_threadsafe, loop=self._loop), compacted)
        others = Targets(settings, cluster.partitions), request_reader, self.producers, now_s, ask_log
        self.parts = Parts(settings, cluster, memory, Condemnations(), formats, *others, committed=self.committed)
        self._openings = Openings(self.capacity, lambda: self.parts)

    # ---- status: any thread -------------------------------------------------------------------------------------

    def value_limit(self, partition: TopicPartition) -> int | None:
        """The size in bytes above which no value of an open partition is accepted, at any offset; else None."""
        runner = self.runners.get(partition)
        return None if runner is None else runner.machine.largest_value_limit

    def _those(self, states: Collection[State]) -> list[Partition]:
        return [each for each in list(self._lives.values()) if each.life.state in states]

    @property
    def waiting(self) -> Mapping[TopicPartition, Waiting]:
        """Partitions of this worker whose timers wait until the cause is gone -> why.

        They are closed after a failure, and will be opened again; or open, without knowing the end of their log.
        """
        found = {each.tp: each.life.waiting for each in self._those(TRYING)}
        return {**self._log_end_ticks.waiting, **{tp: waiting for tp, waiting in found.items() if waiting is not None}}

    @property
    def stopped(self) -> Mapping[TopicPartition, LogMismatch]:
        """Partitions of this worker that must not run -> why: an operator has to decide [I8]."""
        return {each.tp: each.mismatch for each in self._those({State.STOPPED}) if each.mismatch is not None}

    @property
    def closed(self) -> Mapping[TopicPartition, str]:
        """Partitions of this worker that no query can read now -> why."""
        waiting = {tp: why.sentence for tp, why in self.waiting.items() if tp not in self.runners}
        stopped = dict.fromkeys(self.stopped, "it is stopped: see /health/ready of its worker")
        return stopped | {tp: f"its worker cannot open it now: {why}" for tp, why in waiting.items()}

    @property
    def owned(self) -> Mapping[TopicPartition, Runner]:
        """The machines that run, without those that read ahead: their partitions may have an owner that fires."""
        return {tp: runner for tp, runner in self.runners.items() if not runner.reads_ahead}

    @property
    def opening(self) -> int:
        """Number of this worker's partitions that are neither open nor stopped and do not wait after a failure."""
        return sum(each.life.waiting is None for each in self._those(ON_ITS_WAY))

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
        closed = {each.tp: each.applied for each in list(self._lives.values()) if each.applied is not None}
        return {**closed, **{tp: runner.machine.position for tp, runner in self.runners.items()}}

    @property
    def clock_is_behind(self) -> bool:
        """Whether a machine waits for the broker's clock to catch up."""
        return any(runner.machine.clock_is_behind for runner in self.runners.values())

    @property
    def tick_s(self) -> int | None:
        """Second of the last tick."""
        return None if self._last_tick is None else self._last_tick.second

    @property
    def open_circuits(self) -> int:
        """Number of callback topics that failed lately, and have taken no timer since."""
        return self.parts.targets.circuit_breaker.failing

    # ---- ownership ----------------------------------------------------------------------------------------------

    async def take(self, dealt: frozenset[TopicPartition], *, anew: bool = False) -> None:
        """Take over what the group has dealt to this worker: close machines that are not in it, and begin to open those
        that are not open yet. The others do not notice.

        Each partition is opened by itself: one that cannot be opened does not delay the others.

        Args:
            anew: whether the group had removed this worker before, so that others may have had them.
        """
        if self._ended:
            return
        before = self._begun()
        for tp in dealt:
            self._on(self._lives.setdefault(tp, Partition(tp)), Event.DEALT)
        closing = self._take_away(each for tp, each in self._lives.items() if tp not in dealt)
        # Partitions of a deleted topic wait for renew().
        self._find(lambda topic, _: topic in self.parts.cluster.topic_ids, before)
        if anew:
            for runner in self.runners.values():
                runner.commit_soon()
        await self._wait_until_released(closing)  # no other deal waits for it

    def _take_away(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Let go of what fires: each machine fires until its new owner, which reads ahead, fences it, and is closed
        after :data:`HANDOVER_S` at the latest. Begin to close the others, and return them."""
        closing = []
        for each in list(partitions):
            before = each.life.state
            recovering = each.runner is None or each.runner.machine.recovering
            self._on(each, taken_away(before, recovering=recovering))
            if each.life.state is State.CLOSING is not before:
                closing.append(each)
        return closing

    async def _wait_until_released(self, partitions: Iterable[Partition]) -> None:
        """Wait until what was told to end has released the stores."""
        for each in partitions:
            while each.life.state in RELEASING and not each.task.cancelled():
                await asyncio.wait([each.task])

    def _begun(self) -> set[TopicPartition]:
        return {each.tp for each in self._those({State.AHEAD, State.RETURNING})}

    def _find(self, exists: Callable[[str, int], bool], before: Collection[TopicPartition]) -> None:
        """Begin to open this worker's partitions that exist and are closed."""
        for each in sorted(self._those({State.DEALT}), key=lambda each: each.tp):
            if exists(*each.tp):
                self._on(each, Event.FOUND)
        if self._begun() - {*before}:
            self.recoveries.begin()

    async def hand_over(self, has_others: Callable[[], Awaitable[bool | None]]) -> None:
        """Let all machines fire until their new owners fence them, for :data:`HANDOVER_S` at most. Then :meth:`close`.

        Args:
            has_others: whether the group, which this worker has left, still has members; None: its coordinator does
                not answer. Then the machines fire for :data:`UNKNOWN_S`.
        """
        self._ended = True
        await self._wait_until_released(self._take_away(self._lives.values()))
        began_at, fired, before = monotonic(), len(self.runners), self._taken_over
        known_at = began_at
        while self.runners and monotonic() < began_at + HANDOVER_S:
            others = await has_others()
            known_at = known_at if others is None else monotonic()
            if others is False or monotonic() > known_at + UNKNOWN_S:
                break
            await asyncio.sleep(HANDOVER_POLL_S)
        if fired:
            taken, seconds = self._taken_over - before, monotonic() - began_at
            logger.info("other workers have taken over %d of %d partitions in %.2f s", taken, fired, seconds)

    async def settle(self) -> None:
        """Commit what all machines have accepted, so that their stores can be used when this worker comes back."""
        asked = [
            runner.ask(Machine.commit_progress) for runner in self.runners.values() if not runner.machine.recovering
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await asyncio.gather(*map(asyncio.wrap_future, asked), return_exceptions=True)

    async def renew(self, cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        """Handle a change of the topics: close machines whose log was deleted, open those of a new log.

        Args:
            suspended: partitions whose fetches were dropped meanwhile -> whether the position is out of range. If so,
                the machine is opened again, which finds the cause; if not, it reads on from its position.
        """
        old, before = self.parts.cluster, self._begun()
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
        doubtful = self._compare_compacted(old.compacted.keys(), cluster.compacted.keys())
        for tp, each in list(self._lives.items()):
            if tp[0] in changed or suspended.get(tp) or tp in doubtful:
                self._on(each, Event.CHANGED)
        for tp in suspended.keys() & self.runners.keys():
            self.consumer.read_from(tp, self.runners[tp].machine.position)
        self._find(self._exists, before)

    def _exists(self, topic: str, partition: int) -> bool:
        return partition < self.count(topic)

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
            for tp, why in self.stopped.items():
                if isinstance(why, DoubtfulLog):
                    self._on(self._lives[tp], Event.DEALT)
        doubtful = set()
        for (topic, partition), runner in self.runners.items():
            if topic in now and runner.machine.recovering:
                doubtful.add((topic, partition))
            elif (topic in now) != (topic in before):
                worker, is_compacted = self.parts.settings.worker_id, topic in now
                asked = runner.ask(partial(_note_compaction, worker=worker, is_compacted=is_compacted))
                asked.add_done_callback(log_failure("a machine does not know whether its topic is compacted", Ended))
        return doubtful

    async def close(self) -> None:
        """Close all machines, and open none later."""
        self._ended = True
        self.recoveries.close()
        for each in self._lives.values():
            self._on(each, Event.TAKEN)
        await self._wait_until_released(self._lives.values())
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
        runner, (topic, partition) = self.runners.get(tp), tp
        if runner is not None:
            count = self.count(topic) if topic == self.parts.settings.id_topic else 0
            if count > 1 and runner.is_recovered:  # older records may be of a topic with fewer partitions
                id_places.note(self._lives[tp].metrics, fetched.records, partition, count)
            runner.deliver(fetched)

    def command(self, commands: Sequence[fired.Command]) -> None:
        """Let all machines take these commands about targets, also those that open later."""
        self.commands = commands
        for runner in self.runners.values():
            runner.command(commands)

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        """Treat an error of the consumer with the records of one partition as a failure of its machine."""
        runner = self.runners.get(tp)
        if runner is not None:
            runner.stop()
            self.on_failed(runner, error)

    def tick(self, tick: Tick) -> None:
        """Give a tick to every machine, but close those that no new owner has fenced within :data:`HANDOVER_S`."""
        self._last_tick, self._last_tick_at = tick, monotonic()
        left = [each for each in self._those({State.LEAVING}) if each.leaves_at <= monotonic()]
        if left:
            names = ", ".join(partition_name(*tp) for tp in sorted(each.tp for each in left))
            logger.info("%s: no new owner has begun within %.0f s", names, HANDOVER_S)
            for each in left:
                self._on(each, Event.OVERDUE)
        for each in self._those({State.LEAVING}):
            if each.runner is not None:
                each.runner.commit_soon()  # else one without timers would not learn that it is fenced
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
        return runner.tp if self.runners.get(runner.tp) is runner else None

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
        if tp is None:  # it may have been fenced: the group has dealt its partition to another worker
            logger.info("%s failed after it was told to stop: %s", runner.name, error)
            return
        partition = self._lives[tp]
        if partition.life.state is State.LEAVING:
            self.consumer.forget([tp])
            if isinstance(error, Fenced):
                self._taken_over += 1
                logger.info("%s: its new owner has taken over (%s)", runner.name, error)
            else:  # opened again here, it would fence the new owner
                logger.warning("%s stopped before its new owner was ready: %s", runner.name, error)
        self._on(partition, Event.ENDED, error)
        if self._ended:
            self._on(partition, Event.CHANGED)

    # ---- the lives of its partitions: see timers/machines/life.py -----------------------------------------------

    def _on(
        self, partition: Partition, event: Event, about: Any = None, waits: tuple[float, Waiting] | None = None
    ) -> None:
        """Take in an event, and begin to do what it demands.

        Args:
            about: the machine that was opened; or the error with which one has ended, or was not opened.
            waits: for how many seconds it stays closed after a failure, and why.
        """
        life, runner, before = partition.life, partition.runner, partition.life.state
        command = life.on(event, None if waits is None else waits[1])
        partition.metrics.is_leaving = life.state is State.LEAVING
        if life.state is State.LEAVING is not before:
            partition.leaves_at = monotonic() + HANDOVER_S
        if life.state is not State.STOPPED:
            partition.mismatch = None
        match command:
            case Command.OPEN_AHEAD:
                self.partition_metrics.setdefault(partition.tp, partition.metrics)
                partition.renew()
                self._work(partition, self._open, self._openings.read_ahead)
            case Command.FENCE:
                self._work(partition, self._open, self._openings.open)
            case Command.ASK | Command.ASK_LATER:
                self._work(partition, self._ask, OWNER_RETRY_S if command is Command.ASK_LATER else 0.0)
            case Command.PAUSE if waits is not None:
                self._work(partition, self._pause, waits[0])
            case Command.JOIN | Command.CLOSE if runner is not None:
                if command is Command.CLOSE:
                    runner.stop()
                    self.consumer.forget([partition.tp])
                self._note_closed(partition, runner)
                self._work(partition, self._join, runner, about)
            case Command.CLOSE:
                partition.stop.set()
                self.consumer.forget([partition.tp])
                if before in (State.ASKING, State.WAITING):
                    partition.task.cancel()
                    self._on(partition, Event.RELEASED)
            case Command.DISCARD:
                self._work(partition, self._discard, about)
            case Command.RUN:
                self._run(partition, about)
            case Command.COMMIT if runner is not None:
                runner.commit_soon()
            case Command.LOG:
                partition.mismatch = about
                logger.critical("%s", about)
            case Command.FIND if not self._ended and self._exists(*partition.tp):
                self._on(partition, Event.FOUND)

    def _work(self, partition: Partition, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Do what ends with an event."""

        async def run() -> None:
            try:
                await work(partition, *args)
            except asyncio.CancelledError:
                raise
            except BaseException as fatal:
                if not partition.stop.is_set():
                    self.on_fatal(fatal)
                self._on(partition, Event.RELEASED)
            if partition.life.state not in ON_ITS_WAY or partition.life.waiting is not None:
                self.recoveries.check_ready()  # it may have been the last one

        partition.task = asyncio.create_task(run())

    async def _open(self, partition: Partition, opening: Callable[[Partition], Awaitable[OpenMachine | None]]) -> None:
        try:
            opened = await opening(partition)
        except Exception as error:
            if partition.stop.is_set():
                self._on(partition, Event.RELEASED)
            else:
                self._judge(partition, error)
        else:
            self._on(partition, Event.NOTHING_AHEAD if opened is None else Event.OPENED, opened)

    async def _ask(self, partition: Partition, after_s: float) -> None:
        await asyncio.sleep(after_s)
        owned = None
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(OWNER_TIMEOUT_S):
                owned = await self.consumer.owns(partition.tp)
        self._on(partition, {True: Event.OWNED, False: Event.NOT_OWNED, None: Event.UNANSWERED}[owned])

    async def _pause(self, partition: Partition, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._on(partition, Event.WAITED)

    async def _join(self, partition: Partition, runner: Runner, error: BaseException | None) -> None:
        await self._openings.join(runner)
        if isinstance(error, ReadAhead):
            logger.info("%s was read ahead: %d records", runner.name, runner.machine.replayed)
        if error is None or partition.life.state is not State.ENDING:  # a failure counts only where it is opened again
            self._on(partition, Event.RELEASED)
        else:
            self._judge(partition, error)

    async def _discard(self, partition: Partition, opened: OpenMachine) -> None:
        await self._openings.in_thread(opened.close)
        self._on(partition, Event.RELEASED)

    def _judge(self, partition: Partition, error: BaseException) -> None:
        """Report why a machine has ended, or was not opened.

        Raises:
            TimersError: ``error``, if it must end the worker.
        """
        waits = None
        if kind_of(error) is Event.FAILED:
            waits = partition.failures.judge(error)
            partition.metrics.unforeseen += waits[1].reason == UNFORESEEN
        event = kind_of(error, waits[0] if waits else 0.0)
        self._on(partition, event, error, waits if event is Event.FAILED_AGAIN else None)

    def _note_closed(self, partition: Partition, runner: Runner) -> None:
        tp = partition.tp
        partition.runner = None
        partition.renew()
        partition.applied = runner.machine.position
        self.runners = {other: each for other, each in self.runners.items() if other != tp}
        self.unreadable.forget(tp)
        self.committed[tp] = runner.machine.committed.next_offset

    def _run(self, partition: Partition, opened: OpenMachine) -> None:
        """Start the thread of a machine, and read its log on from its position."""
        tp, parts, metrics = partition.tp, self.parts, partition.metrics
        metrics.reopened += partition.life.again
        opened.machine.doubts.note(parts.settings.worker_id, is_compacted=tp[0] in parts.cluster.compacted)
        runner = Runner(tp, opened, self, self._loop.call_soon_threadsafe, metrics)
        partition.runner = runner
        runner.command(self.commands)
        self.runners = {**self.runners, tp: runner}
        self.consumer.read_from(tp, opened.machine.position)
        self.consumer.wake()
        if self._last_tick is not None and monotonic() - self._last_tick_at < STALE_TICK_S:
            runner.tick(self._last_tick)
        runner.start()

    def on_fatal(self, error: BaseException) -> None:
        """End the worker: nothing is opened any more."""
        self._ended = True
        for each in self._those(ON_ITS_WAY):
            self._on(each, Event.CHANGED)
        self._on_fatal(error)


def _note_compaction(machine: Machine, worker: str, *, is_compacted: bool) -> None:
    machine.doubts.note(worker, is_compacted=is_compacted)
