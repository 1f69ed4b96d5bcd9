"""The outboxes of one Python worker of Spark: they send what the machines of a bucket fire.

Spark may run a bucket in another process in each micro-batch, and may run it again. So each attempt opens the producer
of a partition anew, which fences all others [I12]. The state of the bucket names the opening that made its last commit.
If the present opening is the next one, the bucket knows the committed progress. If not (Spark has repeated a task, a
lost executor still runs, workers ran in between), the progress is read again: fence first, then read [I14].
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import ClassVar

from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.core import levels
from timers.core.ports import Lost, TooMuch
from timers.core.progress import LOG_CUT, Progress
from timers.core.reopening import AFTER_LOST, Reopening
from timers.errors import CheckpointMismatch, NameTakenError
from timers.firing.breaker import OpenCircuit
from timers.firing.policy import Policy, policy_of
from timers.firing.producer import TransactionalProducer
from timers.firing.topics import Targets
from timers.kafka.producer_loop import ProducerLoop
from timers.kafka.progress_log import ProgressLog, progress_partition
from timers.kafka.request_reader import RequestReader
from timers.kafka.topics import Cluster
from timers.partition_metrics import PartitionMetrics
from timers.request_formats import enabled_formats
from timers.spark.engine.machines import Failing, Known, Opened, Producer
from timers.wire import progress as progress_record

logger = logging.getLogger(__name__)

THREADS = 64
"""Partitions of a process that wait for brokers at the same time."""

ANSWER_S = 5.0
"""How long one attempt to read progress waits for an answer of a broker."""


@dataclass(frozen=True)
class Places:
    """What all executors must know of the query's topics."""

    settings: Settings
    cluster: Cluster
    run: int
    """Number of this run of the engine."""
    starts: tuple[tuple[int, int], ...] = ()
    """(partition, first offset that the query reads); 0 for others."""
    cuts: tuple[tuple[int, int], ...] = ()
    """(partition, number of the last cut of its log), as the driver knows them; 0 for others."""
    first_level: int = levels.FIRST
    """Feature level of new machines: the first step of the engine has decoded their requests at this level."""


class Outboxes:
    """Implements :class:`timers.spark.engine.machines.Partitions`; one instance for each process."""

    _present: ClassVar[tuple[Places, Outboxes] | None] = None

    def __init__(self, places: Places) -> None:
        self._settings = settings = places.settings
        self._cluster = places.cluster
        self._run = places.run
        self._starts = dict(places.starts)
        self._cuts = dict(places.cuts)
        self._new = Progress.first(places.first_level)
        self._targets = Targets(settings, places.cluster.partitions)
        self._request_reader = RequestReader(settings, enabled_formats(settings))
        self._loop = ProducerLoop()  # after what can fail: nothing would end its thread
        self._compute_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-machine")
        self._producers: dict[int, TransactionalProducer] = {}
        self._outboxes: dict[int, Policy] = {}
        self._metrics: dict[int, PartitionMetrics] = {}
        self._reopening: dict[int, Reopening] = {}
        self._adopted: dict[str, OpenCircuit] = {}
        self.had_others = False

    @classmethod
    def of(cls, places: Places) -> Outboxes:
        """The instance of this process. A query with other places closes that of the one before."""
        if cls._present is None or cls._present[0] != places:
            if cls._present is not None:
                cls._present[1].close()
            cls._present = places, cls(places)
        return cls._present[1]

    def close(self) -> None:
        """Close all connections."""
        for producer in self._producers.values():
            producer.close()
        self._request_reader.close()
        self._threads.shutdown()
        self._loop.close()

    # ---- timers.spark.engine.machines.Partitions --------------------------------------------------------------------

    def adopt(self, circuits: list[OpenCircuit]) -> None:
        self.had_others = False
        self._adopted = {circuit.topic: circuit for circuit in circuits}
        self._targets.adopt(circuits)

    def failing(self) -> Failing:
        now = {circuit.topic: circuit for circuit in self._targets.circuit_breaker.circuits()}
        known = {topic: circuit.failures for topic, circuit in self._adopted.items()}
        opened = [circuit for topic, circuit in now.items() if circuit.failures > known.get(topic, 0)]
        return Failing(opened, list(known.keys() - now.keys()))

    def start_of(self, partition: int) -> int:
        return self._starts.get(partition, 0)

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        if len(calls) == 1:
            calls[0]()
            return
        running = [self._threads.submit(call) for call in calls]
        wait(running)
        for each in running:
            each.result()

    def open(self, known: Mapping[int, Known | None]) -> dict[int, Opened]:
        self.run([partial(self._patiently, partition, partial(self._fence, partition)) for partition in known])
        progress = {
            partition: before.progress
            for partition, before in known.items()
            if before is not None and before.producer.is_followed_by(self.producer(partition))
        }
        unknown = known.keys() - progress.keys()
        self.had_others |= any(known[partition] is not None for partition in unknown)
        if unknown:
            self._patiently(min(unknown), lambda: progress.update(self._read(unknown)))
        return {partition: self._opened(partition, progress[partition]) for partition in known}

    def reopen(self, partition: int, error: Lost) -> Opened:
        self._pause(partition, error)
        progress: dict[int, Progress] = {}

        def again() -> None:
            self._producers[partition].close()
            self._producers[partition].open()
            progress.update(self._read({partition}))

        self._patiently(partition, again)
        return self._opened(partition, progress[partition])

    def producer(self, partition: int) -> Producer:
        return Producer(*self._producers[partition].opening)

    # ---- one partition ----------------------------------------------------------------------------------------------

    def _patiently(self, partition: int, call: Callable[[], None]) -> None:
        """Make a call until the brokers answer."""
        while True:
            try:
                call()
            except (Lost, KafkaException) as error:
                self._pause(partition, error)
            else:
                return

    def _pause(self, partition: int, error: Exception) -> None:
        """Wait before a partition is opened again, longer each time. Fewer timers may be tried at once."""
        reopening = self._reopening.setdefault(partition, Reopening())
        pause_s = 0.0 if isinstance(error, TooMuch) else reopening.pause_s("brokers", AFTER_LOST, monotonic())
        logger.warning("%s/%d: %s; opening it again", self._settings.request_topic, partition, error)
        sleep(pause_s)

    def _fence(self, partition: int) -> None:
        if partition not in self._producers:
            self._add(partition)
        self._producers[partition].renew()

    def _add(self, partition: int) -> None:
        settings, tp = self._settings, (self._settings.request_topic, partition)
        metrics = self._metrics.setdefault(partition, PartitionMetrics())
        producer = TransactionalProducer(self._loop, settings, tp, threading.Event(), metrics)
        parts = self._request_reader, producer, metrics.counters, self._compute_lock, lambda: None
        self._outboxes[partition] = policy_of(settings, tp, self._targets, *parts)
        self._producers[partition] = producer

    def _read(self, partitions: Collection[int]) -> dict[int, Progress]:
        """The committed progress. Call it after the former owners are fenced [I14].

        Raises:
            NameTakenError: another engine of the app was started.
            CheckpointMismatch: a log was cut since the driver has looked: the log and the state must be compared again.
        """
        log = ProgressLog(self._settings, self._cluster, ANSWER_S)
        try:
            engine = progress_record.decode_key(progress_record.ENGINE_KEY)
            tps = {partition: (self._settings.request_topic, partition) for partition in partitions}
            records = log.read([engine, *tps.values()])
            if engine in records and progress_record.decode_engine_run(records[engine]) != self._run:
                raise NameTakenError(
                    f"another engine of TIMERS_APP_ID={self._settings.app_id!r} was started: only the newest one runs"
                )
            found = log.check_logs({tp: log.check(tp, records.get(tp)) for tp in tps.values()})
            for (topic, partition), progress in found.items():
                if progress.largest(LOG_CUT) != self._cuts.get(partition, 0):
                    raise CheckpointMismatch(f"the log of {topic}/{partition} was cut since the query began")
            return {partition: self._new if each == Progress() else each for (_, partition), each in found.items()}
        finally:
            log.close()

    def _opened(self, partition: int, progress: Progress) -> Opened:
        tp = self._settings.request_topic, partition
        topic_id, outbox = self._cluster.topic_ids[tp[0]], self._outboxes[partition]
        bind = partial(outbox.transaction.bind, topic_id, progress_partition(tp, self._cluster, self._settings))
        return Opened(progress, topic_id, outbox, self._metrics[partition].counters, bind)
