"""Simulated runs in which workers take snapshots, and restore them [I30].

The runs are those of the other simulators, with more actions. After a machine has named a snapshot, and at random later
moments, a store is restored from each named snapshot, and reads the log after it: it must hold what the log says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.checkers import Checkers
from tests.simulation.kit.faults import Crashed, Violation
from tests.simulation.kit.next_level import LEVEL
from tests.simulation.kit.outbox import PROGRESS_PARTITION, TOPIC_ID, RefusingOutbox
from tests.simulation.kit.worker import SimRunner, SimWorker
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.simulator import Simulator
from tests.simulation.snapshots import SimSnapshots, SnapshotTopics, SnapshotWorker, verified
from timers.core.loop import Loop
from timers.core.ports import Lost
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Unreadable, deletable_before
from timers.core.timer import Fetched, TopicPartition
from timers.errors import Fenced
from timers.machines.verifying import Verified
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
        if machine not in worker.runners:
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
            for _ in snapshots.pages(named):
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


def restores(workers: Iterable[SimWorker]) -> Counter[str]:
    """How many snapshots workers have restored."""
    return Counter(restores=sum(getattr(worker, "restores", 0) for worker in workers))


class SnapshotSimulator(Simulator):
    """One random run."""

    checkers: SnapshotCheckers

    def __init__(self, seed: int, steps: int = 150, worker: type[SimWorker] = SnapshotWorker) -> None:
        super().__init__(seed, steps, worker)
        self._snapshot_random = Random(f"{seed} snapshots")
        self._middle_random = Random(f"{seed} middles")
        self._topic_random = Random(f"{seed} topics")
        self._deleted_topics = self._topic_random.choice([0.0] * 7 + [0.6])
        self.topics = snapshot_workers(self.workers, seed)
        self.checkers.watch(self.workers[0], self.topics, self._snapshot_random)
        self.topics.keep_s = self._snapshot_random.choice([0, 3, 3, 20])
        more = [
            (self._snapshot, 30),
            (self._lose_snapshot, 3),
            (self._lose_disk, 4),
            (self._two_owners, 8),
            (self._slow_snapshot, 4),
            (self._forget_names, 1),
            (self._trim, 6),
        ]
        if self._snapshot_random.random() < 0.3:
            more.append((self._repair, 4))
        if self._middle_random.random() < 0.4:
            more.append((self._lose_middle, 8))
        self._actions += [action for action, _ in more]
        self._weights += [weight * self._snapshot_random.choice([0.3, 1, 3]) for _, weight in more]

    @property
    def counts(self) -> Counter[str]:
        return self.checkers.counts + restores(self.workers)

    def _new_checkers(self) -> Checkers:
        return SnapshotCheckers(self.log, self._settings, self.machines, has_conditions=self._has_conditions)

    def _snapshot(self) -> str:
        return take_steps(self.workers, self._snapshot_random)

    def _lose_snapshot(self) -> str:
        logs = self.checkers.logs
        trimmed = [
            each
            for each in self.machines
            if logs[each].progress.settings.trims and self.log.start(*each) < deletable_before(logs[each].progress)
        ]
        whole = [each for each in self.machines if not self.log.start(*each)]
        if whole and self._topic_random.random() < self._deleted_topics:
            return self._make_topic_anew(self._topic_random.choice(whole))
        machine = self._snapshot_random.choice(trimmed or self.machines)
        lost = lose_snapshot(self.topics, machine, self.checkers.logs[machine].progress, self._snapshot_random)
        owner = self._owner.get(machine)
        if owner is not None and machine in owner.runners and self._snapshot_random.random() < 0.5:
            assert isinstance(owner, SnapshotWorker)
            self.checkers.check()
            self.clock.advance_ms(1000 * self.topics.keep_s)
            owner.trim_now(machine)
        elif owner is not None and self._snapshot_random.random() < 0.5:
            take_steps([owner], self._snapshot_random, machine, 12)
        return lost

    def _make_topic_anew(self, machine: TopicPartition) -> str:
        """The topic of snapshots of a machine is deleted and made anew, and the machine takes the next ones at once."""
        self.topics.make_anew(machine)
        owner = self._owner.get(machine)
        if owner is not None and machine in owner.runners:
            take_steps([owner], self._topic_random, machine, self._topic_random.choice([12, 40]))
        return f"the topic of {machine[0]}/{machine[1]}"

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

    def _trim(self) -> str:
        """Let a machine name two snapshots, and delete the log below them; then another disk is read sometimes."""
        random, machine = self._snapshot_random, self._snapshot_random.choice(self.machines)
        for _ in range(2):
            self._workload.near()
            self.checkers.check()  # what was committed before time passes
            self.clock.advance_ms(random.choice([0, 1000, 4000]))
            owner = self._owner.get(machine)
            if owner is None or machine not in owner.runners:
                return "no owner"
            self._work_on(owner, machine)
            take_steps([owner], random, machine, random.randint(10, 40))
        owner = self._owner.get(machine)
        if owner is not None and random.random() < 0.3 and not self._is_doubtful():
            owner.crash()
            owner.disk.wipe()
            owner.start()
            self._assign_unowned()
        return f"{machine[0]}/{machine[1]}"

    def _lose_middle(self) -> str:
        """A log loses records in its middle, and its owner begins again, mostly with an empty disk [I32]."""
        random, machine = self._middle_random, self._middle_random.choice(self.machines)
        owner, progress, start = (
            self._owner.get(machine),
            self.checkers.logs[machine].progress,
            self.log.start(*machine),
        )
        is_counted = not (self._is_doubtful() or progress.rescues or machine[0] in self._settings.schedule_topics)
        counted = self.log.fetch(*machine, start, max(0, progress.next_offset - start)).records
        known = [each for each in counted if each not in self.log.damaged]  # what is passed over is not counted
        if owner is None or not known or not is_counted:
            return "nothing"
        lost = sorted({random.choice(known).offset for _ in range(random.randint(1, 3))})
        owner.crash()
        if random.random() < 0.7:
            owner.disk.wipe()
        owner.start()
        owner.accepted.discard(machine)
        self.log.lose_middle(*machine, lost)
        for _ in range(random.randint(1, 2)):  # a second opening must not go on either
            has_stopped = machine in owner.stopped
            self._give(machine, owner)
            self._recover(owner, machine, lost)
            is_open = machine in owner.runners and not owner.runners[machine].machine.recovering  # no crash was armed
            if has_stopped and is_open:
                raise Violation(f"{machine} goes on at its second opening, and its log has lost {lost}")
        self.log.put_back(*machine)
        owner.crash()
        owner.disk.wipe()  # it has read the log while records were missing
        owner.start()
        self._assign_unowned()
        return f"{machine[0]}/{machine[1]} {lost}"

    def _recover(self, owner: SimWorker, machine: TopicPartition, lost: list[int]) -> None:
        if machine not in owner.runners:
            return
        made = owner.runners[machine].machine
        accepted, stored = made.progress.lineage.counted, made.lineages[0].counted
        position = made.position
        is_known = accepted is not None and accepted.to == made.progress.next_offset and made.recovering
        if accepted is not None and position > accepted.since:
            is_known &= stored is not None and (stored.since, stored.to) == (accepted.since, position)
        while machine in owner.runners and owner.runners[machine].machine.recovering:
            runner = owner.runners[machine]
            fetched = owner.poll_requests(machine, self._middle_random.randint(5, 60))
            if fetched is not None:
                runner.loop.add_fetch(fetched)
            owner.step(machine)
        is_lost = accepted is not None and any(max(position, accepted.since) <= offset for offset in lost)
        self.checkers.counts["losses noticed"] += machine in owner.stopped
        if is_known and is_lost and machine in owner.runners and owner.runners[machine].machine is made:
            raise Violation(f"{machine} goes on, and its log has lost {lost}")

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
        self.checkers.check()  # with the time of this worker, not with that of the next one
        for _ in range(random.randint(0, 24)):
            worker = random.choice([first, second])
            if machine in worker.runners and random.random() < 0.3:
                self._work_on(worker, machine)
            take_steps([worker], random, machine, random.randint(1, 2))
        if random.random() < 0.5:
            second.fire_unread(machine)
            self.checkers.check()
        if first.alive and random.random() < 0.7:
            self._give(machine, first)
            if machine in first.runners:
                self._work_on(first, machine)
            take_steps([first], random, machine, 8)
        return f"{machine[0]}/{machine[1]} of {first.name} and {second.name}"

    def _forget_names(self) -> str:
        """The progress goes back to a record that names no snapshot. The group knows the rest of it [I30]."""
        machine, where = self._snapshot_random.choice(self.machines), self._settings.progress_topic
        progress, key = self.checkers.logs[machine].progress, progress_record.encode_key(*machine)
        newest = self.log.newest(where, PROGRESS_PARTITION, key)
        is_decided = self.log.last_stable(where, PROGRESS_PARTITION) == self.log.end(where, PROGRESS_PARTITION)
        is_known = is_decided and self._is_known_otherwise(machine, newest)
        if progress.snapshot is None or not is_known or self._is_doubtful():
            return "nothing"
        name = progress_record.machine_name(self._settings.app_id, *machine)
        value = progress_record.encode(replace(progress, snapshot=None, older_snapshot=None), TOPIC_ID, name)
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
        if lost != "nothing":  # older progress names what may be deleted since [I30]
            for machine in self.machines:
                newest = self.workers[0].newest_record(b"%s/%d" % (machine[0].encode(), machine[1]))
                progress = progress_record.decode(newest.value or b"", LEVEL)[0] if newest else Progress()
                numbers = {each.number for each in (progress.snapshot, progress.older_snapshot) if each}
                self.topics.excused |= numbers
                self.topics.taken_back |= numbers
        return lost


def _is_settled(progress: Progress, found: Verified) -> bool:
    """Whether only records are missing, of a loss that was settled: snapshots are older than the new count."""
    return progress.lineage.counted is None and all(each.startswith("the log has ") for each in found.differences)


class SnapshotCheckers(Checkers):
    """Also checks snapshots."""

    def watch(self, worker: SimWorker, topics: SnapshotTopics, random: Random) -> None:
        assert isinstance(worker, SnapshotWorker)
        self._worker, self._topics, self._often = worker, topics, random
        self._named: dict[TopicPartition, object] = {}
        self._starts: dict[TopicPartition, int] = {}

    def check(self, runner: SimRunner | None = None) -> None:
        super().check(runner)
        for machine, log in self.logs.items():
            progress = log.progress
            self._check_start(machine, progress)
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
            if is_new:
                found = verified(self._worker, self._log, machine, progress)
                self.counts["snapshots compared"] += found is not None
                if found is not None and found.different and not _is_settled(progress, found):
                    raise Violation(f"the log and the snapshots of {machine} differ: {found}")

    def _check_start(self, machine: TopicPartition, progress: Progress) -> None:
        """Check what was deleted from a log just now."""
        start = self._log.start(*machine)
        if start == self._starts.get(machine, 0):
            return
        self._starts[machine] = start
        self.counts["logs trimmed"] += 1
        named = [each for each in (progress.snapshot, progress.older_snapshot) if each is not None]
        if len(named) < 2 or start > min(each.applied for each in named) or not progress.settings.trims:
            raise Violation(f"the log of {machine} begins at {start}, by {progress}")
        if progress.doubt is not None or progress.rescues:
            raise Violation(f"the log of {machine} was deleted although it is in doubt, or has lost requests")
        snapshots = SimSnapshots(self._topics, machine)
        for each in named:
            if not snapshots.has_footer(each):
                raise Violation(f"the log of {machine} was deleted, and {each} has lost its end")
        newest_ms = self._log.append_ms(*machine, start - 1)
        if newest_ms > self._log.clock.now_ms - 1000 * self._topics.keep_s:
            raise Violation(f"offset {start - 1} of {machine} was deleted too early")

    def _check_restored(self, machine: TopicPartition, progress: Progress, named: NamedSnapshot) -> None:
        """Restore a snapshot, read the log after it, and compare with the log."""
        if progress.doubt is not None or machine[0] in self._log.wrongly_compacted:
            return  # the log lacks requests that the store holds
        worker = self._worker
        named_only = replace(progress, snapshot=named, older_snapshot=None)
        store = worker.restore(machine, named_only, self._log.clock.now_s)
        if not store.applied and worker.spec(machine).limits.stale_after_s:
            return  # it is too old
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

    def __init__(self, seed: int, steps: int = 140, worker: type[SimWorker] = SnapshotWorker) -> None:
        super().__init__(seed, steps, worker)
        self._snapshot_random = Random(f"{seed} snapshots")
        self.topics = snapshot_workers(self.workers, seed)
        self.topics.keep_s = self._snapshot_random.choice([0, 2, 5])
        self._former: dict[TopicPartition, tuple[SnapshotWorker, SimRunner]] = {}
        """The machines that were open when their log lost its end: their workers are paused, and wake up later."""

    def run(self) -> None:
        super().run()
        self.counts += restores(self.workers)

    def _work(self) -> str:
        if self._snapshot_random.random() < 0.3:
            return f"snapshot: {take_steps(self.workers, self._snapshot_random)}"
        return super()._work()

    def _lowest_cut(self, name: TopicPartition) -> int:
        """A log that begins late, and loses its end below all snapshots, cannot be restored: then the partition stops.
        Such losses are left out."""
        start, progress = super()._lowest_cut(name), self.workers[0].read_progress(name)
        return max(start, deletable_before(progress)) if start else 0

    def _lose_end(self) -> str:
        """Let the log be deleted sometimes before its loss is noticed."""
        for worker in self.workers:
            assert isinstance(worker, SnapshotWorker)
            for name in list(worker.runners) if self._snapshot_random.random() < 0.5 else ():
                take_steps([worker], self._snapshot_random, name, 40)
            self._former |= {name: (worker, runner) for name, runner in worker.runners.items()}
        lost = super()._lose_end()
        self.clock.advance_ms(self._snapshot_random.choice([0, 1000 * self.topics.keep_s]))
        for worker in self.workers:
            assert isinstance(worker, SnapshotWorker)
            for name in list(worker.runners):
                if self._snapshot_random.random() < 0.5 and name in worker.runners:
                    worker.trim_now(name)
        return lost

    def _accept(self, worker: SimWorker, name: TopicPartition) -> None:
        """Accept a loss, and let another disk be read after it sometimes: it restores a snapshot."""
        super()._accept(worker, name)
        if name in self._former and self._snapshot_random.random() < 0.5:
            for _ in range(self._snapshot_random.randint(0, 8)):
                self._request()
            self.clock.advance_ms(1000 * self.topics.keep_s)
            former, runner = self._former.pop(name)
            with suppress(Fenced, Lost, Crashed):
                former.trim(runner)
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
