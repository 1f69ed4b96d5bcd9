"""Simulates the processes of a queue: they receive, settle, crash, sleep, and lose partitions between any two steps.

The real ledgers and settlers run over a simulated group coordinator. The coordinator keeps what Kafka's does: it checks
the generation of a member and not that it owns a partition, and of two commits the one that was written later counts,
even if it was written in a transaction that commits earlier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from timers.queue.ledger import Entry, Ledger
from timers.queue.metadata import MAX_BYTES, Saved, decode
from timers.queue.settling import Commit, Job, Partition, Plan, Settler

LOG = "simulate"
PARTITIONS: tuple[Partition, ...] = (("jobs", 0), ("jobs", 1))
LEASE_S = 3.0
MESSAGES = 12
"""Messages of each partition."""

END = 20
"""End of each partition's log."""


class Violation(Exception):
    """A promise was broken."""


@dataclass
class Parts:
    """The classes that a run is made of. A mutation replaces one."""

    ledger: type[Ledger] = Ledger
    settler: type[Settler] = Settler
    process: type[SimProcess] | None = None


class Brokers:
    """The log, the group's offsets, transactions, and the checks of each commit.

    Attributes:
        messages: offsets of each partition that hold a message; the others are holes.
        acked: messages that a receiver acknowledged while it held them.
        visible: message -> how many committed transactions hold its records.
    """

    def __init__(self, rng: random.Random) -> None:
        self.messages = {each: sorted(rng.sample(range(END), MESSAGES)) for each in PARTITIONS}
        self.acked: set[tuple[Partition, int]] = set()
        self.visible: dict[tuple[Partition, int], int] = {}
        self.generation = 0
        self.owners: dict[Partition, str] = {}
        self._written = 0
        self._offsets: dict[Partition, tuple[int, Commit]] = {}
        self._done_sets: dict[Partition, set[int]] = {}
        self._open: dict[str, tuple[list[tuple[Partition, int]], dict[Partition, tuple[int, Commit]]]] = {}

    # ---- offsets -------------------------------------------------------------------------------------------------

    def committed(self, partition: Partition) -> Commit | None:
        found = self._offsets.get(partition)
        return None if found is None else found[1]

    def is_stable(self, partition: Partition) -> bool:
        """Whether no transaction on the partition's offset is undecided."""
        return all(partition not in offsets for _, offsets in self._open.values())

    def commit(self, generation: int, commits: Mapping[Partition, Commit]) -> bool:
        """A plain commit."""
        if generation != self.generation:
            return False
        for partition, commit in commits.items():
            self._written += 1
            self._materialize(partition, self._written, commit)
        self._check_visible()
        return True

    def _materialize(self, partition: Partition, at: int, commit: Commit) -> None:
        found = self._offsets.get(partition)
        if found is not None and found[0] > at:
            return
        if len(commit.metadata) > MAX_BYTES:
            raise Violation("the metadata is too long")
        before, after = self.done(partition), self._done(partition, commit)
        if before - after:
            raise Violation(f"{partition}: messages {sorted(before - after)} were done and are open again")
        for offset in after - before:
            if (partition, offset) not in self.acked and not self.visible.get((partition, offset)):
                raise Violation(f"{partition}: message {offset} is done, and it was not acknowledged")
        self._offsets[partition] = (at, commit)
        self._done_sets[partition] = after

    def done(self, partition: Partition) -> set[int]:
        """The messages that the committed metadata says are done."""
        return self._done_sets.get(partition, set())

    def _done(self, partition: Partition, commit: Commit) -> set[int]:
        saved = decode(commit.metadata, LOG, commit.offset)
        ranges = [(0, saved.offset), *saved.done]
        return {each for each in self.messages[partition] if any(first <= each < end for first, end in ranges)}

    # ---- transactions --------------------------------------------------------------------------------------------

    def begin(self, id: str) -> None:
        self._open[id] = ([], {})

    def write(self, id: str, jobs: list[Job]) -> None:
        self._open[id][0].extend((job.partition, job.entry.offset) for job in jobs)

    def send_offsets(self, id: str, generation: int, commits: Mapping[Partition, Commit]) -> bool:
        if generation != self.generation:
            return False
        for partition, commit in commits.items():
            self._written += 1
            self._open[id][1][partition] = (self._written, commit)
        return True

    def end(self, id: str, *, commit: bool) -> None:
        """Commit or abort the transaction of a process, if it has one."""
        outputs, offsets = self._open.pop(id, ([], {}))
        if not commit:
            return
        for message in outputs:
            self.visible[message] = self.visible.get(message, 0) + 1
            if self.visible[message] > 1:
                raise Violation(f"the records of {message} are visible twice")
        for partition, (at, each) in offsets.items():
            self._materialize(partition, at, each)
        self._check_visible()

    def _check_visible(self) -> None:
        for partition, offset in self.visible:
            if offset not in self.done(partition):
                raise Violation(f"the records of {partition} {offset} are visible, and the message is open")

    def has_transaction(self, id: str) -> bool:
        return id in self._open


class SimProcess:
    """A process of the queue. Its commit runs in several steps; callbacks of rebalances come between commits."""

    def __init__(self, name: str, brokers: Brokers, rng: random.Random, parts: Parts, *, ordered: bool) -> None:
        self.name = name
        self.brokers = brokers
        self.rng = rng
        self.parts = parts
        self.ordered = ordered
        self.settler = parts.settler()
        self.rebalances: list[tuple[int, set[Partition]]] = []
        self.held: list[tuple[Partition, Ledger, Entry, int]] = []
        self.commit: Iterator[None] | None = None
        self.in_flight: list[Callable[[], object]] = []
        self.now_s = 0.0
        brokers.end(name, commit=False)

    # ---- the group -----------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Serve the callback of a rebalance; False if there is none, or it must wait."""
        if not self.rebalances or self.commit is not None:
            return False
        generation, owned = self.rebalances[0]
        new = [each for each in owned if self.settler.ledger(each) is None]
        self.settler.revoke([each for each in self.settler.ledgers if each not in owned])
        self.settler.join(generation)
        if not all(self.may_load(each) for each in new):
            return False
        for partition in new:
            self.load(partition)
        del self.rebalances[0]
        return True

    def may_load(self, partition: Partition) -> bool:
        return self.brokers.is_stable(partition)

    def load(self, partition: Partition) -> None:
        commit = self.brokers.committed(partition)
        saved = Saved(0) if commit is None else decode(commit.metadata, LOG, commit.offset)
        self.settler.assign(partition, self.parts.ledger(saved), LOG, commit)

    def generation_of(self, plan: Plan) -> int:
        generation: int = plan.member
        return generation

    # ---- messages ------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read one to five records of a partition."""
        ledgers = self.settler.ledgers
        if not ledgers:
            return False
        partition, ledger = self.rng.choice(sorted(ledgers.items(), key=lambda item: item[0]))
        left = [each for each in self.brokers.messages[partition] if each >= ledger.position]
        for offset in left[: self.rng.randint(1, 5)]:
            lane = b"%d" % (offset % 4) if self.ordered else None
            ledger.read(offset, offset, lane)
        if not left:
            ledger.pass_holes(END)
        return bool(left)

    def take(self) -> bool:
        for partition, ledger in self.settler.ledgers.items():
            entry = ledger.take(self.now_s + LEASE_S)
            if entry is None:
                continue
            if self.brokers.owners.get(partition) == self.name and not self.rebalances:
                if entry.offset in self.brokers.done(partition):
                    raise Violation(f"{partition}: message {entry.offset} is delivered, and it was done")
                self._check_order(partition, ledger, entry)
            self.held.append((partition, ledger, entry, entry.delivery))
            return True
        return False

    def _check_order(self, partition: Partition, ledger: Ledger, entry: Entry) -> None:
        commit = self.brokers.done(partition)
        for offset in self.brokers.messages[partition] if self.ordered else ():
            is_earlier = offset < entry.offset and offset % 4 == entry.offset % 4
            if is_earlier and offset not in commit and (partition, offset) not in self.brokers.acked:
                raise Violation(f"{partition}: {entry.offset} overtakes {offset}")

    def answer(self) -> bool:
        """The receiver of a message says what became of it. It may be late: then it must be refused."""
        if not self.held:
            return False
        partition, ledger, entry, delivery = self.held.pop(self.rng.randrange(len(self.held)))
        is_over = entry.delivery != delivery or entry.state != 1
        choice = self.rng.random()
        if choice < 0.5:
            accepted = ledger.ack(entry, delivery)
            if accepted and self.settler.owns(partition, ledger):
                self.brokers.acked.add((partition, entry.offset))
        elif choice < 0.8:
            accepted = ledger.bind(entry, delivery)
            if accepted:
                self.settler.add(Job(partition, ledger, entry, ()))
        elif choice < 0.9:
            accepted = ledger.wait(entry, delivery, self.now_s + 2)
        else:
            return True  # it says nothing: the lease ends
        if accepted and is_over:
            raise Violation(f"{partition}: a former receiver of {entry.offset} settles it")
        return True

    def pass_time(self) -> bool:
        self.now_s += 1
        for ledger in self.settler.ledgers.values():
            ledger.expire(self.now_s)
            ledger.measure()
        return True

    # ---- commits -------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Take the next step of the commit under way, or begin one."""
        if self.commit is None:
            if self.settler.unknown is not None:
                self.commit = self._resolve()
            else:
                in_transaction, with_jobs = self.rng.random() < 0.1, self.rng.random() < 0.9
                plan = self.settler.plan(in_transaction=in_transaction, with_jobs=with_jobs)
                if plan is None:
                    return False
                self.commit = self._transact(plan) if plan.in_transaction else self._commit(plan)
        if next(self.commit, self) is self:
            self.commit = None
        return True

    def _commit(self, plan: Plan) -> Iterator[None]:
        yield
        self._land()
        if self.rng.random() < 0.25:
            generation = self.generation_of(plan)
            self.in_flight.append(lambda: self.brokers.commit(generation, plan.commits))
            self.settler.lose_answer(plan)
            return
        accepted = self.brokers.commit(self.generation_of(plan), plan.commits)
        yield
        self.settler.succeed(plan) if accepted else self.settler.fail(plan)

    def _transact(self, plan: Plan) -> Iterator[None]:
        self.brokers.begin(self.name)
        yield
        self.brokers.write(self.name, plan.jobs)
        yield
        accepted = self.brokers.send_offsets(self.name, self.generation_of(plan), plan.commits)
        if not accepted or self.rng.random() < 0.2:
            self.brokers.end(self.name, commit=False)
            self.settler.fail(plan)
            return
        yield
        if self.rng.random() < 0.3:
            self.in_flight.append(lambda: self.brokers.end(self.name, commit=True))
            self.settler.lose_answer(plan)
            return
        self.brokers.end(self.name, commit=True)
        yield
        self.settler.succeed(plan)

    def _resolve(self) -> Iterator[None]:
        self._land()
        self.brokers.end(self.name, commit=False)  # init_transactions
        yield
        assert self.settler.unknown is not None
        self.settler.resolve({each: self.brokers.committed(each) for each in self.settler.unknown.commits})

    def _land(self) -> None:
        """Requests that were not answered arrive now, or never: a later one on the same connection comes after them."""
        requests, self.in_flight = self.in_flight, []
        for request in requests:
            if self.rng.random() < 0.5:
                request()

    def land_late(self) -> bool:
        if not self.in_flight:
            return False
        self.in_flight.pop(0)()
        return True


class QueueSimulator:
    """One run. The same seed repeats the same steps."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.rng = random.Random(seed)
        self.parts = parts or Parts()
        self.brokers = Brokers(self.rng)
        self.ordered = self.rng.random() < 0.5
        self.rebalance_share = self.rng.choice((0.01, 0.05))
        self.processes = [self._process(name) for name in ("a", "b")]
        self.rebalance()

    def _process(self, name: str) -> SimProcess:
        kind = self.parts.process or SimProcess
        return kind(name, self.brokers, self.rng, self.parts, ordered=self.ordered)

    def rebalance(self) -> None:
        """Every member gets a new generation at once, and serves its callback later."""
        self.brokers.generation += 1
        names = [each.name for each in self.processes]
        self.brokers.owners = {each: self.rng.choice(names) for each in PARTITIONS}
        for process in self.processes:
            owned = {each for each, owner in self.brokers.owners.items() if owner == process.name}
            process.rebalances.append((self.brokers.generation, owned))

    def crash(self) -> None:
        index = self.rng.randrange(len(self.processes))
        name = self.processes[index].name
        if not self.brokers.has_transaction(name) or self.rng.random() < 0.5:
            self.processes[index] = self._process(name)
            self.rebalance()

    def step(self, process: SimProcess) -> bool:
        actions = (process.poll, process.read, process.take, process.answer, process.settle, process.settle)
        rare = (process.pass_time, process.land_late)
        return self.rng.choice(rare if self.rng.random() < 0.2 else actions)()

    def run(self, steps: int = 300) -> None:
        """Run with faults, then without, until all messages are done.

        Raises:
            Violation: a promise was broken.
        """
        for _ in range(steps):
            choice = self.rng.random()
            if choice < self.rebalance_share:
                self.rebalance()
            elif choice > 0.995:
                self.crash()
            else:
                self.step(self.rng.choice(self.processes))
        for _ in range(20_000):
            self.step(self.rng.choice(self.processes))
            if all(len(self.brokers.done(each)) == MESSAGES for each in PARTITIONS):
                return
        raise Violation("messages stay open")
