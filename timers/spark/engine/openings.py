"""Opens the machines of one Python worker of Spark.

Spark may run a bucket in another process in each micro-batch, and may run it again. So each attempt opens the producer
of a partition anew, which fences all others [I12]. The state of the bucket names the opening that made its last commit.
If the present opening is the next one, the bucket knows the committed progress. If not (Spark has repeated a task, a
lost executor still runs, workers ran in between), the progress is read again: fence first, then read [I14].
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import ClassVar, TypeVar

from confluent_kafka import KafkaException

from timers.core import levels
from timers.core.counters import Counters
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.pauses import AFTER_LOST, Reopening
from timers.core.ports import Lost, TooMuch
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import CheckpointMismatch, NameTakenError, StoreInUse
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.log_lineage import TIMEOUT_S, WAIT_S, AskLog, LogLineages
from timers.kafka.progress_log import ProgressLog, allowed_level
from timers.kafka.request_formats import enabled_formats
from timers.kafka.request_reader import RequestReader
from timers.kafka.shared_answers import SharedAnswers
from timers.kafka.topic_admin import listed
from timers.kafka.topics import Cluster
from timers.machines.firing.breaker import OpenCircuit
from timers.machines.firing.policy import Policy
from timers.machines.firing.producer import TransactionalProducer
from timers.machines.firing.topics import Targets
from timers.machines.machine_parts import Parts
from timers.machines.opener import Known as OfStore
from timers.machines.opener import OpenedMachine, open_known, open_machine
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import close_store
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
        self.lineages = LogLineages(LeaderClient(arguments(settings, "log-lineages"), TIMEOUT_S))
        formats, memory = enabled_formats(settings), RocksMemory(settings.store_memory_mb * 1024 * 1024)
        asking = Targets(settings, cluster.partitions), RequestReader(settings, formats)
        loop = ProducerLoop()  # after what can fail: nothing would end its thread
        others = *asking, loop, lambda: None, AskLog(self.lineages, loop.submit, ())
        self.parts = Parts(settings, cluster, memory, Condemnations(), formats, *others)
        self.snapshots = Snapshots(self.parts, self.partition_metrics, lambda: self.now_s)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-machine")
        self._outboxes: dict[TopicPartition, Policy] = {}
        self._producers: dict[TopicPartition, TransactionalProducer] = {}
        self._reopening: dict[TopicPartition, Reopening] = {}
        self._adopted: dict[str, OpenCircuit] = {}
        self.answers = SharedAnswers(settings)
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
        port = _Port(self, tp, known)
        open_now = partial(open_machine, self.parts, port, tp, self.parts.ask_log, fences=True)
        made = self._patiently(tp, open_now)
        assert made is not None and port.opening is not None, "it has fenced"
        return self._opened(tp, made, port.opening)

    def reopen(self, tp: TopicPartition, error: Exception) -> Opened:
        """Open a partition again after a failed transaction; first wait, if it fails again and again."""
        self._pause(tp, error)
        self._producers[tp].close()
        return self.open(tp, None)

    def look(self, tp: TopicPartition, known: Known) -> Opened | None:
        """Open a machine to read it, without fencing its former owners. It commits nothing.

        None: it must be fenced, because its store on this disk is not the one of the last commit.
        """
        if self.is_of_this_log(tp, known):
            with suppress(StoreInUse, Lost):
                if (made := open_known(self.parts, _Port(self, tp, known), tp, known.of_store)) is not None:
                    self.snapshots.runner(tp, made.machine)
                    return self._opened(tp, made, known.producer)
        return None

    def is_of_this_log(self, tp: TopicPartition, known: Known) -> bool:
        """Whether what a bucket knows is of the topic of now."""
        return known.topic_id == self.parts.cluster.topic_ids[tp[0]]

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
                yield from reader.fetches(tp, start, end, self.check)
        except Lost as error:
            self.check()
            raise CheckpointMismatch(str(error)) from error

    # ---- one partition ----------------------------------------------------------------------------------------------

    def _patiently(self, tp: TopicPartition, call: Callable[[], _T]) -> _T:
        """Make a call until the brokers answer, and until another attempt of the task has closed the store."""
        in_use_since_s: float | None = None
        while True:
            try:
                return call()
            except (Lost, KafkaException, StoreInUse) as error:
                if not isinstance(error, StoreInUse):
                    in_use_since_s = None
                elif in_use_since_s is None:
                    in_use_since_s = monotonic()
                elif monotonic() > in_use_since_s + IN_USE_S:
                    raise
                self._pause(tp, error)

    def _pause(self, tp: TopicPartition, error: Exception) -> None:
        """Wait before a partition is opened again, longer each time. Fewer timers may be tried at once."""
        reopening = self._reopening.setdefault(tp, Reopening())
        pause_s = 0.0 if isinstance(error, TooMuch) else reopening.pause_s("brokers", AFTER_LOST, monotonic())
        logger.warning("%s: %s; opening it again", partition_name(*tp), error)
        self._stop.wait(pause_s)
        self.check()

    def check(self) -> None:
        """Raise Lost if it was told to stop."""
        if self._stop.is_set():
            raise Lost("told to stop")

    def metrics(self, tp: TopicPartition) -> PartitionMetrics:
        """Returns what is measured of a machine."""
        return self.partition_metrics.setdefault(tp, PartitionMetrics())

    def renew(self, tp: TopicPartition) -> Producer:
        """Fence the former owners of a machine. Returns the opening."""
        self.outbox(tp)
        self._producers[tp].renew()
        return Producer(*self._producers[tp].opening)

    def outbox(self, tp: TopicPartition) -> Policy:
        """Returns the outbox of a machine, which all its openings in this process share."""
        if tp not in self._outboxes:
            metrics = self.metrics(tp)
            self._producers[tp] = self.parts.producer(tp, self._stop, metrics)
            self._outboxes[tp] = self.parts.outbox(tp, self._producers[tp], metrics)
        return self._outboxes[tp]

    def _opened(self, tp: TopicPartition, made: OpenedMachine, opening: Producer) -> Opened:
        outbox, metrics, store = self.outbox(tp), self.metrics(tp), made.opened.store

        def close() -> None:
            outbox.transaction.release_compute_lock()  # a run that failed may have been filling its transaction
            close_store(store)

        topic_id, answer = self.parts.cluster.topic_ids[tp[0]], partial(self.snapshots.answer, tp, made.machine, store)
        return Opened(Loop(made.machine), outbox.transaction, topic_id, opening, metrics, close, answer)

    def check_run(self) -> None:
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


class _Port:
    """What an opening asks of the engine (:class:`timers.machines.opener.Port`).

    Args:
        known: what the bucket knows of the machine; None: nothing.

    Attributes:
        opening: that of the producer, after the fence.
    """

    def __init__(self, openings: Openings, tp: TopicPartition, known: Known | None) -> None:
        self._openings, self._tp, self._known = openings, tp, known
        self.opening: Producer | None = None
        self.check = openings.check

    def check_leaders(self) -> None:
        """Ask nothing: a machine is opened in each micro-batch."""

    def fence(self) -> None:
        """Once: an opening that waits for the store of another attempt has no other owner meanwhile."""
        if self.opening is None:
            self.opening = self._openings.renew(self._tp)

    def known(self) -> OfStore | None:
        if self._known is None or not self._openings.is_of_this_log(self._tp, self._known):
            return None
        if self.opening is not None and self._known.producer.is_followed_by(self.opening):
            return self._known.of_store
        self._openings.had_others = True
        return None

    def compacted(self) -> str | None:
        return self._openings.parts.cluster.compacted.get(self._tp[0])

    def apps(self) -> Collection[str]:
        """A topic of snapshots that a former owner has made since an answer that is shared is missing, but no log is
        trimmed so soon after it: a machine without progress can still read all of its log."""
        return apps_with_snapshots(self._tp[0], self._openings.answers.ask(listed, TOPICS_S).result())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What this process has begun for the machine does not count: it may have had another owner."""
        self._openings.check_run()
        self._openings.snapshots.forget(self._tp)
        yield

    def restoring(self) -> AbstractContextManager[object]:
        return nullcontext()

    def now_s(self) -> float | None:
        return self._openings.now_s

    def refuse(self, progress: Progress) -> None:
        """Commit nothing: the engine does not look for changes of a topic's configuration."""

    def machine(self, progress: Progress, store: RocksStore, now_s: float | None) -> Machine:
        openings, tp = self._openings, self._tp
        return openings.parts.machine(tp, progress, store, openings.outbox(tp), openings.metrics(tp), now_s)
