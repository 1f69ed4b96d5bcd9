"""Takes over partitions: fences their former owners, then reads progress and opens stores, with retries."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.errors import LogMismatch
from timers.store.failures import Condemnations
from timers.store.memory_limit import RocksMemory
from timers.wire.formats import RequestFormat
from timers.worker.machines.making import Parts, closer
from timers.worker.machines.opening import open_stores
from timers.worker.partition_metrics import PartitionMetrics

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

RETRY_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 10.0, 10.0)
"""Seconds between attempts if the brokers do not answer: together about as long as Faust waits for an assignment."""

THREADS = 32


class OpenMachine(NamedTuple):
    """A machine whose thread may start."""

    machine: Machine
    close: Callable[[], None]
    """Releases its store and producer."""
    stop: threading.Event
    """When set, it ends the waiting for brokers."""


class Takeover:
    """Opens machines. Methods run on the event loop; blocking calls run in threads."""

    def __init__(self, formats: dict[str, RequestFormat], memory: RocksMemory, condemnations: Condemnations) -> None:
        self._formats = formats
        self._condemnations = condemnations
        self._memory = memory
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-open")
        self._waiting: Collection[threading.Event] = ()
        self._stopped = False

    def in_thread(self, call: Callable[..., _T], *args: Any) -> Awaitable[_T]:
        """Run a blocking call."""
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def stop(self) -> None:
        """Open nothing from now on; an attempt that waits for brokers fails."""
        self._stopped = True
        for stop in self._waiting:
            stop.set()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)

    async def open(
        self, parts: Parts, tps: Sequence[TopicPartition], metrics: dict[TopicPartition, PartitionMetrics]
    ) -> dict[TopicPartition, OpenMachine | LogMismatch]:
        """Returns the machine of each partition, or why it must not run; an empty dict after :meth:`stop`.

        Raises:
            Fenced: a machine was taken over while it was opened.
            KafkaException, Lost: the brokers did not answer in all attempts.
        """
        for pause_s in (*RETRY_PAUSES_S, None):
            if self._stopped:
                break
            try:
                return await self._attempt(parts, tps, metrics)
            except (KafkaException, Lost) as error:
                if pause_s is None:
                    raise
                if self._stopped:
                    break
                logger.warning("opening %d partitions failed (%s); trying again in %.0f s", len(tps), error, pause_s)
                await asyncio.sleep(pause_s)
        return {}

    async def _attempt(
        self, parts: Parts, tps: Sequence[TopicPartition], metrics: dict[TopicPartition, PartitionMetrics]
    ) -> dict[TopicPartition, OpenMachine | LogMismatch]:
        stops = {tp: threading.Event() for tp in tps}
        self._waiting = stops.values()
        outboxes = {tp: parts.outbox(tp, stops[tp], metrics[tp]) for tp in tps}
        try:
            # Progress is final only after every former owner is fenced.
            await asyncio.gather(*(self.in_thread(outbox.open) for outbox in outboxes.values()))
            opened = await self.in_thread(
                open_stores, parts.settings, parts.cluster, self._memory, self._condemnations, self._formats, tps
            )
        except BaseException:
            for stop in stops.values():
                stop.set()
            await asyncio.gather(*(self.in_thread(outbox.close) for outbox in outboxes.values()))
            raise
        self._waiting = ()
        machines: dict[TopicPartition, OpenMachine | LogMismatch] = {}
        closers = {tp: closer(one[1], outboxes[tp]) for tp, one in opened.items() if not isinstance(one, LogMismatch)}
        try:
            for tp, one in opened.items():
                if isinstance(one, LogMismatch):
                    await self.in_thread(outboxes[tp].close)
                    machines[tp] = one
                else:
                    progress, store = one
                    machine = parts.machine(tp, self._formats[tp[0]], progress, store, outboxes[tp], metrics[tp])
                    machines[tp] = OpenMachine(machine, closers[tp], stops[tp])
        except BaseException:  # a store may be damaged
            await asyncio.gather(*map(self.in_thread, closers.values()))
            raise
        return machines
