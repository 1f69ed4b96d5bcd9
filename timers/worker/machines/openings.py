"""Opens partitions, each by itself: one that cannot be opened is tried again after a pause, and delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from aiokafka.errors import KafkaError

from timers.core.timer import TopicPartition
from timers.errors import Fenced, LogMismatch
from timers.machine_parts import Parts
from timers.partition_metrics import PartitionMetrics
from timers.store.failures import Condemnations
from timers.store.memory_limit import RocksMemory
from timers.wire.formats import RequestFormat
from timers.worker.machines.capacity import Capacity
from timers.worker.machines.failures import BROKERS, Failures, Waiting
from timers.worker.machines.runner import ReadAhead, Runner
from timers.worker.machines.takeover import OpenMachine, Takeover

logger = logging.getLogger(__name__)

OWNER_TIMEOUT_S = 5.0
"""How long to wait for the coordinator's answer before asking again."""

OWNER_RETRY_S = 0.2

CLOSE_TIMEOUT_S = 20.0
"""Longer than a transaction may last."""


class Listener(Protocol):
    """Gets the results of openings. Called on the event loop."""

    def on_opened(self, tp: TopicPartition, opened: OpenMachine, again: bool) -> None:
        """Report an open machine. ``again``: its former machine in this worker had failed."""

    def on_mismatch(self, tp: TopicPartition, mismatch: LogMismatch) -> None:
        """Report that the machine of a partition must not run [I8]."""

    def on_progress(self) -> None:
        """Report that a partition is open, or waits, or is given up."""

    def on_fatal(self, error: BaseException) -> None:
        """Report an error that must end the worker."""

    async def owns(self, tp: TopicPartition) -> bool | None:
        """Ask the group whether this worker owns a partition; None without an answer."""


class _Opening:
    """One partition on its way to an open machine.

    Attributes:
        waiting: why it is closed, once an attempt has failed and the next one has to wait.
        task: the attempts.
    """

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.stopped = asyncio.Event()
        self.waiting: Waiting | None = None

    def end(self) -> None:
        """Open nothing from now on."""
        self.stop.set()
        self.stopped.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not after :meth:`end`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopped.wait()


class Openings:
    """The partitions that are being opened. Methods run on the event loop.

    Args:
        formats: request topic -> request format.
        memory: of the stores.
        condemnations: of the stores.
        capacity: of the process.
        listener: gets the results.
        metrics: returns the metrics of a partition.
    """

    def __init__(
        self,
        formats: dict[str, RequestFormat],
        memory: RocksMemory,
        condemnations: Condemnations,
        capacity: Capacity,
        listener: Listener,
        metrics: Callable[[TopicPartition], PartitionMetrics],
    ) -> None:
        self._takeover = Takeover(formats, memory, condemnations, capacity)
        self._listener = listener
        self._metrics = metrics
        self._openings: dict[TopicPartition, _Opening] = {}
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

    @property
    def unforeseen(self) -> int:
        """Number of failures of machines that no code expects."""
        return sum(failures.unforeseen for failures in list(self._failures.values()))

    # ---- openings -----------------------------------------------------------------------------------------------

    def begin(self, parts: Callable[[], Parts], tp: TopicPartition, after: asyncio.Future[Any] | None = None) -> None:
        """Open a partition that was dealt to this worker just now: its log is read ahead, then its owner is fenced.

        Args:
            parts: returns what machines share.
            tp: the partition.
            after: to wait for first: a former machine in this worker releases the store.
        """
        self._begin(tp, lambda opening: self._ahead_or_open(parts, tp, opening, after))

    def begin_again(self, parts: Callable[[], Parts], tp: TopicPartition, former: Runner, error: BaseException) -> None:
        """Open a partition again after its machine failed with ``error``."""
        self._begin(tp, lambda opening: self._after_failure(parts, tp, opening, former, error))

    def _begin(self, tp: TopicPartition, attempts: Callable[[_Opening], Awaitable[None]]) -> None:
        if self._ended:
            return
        opening = _Opening()

        async def run() -> None:
            try:
                await attempts(opening)
            except asyncio.CancelledError:
                raise
            except BaseException as fatal:
                if not opening.stop.is_set():
                    self._listener.on_fatal(fatal)
            finally:
                self._forget(tp, opening)

        self._openings[tp] = opening
        opening.task = asyncio.create_task(run())

    def _forget(self, tp: TopicPartition, opening: _Opening) -> None:
        if self._openings.get(tp) is opening:
            del self._openings[tp]
            self._listener.on_progress()

    async def _after_failure(
        self, parts: Callable[[], Parts], tp: TopicPartition, opening: _Opening, former: Runner, error: BaseException
    ) -> None:
        await self.join([former])
        if isinstance(error, ReadAhead):
            logger.info("%s was read ahead: %d records", former.name, former.machine.replayed)
            # It took a while, and a worker that was paused meanwhile may have lost the partition.
            if await self._is_owner(tp, opening):
                await self._attempts(parts, tp, opening)
            return
        if not isinstance(error, Fenced):
            await self._wait_after(tp, opening, error)
        await self._attempts(parts, tp, opening, error)

    async def _ahead_or_open(
        self, parts: Callable[[], Parts], tp: TopicPartition, opening: _Opening, after: asyncio.Future[Any] | None
    ) -> None:
        if after is not None:
            await asyncio.wait([after])
        if opening.stop.is_set():
            return
        ahead = await self._takeover.read_ahead(parts(), tp, self._metrics(tp), opening.stop)
        if ahead is None:
            await self._attempts(parts, tp, opening)
        elif opening.stop.is_set():
            await self._takeover.in_thread(ahead.close)
        else:
            self._listener.on_opened(tp, ahead, again=False)
            self._forget(tp, opening)

    async def _attempts(
        self, parts: Callable[[], Parts], tp: TopicPartition, opening: _Opening, error: BaseException | None = None
    ) -> None:
        again = error is not None
        while not opening.stop.is_set():
            if error is not None and not await self._is_owner(tp, opening):
                return
            try:
                opened = await self._takeover.open(parts(), tp, self._metrics(tp), opening.stop)
            except Fenced as fenced:
                error = fenced
                await opening.pause(OWNER_RETRY_S)
                continue
            except LogMismatch as mismatch:
                if not opening.stop.is_set():
                    self._listener.on_mismatch(tp, mismatch)
                return
            except Exception as failure:
                error = failure
                if not opening.stop.is_set():
                    await self._wait_after(tp, opening, failure)
                continue
            if opening.stop.is_set():
                await self._takeover.in_thread(opened.close)
                return
            self._listener.on_opened(tp, opened, again)
            self._forget(tp, opening)
            return

    async def _wait_after(self, tp: TopicPartition, opening: _Opening, error: BaseException) -> None:
        """Wait as long as the failures of a partition demand.

        Raises:
            TimersError: ``error``, if it must end the worker.
        """
        pause_s, waiting = self._failures.setdefault(tp, Failures("/".join(map(str, tp)))).judge(error)
        if pause_s:
            opening.waiting = waiting
            self._listener.on_progress()
            await opening.pause(pause_s)

    async def _is_owner(self, tp: TopicPartition, opening: _Opening) -> bool:
        """Wait until the group confirms that this worker owns a partition; False after the end of the opening.

        If a machine was fenced or this worker was paused, the machine may belong to another worker now. To open it
        would fence this new owner, so the group is asked first. While it rebalances, the next deal decides.
        """
        before = opening.waiting
        while not opening.stop.is_set():
            owned = None
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(OWNER_TIMEOUT_S):
                    owned = await self._listener.owns(tp)
            if owned:
                opening.waiting = before
                return True
            if owned is None:
                opening.waiting = opening.waiting or Waiting(BROKERS, "the coordinator of the group does not answer")
            await opening.pause(OWNER_RETRY_S)
        return False

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
        joins = (self._takeover.in_thread(runner.join, CLOSE_TIMEOUT_S) for runner in runners)
        for runner, ended in zip(runners, await asyncio.gather(*joins), strict=True):
            if not ended:
                logger.error("%s did not end within %d s", runner.name, CLOSE_TIMEOUT_S)

    async def in_thread(self, call: Callable[[], None]) -> None:
        """Run a blocking call."""
        await self._takeover.in_thread(call)

    def close(self) -> None:
        """End the threads."""
        self._takeover.close()
