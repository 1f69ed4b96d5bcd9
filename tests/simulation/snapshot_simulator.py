"""Simulated runs in which workers take snapshots, and restore them [I30].

The runs are those of the other simulators, with more actions. After a machine has named a snapshot, and at random later
moments, a store is restored from each named snapshot, and reads the log after it: it must hold what the log says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.checkers import Checkers
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.simulator import Simulator
from tests.simulation.snapshots import SimSnapshots, SnapshotTopics, SnapshotWorker
from tests.simulation.store_checks import RefusingOutbox
from timers.core.loop import Loop
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Unreadable
from timers.core.timer import Fetched, TopicPartition
from timers.testing.faults import Faults, Violation
from timers.testing.outbox import PROGRESS_PARTITION, TOPIC_ID
from timers.testing.store import SimStore
from timers.testing.worker import REAL, Parts, SimRunner, SimWorker
from timers.wire import progress as progress_record


def snapshot_workers(workers: list[SimWorker], seed: int) -> SnapshotTopics:
    """Give the workers of a run one topic of snapshots. Returns it."""
    topics = SnapshotTopics()
    for index, worker in enumerate(workers):
        assert isinstance(worker, SnapshotWorker)
        worker.topics, worker.numbers = topics, Random(f"{seed} snapshots of {index}")
    return topics


def take_steps(
    workers: list[SimWorker], random: Random, machine: TopicPartition | None = None, steps: int | None = None
) -> str:
    """Let a worker do some steps of the snapshot of one of its machines."""
    busy = [worker for worker in workers if worker.runners]
    if not busy:
        return "no machine"
    worker = random.choice(busy)
    assert isinstance(worker, SnapshotWorker)
    machine = machine or random.choice(list(worker.runners))
    for _ in range(steps or random.choice([1, 2, 5, 30])):
        if machine not in worker.runners or worker.spec(machine).request_format.topic_is_compacted:
            break
        worker.snapshot(machine)
    return f"{worker.name} {machine[0]}/{machine[1]}"


def readable(topics: SnapshotTopics, machine: TopicPartition, progress: Progress) -> Iterator[NamedSnapshot]:
    """Yields the named snapshots that can be read. One that no fault has damaged must be."""
    snapshots = SimSnapshots(topics, machine)
    for named in (progress.snapshot, progress.older_snapshot):
        if named is None:
            continue
        try:
            snapshots.footer(named)
            for _ in snapshots.items(named):
                pass
            yield named
        except Unreadable as why:
            if named.number not in topics.excused:
                raise Violation(f"{machine} names {named}, which cannot be read: {why}") from None


def lose_snapshot(topics: SnapshotTopics, machine: TopicPartition, progress: Progress, random: Random) -> str:
    """An unclean election takes the end of a topic of snapshots, but no older snapshot of two."""
    chunks, older = topics.chunks.get(machine, []), progress.older_snapshot
    if older is None or len([*readable(topics, machine, progress)]) < 2 or older.end_offset >= len(chunks):
        return "nothing"
    to = random.randrange(older.end_offset, len(chunks))
    topics.excused |= {chunk.number for chunk in chunks[to:]}
    del chunks[to:]
    return f"{machine[0]}/{machine[1]} from {to} on"


class SnapshotSimulator(Simulator):
    """One random run."""

    checkers: SnapshotCheckers

    def __init__(
        self, seed: int, steps: int = 150, parts: Parts = REAL, worker: type[SimWorker] = SnapshotWorker
    ) -> None:
        super().__init__(seed, steps, parts, worker)
        self._snapshot_random = Random(f"{seed} snapshots")
        self.topics = snapshot_workers(self.workers, seed)
        self.checkers.watch(self.workers[0], self.topics, self._snapshot_random)
        more = [
            (self._snapshot, 30),
            (self._lose_snapshot, 3),
            (self._lose_disk, 4),
            (self._two_owners, 4),
            (self._slow_snapshot, 4),
            (self._forget_names, 1),
        ]
        if self._snapshot_random.random() < 0.3:
            more.append((self._repair, 4))
        self._actions += [action for action, _ in more]
        self._weights += [weight * self._snapshot_random.choice([0.3, 1, 3]) for _, weight in more]

    def _new_checkers(self) -> Checkers:
        return SnapshotCheckers(self.log, self._settings, self.machines, has_conditions=self._has_conditions)

    def _snapshot(self) -> str:
        return take_steps(self.workers, self._snapshot_random)

    def _lose_snapshot(self) -> str:
        machine = self._snapshot_random.choice(self.machines)
        lost = lose_snapshot(self.topics, machine, self.checkers.logs[machine].progress, self._snapshot_random)
        if machine in self._owner and self._snapshot_random.random() < 0.5:
            take_steps([self._owner[machine]], self._snapshot_random, machine, 12)
        return lost

    def _lose_disk(self) -> str:
        """Lose the disk of a worker, and begin again with an empty one."""
        worker = self._snapshot_random.choice(self.workers)
        worker.crash()
        if self._is_doubtful():
            worker.disk.kill()
            return f"{worker.name} was killed"
        worker.disk.wipe()
        worker.start()
        if self._snapshot_random.random() < 0.3:
            worker.faults.crash_at("while a store is restored")
        self._assign_unowned()
        return worker.name

    def _slow_snapshot(self) -> str:
        """Let a machine accept and fire while it writes a snapshot."""
        machine = self._snapshot_random.choice(self.machines)
        for _ in range(self._snapshot_random.randint(3, 12)):
            owner = self._owner.get(machine)
            if owner is None or machine not in owner.runners:
                break
            self._workload.near()
            if self._snapshot_random.random() < 0.3:
                self.clock.advance_ms(1000)
                self._tick()
            self._work_on(owner, machine)
            take_steps([owner], self._snapshot_random, machine, self._snapshot_random.randint(1, 3))
        return f"{machine[0]}/{machine[1]}"

    def _two_owners(self) -> str:
        """Take a partition over while its owner writes a snapshot, and give it back to the former owner."""
        random = self._snapshot_random
        machine = random.choice(self.machines)
        first = self._owner.get(machine)
        others = [worker for worker in self.workers if worker.alive and worker is not first]
        if first is None or not others or machine not in first.runners:
            return "one owner"
        self._workload.near()
        self._work_on(first, machine)
        take_steps([first], random, machine, random.choice([2, 3, 5]))
        self._give(machine, second := random.choice(others))
        second.fire_unread(machine)
        for _ in range(random.randint(0, 14)):
            worker = random.choice([first, second])
            if machine in worker.runners and random.random() < 0.3:
                self._work_on(worker, machine)
            take_steps([worker], random, machine, random.randint(1, 4))
        if random.random() < 0.5:
            second.fire_unread(machine)
        if first.alive and random.random() < 0.7:
            self._give(machine, first)
            if machine in first.runners:
                self._work_on(first, machine)
            take_steps([first], random, machine, 8)
        return f"{machine[0]}/{machine[1]} of {first.name} and {second.name}"

    def _forget_names(self) -> str:
        """The progress goes back to a record that names no snapshot. The group knows the rest of it [S6]."""
        machine, where = self._snapshot_random.choice(self.machines), self._settings.progress_topic
        progress, key = self.checkers.logs[machine].progress, progress_record.encode_key(*machine)
        newest = self.log.newest(where, PROGRESS_PARTITION, key)
        is_decided = self.log.last_stable(where, PROGRESS_PARTITION) == self.log.end(where, PROGRESS_PARTITION)
        if not is_decided or progress.snapshot is None or not self._is_known_otherwise(machine, newest):
            return "nothing"
        value = progress_record.encode(replace(progress, snapshot=None, older_snapshot=None), TOPIC_ID)
        self.log.append(where, key, value, partition=PROGRESS_PARTITION)
        self.topics.excused |= {each.number for each in self.topics.chunks[machine]}
        self.topics.taken_back |= self.topics.excused
        if (owner := self._owner.get(machine)) is not None:
            owner.crash()
            owner.disk.wipe()
            owner.start()
            self._assign_unowned()
        return f"{machine[0]}/{machine[1]}"

    def _lose_progress(self) -> str:
        lost = super()._lose_progress()
        if lost != "nothing":  # older progress names what may be deleted since [S6]
            for machine in self.machines:
                newest = self.workers[0].newest_record(b"%s/%d" % (machine[0].encode(), machine[1]))
                progress = self.workers[0].decode_progress(newest.value) if newest else Progress()
                numbers = {each.number for each in (progress.snapshot, progress.older_snapshot) if each}
                self.topics.excused |= numbers
                self.topics.taken_back |= numbers
        return lost


class SnapshotCheckers(Checkers):
    """Also checks snapshots."""

    def watch(self, worker: SimWorker, topics: SnapshotTopics, random: Random) -> None:
        assert isinstance(worker, SnapshotWorker)
        self._worker, self._topics, self._often = worker, topics, random
        self._named: dict[TopicPartition, object] = {}

    def check(self, runner: SimRunner | None = None) -> None:
        super().check(runner)
        for machine, log in self.logs.items():
            progress = log.progress
            names = progress.snapshot, progress.older_snapshot
            is_new = self._named.get(machine) != names
            if progress.snapshot is None or not (is_new or self._often.random() < 0.02):
                continue
            self._named[machine] = names
            older = progress.older_snapshot
            if (
                is_new
                and older is not None
                and older.number not in self._topics.taken_back
                and not SimSnapshots(self._topics, machine).has_footer(older)
            ):
                raise Violation(f"{machine} names {older} as its older snapshot, which has lost its end")
            for named in readable(self._topics, machine, progress):
                self._check_restored(machine, progress, named)

    def _check_restored(self, machine: TopicPartition, progress: Progress, named: NamedSnapshot) -> None:
        """Restore a snapshot, read the log after it, and compare with the log."""
        if progress.doubt is not None or machine[0] in self._log.wrongly_compacted:
            return  # the log lacks requests that the store holds
        worker = self._worker
        store = worker.restore(machine, SimStore(Faults()), replace(progress, snapshot=named, older_snapshot=None))
        if not progress.has_same_history(store.history, store.applied):
            raise Violation(f"{named} has other settings than {progress}")
        spec = worker.spec(machine)
        outbox: Any = RefusingOutbox()
        made = spec.machine(progress, store, outbox)
        while made.recovering:
            piece = self._log.fetch(*machine, made.position, self._often.randint(1, 40))
            end = min(piece.to_offset, progress.next_offset)
            made.accept(Fetched(piece.from_offset, end, [r for r in piece.records if r.offset < end]))
        restored = SimRunner(machine, Loop(made), store, outbox, indexed=spec.request_format.has_ids)
        self.stores.check(restored)
        self.counts["snapshots restored"] += 1


class SnapshotLossSimulator(LossSimulator):
    """One random run in which logs lose their end."""

    def __init__(
        self, seed: int, steps: int = 140, parts: Parts = REAL, worker: type[SimWorker] = SnapshotWorker
    ) -> None:
        super().__init__(seed, steps, parts, worker)
        self._snapshot_random = Random(f"{seed} snapshots")
        self.topics = snapshot_workers(self.workers, seed)

    def _work(self) -> str:
        if self._snapshot_random.random() < 0.3:
            return f"snapshot: {take_steps(self.workers, self._snapshot_random)}"
        return super()._work()

    def _accept(self, worker: SimWorker, name: TopicPartition) -> None:
        """Accept a loss, and let another disk be read after it sometimes: it restores a snapshot."""
        super()._accept(worker, name)
        if self._snapshot_random.random() < 0.5:
            for _ in range(6):
                if name in worker.runners:
                    self._work_on(worker, name)
            worker.crash()
            worker.disk.wipe()
            self._forget_held({each for each, owner in self._owner.items() if owner is worker})

    def _observe(self) -> None:
        """Also check that no progress names a snapshot of records that its log has lost."""
        super()._observe()
        for machine in self.machines:
            progress = self.workers[0].read_progress(machine)
            for named in (progress.snapshot, progress.older_snapshot):
                if named is not None and named.applied > progress.next_offset:
                    raise Violation(f"{machine} was accepted up to {progress.next_offset}, and names {named}")
