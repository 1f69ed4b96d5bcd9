"""Opens the machines of one Python worker of Spark.

Spark may run a bucket in another process in each micro-batch, and may run it again. So each attempt opens the producer
of a partition anew, which fences all others [I12]. The state of the bucket names the opening that made its last commit.
If the present opening is the next one, the bucket knows the committed progress. If not (Spark has repeated a task, a
lost executor still runs, workers ran in between), the progress is read again: fence first, then read [I14].
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from time import monotonic
from typing import ClassVar, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from timers.core import levels
from timers.core.counters import Counters
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.ports import Lost, TooMuch
from timers.core.progress import Progress
from timers.core.reopening import AFTER_LOST, Reopening
from timers.core.store_validity import catch_up
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import CheckpointMismatch, NameTakenError, StoreInUse
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.clients import asking_admin
from timers.kafka.log_lineage import TIMEOUT_S, WAIT_S, AskLog, LogLineages
from timers.kafka.progress_log import ProgressLog, allowed_level
from timers.kafka.request_formats import enabled_formats
from timers.kafka.request_reader import RequestReader
from timers.kafka.topics import Cluster
from timers.machines.firing.breaker import OpenCircuit
from timers.machines.firing.policy import Policy
from timers.machines.firing.producer import TransactionalProducer
from timers.machines.firing.topics import Targets
from timers.machines.machine_parts import Parts, close_store
from timers.machines.store.failures import Condemnations, forget_frames
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import may_restore, open_partition, restore
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.spark.engine.machines import Failing, Known, Opened, Producer
from timers.spark.engine.snapshots import Snapshots
from timers.wire import progress as progress_record
from timers.wire.topics import apps_with_snapshots, partition_name

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

THREADS = 64
"""Partitions of a process that wait for brokers at the same time."""

TOPICS_S = 10.0
"""How long an answer about all topics may take."""

FRESH_S = 1.0
"""Seconds for which openings share an answer about all topics."""

IN_USE_S = 30.0
"""How long a task waits for a store that another attempt, or an engine that ends, has open. That one is fenced, and
learns it from its next transaction: a restore, or a log that is read again, may take longer. Then the query starts
again."""


@dataclass(frozen=True)
class Places:
    """What all executors must know of the query's topics."""

    settings: Settings
    cluster: Cluster
    run: int
    """Number of this run of the engine."""


def _stop_reading(_: object, batch: UnreadableBatch) -> bool:
    raise batch


class Openings:
    """Opens partitions, and runs several at a time; one instance for each process.

    Args:
        stop: ends all waiting; None: nothing does.

    Attributes:
        now_s: the brokers' time; None: not known.
        had_others: whether partitions had another owner since the last commit of their bucket: workers, an engine, or
            another attempt of the task. Of those that were opened since :meth:`adopt`.
    """

    _present: ClassVar[tuple[Places, Openings] | None] = None

    def __init__(self, places: Places, stop: threading.Event | None = None) -> None:
        settings, cluster = places.settings, places.cluster
        self._places = places
        self._stop = stop or threading.Event()
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self.now_s: float | None = None
        self.lineages = LogLineages(LeaderClient(settings, "log-lineages", TIMEOUT_S))
        formats, memory = enabled_formats(settings), RocksMemory(settings.store_memory_mb * 1024 * 1024)
        asking = Targets(settings, cluster.partitions), RequestReader(settings, formats)
        loop = ProducerLoop()  # after what can fail: nothing would end its thread
        others = *asking, loop, lambda: None, AskLog(self.lineages, loop.submit, ())
        self.parts = Parts(settings, cluster, memory, Condemnations(), formats, *others)
        self.snapshots = Snapshots(self)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-machine")
        self._outboxes: dict[TopicPartition, Policy] = {}
        self._producers: dict[TopicPartition, TransactionalProducer] = {}
        self._reopening: dict[TopicPartition, Reopening] = {}
        self._adopted: dict[str, OpenCircuit] = {}
        self._listing = threading.Lock()
        self._listed_at = -inf
        self._topics: list[str] = []
        """Names of all topics, by the answer that came at ``_listed_at``."""
        self.had_others = False

    @classmethod
    def of(cls, places: Places) -> Openings:
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
        self._threads.shutdown()
        self.snapshots.close()
        self.parts.request_reader.close()
        self.parts.producers.submit(self.lineages.client.close()).result()
        self.parts.producers.close()

    def counters(self) -> list[Counters]:
        """Those of all partitions that it has opened. Any thread."""
        return [each.counters for each in list(self.partition_metrics.values())]

    def open_circuits(self) -> int:
        """Number of callback topics that fail. Any thread."""
        return self.parts.targets.circuit_breaker.count

    # ---- for buckets ------------------------------------------------------------------------------------------------

    def adopt(self, circuits: list[OpenCircuit], now: Tick | None) -> None:
        """Use what the driver knows of failing targets, and the time. Call at the start of a task."""
        self.had_others = False
        self.now_s = None if now is None else now.append_ms / 1000
        self._adopted = {circuit.topic: circuit for circuit in circuits}
        self.parts.targets.adopt(circuits)

    def failing(self) -> Failing:
        """What was learned since :meth:`adopt`."""
        now = {circuit.topic: circuit for circuit in self.parts.targets.circuit_breaker.circuits()}
        known = {topic: circuit.failures for topic, circuit in self._adopted.items()}
        opened = [circuit for topic, circuit in now.items() if circuit.failures > known.get(topic, 0)]
        return Failing(opened, list(known.keys() - now.keys()))

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make all calls, some of them at the same time, and raise the first error."""
        if len(calls) == 1:
            calls[0]()
            return
        running = [self._threads.submit(call) for call in calls]
        wait(running)
        for each in running:
            each.result()

    def open(self, tp: TopicPartition, known: Known | None) -> Opened:
        """Fence the former owners of a partition, and open its machine.

        If no one else has committed since, and the store on this disk is the one of then, the progress is known.
        """
        self._patiently(tp, partial(self._fence, tp))
        opening, opened = self._opening(tp), None
        if known is not None and known.topic_id == self.parts.cluster.topic_ids[tp[0]]:
            if known.producer.is_followed_by(opening):
                opened = self._patiently(tp, partial(self._open_known, tp, known, opening))
            else:
                self.had_others = True
        return opened or self._patiently(tp, partial(self._open, tp))

    def reopen(self, tp: TopicPartition, error: Exception) -> Opened:
        """Open a partition again after a failed transaction; first wait, if it fails again and again."""
        self._pause(tp, error)
        self._producers[tp].close()
        return self.open(tp, None)

    def look(self, tp: TopicPartition, known: Known) -> Opened | None:
        """Open a machine to read it, without fencing its former owners. It commits nothing.

        None: it must be fenced, because its store on this disk is not the one of the last commit.
        """
        if known.topic_id == self.parts.cluster.topic_ids[tp[0]]:
            with suppress(StoreInUse, Lost):
                if (opened := self._open_known(tp, known, known.producer)) is not None:
                    self.snapshots.runner(tp, opened.loop.machine)
                    return opened
        return None

    def level_for(self, machine: Machine) -> int:
        """The level that a machine may have now, by what the operator allows."""
        return levels.wanted(machine.progress.level, allowed_level(self._places.settings), is_verified=False)

    def log_end(self, tp: TopicPartition) -> int | None:
        """Where a log ends for committed readers now; None: its leader does not answer."""
        with suppress(TimeoutError):
            return self.parts.producers.submit(self.lineages.stable_ends([tp])).result(2 * WAIT_S).get(tp)
        return None

    def asks(self, tp: TopicPartition) -> bool:
        """Whether a partition must be opened for its snapshots, although nothing else is to do."""
        return self.snapshots.asks(tp)

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Fetched, None, None]:
        """Read a range of a log, as a worker does, that Spark has read before or cannot read.

        Close the generator: it has a thread.

        Raises:
            UnreadableBatch: a batch cannot be read. All records before it were yielded.
            CheckpointMismatch: the range cannot be read: the log may have lost it.
        """
        reader = RequestReader(self._places.settings, {}, "read_committed", on_unreadable=_stop_reading)
        try:
            with closing(reader):
                yield from reader.fetches(tp, start, end, self._check)
        except Lost as error:
            self._check()
            raise CheckpointMismatch(str(error)) from error

    # ---- one partition ----------------------------------------------------------------------------------------------

    def _patiently(self, tp: TopicPartition, call: Callable[[], _T]) -> _T:
        """Make a call until the brokers answer, and until another attempt of the task has closed the store."""
        give_up_s = monotonic() + IN_USE_S
        while True:
            try:
                return call()
            except (Lost, KafkaException, StoreInUse) as error:
                if isinstance(error, StoreInUse) and monotonic() > give_up_s:
                    raise
                self._pause(tp, error)

    def _pause(self, tp: TopicPartition, error: Exception) -> None:
        """Wait before a partition is opened again, longer each time. Fewer timers may be tried at once."""
        reopening = self._reopening.setdefault(tp, Reopening())
        pause_s = 0.0 if isinstance(error, TooMuch) else reopening.pause_s("brokers", AFTER_LOST, monotonic())
        logger.warning("%s: %s; opening it again", partition_name(*tp), error)
        self._stop.wait(pause_s)
        self._check()

    def _check(self) -> None:
        """Raise Lost if it was told to stop."""
        if self._stop.is_set():
            raise Lost("told to stop")

    def _metrics(self, tp: TopicPartition) -> PartitionMetrics:
        return self.partition_metrics.setdefault(tp, PartitionMetrics())

    def _outbox(self, tp: TopicPartition) -> Policy:
        if tp not in self._outboxes:
            metrics = self._metrics(tp)
            self._producers[tp] = self.parts.producer(tp, self._stop, metrics)
            self._outboxes[tp] = self.parts.outbox(tp, self._producers[tp], metrics)
        return self._outboxes[tp]

    def _fence(self, tp: TopicPartition) -> None:
        self._outbox(tp)
        self._producers[tp].renew()

    def _opening(self, tp: TopicPartition) -> Producer:
        return Producer(*self._producers[tp].opening)

    def _open(self, tp: TopicPartition) -> Opened:
        """Read the progress of a machine whose former owners are fenced, and open it [I14]."""
        self._check_run()
        self.snapshots.forget(tp)
        opened = open_partition(self.parts, tp, self.parts.ask_log, self.parts.cluster.compacted.get(tp[0]))
        try:
            apps = self._apps_with_snapshots(tp[0]) if opened.is_new else ()
        except BaseException:
            opened.store.close()
            raise
        if may_restore(opened, apps):
            opened = restore(self.parts, tp, opened, self._check, apps, lambda: self.now_s)
        return self._made(tp, opened.progress, opened.store, self._opening(tp))

    @cached_property
    def _admin(self) -> AdminClient:
        return asking_admin(self.parts.settings)

    def _apps_with_snapshots(self, topic: str) -> list[str]:
        """The apps that have snapshots of a request topic, as far as the engine may see them.

        Partitions that open at the same time share an answer. A topic that a former owner has made since is missing,
        but no log is trimmed so soon after it: a machine without progress can still read all of its log.
        """
        with self._listing:
            self._check()
            if monotonic() > self._listed_at + FRESH_S:
                self._topics = [*self._admin.list_topics(timeout=TOPICS_S).topics]
                self._listed_at = monotonic()
            return apps_with_snapshots(topic, self._topics)

    def _open_known(self, tp: TopicPartition, known: Known, opening: Producer) -> Opened | None:
        """Open a machine whose progress is known; None if the store on this disk is another one than then."""
        store = self.parts.open(tp)
        try:
            is_same = store.applied == known.applied and not known.progress.rescues
            if is_same and catch_up(store, known.progress, indexed=self.parts.indexed(tp)):
                return self._made(tp, known.progress, store, opening)
        except Lost as error:  # it is damaged
            forget_frames(error)
        store.close()
        return None

    def _made(self, tp: TopicPartition, progress: Progress, store: RocksStore, opening: Producer) -> Opened:
        outbox, metrics = self._outbox(tp), self._metrics(tp)
        try:
            loop = Loop(self.parts.machine(tp, progress, store, outbox, metrics))
        except BaseException as error:  # the store may be damaged
            forget_frames(error)
            store.close()
            raise

        def close() -> None:
            outbox.transaction.release_compute_lock()  # a run that failed may have been filling its transaction
            close_store(store)

        topic_id, answer = self.parts.cluster.topic_ids[tp[0]], partial(self.snapshots.answer, tp, loop.machine, store)
        return Opened(loop, outbox.transaction, topic_id, opening, metrics, close, answer)

    def _check_run(self) -> None:
        """Check that this is the newest engine of the app.

        Raises:
            NameTakenError: another engine was started.
        """
        settings, engine = self._places.settings, progress_record.decode_key(progress_record.ENGINE_KEY)
        with closing(ProgressLog(settings, self._places.cluster)) as log:
            found = log.read([engine])
        run = progress_record.ENGINE_RUN
        if engine in found and progress_record.decode_number(run, found[engine]) != self._places.run:
            raise NameTakenError(
                f"another engine of TIMERS_APP_ID={settings.app_id!r} was started: only the newest one runs"
            )
