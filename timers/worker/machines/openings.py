"""Opens and closes the machines of a worker in threads, each by itself: one that cannot be opened delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar

from timers.core.doubts import commit_refusal
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.store_validity import StoreTooOld
from timers.core.timer import TopicPartition
from timers.errors import LogMismatch
from timers.kafka.leaders import LEADERS_TIMEOUT_S
from timers.kafka.progress_rules import progress_partition
from timers.kafka.shared_answers import SharedAnswers
from timers.kafka.topic_admin import listed
from timers.kafka.topics import compacted_now
from timers.machines.firing.policy import Policy
from timers.machines.life import Life
from timers.machines.machine_parts import Parts
from timers.machines.opener import open_machine
from timers.machines.store.opening import OPENING_ANSWER_S, close_store
from timers.machines.store.rocks import RocksStore
from timers.process.partition_metrics import FROM_LOG, FROM_SNAPSHOT, FROM_STORE, PartitionMetrics
from timers.wire.topics import apps_with_snapshots, partition_name
from timers.worker.machines.capacity import Capacity, NoRoom
from timers.worker.machines.failures import Failures
from timers.worker.machines.runner import OpenMachine, Runner

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

CLOSE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""

THREADS = 256
"""A thread starts only when all others are busy. Each machine whose coordinator does not answer keeps one busy."""

READERS = 8
"""Number of partitions whose progress is read at a time, and whose store is opened: they share the interpreter lock."""

RESTORES = 4
"""Number of stores that are restored at a time: each has clients of librdkafka, and all share the interpreter lock."""

STOP_POLL_S = 0.2


class Partition:
    """A partition in this worker: its life, and what is under way.

    Attributes:
        stop: when set, it ends the waiting for brokers; each opening has another one.
        task: what will report, if no machine runs.
        runner: its machine, while it runs.
        applied: offset up to which its store was written when it was closed last; None: there is no store.
        mismatch: why it is stopped.
        leaves_at: when it is closed at the latest, by the monotonic clock, if it is leaving.
    """

    task: asyncio.Task[None]

    def __init__(self, tp: TopicPartition, applied: int | None = None) -> None:
        self.tp, self.applied = tp, applied
        self.life, self.metrics = Life(), PartitionMetrics()
        self.failures = Failures(partition_name(*tp))
        self.runner: Runner | None = None
        self.mismatch: LogMismatch | None = None
        self.leaves_at = 0.0
        self.renew()

    def renew(self) -> None:
        """Begin anew, after what was told to end has ended."""
        self.stop = threading.Event()

    def check(self) -> None:
        """Check that the partition is still to be opened.

        Raises:
            Lost: it is not.
        """
        if self.stop.is_set():
            raise Lost("told to stop")


class Openings:
    """Opens and closes machines. Methods run on the event loop; blocking calls run in threads.

    Args:
        capacity: admits them.
        parts: returns what they share.
    """

    def __init__(self, capacity: Capacity, parts: Callable[[], Parts]) -> None:
        self._capacity, self._parts = capacity, parts
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-open")
        self.reading = threading.Semaphore(READERS)
        self.restoring = threading.Semaphore(RESTORES)
        self.answers = SharedAnswers(parts().settings)

    # ---- opening --------------------------------------------------------------------------------------------

    def open(self, partition: Partition, *, fences: bool = True) -> Awaitable[OpenMachine | None]:
        """Returns the machine of a partition, after its owner was fenced; else None if there is little to read ahead.

        Raises:
            LogMismatch: the machine must not run.
            Fenced: the machine was taken over while it was opened.
            NoRoom: the process has too many machines.
            KafkaException, Lost: a broker did not answer, or a partition has no leader.
        """
        return self.in_thread(partial(self._open, self._parts(), partition, fences=fences))

    async def read_ahead(self, partition: Partition) -> OpenMachine | None:
        """Returns a machine that has read its log as far as the present owner, which goes on firing; None if there is
        little to read.

        A store that was read ahead is one that stopped at an offset: the opening after the fence treats it like others.
        Whatever is wrong here is judged there.
        """
        try:
            return await self.open(partition, fences=False)
        except StoreTooOld as error:
            logger.info("%s: %s", partition_name(*partition.tp), error)
            return await self.read_ahead(partition)  # the store is empty now
        except Exception as error:  # also one that no code expects: the next opening meets it again
            why = "its log is judged when it is opened" if isinstance(error, LogMismatch) else error
            if not isinstance(error, NoRoom):
                logger.info("%s is not read ahead: %s", partition_name(*partition.tp), why)
            return None

    def _open(self, parts: Parts, partition: Partition, *, fences: bool) -> OpenMachine | None:
        partition.check()  # it may have waited for a thread while others asked brokers that do not answer
        capacity, tp, metrics = self._capacity, partition.tp, partition.metrics
        capacity.enter()
        with contextlib.ExitStack() as to_release:
            to_release.callback(capacity.leave)
            producer = parts.producer(tp, partition.stop, metrics)
            outbox = parts.outbox(tp, producer, metrics)
            to_release.callback(outbox.transaction.close)
            made = open_machine(parts, _Port(self, parts, partition, outbox), tp, parts.ask_log, fences=fences)
            if made is None:
                return None
            machine, opened, is_restored = made
            to_release.callback(close_store, opened.store)
            release = to_release.pop_all().close
        found = (FROM_SNAPSHOT if is_restored else FROM_STORE) if opened.store.applied > opened.low else FROM_LOG
        # The metric names what the reading ahead began with (store, snapshot or log), not the store that it has left.
        if fences:
            metrics.opened_from, metrics.ahead_from, metrics.opened_at = metrics.ahead_from or found, "", monotonic()
        else:
            metrics.ahead_from = found
        expect = partial(parts.expect, producer, outbox)
        return OpenMachine(machine, outbox.transaction, release, partition.stop, opened.store.view, expect, not fences)

    # ---- closing ------------------------------------------------------------------------------------------------

    async def join(self, runner: Runner) -> None:
        """Wait until a runner that was told to stop has released its store and producer."""
        if not await self.in_thread(runner.join, CLOSE_TIMEOUT_S):
            logger.error("%s did not end within %d s", runner.name, CLOSE_TIMEOUT_S)

    def in_thread(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Run a blocking call."""
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)


class _Port:
    """What an opening asks of a worker (:class:`timers.machines.opener.Port`)."""

    def __init__(self, openings: Openings, parts: Parts, partition: Partition, outbox: Policy) -> None:
        self._openings, self._parts, self._partition, self._outbox = openings, parts, partition, outbox
        self._names: Collection[str] = ()
        """Of all topics, as :meth:`check_leaders` has found them. A topic of snapshots that was made since then is
        missing. But no log is trimmed so soon after it, so a machine without progress can still read all of its log."""
        # Asked beside the next questions, so that it takes no further time.
        self._compacted = openings.answers.ask(compacted_now, parts.settings, parts.cluster, OPENING_ANSWER_S)

    def check(self) -> None:
        self._partition.check()

    def check_leaders(self) -> None:
        settings, tp = self._parts.settings, self._partition.tp
        needed = [tp, (settings.progress_topic, progress_partition(tp, self._parts.cluster, settings))]
        known = self._openings.answers.ask(listed, LEADERS_TIMEOUT_S).result()
        missing = [partition_name(*tp) for tp in needed if tp[0] in known and tp[1] in known[tp[0]].leaderless]
        if missing:
            raise Lost(f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no leader")
        self._names = known.keys()

    def fence(self) -> None:
        self._outbox.transaction.open()

    def compacted(self) -> str | None:
        return self._compacted.result().get(self._partition.tp[0])

    def apps(self) -> Collection[str]:
        return apps_with_snapshots(self._partition.tp[0], self._names)

    def reading(self) -> AbstractContextManager[object]:
        return self._place(self._openings.reading)

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """Outside of the places of those whose progress is read: it may take long."""
        self.now_s()
        with self._place(self._openings.restoring):
            began = monotonic()
            try:
                yield
            finally:
                self._partition.metrics.restoring_s += monotonic() - began

    @contextlib.contextmanager
    def _place(self, places: threading.Semaphore) -> Iterator[None]:
        while not places.acquire(timeout=STOP_POLL_S):
            self.check()
        try:
            yield
        finally:
            places.release()

    def now_s(self) -> float | None:
        """Waits until it is known."""
        parts = self._parts
        if not parts.formats[self._partition.tp[0]].topic_is_compacted:
            return None
        while (now_s := parts.now_s()) is None:
            sleep(STOP_POLL_S)
            self.check()
        return now_s

    def refuse(self, progress: Progress) -> None:
        self._parts.bind(self._partition.tp, self._outbox, progress.cuts)
        commit_refusal(self._outbox, progress)

    def machine(self, progress: Progress, store: RocksStore, now_s: float | None) -> Machine:
        return self._parts.machine(self._partition.tp, progress, store, self._outbox, self._partition.metrics, now_s)
