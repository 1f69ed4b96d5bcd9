"""Takes over one partition: fences its former owner, then reads its progress and opens its store."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeAlias, TypeVar

from confluent_kafka.admin import AdminClient

from timers.config.settings import Settings
from timers.core.doubts import commit_refusal
from timers.core.machine import Machine
from timers.core.ports import Lost, View
from timers.core.timer import TopicPartition
from timers.errors import DoubtfulLog, LogMismatch
from timers.firing.transaction import Transaction
from timers.kafka.clients import asking_admin
from timers.kafka.leaders import TIMEOUT_S
from timers.kafka.progress_log import progress_partition
from timers.kafka.topic_admin import Listed, listed
from timers.kafka.topics import Cluster, compacted_now
from timers.machine_parts import Parts, closer
from timers.partition_metrics import LOG, SNAPSHOT, STORE, PartitionMetrics
from timers.store.failures import Condemnations, forget_frames
from timers.store.memory_limit import RocksMemory
from timers.store.opening import ANSWER_S, Opened, open_partition
from timers.store.restoring import may_restore, restore
from timers.wire.formats import RequestFormat
from timers.wire.topics import snapshots
from timers.worker.machines.capacity import Capacity, NoRoom

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

THREADS = 256
"""A thread starts only when all others are busy. Each machine whose coordinator does not answer keeps one busy."""

READERS = 8
"""Number of partitions whose progress is read at a time: each needs a client of librdkafka with its threads."""

RESTORES = 4
"""Number of stores that are restored at a time: each has clients of librdkafka, and all share the interpreter lock."""

STOP_POLL_S = 0.2

LEAST_AHEAD = 10_000
"""Fewer records are read again in the time in which a store is opened once more, so they are not read ahead."""

AHEAD_TRIES = 3
"""How often a log is read ahead that seems to differ from its progress, which its owner changes."""

LEADERS_FRESH_S = 1.0
"""Seconds for which the openings of all partitions share one answer about leaders, or about configurations."""


_Where: TypeAlias = tuple[Settings, Cluster, RocksMemory, Condemnations, dict[str, RequestFormat], TopicPartition]


class OpenMachine(NamedTuple):
    """A machine whose thread may start."""

    machine: Machine
    transaction: Transaction
    close: Callable[[], None]
    """Releases its store and producer."""
    stop: threading.Event
    """When set, it ends the waiting for brokers."""
    view: Callable[[], View]
    """Returns a view of its store. Call it on the machine's thread."""
    reads_ahead: bool = False
    """Its owner is not fenced: it may only read its log again."""


class Takeover:
    """Opens machines. Methods run on the event loop; blocking calls run in threads."""

    def __init__(
        self,
        formats: dict[str, RequestFormat],
        memory: RocksMemory,
        condemnations: Condemnations,
        capacity: Capacity,
    ) -> None:
        self._formats = formats
        self._capacity = capacity
        self._condemnations = condemnations
        self._memory = memory
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-open")
        self._reading = asyncio.Semaphore(READERS)
        self._restoring = threading.Semaphore(RESTORES)
        self._admin: AdminClient | None = None
        self._topics: asyncio.Future[dict[str, Listed]] | None = None
        self._topics_until = 0.0
        self._compacted: asyncio.Future[dict[str, str]] | None = None
        self._compacted_until = 0.0

    def in_thread(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Run a blocking call."""
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)

    async def open(
        self, parts: Parts, tp: TopicPartition, metrics: PartitionMetrics, stop: threading.Event
    ) -> OpenMachine:
        """Returns the machine of a partition.

        Args:
            parts: shared by the machines.
            tp: the partition.
            metrics: of the partition.
            stop: when set, it ends the waiting for brokers.

        Raises:
            LogMismatch: the machine must not run.
            Fenced: the machine was taken over while it was opened.
            NoRoom: the process has too many machines.
            KafkaException, Lost: a broker did not answer, or a partition has no leader.
        """
        self._capacity.enter()
        try:
            asked = self._ask_what_is_compacted(parts)  # beside the next questions, so that it takes no further time
            topics = await self._check_leaders(parts, tp)
            machine, transaction, close, view = await self._open(parts, tp, metrics, stop, asked, topics)
        except BaseException:
            self._capacity.leave()
            raise

        return OpenMachine(machine, transaction, self._leaving(close), stop, view)

    async def read_ahead(
        self, parts: Parts, tp: TopicPartition, metrics: PartitionMetrics, stop: threading.Event
    ) -> OpenMachine | None:
        """Returns a machine that reads its log as far as its owner has, which still fires; None if this is little.

        A store that was read ahead is one that stopped at an offset: the opening after the fence treats it like others.
        Whatever is wrong here is judged there.
        """
        try:
            self._capacity.enter()
        except NoRoom:
            return None  # the opening says so, and waits
        ahead: OpenMachine | None = None
        try:
            for tries_left in reversed(range(AHEAD_TRIES)):
                try:
                    ahead = await self._read_ahead(parts, tp, metrics, stop)
                    break
                except LogMismatch:
                    # Its owner writes meanwhile, so logs and copies that are read one after another may seem to differ.
                    if not tries_left or stop.is_set():
                        raise
        except Exception as error:  # also one that no code expects: the next opening meets it again
            forget_frames(error)
            why = "its log is judged when it is opened" if isinstance(error, LogMismatch) else error
            logger.info("%s/%d is not read ahead: %s", *tp, why)
        finally:
            if ahead is None:
                self._capacity.leave()
        return ahead

    async def _read_ahead(
        self, parts: Parts, tp: TopicPartition, metrics: PartitionMetrics, stop: threading.Event
    ) -> OpenMachine | None:
        asked = self._ask_what_is_compacted(parts)
        topics = await self._check_leaders(parts, tp)
        opened = await self._read(
            parts, tp, metrics, stop, (await asyncio.shield(asked)).get(tp[0]), topics, fenced=False
        )
        outbox = parts.outbox(tp, parts.producer(tp, stop, metrics), metrics)
        close, progress = closer(opened.store, outbox), opened.progress
        machine: Machine | None = None
        try:
            if not progress.rescues and progress.next_offset - opened.store.applied > LEAST_AHEAD:
                machine = parts.machine(tp, self._formats[tp[0]], progress, opened.store, outbox, metrics)
        finally:
            if machine is None:
                await self.in_thread(close)
        if machine is None:
            return None
        metrics.ahead_from = metrics.opened_from
        view = opened.store.view
        return OpenMachine(machine, outbox.transaction, self._leaving(close), stop, view, reads_ahead=True)

    def _leaving(self, close: Callable[[], None]) -> Callable[[], None]:
        def close_and_leave() -> None:
            try:
                close()
            finally:
                self._capacity.leave()

        return close_and_leave

    async def _open(
        self,
        parts: Parts,
        tp: TopicPartition,
        metrics: PartitionMetrics,
        stop: threading.Event,
        asked: Awaitable[dict[str, str]],
        topics: Collection[str],
    ) -> tuple[Machine, Transaction, Callable[[], None], Callable[[], View]]:
        outbox, compacted = parts.outbox(tp, parts.producer(tp, stop, metrics), metrics), None
        try:
            await self.in_thread(outbox.transaction.open)
            compacted = (await asyncio.shield(asked)).get(tp[0])
            opened = await self._read(parts, tp, metrics, stop, compacted, topics, fenced=True)
            progress, store, *_ = opened
        except DoubtfulLog as doubtful:
            try:
                if compacted is not None:
                    place = progress_partition(tp, parts.cluster, parts.settings)
                    outbox.transaction.bind(parts.cluster.topic_ids[tp[0]], place, doubtful.progress.cuts)
                    await self.in_thread(commit_refusal, outbox, doubtful.progress)
            finally:
                await self.in_thread(outbox.transaction.close)
            raise
        except BaseException:
            await self.in_thread(outbox.transaction.close)
            raise
        close = closer(store, outbox)
        try:
            machine = parts.machine(tp, self._formats[tp[0]], progress, store, outbox, metrics)
        except BaseException as error:  # the store may be damaged
            forget_frames(error)
            await self.in_thread(close)
            raise
        metrics.opened_at = monotonic()
        return machine, outbox.transaction, close, store.view

    async def _read(
        self,
        parts: Parts,
        tp: TopicPartition,
        metrics: PartitionMetrics,
        stop: threading.Event,
        compacted: str | None,
        topics: Collection[str],
        *,
        fenced: bool,
    ) -> Opened:
        """Returns the progress and the store of a partition, which is restored if that takes less time than to read."""
        where = parts.settings, parts.cluster, self._memory, self._condemnations, self._formats, tp
        async with self._reading:
            if stop.is_set():
                raise Lost("told to stop")
            read = partial(open_partition, *where, parts.ask_log, compacted, after_fence=fenced)
            opened = await self.in_thread(read)
        metrics.opened_from = STORE if opened.store.applied > opened.low else LOG
        others = [name for name in topics if name.endswith(snapshots("", tp[0]))]
        if (fenced or not opened.is_new) and may_restore(opened, others):
            opened = await self.in_thread(self._restore, where, opened, others, parts.now_s, stop, metrics)
            metrics.opened_from = SNAPSHOT if opened.store.applied > opened.low else LOG
        if fenced and metrics.ahead_from:  # what it was read ahead from counts, not what was read since
            metrics.opened_from, metrics.ahead_from = metrics.ahead_from, ""
        return opened

    def _restore(
        self,
        where: _Where,
        opened: Opened,
        others: Collection[str],
        now_s: Callable[[], float | None],
        stop: threading.Event,
        metrics: PartitionMetrics,
    ) -> Opened:
        """Restore a store, outside of the places of those whose progress is read: it may take long."""

        def check() -> None:
            if stop.is_set():
                raise Lost("told to stop")

        request_format = where[-2][where[-1][0]]
        try:
            while request_format.topic_is_compacted and now_s() is None:
                sleep(STOP_POLL_S)  # the first tick says how old a snapshot is
                check()
            while not self._restoring.acquire(timeout=STOP_POLL_S):
                check()
        except Lost:
            opened.store.close()
            raise
        began = monotonic()
        try:
            return restore(*where, opened, check, others, now_s)
        finally:
            metrics.restoring_s += monotonic() - began
            self._restoring.release()

    async def _check_leaders(self, parts: Parts, tp: TopicPartition) -> Collection[str]:
        """Returns the names of all topics.

        Raises:
            Lost: a log of the machine has no leader: every further step would wait for it.
        """
        progress_topic = parts.settings.progress_topic
        needed = [tp, (progress_topic, progress_partition(tp, parts.cluster, parts.settings))]
        known = await asyncio.shield(self._ask_for_topics(parts))
        missing = [
            f"{topic}/{partition}"
            for topic, partition in needed
            if topic in known and partition in known[topic].leaderless
        ]
        if missing:
            raise Lost(f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no leader")
        return known.keys()

    def _ask_what_is_compacted(self, parts: Parts) -> Awaitable[dict[str, str]]:
        if self._compacted is None or (self._compacted.done() and monotonic() > self._compacted_until):
            self._admin = self._admin or asking_admin(parts.settings)
            self._compacted = self.in_thread(compacted_now, self._admin, parts.settings, parts.cluster, ANSWER_S)
            self._compacted_until = monotonic() + LEADERS_FRESH_S
        return self._compacted

    def _ask_for_topics(self, parts: Parts) -> Awaitable[dict[str, Listed]]:
        if self._topics is None or (self._topics.done() and monotonic() > self._topics_until):
            self._admin = self._admin or asking_admin(parts.settings)
            self._topics = self.in_thread(listed, self._admin, TIMEOUT_S)
            self._topics_until = monotonic() + LEADERS_FRESH_S
        return self._topics
