"""Opens partitions, each by itself: one that cannot be opened is tried again after a pause, and delays no other.

An opening reads the log ahead while the former owner of the machine fires. Then it fences this owner, reads the
progress that it has left, and opens the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from aiokafka.errors import KafkaError

from timers.core.doubts import commit_refusal
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.store_validity import StoreTooOld
from timers.core.timer import TopicPartition
from timers.errors import Fenced, LogMismatch
from timers.kafka.leaders import TIMEOUT_S
from timers.kafka.progress_rules import progress_partition
from timers.kafka.shared_answers import SharedAnswers
from timers.kafka.topic_admin import listed
from timers.kafka.topics import compacted_now
from timers.machines.firing.policy import Policy
from timers.machines.machine_parts import Parts
from timers.machines.opener import open_machine
from timers.machines.store.opening import ANSWER_S, close_store
from timers.machines.store.rocks import RocksStore
from timers.process.partition_metrics import LOG, SNAPSHOT, STORE, PartitionMetrics
from timers.wire.topics import apps_with_snapshots, partition_name
from timers.worker.machines.capacity import Capacity, NoRoom
from timers.worker.machines.failures import BROKERS, UNFORESEEN, Failures, Waiting
from timers.worker.machines.runner import OpenMachine, ReadAhead, RequestConsumer, Runner

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

OWNER_TIMEOUT_S = 5.0
"""How long to wait for the coordinator's answer before asking again."""

OWNER_RETRY_S = 0.2

CLOSE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""

THREADS = 256
"""A thread starts only when all others are busy. Each machine whose coordinator does not answer keeps one busy."""

READERS = 8
"""Number of partitions whose progress is read at a time, and whose store is opened: they share the interpreter lock."""

RESTORES = 4
"""Number of stores that are restored at a time: each has clients of librdkafka, and all share the interpreter lock."""

STOP_POLL_S = 0.2


class Opening:
    """One partition on its way to an open machine.

    Attributes:
        stop: when set, it ends the waiting for brokers.
        waiting: why it is closed, once an attempt has failed and the next one has to wait.
        task: the attempts.
    """

    task: asyncio.Task[None]

    def __init__(self, tp: TopicPartition, metrics: PartitionMetrics) -> None:
        self.tp = tp
        self.metrics = metrics
        self.stop = threading.Event()
        self._stopped = asyncio.Event()
        self.waiting: Waiting | None = None

    def end(self) -> None:
        """Open nothing from now on."""
        self.stop.set()
        self._stopped.set()

    def check(self) -> None:
        """Check that the partition is still to be opened.

        Raises:
            Lost: it is not.
        """
        if self.stop.is_set():
            raise Lost("told to stop")

    async def pause(self, seconds: float) -> None:
        """Wait, but not after :meth:`end`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()


class Owner(Protocol):
    """The worker for which partitions are opened. Its methods run on the event loop."""

    consumer: RequestConsumer
    capacity: Capacity
    parts: Parts
    partition_metrics: dict[TopicPartition, PartitionMetrics]

    def on_opened(self, tp: TopicPartition, opened: OpenMachine, again: bool) -> None:
        """A machine is open; ``again``: after it has failed."""

    def on_mismatch(self, tp: TopicPartition, mismatch: LogMismatch) -> None:
        """A machine must not run."""

    def on_fatal(self, error: BaseException) -> None:
        """The worker must end."""

    def check_ready(self) -> None:
        """An opening has ended, or waits: the others may all be ready."""


class Openings:
    """The partitions that are being opened. Methods run on the event loop; blocking calls run in threads.

    Args:
        pool: gets the machines.
    """

    def __init__(self, pool: Owner) -> None:
        self._pool = pool
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-open")
        self.reading = threading.Semaphore(READERS)
        self.restoring = threading.Semaphore(RESTORES)
        self.answers = SharedAnswers(pool.parts.settings)
        self._openings: dict[TopicPartition, Opening] = {}
        self._failures: dict[TopicPartition, Failures] = {}
        self._ended = False

    # ---- status: any thread -------------------------------------------------------------------------------------

    @property
    def partitions(self) -> set[TopicPartition]:
        """Partitions that are being opened."""
        return set(self._openings)

    @property
    def waiting(self) -> Mapping[TopicPartition, Waiting]:
        """Partitions that could not be opened and are tried again -> why."""
        found = {tp: opening.waiting for tp, opening in list(self._openings.items())}
        return {tp: waiting for tp, waiting in found.items() if waiting is not None}

    # ---- attempts -----------------------------------------------------------------------------------------------

    def begin(self, tp: TopicPartition, after: asyncio.Future[Any] | None = None) -> None:
        """Open a partition that was dealt to this worker just now: its log is read ahead, then its owner is fenced.

        Args:
            tp: the partition.
            after: to wait for first: a former machine in this worker releases the store.
        """
        self._begin(tp, lambda opening: self._ahead_or_open(opening, after))

    def begin_again(self, tp: TopicPartition, former: Runner, error: BaseException) -> None:
        """Open a partition again after its machine failed with ``error``."""
        self._begin(tp, lambda opening: self._after_failure(opening, former, error))

    def _begin(self, tp: TopicPartition, attempts: Callable[[Opening], Awaitable[None]]) -> None:
        if self._ended:
            return
        opening = Opening(tp, self._pool.partition_metrics.setdefault(tp, PartitionMetrics()))

        async def run() -> None:
            try:
                await attempts(opening)
            except asyncio.CancelledError:
                raise
            except BaseException as fatal:
                if not opening.stop.is_set():
                    self._pool.on_fatal(fatal)
            finally:
                self._forget(opening)

        self._openings[tp] = opening
        opening.task = asyncio.create_task(run())

    def _forget(self, opening: Opening) -> None:
        if self._openings.get(opening.tp) is opening:
            del self._openings[opening.tp]
            self._pool.check_ready()

    async def _after_failure(self, opening: Opening, former: Runner, error: BaseException) -> None:
        await self.join([former])
        if isinstance(error, ReadAhead):
            logger.info("%s was read ahead: %d records", former.name, former.machine.replayed)
            # It took a while, and a worker that was paused meanwhile may have lost the partition.
            if await self._is_owner(opening):
                await self._attempts(opening)
            return
        if isinstance(error, LogMismatch):  # found when its log was read again
            if not opening.stop.is_set():
                self._pool.on_mismatch(opening.tp, error)
            return
        if not isinstance(error, Fenced):
            await self._wait_after(opening, error)
        await self._attempts(opening, error)

    async def _ahead_or_open(self, opening: Opening, after: asyncio.Future[Any] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        if opening.stop.is_set():
            return
        ahead = await self.read_ahead(opening)
        if ahead is None:
            await self._attempts(opening)
        else:
            await self._report(opening, ahead, again=False)

    async def _attempts(self, opening: Opening, error: BaseException | None = None) -> None:
        again = error is not None
        while not opening.stop.is_set():
            if error is not None and not await self._is_owner(opening):
                return
            try:
                opened = await self.open(opening)
            except Fenced as fenced:
                error = fenced
                await opening.pause(OWNER_RETRY_S)
            except LogMismatch as mismatch:
                if not opening.stop.is_set():
                    self._pool.on_mismatch(opening.tp, mismatch)
                return
            except Exception as failure:
                error = failure
                if not opening.stop.is_set():
                    await self._wait_after(opening, failure)
            else:
                await self._report(opening, opened, again)
                return

    async def _report(self, opening: Opening, opened: OpenMachine, again: bool) -> None:
        if opening.stop.is_set():
            await self.in_thread(opened.close)
        else:
            self._pool.on_opened(opening.tp, opened, again)
            self._forget(opening)

    async def _wait_after(self, opening: Opening, error: BaseException) -> None:
        """Wait as long as the failures of a partition demand.

        Raises:
            TimersError: ``error``, if it must end the worker.
        """
        failures = self._failures.setdefault(opening.tp, Failures(partition_name(*opening.tp)))
        pause_s, waiting = failures.judge(error)
        opening.metrics.unforeseen += waiting.reason == UNFORESEEN
        if pause_s:
            opening.waiting = waiting
            self._pool.check_ready()
            await opening.pause(pause_s)

    async def _is_owner(self, opening: Opening) -> bool:
        """Wait until the group confirms that this worker owns a partition; False after the end of the opening.

        If a machine was fenced or this worker was paused, the machine may belong to another worker now. To open it
        would fence this new owner, so the group is asked first. While it rebalances, the next deal decides.
        """
        before = opening.waiting
        while not opening.stop.is_set():
            owned = None
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(OWNER_TIMEOUT_S):
                    owned = await self._pool.consumer.owns(opening.tp)
            if owned:
                opening.waiting = before
                return True
            if owned is None:
                opening.waiting = opening.waiting or Waiting(BROKERS, "the coordinator of the group does not answer")
            await opening.pause(OWNER_RETRY_S)
        return False

    # ---- one attempt --------------------------------------------------------------------------------------------

    async def open(self, opening: Opening) -> OpenMachine:
        """Fence the owner of a machine, and return the machine.

        Raises:
            LogMismatch: the machine must not run.
            Fenced: the machine was taken over while it was opened.
            NoRoom: the process has too many machines.
            KafkaException, Lost: a broker did not answer, or a partition has no leader.
        """
        opened = await self._open(opening, fences=True)
        assert opened is not None
        return opened

    async def read_ahead(self, opening: Opening) -> OpenMachine | None:
        """Returns a machine that has read its log as far as the present owner, which goes on firing; None if there is
        little to read.

        A store that was read ahead is one that stopped at an offset: the opening after the fence treats it like others.
        Whatever is wrong here is judged there.
        """
        try:
            return await self._open(opening, fences=False)
        except StoreTooOld as error:
            logger.info("%s: %s", partition_name(*opening.tp), error)
            return await self.read_ahead(opening)  # the store is empty now
        except Exception as error:  # also one that no code expects: the next opening meets it again
            why = "its log is judged when it is opened" if isinstance(error, LogMismatch) else error
            if not isinstance(error, NoRoom):
                logger.info("%s is not read ahead: %s", partition_name(*opening.tp), why)
            return None

    async def _open(self, opening: Opening, *, fences: bool) -> OpenMachine | None:
        return await self.in_thread(partial(self._open_now, self._pool.parts, opening, fences=fences))

    def _open_now(self, parts: Parts, opening: Opening, *, fences: bool) -> OpenMachine | None:
        """The machine of a partition; without a fence None if there is little to read ahead. Blocks."""
        opening.check()  # it may have waited for a thread while others asked brokers that do not answer
        capacity, tp, metrics = self._pool.capacity, opening.tp, opening.metrics
        capacity.enter()
        with contextlib.ExitStack() as to_release:
            to_release.callback(capacity.leave)
            producer = parts.producer(tp, opening.stop, metrics)
            outbox = parts.outbox(tp, producer, metrics)
            to_release.callback(outbox.transaction.close)
            made = open_machine(parts, _Port(self, parts, opening, outbox), tp, parts.ask_log, fences=fences)
            if made is None:
                return None
            machine, opened, is_restored = made
            to_release.callback(close_store, opened.store)
            release = to_release.pop_all().close
        found = (SNAPSHOT if is_restored else STORE) if opened.store.applied > opened.low else LOG
        if fences:  # what it was read ahead from counts, not what was read since
            metrics.opened_from, metrics.ahead_from, metrics.opened_at = metrics.ahead_from or found, "", monotonic()
        else:
            metrics.ahead_from = found
        expect = partial(parts.expect, producer, outbox)
        return OpenMachine(machine, outbox.transaction, release, opening.stop, opened.store.view, expect, not fences)

    # ---- closing ------------------------------------------------------------------------------------------------

    def end(self, tps: Iterable[TopicPartition]) -> asyncio.Future[Any]:
        """End the openings of these partitions. A new one must wait for what is returned [I11].

        They are told to stop before this returns: one whose takeover has just ended would else still report a machine.
        """
        ending = [self._openings.pop(tp) for tp in tps if tp in self._openings]
        for opening in ending:
            opening.end()
        return asyncio.gather(*(opening.task for opening in ending))

    def end_all(self) -> None:
        """Open nothing from now on; return at once."""
        self._ended = True
        for opening in list(self._openings.values()):
            opening.end()

    async def join(self, runners: Collection[Runner]) -> None:
        """Wait until runners that were told to stop have released their stores and producers."""
        joins = (self.in_thread(runner.join, CLOSE_TIMEOUT_S) for runner in runners)
        for runner, ended in zip(runners, await asyncio.gather(*joins), strict=True):
            if not ended:
                logger.error("%s did not end within %d s", runner.name, CLOSE_TIMEOUT_S)

    def in_thread(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Run a blocking call."""
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)


class _Port:
    """What an opening asks of a worker (:class:`timers.machines.opener.Port`)."""

    def __init__(self, openings: Openings, parts: Parts, opening: Opening, outbox: Policy) -> None:
        self._openings, self._parts, self._opening, self._outbox = openings, parts, opening, outbox
        self._names: Collection[str] = ()
        """Of all topics, as :meth:`check_leaders` has found them. A topic of snapshots that was made since then is
        missing. But no log is trimmed so soon after it, so a machine without progress can still read all of its log."""
        # Asked beside the next questions, so that it takes no further time.
        self._compacted = openings.answers.ask(compacted_now, parts.settings, parts.cluster, ANSWER_S)

    def check(self) -> None:
        self._opening.check()

    def check_leaders(self) -> None:
        settings, tp = self._parts.settings, self._opening.tp
        needed = [tp, (settings.progress_topic, progress_partition(tp, self._parts.cluster, settings))]
        known = self._openings.answers.ask(listed, TIMEOUT_S).result()
        missing = [partition_name(*tp) for tp in needed if tp[0] in known and tp[1] in known[tp[0]].leaderless]
        if missing:
            raise Lost(f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no leader")
        self._names = known.keys()

    def fence(self) -> None:
        self._outbox.transaction.open()

    def compacted(self) -> str | None:
        return self._compacted.result().get(self._opening.tp[0])

    def apps(self) -> Collection[str]:
        return apps_with_snapshots(self._opening.tp[0], self._names)

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
                self._opening.metrics.restoring_s += monotonic() - began

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
        if not parts.formats[self._opening.tp[0]].topic_is_compacted:
            return None
        while (now_s := parts.now_s()) is None:
            sleep(STOP_POLL_S)
            self.check()
        return now_s

    def refuse(self, progress: Progress) -> None:
        self._parts.bind(self._opening.tp, self._outbox, progress.cuts)
        commit_refusal(self._outbox, progress)

    def machine(self, progress: Progress, store: RocksStore, now_s: float | None) -> Machine:
        return self._parts.machine(self._opening.tp, progress, store, self._outbox, self._opening.metrics, now_s)
