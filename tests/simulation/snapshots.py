"""Snapshots of simulated machines: a topic for them, and a worker that takes, names and restores them."""

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

from tests.harness.memory_store import MemoryView
from tests.simulation.kit.faults import Faults
from tests.simulation.kit.log import SimLog
from tests.simulation.kit.store import SimStore
from tests.simulation.kit.worker import SimRunner, SimWorker
from timers.core import store_validity
from timers.core.machine import Machine
from timers.core.ports import Page
from timers.core.progress import LOG_TRIMMED, NamedSnapshot, Progress
from timers.core.rescue import cut_below
from timers.core.snapshots import (
    Footer,
    Place,
    Unreadable,
    deletable_before,
    footer_of,
    may_take,
    replaced_before,
    restored,
    trimmed_to,
    with_named,
)
from timers.core.timer import Fetched, TopicPartition
from timers.machines.verifying import Verified, compared, in_order, progress_at
from timers.machines.verifying import restored as restore_one

CHUNK_ITEMS = 3

GIVEN_UP = object()


class Chunk(NamedTuple):
    """One record of a snapshot."""

    number: int
    at: int
    items: tuple[tuple[bytes, bytes], ...]
    footer: Footer | None


class SnapshotTopics:
    """The topics of snapshots of a cluster. A partition begins at the first offset that was not deleted.

    Attributes:
        chunks: (request topic, partition) -> its records.
        starts: (request topic, partition) -> its first offset.
        excused: numbers of the snapshots that lost records in an unclean election, or whose naming was taken back, or
            whose topic was made anew.
        taken_back: numbers of all but the first.
        keep_s: how long requests are kept.
    """

    keep_s = 0

    def __init__(self) -> None:
        self.chunks: dict[TopicPartition, list[Chunk]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.excused: set[int] = set()
        self.taken_back: set[int] = set()
        self._made: dict[TopicPartition, int] = {}

    def id_of(self, machine: TopicPartition) -> bytes:
        """The id of the topic that a partition is in now. Each partition has a topic of its own."""
        return b"%016d" % self._made.get(machine, 0)

    def make_anew(self, machine: TopicPartition) -> None:
        """Delete the topic of a partition, and make it anew."""
        chunks = self.chunks.setdefault(machine, [])
        self.excused |= {each.number for each in chunks}
        self.taken_back |= {each.number for each in chunks}
        chunks.clear()
        self.starts.pop(machine, None)
        self._made[machine] = self._made.get(machine, 0) + 1

    def delete_below(self, machine: TopicPartition, offset: int) -> None:
        self.starts[machine] = max(self.starts.get(machine, 0), offset)


class SimSnapshots:
    """Implements :class:`timers.kafka.snapshot_log.SnapshotLog`, and writes."""

    damaged = False

    def __init__(self, topics: SnapshotTopics, machine: TopicPartition) -> None:
        self._topics = topics
        self._machine = machine
        self._chunks = topics.chunks.setdefault(machine, [])

    def footer(self, named: NamedSnapshot) -> Footer:
        if named.topic_id != self._topics.id_of(self._machine):
            raise Unreadable("its topic was made anew")
        if named.first_offset < self._topics.starts.get(self._machine, 0):
            raise Unreadable("out of range")
        last = self._chunks[named.end_offset - 1 :][:1]
        if not last or last[0].number != named.number or last[0].footer is None:
            raise Unreadable("another record stands at its end")
        return last[0].footer

    def whole(self) -> Iterator[tuple[NamedSnapshot, Footer]]:
        start = self._topics.starts.get(self._machine, 0)
        by_number: dict[int, list[tuple[int, Chunk]]] = {}
        for offset, chunk in enumerate(self._chunks):
            if offset >= start:
                by_number.setdefault(chunk.number, []).append((offset, chunk))
        for number, chunks in by_number.items():
            end = chunks[-1][1].footer
            if end is not None and [each.at for _, each in chunks] == [*range(len(chunks))]:
                places = chunks[0][0], chunks[-1][0] + 1
                topic_id = self._topics.id_of(self._machine)
                yield NamedSnapshot(topic_id, number, *places, end.applied, end.keys, end.rows, end.digest), end

    def has_footer(self, named: NamedSnapshot | None) -> bool:
        try:
            return named is not None and self.footer(named) is not None
        except Unreadable:
            return False

    def pages(self, named: NamedSnapshot) -> Iterator[Page]:
        digest = sha256()
        for chunk in self.chunks_of(named):
            digest.update(repr(chunk.items).encode())
            yield chunk.items
        if digest.digest() != named.digest:
            raise Unreadable("its digest is another one")

    def close(self) -> None:
        """Do nothing."""

    def chunks_of(self, named: NamedSnapshot) -> list[Chunk]:
        return [each for each in self._chunks[named.first_offset : named.end_offset] if each.number == named.number]

    def write(self, view: MemoryView, place: Place, progress: Progress, number: int) -> Iterator[NamedSnapshot | None]:
        """Write a snapshot, a record for each step. Yields None, and when the brokers have all of it, what to name."""
        digest, keys = sha256(), 0
        chunk: list[tuple[bytes, bytes]] = []
        offsets: list[int] = []
        for item in view:
            chunk.append(item)
            keys += 1
            if len(chunk) == CHUNK_ITEMS:
                offsets.append(self._append(Chunk(number, len(offsets), tuple(chunk), None)))
                digest.update(repr(tuple(chunk)).encode())
                chunk = []
                yield None
            if self._has_lost(number, offsets):
                return  # the brokers refuse the next one, because its number is out of order
        digest.update(repr(tuple(chunk)).encode())
        footer = footer_of(view, place, progress.fired_through, keys, digest.digest())
        if self._has_lost(number, offsets):
            return
        offsets.append(self._append(Chunk(number, len(offsets), tuple(chunk), footer)))
        named = offsets[0], offsets[-1] + 1, view.applied, keys, view.rows, digest.digest()
        yield NamedSnapshot(self._topics.id_of(self._machine), number, *named)

    def _has_lost(self, number: int, offsets: list[int]) -> bool:
        """Whether an election took some of the records."""
        return any(at >= len(self._chunks) or self._chunks[at].number != number for at in offsets)

    def _append(self, chunk: Chunk) -> int:
        self._chunks.append(chunk)
        return len(self._chunks) - 1


class SnapshotWorker(SimWorker):
    """A worker that takes snapshots of its machines, a small step at a time.

    Attributes:
        topics: shared by the workers of a run.
        numbers: random source of the numbers.
    """

    topics = SnapshotTopics()
    numbers = Random(0)
    accepts_at_once = SimWorker.accepts_at_once | {"from the snapshot", "from it"}
    """An operator accepts that a progress went back, so that it does not name its snapshots."""

    def known_time_s(self) -> float:
        return super().known_time_s() if self._last_tick is None else self._last_tick[1].second

    def snapshots_of(self, machine: TopicPartition) -> SimSnapshots:
        return SimSnapshots(self.topics, machine)

    def restore(self, machine: TopicPartition, progress: Progress, now_s: float) -> SimStore:
        """Restore the newest snapshot that a progress names to a store of its own."""
        start, snapshots, store = self.log.start(*machine), self.snapshots_of(machine), self.disk.beside(Faults())
        beside, stale_after_s = partial(self.disk.beside, store.faults), self.spec(machine).limits.stale_after_s

        def is_fresh(store: SimStore) -> bool:
            return not stale_after_s or store_validity.is_fresh(store, now_s, stale_after_s)

        how = self.place(machine), start, snapshots, beside, is_fresh, lambda _: True, lambda *_: None
        return restored(store, progress, *how)

    # ---- taking -------------------------------------------------------------------------------------------------

    def snapshot(self, machine: TopicPartition) -> None:
        """Do one step of the snapshot of a machine: begin it, write a record, or name it."""
        runner = self.runners[machine]
        self._do(machine, lambda: self._snapshot(runner))

    def _snapshot(self, runner: SimRunner) -> None:
        known = vars(runner)
        if known.get("taken") is not None:
            if not self.has_same_log(runner):
                known["taken"] = None
            elif runner.machine.commit_change(lambda progress: self.naming(runner, progress, known["taken"])):
                known["taken"] = None
                self.faults.point("before a snapshot is deleted")
                self.delete(runner)
        elif known.get("taking") is not None:
            self.faults.point("while a snapshot is written")
            known["taken"] = next(known["taking"], GIVEN_UP)
            if known["taken"] is GIVEN_UP:
                known["taken"] = known["taking"] = None
            elif known["taken"] is not None:
                known["taking"] = None
        elif may_take(runner.machine) and not runner.machine.recovering:
            if self.numbers.random() < 0.3:
                self.trim(runner)
            else:
                known["taking"] = self.take(runner)

    def has_same_log(self, runner: SimRunner) -> bool:
        """Whether the log of a machine is the one that was read."""
        position, start, end = runner.machine.position, self.log.start(*runner.name), self.log.end(*runner.name)
        answers = self.compare(runner.name, runner.machine.lineages)
        return cut_below(position, next(filter(None, answers), None), start, end) is None

    def take(self, runner: SimRunner) -> Iterator[NamedSnapshot | None]:
        """Begin a snapshot."""
        snapshots, number = self.snapshots_of(runner.name), self.numbers.getrandbits(64)
        return snapshots.write(self.view(runner), self.place(runner.name), runner.machine.progress, number)

    def view(self, runner: SimRunner) -> MemoryView:
        """Returns what a snapshot holds."""
        return runner.store.view()

    def naming(self, runner: SimRunner, progress: Progress, new: NamedSnapshot) -> Progress:
        """Returns the progress that names a snapshot."""
        whole = self.snapshots_of(runner.name).has_footer(progress.snapshot)
        return with_named(progress, new, newest_is_whole=whole)

    def delete(self, runner: SimRunner) -> None:
        """Delete what is older than the older named snapshot."""
        self.topics.delete_below(runner.name, replaced_before(runner.machine.committed))
        if self.numbers.random() < 0.8:
            self.trim(runner)

    # ---- the log below them -------------------------------------------------------------------------------------

    def trim_now(self, machine: TopicPartition) -> None:
        """Look at the log of a machine."""
        runner = self.runners[machine]
        self._do(machine, lambda: self.trim(runner))

    def trim(self, runner: SimRunner) -> None:
        """Delete what no named snapshot needs, as :mod:`timers.machines.log_trimmer` does."""
        machine, committed = runner.machine, runner.machine.committed
        if self.spec(runner.name).request_format.topic_is_compacted:
            return  # its store may be too old at any time, and needs the whole log then [I9]
        if not deletable_before(committed) or not self.are_whole(runner, committed):
            return
        if not committed.settings.trims and not (self.agrees(runner) and self.note_trimmed(machine)):
            return
        start = self.log.start(*runner.name)
        # If it commits, it is not fenced, and deletes at once.
        if machine.commit_change(lambda progress: progress.with_log_start(start)):
            self.faults.point("before the log is deleted")
            self.delete_log(runner, self.bound(runner))

    def note_trimmed(self, machine: Machine) -> bool:
        """Let the log of a machine begin late."""
        return machine.commit_change(partial(Progress.with_setting, name=LOG_TRIMMED, value=1))

    def are_whole(self, runner: SimRunner, progress: Progress) -> bool:
        """Whether both named snapshots are there."""
        snapshots = self.snapshots_of(runner.name)
        return all(map(snapshots.has_footer, (progress.snapshot, progress.older_snapshot)))

    def agrees(self, runner: SimRunner) -> bool:
        """Whether the log of a machine agrees with its snapshots."""
        found = verified(self, self.log, runner.name, runner.machine.committed)
        return found is not None and not found.different

    def bound(self, runner: SimRunner) -> int:
        """The offset below which the log may be deleted."""
        kept_from = self.log.offset_at(*runner.name, self.log.clock.now_ms - 1000 * self.topics.keep_s)
        return trimmed_to(runner.machine.committed, kept_from)

    def delete_log(self, runner: SimRunner, before: int) -> None:
        # What was appended in the place of lost records must not be deleted instead of them.
        if self.has_same_log(runner):
            self.log.delete_before(*runner.name, before)


def verified(worker: SnapshotWorker, log: SimLog, machine: TopicPartition, progress: Progress) -> Verified | None:
    """Compare a log with the two snapshots that a progress names; None if it cannot be compared."""
    named = in_order(progress)
    is_compacted = worker.spec(machine).request_format.topic_is_compacted
    if named is None or progress.doubt is not None or is_compacted or machine[0] in log.wrongly_compacted:
        return None  # the log lacks requests that the store holds
    at = progress_at(progress, named[1].applied)
    outbox: Any = None
    sides = []
    for each in named:
        store = SimStore(Faults())
        try:
            restore_one(store, at, each, worker.place(machine), worker.snapshots_of(machine), lambda: None)
        except Unreadable:
            return None
        made = worker.spec(machine).machine(at, store, outbox)
        while made.recovering:
            piece = log.fetch(*machine, made.position, 40)
            end = min(piece.to_offset, at.next_offset)
            made.accept(Fetched(piece.from_offset, end, [r for r in piece.records if r.offset < end]))
        sides.append((made, store))
    return compared(sides[0], sides[1], named[0].applied, lambda: None)
