"""One partition in a micro-batch: the worker's machine over the worker's store, on the disk of the executor.

The store is opened and closed in each task, because Spark may run a bucket in another process each time. It is a cache
of the log: what an executor's store lacks is restored from snapshots, and read from the log. Spark's state has only
what a bucket must know to leave a partition closed in which nothing is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from timers.core.counters import subtracted
from timers.core.index import Swept
from timers.core.levels import READABLE_LATE
from timers.core.lineage import Lineage
from timers.core.loop import IDLE_COMMIT_S, Loop
from timers.core.machine import Machine
from timers.core.passed_over import pass_over
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.snapshots import bytes_of_snapshot, offsets_since
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import LogMismatch
from timers.kafka.accepted_loss import letter_of, refusal
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.machines import opener
from timers.machines.firing.breaker import OpenCircuit
from timers.machines.firing.transaction import Transaction
from timers.machines.machine_parts import Parts
from timers.process.partition_metrics import PartitionMetrics
from timers.spark.engine.questions import Answering, Question
from timers.spark.totals import Snapshot
from timers.wire.formats import RequestRecord

LONGEST_S = 10.0
"""After this time a backlog continues in the next micro-batch, so that other partitions need not wait for it."""


class Producer(NamedTuple):
    """Names one opening of a transactional producer. The next opening has the next epoch, or another id."""

    id: int
    epoch: int

    def is_followed_by(self, later: Producer) -> bool:
        """Whether no other opening was between this one and ``later``."""
        return later == (self.id, self.epoch + 1)


class Known(NamedTuple):
    """What a bucket knows of a partition after its last micro-batch."""

    applied: int
    """Offset up to which the machine has read."""
    progress: Progress
    """The committed progress."""
    topic_id: bytes
    producer: Producer
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

    def has_work(self, read_to: int, second: int) -> bool:
        """Whether the machine must run at ``second``, after requests up to ``read_to`` were read."""
        return (
            self.applied < max(read_to, self.progress.next_offset)
            or (self.oldest_due_s is not None and self.oldest_due_s <= second)
            or self.is_idle(second)
        )

    def may_be_held(self, end: int, opening: Producer) -> bool:
        """Whether a transaction of the machine may have held back an end of its log that was asked before an opening.

        Brokers answer a commit before they write its markers, and a former owner's transaction is open until the next
        opening ends it. After an opening, all markers of the transactions before are written.
        """
        return end == self.held_from or not self.producer.is_followed_by(opening)

    def is_idle(self, second: int) -> bool:
        """Whether the progress must be committed at ``second``, although only time has passed."""
        return second - self.committed_s >= IDLE_COMMIT_S


class Opened(NamedTuple):
    """An open machine, whose former owners are fenced."""

    loop: Loop
    transaction: Transaction
    topic_id: bytes
    producer: Producer
    metrics: PartitionMetrics
    close: Callable[[], None]
    """Releases its store, and the compute lock. Raises nothing."""
    answer: Callable[[float | None], None] = lambda _: None
    """Lets snapshots be taken and named, if the machine has nothing left to do. Gets the mean size of the requests that
    it got; None: it got none. Raises as a commit."""


class Failing(NamedTuple):
    """What a task has learned about failing targets."""

    opened: list[OpenCircuit]
    """Circuits that were opened."""
    worked: list[str]
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


class Partitions(Protocol):
    """Opens the partitions of one attempt of a task (:class:`timers.spark.engine.openings.Openings`)."""

    parts: Parts

    def open(self, tp: TopicPartition, known: Known | None) -> Opened:
        """Fence the former owners of a partition, and open its machine."""

    def reopen(self, tp: TopicPartition, error: Exception) -> Opened:
        """Open it again after a failed transaction."""

    def look(self, tp: TopicPartition, known: Known) -> Opened | None:
        """Open its machine to read it, without a fence; None: it must be fenced."""

    def level_for(self, machine: Machine) -> int:
        """The level that a machine may have now."""

    def log_end(self, tp: TopicPartition) -> int | None:
        """Where its log ends for committed readers now; None: its leader does not answer."""

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Fetched, None, None]:
        """Read a range of its log. Close the generator."""


class MachineRun:
    """One partition in one micro-batch.

    Args:
        known: what the bucket knows of it; None: nothing.
        tick: the present time.
        questions: of queries about the machine.
        answering: answers them.
        only_asked: whether nothing else is to do.

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
        partitions: Partitions,
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
                    answers = self._answering.answers(self._questions, opened.loop.machine)
                    self.known, snapshot = self._known(opened), _snapshot(opened)
                break
            except Lost as error:
                opened = self._partitions.reopen(self._tp, error)
        self.done = Done(subtracted(after, before), is_complete, answers, snapshot)

    def _ask_end_again(self, opened: Opened) -> None:
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

    def _work(self, opened: Opened, until: float) -> bool:
        """Returns whether nothing is left to do."""
        loop, machine = opened.loop, opened.loop.machine
        self._ask_end_again(opened)
        if self.known is not None:
            machine.sweeper.swept = self.known.swept
        for each in self._ticks():
            loop.add_tick(*each)
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
            LogMismatch: no operator has accepted that.
        """
        position, end, lineage = machine.position, batch.read_on_from, self._read.lineage
        if not machine.progress.settings.passes_over(batch.from_offset, batch.end_offset):
            may_raise = machine.progress.level < READABLE_LATE and not machine.recovering
            level = self._partitions.level_for(machine) if may_raise else 0
            if level >= READABLE_LATE and not machine.raise_level(level):
                return self._fetches(position)  # it has no tick yet
            accept_loss = self._partitions.parts.settings.accept_loss
            sentence = refusal(accept_loss, self._tp, batch, machine.progress, "the engine ends")
            if sentence is not None:
                raise LogMismatch(sentence)
            if not pass_over(machine, letter_of(batch), end):
                return self._fetches(position)  # it has no tick yet
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

    def _known(self, opened: Opened) -> Known:
        machine = opened.loop.machine
        committed = machine.committed
        is_new = self.known is None or committed != self.known.progress
        committed_s = self._tick.second if self.known is None or is_new else self.known.committed_s
        return Known(
            machine.position,
            committed,
            opened.topic_id,
            opened.producer,
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


def _snapshot(opened: Opened) -> Snapshot:
    progress, written_ms = opened.loop.machine.progress, opened.metrics.snapshot_ms
    unread = offsets_since(progress)
    if (named := progress.snapshot) is None:
        return Snapshot(unread, None, None, None)
    return Snapshot(unread, named.applied, bytes_of_snapshot(named), written_ms)


def _size(record: RequestRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
