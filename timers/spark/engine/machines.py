"""The machines of one Python worker of Spark: a worker's machines, over a worker's stores on the executor's disk.

A store is opened and closed in each task, because Spark may run a bucket in another process in each micro-batch, and
may run it again. It is a cache of the log: what an executor's store lacks is restored from snapshots, and read from the
log. Spark's state has only what a bucket must know to leave a partition closed in which nothing is to do.

Each attempt opens the producer of a partition anew, which fences all others [I12]. The state of the bucket names the
opening that made its last commit. If the present opening is the next one, the bucket knows the committed progress. If
not (Spark has repeated a task, a lost executor still runs, workers ran in between), the progress is read again: fence
first, then read [I14].
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from time import monotonic
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from timers.core.backoff import AFTER_LOST, Reopening
from timers.core.counters import Counters, subtracted
from timers.core.fired import Command
from timers.core.index import Swept
from timers.core.lineage import Lineage
from timers.core.loop import IDLE_COMMIT_S, Loop
from timers.core.machine import Machine
from timers.core.passed_over import pass_over
from timers.core.ports import Lost, TooMuch
from timers.core.progress import Progress
from timers.core.snapshots import bytes_of_snapshot, offsets_since
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import CheckpointMismatch, LogMismatch, NameTakenError, StoreInUse
from timers.kafka.accepted_loss import letter_of, refusal
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.log_lineage import LINEAGE_TIMEOUT_S, LINEAGE_WAIT_S, AskLog, LogLineages
from timers.kafka.progress_log import ProgressLog
from timers.kafka.request_formats import enabled_formats
from timers.kafka.request_reader import RequestReader
from timers.kafka.shared_answers import SharedAnswers
from timers.kafka.topic_admin import listed
from timers.kafka.topics import Cluster
from timers.machines import opener
from timers.machines.firing.breaker import OpenCircuit
from timers.machines.firing.policy import Policy
from timers.machines.firing.producer import TransactionalProducer
from timers.machines.firing.topics import Targets
from timers.machines.firing.transaction import Transaction
from timers.machines.machine_parts import Parts
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import close_store
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.spark.engine.questions import Answering, Question, Snapshots
from timers.spark.totals import Snapshot
from timers.wire import progress as progress_record
from timers.wire.formats import RequestRecord
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

LONGEST_S = 10.0
"""After this time a backlog continues in the next micro-batch, so that other partitions need not wait for it."""


class ProducerOpening(NamedTuple):
    """Names one opening of a transactional producer, in version 2 of transactions after its last one. The next opening
    has the next epoch, or another id."""

    id: int
    epoch: int

    def is_followed_by(self, later: ProducerOpening) -> bool:
        """Whether no other opening was between this one and ``later``."""
        return later == (self.id, self.epoch + 1)


class Known(NamedTuple):
    """What a bucket knows of a partition after its last micro-batch."""

    applied: int
    """Offset up to which the machine has read."""
    progress: Progress
    """The committed progress."""
    topic_id: bytes
    producer: ProducerOpening
    """The opening that has committed it. If the next opening follows it, no one else has committed."""
    swept: Swept
    """The next machine's sweeps go on from here."""
    committed_s: int
    """Second of the last commit."""
    pending: int
    oldest_due_s: int | None
    """Due second of the next timer to fire."""
    seconds: tuple[tuple[int, int], ...]
    """(second, end of the log) for the second barrier [I17]: the last released one, the earliest and the newest that
    wait. The next machine gets them again."""
    held_from: int | None = None
    """First offset in its own log of the newest transaction that wrote there since the opening; None: none did."""

    @property
    def of_store(self) -> opener.Known:
        """What an opening must know."""
        return opener.Known(self.progress, self.applied)

    def has_work(self, read_to: int, second: int, commands: Sequence[Command]) -> bool:
        """Whether the machine must run at ``second``, after requests up to ``read_to`` were read.

        Args:
            commands: about targets, ascending by number.
        """
        return (
            self.applied < max(read_to, self.progress.next_offset)
            or self.progress.has_to_run(commands, second)
            or (self.oldest_due_s is not None and self.oldest_due_s <= second)
            or self.is_idle(second)
        )

    def may_be_held(self, end: int, opening: ProducerOpening) -> bool:
        """Whether a transaction of the machine may have held back an end of its log that was asked before an opening.

        Brokers answer a commit before they write its markers, and a former owner's transaction is open until the next
        opening ends it. After an opening, all markers of the transactions before are written.
        """
        return end == self.held_from or not self.producer.is_followed_by(opening)

    def is_idle(self, second: int) -> bool:
        """Whether the progress must be committed at ``second``, although only time has passed."""
        return second - self.committed_s >= IDLE_COMMIT_S


class RunningMachine(NamedTuple):
    """An open machine, whose former owners are fenced."""

    loop: Loop
    transaction: Transaction
    topic_id: bytes
    producer: ProducerOpening
    metrics: PartitionMetrics
    close: Callable[[], None]
    """Releases its store, and the compute lock. Raises nothing."""
    answer: Callable[[float | None], None] = lambda _: None
    """Lets snapshots be taken and named, if the machine has nothing left to do. Gets the mean size of the requests that
    it got; None: it got none. Raises as a commit."""
    follows: Callable[[], ProducerOpening] | None = None
    """What the next opening follows now; None: ``producer``. Each transaction of version 2 raises the epoch."""


class Failing(NamedTuple):
    """What a task has learned about failing targets."""

    opened: Sequence[OpenCircuit] = ()
    """Circuits that were opened."""
    worked: Sequence[str] = ()
    """Targets that have taken records again."""


class Read(NamedTuple):
    """What a query has read of a partition in a micro-batch."""

    end: int
    """Offset up to which it has read."""
    log_end: int | None = None
    """End of the log for committed readers, asked after the newest tick of the micro-batch was written."""
    lineage: Lineage | None = None
    """Which log was read up to the end; None: not known."""
    start: int = 0
    """The bucket knows it, and has the records from there to the end."""
    records: Sequence[RequestRecord] = ()


class Done(NamedTuple):
    """What the machine of a partition did in a micro-batch."""

    numbers: Mapping[str, float] = MappingProxyType({})
    """What it adds to those of :meth:`timers.core.counters.Counters.numbers`."""
    is_complete: bool = True
    """Whether all due timers have fired, and all requests were accepted; if not, the next micro-batch continues."""
    answers: Sequence[tuple[int, Any, Exception | None]] = ()
    """What :meth:`Question.answered` has returned."""
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Places:
    """What all executors must know of the query's topics, and the number of this run of the engine."""

    settings: Settings
    cluster: Cluster
    run: int


def _stop_reading(_: object, batch: UnreadableBatch) -> bool:
    raise batch


class Openings:
    """Opens partitions, and runs several at a time; one instance for each process.

    Attributes:
        stop: ends all waiting if it is set.
        had_others: whether partitions had another owner since the last commit of their bucket: workers, an engine, or
            another attempt of the task. Of those that this task has opened.
        commands: about targets, ascending by number.
    """

    commands: Sequence[Command] = ()

    _present: ClassVar[tuple[Places, Openings] | None] = None

    def __init__(self, places: Places) -> None:
        settings, cluster = places.settings, places.cluster
        self._places = places
        self.stop = threading.Event()
        self.partition_metrics: dict[TopicPartition, PartitionMetrics] = {}
        self.lineages = LogLineages(LeaderClient(arguments(settings, "log-lineages"), LINEAGE_TIMEOUT_S))
        formats, memory = enabled_formats(settings), RocksMemory(settings.store_memory_bytes)
        asking = Targets(settings, cluster.partitions), RequestReader(settings, formats)
        loop = ProducerLoop()  # after what can fail: nothing would end its thread
        others = *asking, loop, lambda: None, AskLog(self.lineages, loop.submit, ())
        self.parts = Parts(settings, cluster, memory, Condemnations(), formats, *others)
        self.snapshots = Snapshots(self.parts, self.partition_metrics)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="timers-machine")
        self._outboxes: dict[TopicPartition, Policy] = {}
        self._producers: dict[TopicPartition, TransactionalProducer] = {}
        self._reopening: dict[TopicPartition, Reopening] = {}
        self._adopted: dict[str, OpenCircuit] = {}
        self.answers = SharedAnswers(settings)
        self.had_others = False

    @classmethod
    def of(cls, places: Places, circuits: list[OpenCircuit], now: Tick | None, commands: Sequence[Command]) -> Openings:
        """The instance of this process, for a task. A query with other places closes that of the one before.

        Args:
            circuits: what the driver knows of failing targets.
            now: the present time, as far as it is known.
            commands: about targets, ascending by number.
        """
        if cls._present is None or cls._present[0] != places:
            if cls._present is not None:
                cls._present[1].close()
            cls._present = places, cls(places)
        present = cls._present[1]
        present.had_others = False
        present.commands = commands
        present.snapshots.now_s = None if now is None else now.append_ms / 1000
        present._adopted = {circuit.topic: circuit for circuit in circuits}
        present.parts.targets.adopt(circuits)
        return present

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
        return self.parts.targets.circuit_breaker.failing

    # ---- for buckets ------------------------------------------------------------------------------------------------

    def run(self, runs: Collection[MachineRun]) -> Failing:
        """Let machines run, some of them at the same time, and raise the first error.

        Returns:
            What the task has learned until now.
        """
        if len(runs) == 1:
            for run in runs:
                run.go()
        else:
            running = [self._threads.submit(run.go) for run in runs]
            wait(running)
            for each in running:
                each.result()
        now = {circuit.topic: circuit for circuit in self.parts.targets.circuit_breaker.circuits()}
        known = {topic: circuit.failures for topic, circuit in self._adopted.items()}
        opened = [circuit for topic, circuit in now.items() if circuit.failures > known.get(topic, 0)]
        return Failing(opened, list(known.keys() - now.keys()))

    def open(self, tp: TopicPartition, known: Known | None) -> RunningMachine:
        """Fence the former owners of a partition, and open its machine."""
        port = _Port(self, tp, known)
        made = self._patiently(tp, partial(opener.open_machine, self.parts, port, tp, self.parts.ask_log, fences=True))
        assert made is not None and port.opening is not None, "it has fenced"
        return self._opened(tp, made, port.opening)

    def reopen(self, tp: TopicPartition, error: Exception) -> RunningMachine:
        """Open a partition again after a failed transaction; first wait, if it fails again and again."""
        self._pause(tp, error)
        self._producers[tp].close()
        return self.open(tp, None)

    def look(self, tp: TopicPartition, known: Known) -> RunningMachine | None:
        """Open a machine to read it, without fencing its former owners. It commits nothing.

        None: it must be fenced, because its store on this disk is not the one of the last commit.
        """
        if self.is_of_this_log(tp, known):
            with suppress(StoreInUse, Lost):
                if (made := opener.open_known(self.parts, _Port(self, tp, known), tp, known.of_store)) is not None:
                    self.snapshots.runner(tp, made.machine)
                    return self._opened(tp, made, known.producer)
        return None

    def is_of_this_log(self, tp: TopicPartition, known: Known) -> bool:
        """Whether what a bucket knows is of the topic of now."""
        return known.topic_id == self.parts.cluster.topic_ids[tp[0]]

    def log_end(self, tp: TopicPartition) -> int | None:
        """Where a log ends for committed readers now; None: its leader does not answer."""
        with suppress(TimeoutError):
            return self.parts.producers.submit(self.lineages.stable_ends([tp])).result(2 * LINEAGE_WAIT_S).get(tp)
        return None

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
        self.stop.wait(pause_s)
        self.check()

    def check(self) -> None:
        """Raise Lost if it was told to stop."""
        if self.stop.is_set():
            raise Lost("told to stop")

    def metrics(self, tp: TopicPartition) -> PartitionMetrics:
        """Returns what is measured of a machine."""
        return self.partition_metrics.setdefault(tp, PartitionMetrics())

    def renew(self, tp: TopicPartition) -> ProducerOpening:
        """Fence the former owners of a machine. Returns the opening."""
        self.outbox(tp)
        self._producers[tp].renew()
        return ProducerOpening(*self._producers[tp].opening)

    def outbox(self, tp: TopicPartition) -> Policy:
        """Returns the outbox of a machine, which all its openings in this process share."""
        if tp not in self._outboxes:
            metrics = self.metrics(tp)
            self._producers[tp] = self.parts.producer(tp, self.stop, metrics)
            self._outboxes[tp] = self.parts.outbox(tp, self._producers[tp], metrics)
        return self._outboxes[tp]

    def _opened(self, tp: TopicPartition, made: opener.OpenedMachine, opening: ProducerOpening) -> RunningMachine:
        outbox, metrics, store = self.outbox(tp), self.metrics(tp), made.opened.store

        def close() -> None:
            outbox.transaction.release_compute_lock()  # a run that failed may have been filling its transaction
            close_store(store)

        producer, names = self._producers[tp], (self.parts.cluster.topic_ids[tp[0]], opening)
        answer = partial(self.snapshots.answer, tp, made.machine, store)
        opened = RunningMachine(Loop(made.machine), outbox.transaction, *names, metrics, close, answer)
        return opened._replace(follows=lambda: ProducerOpening(*producer.opening))

    def check_run(self) -> None:
        """Raise NameTakenError if another engine of the app was started."""
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
        self.opening: ProducerOpening | None = None
        self.check = openings.check

    def check_leaders(self) -> None:
        """Ask nothing: a machine is opened in each micro-batch."""

    def fence(self) -> opener.Known | None:
        """Once: an opening that waits for the store of another attempt has no other owner meanwhile."""
        if self.opening is None:
            self.opening = self._openings.renew(self._tp)
        if self._known is None or not self._openings.is_of_this_log(self._tp, self._known):
            return None
        if self._known.producer.is_followed_by(self.opening):
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
        return self._openings.snapshots.now_s

    def refuse(self, progress: Progress) -> None:
        """Commit nothing: the engine does not look for changes of a topic's configuration."""

    def machine(self, progress: Progress, store: RocksStore, now_s: float | None) -> Machine:
        openings, tp = self._openings, self._tp
        return openings.parts.machine(tp, progress, store, openings.outbox(tp), openings.metrics(tp), now_s)


class MachineRun:
    """One partition in one micro-batch.

    Args:
        known: what the bucket knows of it; None: nothing.
        only_asked: whether only the questions are to be answered.

    Attributes:
        known: what the bucket knows of it after :meth:`go`.
        done: complete after :meth:`go`.
    """

    def __init__(
        self,
        tp: TopicPartition,
        known: Known | None,
        read: Read,
        tick: Tick,
        partitions: Openings,
        questions: Sequence[Question] = (),
        answering: Answering | None = None,
        *,
        only_asked: bool = False,
    ) -> None:
        self.known = known
        self.done = Done()
        self._tp = tp
        self._read = read
        self._tick = tick
        self._partitions = partitions
        self._questions = questions
        self._answering = answering or Answering()
        self._only_asked = only_asked
        self._seconds = known.seconds if known is not None else ()

    def go(self) -> None:
        """Accept requests and fire what is due. After a failed transaction, the machine is opened again [I5]."""
        if self._only_asked and self._look():
            return
        opened = self._partitions.open(self._tp, self.known)
        before, until = opened.metrics.counters.numbers(), monotonic() + LONGEST_S
        while True:
            try:
                with closing(opened), ExitStack() as self._reading:
                    is_complete = self._work(opened, until)
                    after = opened.metrics.counters.numbers()
                    answers = self._answering.answers(self._questions, opened.loop.machine) if self._questions else ()
                    self.known, snapshot = self._known(opened), _snapshot(opened)
                break
            except Lost as error:
                opened = self._partitions.reopen(self._tp, error)
        self.done = Done(subtracted(after, before), is_complete, answers, snapshot)

    def _ask_end_again(self, opened: RunningMachine) -> None:
        """Ask for the end of the log again, if a cancel that was acknowledged in time may stand behind it [I17]."""
        known, end = self.known, self._read.log_end
        if end is not None and (known is None or known.may_be_held(end, opened.producer)):
            self._read = self._read._replace(log_end=self._partitions.log_end(self._tp))

    def _look(self) -> bool:
        """Only answer questions. Returns whether that was possible."""
        opened = None if self.known is None else self._partitions.look(self._tp, self.known)
        if opened is None:
            return False
        with suppress(Lost), closing(opened):
            for each in self._ticks():
                opened.loop.machine.observe(*each)
            self.done = Done(answers=self._answering.answers(self._questions, opened.loop.machine))
            return True
        return False

    def _work(self, opened: RunningMachine, until: float) -> bool:
        """Returns whether nothing is left to do."""
        loop, machine = opened.loop, opened.loop.machine
        self._ask_end_again(opened)
        if self.known is not None:
            machine.sweeper.swept = self.known.swept
        for each in self._ticks():
            loop.add_tick(*each)
        loop.commands = self._partitions.commands
        fetches = self._fetches(machine.position)
        while self._has_time(until):
            try:
                if not loop.fetches and (fetched := next(fetches, None)) is not None:
                    loop.add_fetch(fetched)
            except UnreadableBatch as batch:
                fetches = self._around(machine, batch)
                if loop.idle:
                    continue
            if loop.idle:
                break
            outcome = loop.step()
            if outcome.read_again_from is not None:
                loop.fetches.clear()
                fetches = self._fetches(outcome.read_again_from)
        if not loop.firing:
            machine.commit_progress(even_if_idle=self.known is None or self.known.is_idle(self._tick.second))
            if opened.transaction.has_old_witness:
                opened.transaction.tell_group()
            if machine.position >= self._read.end:
                records = self._read.records
                opened.answer(sum(map(_size, records)) / len(records) if records else None)
        return not loop.firing and machine.position >= self._read.end

    def _ticks(self) -> Iterator[tuple[Tick, int | None]]:
        """What the machine must know of the time."""
        yield from ((Tick(second * 1000), end) for second, end in self._seconds)
        yield self._tick, self._read.log_end

    def _has_time(self, until: float) -> bool:
        """Whether it may take another step."""
        return monotonic() < until

    def _around(self, machine: Machine, batch: UnreadableBatch) -> Iterator[Fetched]:
        """What is to be read where a batch cannot be read: what is after it, if it is passed over.

        Raises:
            LogMismatch: no operator has accepted that the batch is passed over.
        """
        position, end, lineage = machine.position, batch.read_on_from, self._read.lineage
        if not machine.progress.settings.passes_over(batch.from_offset, batch.end_offset):
            accept_loss = self._partitions.parts.settings.accept_loss
            sentence = refusal(accept_loss, self._tp, batch, machine.progress, "the engine ends")
            if sentence is not None:
                raise LogMismatch(sentence)
            if not pass_over(machine, letter_of(batch), end):
                return self._fetches(position)  # the machine has had no tick yet
        passed = Fetched(position, end, [], lineage=lineage and lineage.before(end))
        return chain([passed], self._fetches(end))

    def _fetches(self, position: int) -> Iterator[Fetched]:
        """What is between a position and the end of what was read. Spark reads nothing twice, so the log is read again
        if the store of this executor ended earlier, or if the last micro-batch could not accept all of it."""
        end, _, lineage, start, records = self._read
        before: Iterable[Fetched] = ()
        if position < start:
            before = self._reading.enter_context(closing(self._partitions.read(self._tp, position, start)))
        first = max(position, start)
        rest = [record for record in records if record.offset >= first]
        fetches = chain(before, [Fetched(first, end, rest)] if first < end else [])
        return (each._replace(lineage=lineage and lineage.before(each.to_offset)) for each in fetches)

    def _known(self, opened: RunningMachine) -> Known:
        machine = opened.loop.machine
        committed = machine.committed
        is_new = self.known is None or committed != self.known.progress
        committed_s = self._tick.second if self.known is None or is_new else self.known.committed_s
        return Known(
            machine.position,
            committed,
            opened.topic_id,
            opened.follows() if opened.follows is not None else opened.producer,
            machine.sweeper.swept,
            committed_s,
            machine.pending,
            machine.oldest_due_s,
            self._later_seconds(machine.released_s, machine.position),
            max(opened.transaction.held_from, default=None),
        )

    def _later_seconds(self, released_s: int | None, position: int) -> tuple[tuple[int, int], ...]:
        """The seconds that the next machine must know. Two wait at most: the barrier keeps no more.

        What was read up to ``position`` may not be committed, and the next machine's store may end below: then the
        released second waits there again.
        """
        given = [*self._seconds, *([] if self._read.log_end is None else [(self._tick.second, self._read.log_end)])]
        waiting = [each for each in given if released_s is None or each[0] > released_s]
        released = [] if released_s is None else [(released_s, position)]
        return tuple(dict.fromkeys([*released, *waiting[:1], *waiting[-1:]]))


def _snapshot(opened: RunningMachine) -> Snapshot:
    progress, written_ms = opened.loop.machine.progress, opened.metrics.snapshot_ms
    unread = offsets_since(progress)
    if (named := progress.snapshot) is None:
        return Snapshot(unread, None, None, None)
    return Snapshot(unread, named.applied, bytes_of_snapshot(named), written_ms)


def _size(record: RequestRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
