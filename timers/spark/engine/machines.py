"""One partition of the request topic in a micro-batch: the worker's machine over the timers of a bucket.

The machine is made anew in each micro-batch, from the committed progress and from what the bucket has. It decides what
a worker's machine decides, and sends by the worker's outbox. Its transactions commit the progress. So a micro-batch
that Spark repeats finds what has fired: the bucket's state is a cache of the log, as the store of a worker is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from timers.core.counters import Counters
from timers.core.limits import Limits
from timers.core.lineage import Lineage
from timers.core.machine import Machine
from timers.core.ports import Lost, Outbox
from timers.core.progress import MAX_REQUEST_BYTES, Cuts, Progress
from timers.core.reading import Reader
from timers.core.second_barrier import SecondBarrier
from timers.core.store_validity import catch_up
from timers.core.timer import Decoded, Fetched, Rejected, Row, Tick
from timers.core.variant import Variant
from timers.errors import CheckpointMismatch, Fenced
from timers.firing.breaker import OpenCircuit
from timers.spark.engine.due_store import DueStore
from timers.spark.engine.timer_batches import Arrivals, Group

IDLE_COMMIT_S = 60
"""Seconds between two commits of a partition for which only time passes, as in a worker."""


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
    """Offset up to which the bucket has accepted the requests."""
    progress: Progress
    """The committed progress."""
    topic_id: bytes
    producer: Producer
    """The opening that has committed it. If the next opening follows it, no one else has committed."""
    committed_s: int
    """Second of the last commit."""

    def holds_lost(self, progress: Progress) -> bool:
        """Whether the bucket may hold what the log has lost, and must be written as dead letters."""
        return bool(progress.rescues_of(self.progress.settings, self.applied))

    def is_idle(self, second: int) -> bool:
        """Whether the progress must be committed at ``second``, although only time has passed."""
        return second - self.committed_s >= IDLE_COMMIT_S


class Opened(NamedTuple):
    """A partition whose former owners are fenced."""

    progress: Progress
    """The committed progress: no one else can commit now."""
    topic_id: bytes
    outbox: Outbox
    counters: Counters
    bind: Callable[[Cuts], None]
    """Tells the outbox the cuts of the log."""


class Failing(NamedTuple):
    """What a task has learned about failing targets."""

    opened: list[OpenCircuit]
    """Circuits that were opened."""
    worked: list[str]
    """Targets that have taken records again."""


class Partitions(Protocol):
    """Opens partitions, and runs several at a time."""

    def adopt(self, circuits: list[OpenCircuit]) -> None:
        """Use what the driver knows of failing targets. Call at the start of a task."""

    def failing(self) -> Failing:
        """What was learned since :meth:`adopt`."""

    @property
    def had_others(self) -> bool:
        """Whether partitions had another owner since the last commit of their bucket: workers, an engine, or another
        attempt of the task. Of those that were opened since :meth:`adopt`."""

    def open(self, known: dict[int, Known | None]) -> dict[int, Opened]:
        """Fence the former owners of partitions, and read the progress of those that others may have committed."""

    def reopen(self, partition: int, error: Lost) -> Opened:
        """Open a partition again after a failed transaction; first wait, if it fails again and again."""

    def producer(self, partition: int) -> Producer:
        """The present opening of a partition's producer."""

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make all calls, some of them at the same time, and raise the first error."""

    def start_of(self, partition: int) -> int:
        """The first offset that the query reads from a partition."""


class _Read(NamedTuple):
    """A request that may be late, decoded."""

    offset: int
    due_s: int
    row: Row | None
    rejected: Rejected | None


def _decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """The decoder of :class:`_Read`: the first step of the engine has decoded them."""
    decoded = Decoded()
    for _, due_s, row, rejected in records:
        if row is not None:
            decoded.rows.setdefault(due_s, []).append(row)
        elif rejected is not None:
            decoded.rejected.append(rejected)
    return decoded


class Through(SecondBarrier):
    """Lets timers fire up to the second up to which the bucket has given the due ones to its machines."""

    reached_s = -1

    def through(self, second: int) -> int:
        return min(second, self.reached_s)


class PartitionRun:
    """One partition in one micro-batch.

    Args:
        name: ``<topic>/<partition>``.
        known: what the bucket knows of it; None: nothing.
        tick: the present time.
        through: shared by the partitions of the bucket.
        start: the first offset to accept, if the bucket knows nothing of the partition.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        known: Known | None,
        opened: Opened,
        partitions: Partitions,
        limits: Limits,
        tick: Tick,
        through: Through,
        start: int,
    ) -> None:
        self._name = name
        self._partition = partition
        self._partitions = partitions
        self._limits = limits
        self._tick = tick
        self._through = through
        self._counters = opened.counters
        self._before = _done(opened.counters)
        self._first = opened.progress
        self._known_s = tick.second if known is None else known.committed_s
        self._is_idle = known is None or known.is_idle(tick.second)
        if known is None:
            self.store = DueStore(partition, start, opened.progress.settings)
        else:
            self._check(known, opened)
            self.store = DueStore(partition, known.applied, known.progress.settings)
        self.store.lineage = opened.progress.lineage
        self._open(opened)

    def _check(self, known: Known, opened: Opened) -> None:
        why = ""
        if known.topic_id != opened.topic_id:
            why = "the topic was deleted and created again"
        elif known.applied > opened.progress.next_offset:
            why = f"it has {known.applied} requests, and only {opened.progress.next_offset} are committed"
        elif not opened.progress.has_same_history(known.progress.settings, known.applied):
            why = "workers have read the same requests with other settings"
        elif known.progress.moves != opened.progress.moves:
            why = "timers that it holds were moved to another app"
        if why:
            raise CheckpointMismatch(f"the checkpoint does not belong to {self._name}: {why}")

    def _open(self, opened: Opened) -> None:
        self._topic_id = opened.topic_id
        catch_up(self.store, opened.progress)
        self._committed = opened.progress
        self._reader = _reader(self._limits)
        self.machine = _machine(opened, self.store, self._limits, self._reader, self._through, self._tick)

    def _do(self, step: Callable[[], None]) -> None:
        """Take a step until it succeeds. After a failed transaction, the machine is made again [I5]."""
        while True:
            try:
                step()
            except Lost as error:
                own = self.machine.committed, self.machine.attempted
                opened = self._partitions.reopen(self._partition, error)
                self._check_owner(opened.progress, own)
                self._open(opened)
            else:
                return

    def _check_owner(self, found: Progress, own: tuple[Progress | None, ...]) -> None:
        """Check that no one else has committed since this micro-batch opened the partition.

        The bucket may have taken timers from its state since then, and the machine may have accepted requests without
        a commit. What another owner has fired or accepted is compared with the state when the micro-batch is repeated.

        Args:
            found: the committed progress.
            own: the last one that this micro-batch has committed, and the one that it may have committed.

        Raises:
            Fenced: someone else has.
        """
        if found not in own:
            raise Fenced(f"others have owned {self._name} since the micro-batch began, so it is repeated")

    @property
    def may_accept(self) -> bool:
        """Whether requests may be accepted; if not, the brokers' clock is behind what has fired [I10]."""
        return not self.machine.clock_is_behind

    def was_decoded_alike(self, arrivals: Sequence[Arrivals]) -> bool:
        """Whether requests were decoded with the settings of the present history [I4].

        The first step of the engine decodes them with the history that the query read when it started. Others may have
        committed since then: a replay must decide as they did.
        """
        progress = self.machine.progress
        return all(self._reader.are_settings(each.settings, each.first_offset, each.end, progress) for each in arrivals)

    def accept(self, arrivals: Sequence[Arrivals], end: int, lineage: Lineage) -> None:
        """Accept the requests from the present position to ``end``, whose lineage is given."""
        self.store.lineage = lineage
        self._do(lambda: self._accept(arrivals, end))
        self.store.accepted += [group for each in arrivals for group in each.groups if not self._may_be_late(group)]

    def _accept(self, arrivals: Sequence[Arrivals], end: int) -> None:
        """Let the machine accept a range. It gets only the requests that may be late, and those that are rejected."""
        reads = [
            _Read(row[0], group.due_s, row, None)
            for each in arrivals
            for group in each.groups
            if self._may_be_late(group)
            for row in group.rows
        ]
        reads += [_Read(each.offset, 0, None, each) for arrival in arrivals for each in arrival.rejected]
        reads.sort(key=lambda read: read.offset)
        self.machine.accept(Fetched(self.machine.position, end, reads))

    def _may_be_late(self, group: Group) -> bool:
        """Whether timers may be at or below the key up to which the machine, or a wrong clock, has fired."""
        progress = self._committed
        return group.due_s <= max(progress.fired_through[0], *(hole.through[0] for hole in progress.holes), -1)

    def fire(self) -> None:
        """Fire the due timers that the store has."""
        self._do(self._fire)
        assert self.store.oldest_due_s() is None or not self.machine.recovering, "due timers would be lost"
        self.store.clear()

    def _fire(self) -> None:
        while self.machine.fire_chunk():
            pass

    def commit(self) -> None:
        """Commit the progress, if it has changed."""
        self._do(self._commit)

    def _commit(self) -> None:
        self.machine.commit_progress(even_if_idle=self._is_idle)

    @property
    def done(self) -> tuple[int, ...]:
        """Numbers of timers that were fired, dead-lettered, and moved to the retry topic."""
        return tuple(after - before for after, before in zip(_done(self._counters), self._before, strict=True))

    def known(self) -> Known:
        """What the bucket knows of the partition from now on."""
        committed = self.machine.committed
        committed_s = self._known_s if committed == self._first else self._tick.second
        producer = self._partitions.producer(self._partition)
        return Known(self.store.applied, committed, self._topic_id, producer, committed_s)


def write_dead_letters(
    partitions: Partitions, number: int, known: Known, held: Sequence[Group], limits: Limits, tick: Tick
) -> None:
    """Write the dead letters of what only a bucket holds, if the log of a partition has lost it [I28].

    Args:
        known: what the bucket knows of the partition.
        held: all timers of the lost range that the bucket holds; others may be among them.
    """
    opened = partitions.open({number: None})[number]
    while known.holds_lost(opened.progress):
        store = DueStore(number, known.applied, known.progress.settings)
        store.add_due(held)
        machine = _machine(opened, store, limits, _reader(limits), Through(), tick)
        try:
            while True:
                machine.rescue_chunk()
        except Lost as error:  # all are written, or a transaction failed
            opened = partitions.reopen(number, error)


def _reader(limits: Limits) -> Reader:
    return Reader(lambda level, rejecting: _decode, None, limits.max_request_bytes)


def _machine(opened: Opened, store: DueStore, limits: Limits, reader: Reader, through: Through, tick: Tick) -> Machine:
    settings = {MAX_REQUEST_BYTES: limits.max_request_bytes}
    variant = Variant(reader, settings, None, None, through, None)
    machine = Machine(opened.progress, store, opened.outbox, limits, variant, opened.counters)
    opened.bind(machine.cuts)
    machine.observe(tick)
    return machine


def _done(counters: Counters) -> tuple[int, int, int]:
    return counters.fired, sum(counters.dead_lettered.values()), counters.retried
