"""One simulated process of a queue: it receives, settles and loses partitions between any two steps of a commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.queue_brokers import LOG, PARTITIONS, RETURNS, Brokers, Place, Violation
from timers.queue.ledger import HELD, MAX_CRASHES, WAITING, BrokersClock, Entry, Ledger
from timers.queue.metadata import MAX_EPOCHS, NOTHING, decode
from timers.queue.new_partitions import Loaded, Verification, passed
from timers.queue.records import KEY_BYTES, Signing
from timers.queue.sending import Guard
from timers.queue.settling import Job, Partition, Plan, Settler

LEASE_S = 3.0
DELAY_S = 20.0


@dataclass
class Parts:
    """The classes that a run is made of. A mutation replaces one."""

    ledger: type[Ledger] = Ledger
    settler: type[Settler] = Settler
    guard: type[Guard] = Guard
    clock: type[BrokersClock] = BrokersClock
    signing: type[Signing] = Signing
    verification: type[Verification] = Verification
    loaded: type[Loaded] = Loaded
    process: type[SimProcess] | None = None
    restores: bool = False
    """Whether old disks are restored in most runs; without it, few runs find what breaks only then."""


@dataclass
class Held:
    """A message that a receiver has. ``guard``: its partition moved meanwhile."""

    partition: Partition
    ledger: Ledger
    entry: Entry
    delivery: int
    guard: Guard | None = None


class SimClient:
    """Cancels guards, and writes no dead letters."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def cancel(self, id: str, timeout_s: float) -> bool:
        return self._brokers.cancel(id)

    def publish(self, letter: object, due_s: int, timeout_s: float) -> bool:
        raise AssertionError("no run rejects a guarded message")


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
        self.held: list[Held] = []
        self.commit: Iterator[None] | None = None
        self.in_flight: list[Callable[[], object]] = []
        self.ahead_s = rng.choice((0.0, 100.0, -100.0))
        self.clock = parts.clock()
        self.waits: dict[Place, float] = {}
        self.is_dead = False
        self.client: Any = SimClient(brokers)
        self.loaded_at: dict[Partition, int] = {}
        self.parted: dict[Partition, tuple[int, int]] = {}
        self.signing: Signing
        brokers.end(name, commit=False)

    def open(self, number: int | None) -> None:
        """Read the keys of the queue. With a number it has found none before, and writes one first."""
        if number is not None:
            self.brokers.keys[number] = b"%d" % number * KEY_BYTES
        self.signing = self.parts.signing("jobs", self.brokers.keys)

    @property
    def now_s(self) -> float:
        """Its own clock, which is wrong."""
        return self.brokers.now_s + self.ahead_s

    # ---- the group -----------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Serve the callback of a rebalance; False if there is none, or it must wait."""
        if not self.rebalances and self.parted:
            return self.reload()
        if not self.rebalances or self.commit is not None:
            return False
        generation, owned = self.rebalances[0]
        new = [each for each in sorted(owned) if each not in self.settler.ledgers]
        self.parted = {each: at for each, at in self.parted.items() if each in owned}
        self.settler.revoke([each for each in self.settler.ledgers if each not in owned])
        self.settler.member = generation
        if not all(self.may_load(each) for each in new):
            return False
        for partition in new:
            self.load(partition)
        del self.rebalances[0]
        return True

    def may_load(self, partition: Partition) -> bool:
        return self.brokers.is_stable(partition)

    def load(self, partition: Partition) -> None:
        """Load a partition whose log is verified. A loss is accepted."""
        saved, brokers, log = self.brokers.saved(partition), self.brokers, self.brokers.logs[partition]
        loaded = self.parts.loaded(saved, None, 0, log.end)
        parts = self.verify(partition, loaded, brokers.version_of(partition))
        own = self.parted.pop(partition, None)
        loaded = loaded.cut(parts, own)
        if partition in self.brokers.released and saved.start != NOTHING:
            raise Violation(f"{partition}: a partition that was given up has suspects")
        self.brokers.released.discard(partition)
        ledger = loaded.ledger(self.clock, self.parts.ledger)
        brokers.knows(partition, ledger)
        others = {place: due_s for place, due_s in self.waits.items() if place[0] != partition}
        self.waits = others | {place: at for place, at in self.brokers.promised.items() if place[0] == partition}
        if ledger.crash_count and own is not None:
            raise Violation(f"{partition}: a message is blamed, and its process has not ended")
        if ledger.crash_count:
            message = partition, loaded.saved.start.first
            if self.brokers.ran[partition] - {message}:
                raise Violation(f"{message} is blamed, and others ran")
            self.brokers.blamed.setdefault(message, set()).add(self.brokers.committed_at(partition))
        self.loaded_at[partition] = self.brokers.committed_at(partition)
        self.settler.assign(partition, ledger, LOG, self.brokers.committed(partition))

    def verify(self, partition: Partition, loaded: Loaded, version: int) -> tuple[int, int] | None:
        """Return where the log parts from what a version of it says, and its epoch below; None if it does not."""
        verification, log = self.parts.verification.of(loaded), self.brokers.logs[partition]
        for _ in range(99 if verification is not None else 0):
            assert verification is not None
            verification.note(log.next(verification))
            if verification.is_over:
                if verification.parted is not None:
                    is_sure = not log.is_restored and len(loaded.saved.lineage.epochs) < MAX_EPOCHS
                    self.brokers.parted(partition, version, verification.parted[0], is_sure=is_sure)
                return verification.parted
        if verification is not None:
            raise Violation(f"{partition}: the verification does not end")
        return None

    def look(self) -> bool:
        """A leader says that another leader epoch began, so the log of a partition is verified while it is read."""
        ledgers = self.settler.ledgers
        if not ledgers:
            return False
        partition, ledger = self.rng.choice(sorted(ledgers.items(), key=lambda item: item[0]))
        self.verify_read(partition, ledger, ledger.position)
        return True

    def verify_read(self, partition: Partition, ledger: Ledger, end: int) -> None:
        """Verify the log of a partition that is read. If it parts, all deliveries end, and it is loaded again."""
        at = self.verify(partition, self.parts.loaded(ledger.saved(), None, 0, end), self.brokers.versions[ledger])
        if at is None:
            ledger.verify()
            limit = self.brokers.limit_of(partition, ledger)
            if max(ledger.position, ledger.lineage.end) <= limit:
                self.brokers.knows(partition, ledger)
            elif ledger.lineage.batch is not None:
                raise Violation(f"{partition} is read on from {ledger.position}, and has lost what was from {limit} on")
            return
        self.parted[partition] = at
        self.settler.revoke([partition])

    def reload(self) -> bool:
        """Load a partition again whose log parted. No commit is under way, and none arrives later."""
        if self.rebalances or self.commit is not None or self.settler.unknown is not None:
            return False
        self._land()
        for partition in list(self.parted):
            if self.may_load(partition):
                self.load(partition)
        return True

    def generation_of(self, plan: Plan) -> int:
        generation: int = plan.member
        return generation

    def leave(self) -> None:
        """Give up all partitions, after a commit whose answer came."""
        while self.commit is not None or self.settler.unknown is not None:
            self.settle()
        self._land()
        self.settler.stop(list(self.settler.ledgers))
        plan = self._plan(with_jobs=False)
        if plan is not None and self.brokers.commit(self.name, self.generation_of(plan), plan.commits):
            self.settler.succeed(plan)
        self.settler.revoke(list(self.settler.ledgers))
        self.parted = {}

    def give_up(self, owners: Mapping[Partition, str]) -> None:
        """The callback of a rebalance comes before the partitions have another owner."""
        while self.commit is not None or self.settler.unknown is not None:
            self.settle()
        while self.rebalances:
            if not self.poll():
                return
        self._land()
        partitions = [each for each in self.settler.ledgers if owners[each] != self.name]
        self.settler.stop(partitions)
        held = [each for each in self.held if self.is_held(each, partitions) and self.may_protect]
        guards = [self.protect(each) for each in held]
        plan = self._plan(with_jobs=False)
        if plan is not None and self.brokers.commit(self.name, self.generation_of(plan), plan.commits):
            self.settler.succeed(plan)
            self.brokers.released |= set(partitions)
        plan = self._plan()
        for _ in self._transact(plan) if plan is not None and plan.in_transaction else ():
            pass
        for guard in guards:
            guard.decide(is_set=False)

    @property
    def may_protect(self) -> bool:
        """Whether messages get guards: an ordered one would come back after later messages of its key."""
        return not self.ordered

    def protect(self, held: Held) -> Guard:
        """Set a guard for a message whose partition moves."""
        held.guard = guard = self.parts.guard(self.client, self.brokers.new_guard())
        origin = self.brokers.source_of(self.brokers.origin(self.place(held.partition, held.ledger, held.entry)))
        self.brokers.signed[guard.id] = self.signing.sign(origin.decode(), 0, 1, None, b"")
        held.ledger.bind(held.entry, held.delivery)
        self.settler.jobs.append(Job(held.partition, held.ledger, held.entry, [guard.id], guard.decide))
        return guard

    def is_held(self, held: Held, partitions: Collection[Partition]) -> bool:
        """Whether the delivery counts, and is of one of these partitions."""
        entry = held.entry
        is_present = entry.state == HELD and entry.delivery == held.delivery
        return is_present and held.partition in partitions and self.settler.owns(held.partition, held.ledger)

    def running(self) -> set[Place]:
        """The messages that receivers hold."""
        held = [each for each in self.held if self.is_held(each, PARTITIONS)]
        return {self.place(each.partition, each.ledger, each.entry) for each in held}

    def place(self, partition: Partition, ledger: Ledger, entry: Entry) -> Place:
        return self.brokers.place(partition, ledger, entry.offset)

    @property
    def is_owner(self) -> bool:
        """Whether it has served all rebalances."""
        return not self.rebalances

    # ---- messages ------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read one to five records of a partition."""
        ledgers = self.settler.ledgers
        if not ledgers:
            return False
        partition, ledger = self.rng.choice(sorted(ledgers.items(), key=lambda item: item[0]))
        left = [each for each in self.brokers.logs[partition].messages if each.at >= ledger.position]
        for message in left[: self.rng.randint(1, 5)]:
            if not ledger.follows(passed(message)):
                self.verify_read(partition, ledger, message.at + 1)
                return True
            lane = b"%d" % (message.at % 4) if self.ordered else None
            ledger.read(message.at, message, lane)
            ledger.pass_record(passed(message))
        if not left:
            ledger.reach_end(self.brokers.log_end(partition))
        return bool(left)

    def take(self) -> bool:
        for partition, ledger in self.settler.ledgers.items():
            entry = ledger.take(self.now_s + LEASE_S)
            if entry is None:
                continue
            place = self.place(partition, ledger, entry)
            if partition == RETURNS and self.brokers.is_unsigned(place, self.signing):
                ledger.bind(entry, entry.delivery)
                self.settler.jobs.append(Job(partition, ledger, entry, [""]))
                return True
            if entry.crashes >= MAX_CRASHES:
                if place[1] >= 0 and len(self.brokers.blamed.get(place, ())) < MAX_CRASHES:
                    raise Violation(f"{partition}: {entry.offset} is dead, and it did not crash twice alone")
                ledger.bind(entry, entry.delivery)
                self.settler.jobs.append(Job(partition, ledger, entry, [""]))
                return True
            self.brokers.check_source(partition, ledger, entry.item.time_ms, entry.offset)
            if self.brokers.owners.get(partition) == self.name and self.is_owner and place[1] >= 0:
                self._check_start(partition, ledger, entry)
                if entry.offset in self.brokers.done(partition):
                    raise Violation(f"{partition}: message {entry.offset} is delivered, and it was done")
                if self.brokers.origin(place) in self.brokers.final:
                    raise Violation(f"{partition}: message {entry.offset} is delivered, and its guard was cancelled")
                self._check_order(partition, entry)
                if self.brokers.now_s < self.brokers.promised.get(place, 0):
                    raise Violation(f"{partition}: {entry.offset} is delivered before its delay is over")
            self.waits.pop(place, None)
            self.held.append(Held(partition, ledger, entry, entry.delivery))
            self.is_dead = self.brokers.origin(place) in self.brokers.poison
            return True
        return False

    def _check_start(self, partition: Partition, ledger: Ledger, entry: Entry) -> None:
        committed, running = self.brokers.saved(partition).start, self.running()
        if not committed.first <= entry.offset < committed.end:
            raise Violation(f"{partition}: {entry.offset} starts, and no commit says so")
        group = ledger.starts.start
        if entry.is_suspect:
            if not group.group or any(each != partition or not group.first <= at < group.end for each, at in running):
                raise Violation(f"{partition}: the suspect {entry.offset} does not run alone")
        elif any(other.starts.start.group and other.held_count for other in self.settler.ledgers.values()):
            raise Violation(f"{partition}: {entry.offset} runs beside suspects")

    def _check_order(self, partition: Partition, entry: Entry) -> None:
        for offset in self.brokers.messages(partition) if self.ordered else ():
            is_earlier = offset < entry.offset and offset % 4 == entry.offset % 4
            if is_earlier and not self.brokers.is_settled((partition, offset)):
                raise Violation(f"{partition}: {entry.offset} overtakes {offset}")

    def answer(self) -> bool:
        """The receiver of a message says what became of it. It may be late: then it must be refused."""
        if len(self.held) <= self.rng.choice((0, 3)):  # handlers take their time
            return False
        held = self.held.pop(self.rng.randrange(len(self.held)))
        if held.guard is not None:
            return self._answer_guarded(held.guard)
        partition, ledger, entry, delivery = held.partition, held.ledger, held.entry, held.delivery
        is_over = entry.delivery != delivery or entry.state != HELD
        choice = self.rng.random()
        if choice < 0.5:
            accepted = ledger.ack(entry, delivery)
            if accepted and self.settler.owns(partition, ledger):
                self.brokers.acked.add(self.place(partition, ledger, entry))
        elif choice < 0.8:
            accepted = ledger.bind(entry, delivery)
            if accepted:
                self.settler.jobs.append(Job(partition, ledger, entry, [""]))
        elif choice < 0.9:
            accepted = ledger.wait(entry, delivery, self.now_s + DELAY_S)
            if accepted:
                self.waits[self.place(partition, ledger, entry)] = self.brokers.now_s + DELAY_S
        elif choice < 0.95:
            accepted = self.refuse(held)
        else:
            return True  # it says nothing: the lease ends
        if accepted and is_over:
            raise Violation(f"{partition}: a former receiver of {entry.offset} settles it")
        return True

    def refuse(self, held: Held) -> bool:
        """The receiver acknowledges the message, and is told that this does not count, because no commit was accepted
        for long."""
        return held.ledger.put_back(held.entry, held.delivery)

    def _answer_guarded(self, guard: Guard) -> bool:
        choice = self.rng.random()
        if choice < 0.6:
            if guard.cancel(0):
                self.brokers.accept(guard.id)
        elif choice < 0.8:
            guard.leave(0)
        return True

    def pass_time(self) -> bool:
        self.brokers.now_s += 1
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
                if self.rng.random() < 0.05:
                    self.settler.repeat()
                waiting = [job for job in self.settler.jobs if self.rng.random() < 0.1]
                plan = self._plan(in_transaction=in_transaction, with_jobs=with_jobs, waiting=waiting)
                if plan is None:
                    return False
                self._check_recovery(plan)
                self.commit = self._transact(plan) if plan.in_transaction else self._commit(plan)
        if next(self.commit, self) is self:
            self.commit = None
        return True

    def _check_recovery(self, plan: Plan) -> None:
        """A process that loads the plan's commits, and reads the log, has the same open messages as this one."""
        for partition, commit in plan.commits.items():
            live = plan.ledgers[partition]
            # What ran is left out: the end of the process would count as a crash of a message that ran alone.
            loaded = Ledger(decode(commit.metadata, LOG, commit.offset)._replace(start=NOTHING))
            if self.brokers.limit_of(partition, live) < live.position:
                continue  # it is verified first
            for offset in self.brokers.messages(partition):
                if offset < live.position:
                    loaded.read(offset, offset)
            wanted, found = opened(live), opened(loaded)
            for job in plan.jobs:
                if job.ledger is live:
                    wanted.pop(job.entry.offset, None)
            if wanted != found:
                raise Violation(f"{partition}: the process has {wanted}, and after a load of {commit} it has {found}")

    def _plan(self, **arguments: Any) -> Plan | None:
        """The next commit. It promises until when its messages wait, if the process knows the brokers' time."""
        plan = self.settler.plan(**arguments)
        for partition, commit in plan.commits.items() if plan is not None else ():
            assert plan is not None
            entries = plan.ledgers[partition]._open.values()
            places = [self.place(partition, plan.ledgers[partition], each) for each in entries if each.state == WAITING]
            self.brokers.claims(partition, commit, plan.ledgers[partition])
            waits = {place[1]: self.waits[place] for place in places if place in self.waits}
            self.brokers.promises[partition, commit] = waits if self.clock.is_known else {}
        return plan

    def _commit(self, plan: Plan) -> Iterator[None]:
        yield
        self._land()
        if self.rng.random() < 0.25:
            generation = self.generation_of(plan)
            self.in_flight.append(lambda: self.brokers.commit(self.name, generation, plan.commits))
            self.settler.lose_answer(plan)
            return
        accepted = self.brokers.commit(self.name, self.generation_of(plan), plan.commits)
        yield
        self.settler.succeed(plan) if accepted else self.settler.fail(plan)

    def _transact(self, plan: Plan) -> Iterator[None]:
        began_s = self.now_s
        self.brokers.begin(self.name)
        yield
        self.brokers.write(self.name, plan.jobs)
        append_s = self.brokers.now_s
        yield
        self.clock.note(append_s, began_s, self.now_s)
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


def opened(ledger: Ledger) -> dict[int, tuple[int, int, int]]:
    """Offset of each open message -> number of the next attempt, how often its process ended, until when it waits."""
    return {entry.offset: (entry.attempt, entry.crashes, entry.due_s) for entry in ledger._open.values()}
