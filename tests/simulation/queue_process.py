"""One simulated process of a queue: it drives the product's member, and any event comes between two of its commands."""

import random
from collections.abc import Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from tests.simulation.kit.faults import Violation
from tests.simulation.queue_brokers import LOG, RETURNS, Brokers, Place
from tests.simulation.queue_port import Doing, SimPort
from timers.client import Backoff
from timers.queue import records
from timers.queue.delivery import Delivery, Verdict
from timers.queue.entry import BIND, DONE, HELD, PUT_BACK, RETRY, WAITING, Entry, Settlement
from timers.queue.ledger import Ledger
from timers.queue.member import Member
from timers.queue.metadata import MAX_EPOCHS, NO_START, Partition, decode
from timers.queue.port import CommitAnswer, Job, Outcome, Plan, PortCall, Steps, Terms
from timers.queue.records import SIGNING_KEY_BYTES, Signing
from timers.queue.sending import Guard, Guards
from timers.queue.starts import MAX_CRASHES
from timers.wire import dead_letter
from timers.wire.dead_letter import CRASHED, REJECTED, UNSIGNED

LEASE_S = 3.0
DELAY_S = 20.0
SESSION_S = 6.0
_TIMEOUT_S = 4.0
_MOST_STEPS = 99

T = TypeVar("T")


class SimGuards(Guards):
    """Guards whose timers the simulated brokers have. No run rejects a guarded message."""

    def __init__(self, brokers: Brokers) -> None:
        self.are_possible = True
        self.timeout_s = _TIMEOUT_S
        self._brokers = brokers

    def new(self, source: str) -> Guard:
        return Guard(self, self._brokers.new_guard())

    def cancel(self, id: str, timeout_s: float) -> bool:
        return self._brokers.cancel(id)

    def set_at_once(self, guard: Guard, delivery: Delivery, timer: records.Record) -> None:
        """A mutation sets a guard before its transaction is committed."""
        self._brokers.note_guard(guard.id, timer.headers, delivery._entry.item.key())
        self._brokers.set_guard(guard.id, (delivery._partition, delivery._entry.offset))

    def extend(self, id: str) -> None:
        """A mutation sets the timer of a guard again."""
        self._brokers.set_guard(id, self._brokers.guarded[id])


class SimProcess:
    """A process of the queue.

    Attributes:
        rebalances: generation and partitions of the callbacks that it has not served.
        held: deliveries that receivers have.
        newest: the last delivery of each message.
        unsure: deliveries whose calls wait for a commit, since when, and how they end.
        owned: partitions that the group gave it.
        loaded_at: number of the commit with which it has loaded a partition.
    """

    def __init__(self, name: str, brokers: Brokers, rng: random.Random, *, ordered: bool, is_stable: bool) -> None:
        self.name = name
        self.brokers = brokers
        self.rng = rng
        self.ordered = ordered
        self.is_stable = is_stable
        self.ahead_s = rng.choice((0.0, 100.0, -100.0))
        backoff = Backoff(first_s=2, factor=1, retries=10**6 - 1)
        terms = Terms("jobs", "jobs", RETURNS[0], backoff, LEASE_S, ordered, True, 10**6, SESSION_S)
        self.member = Member(terms, SimGuards(brokers), self.now_s)
        self.port = SimPort(name, brokers, rng, self.end_round, is_stable=is_stable)
        self.rebalances: list[tuple[int, set[Partition]]] = []
        self.held: list[Delivery] = []
        self.newest: dict[Entry, Delivery] = {}
        self.unsure: list[tuple[Delivery, float, Settlement]] = []
        self.owned: set[Partition] = set()
        self.waits: dict[Place, float] = {}
        self.is_dead = False
        self.loaded_at: dict[Partition, int] = {}
        self._round: Steps[bool] | None = None
        self._doing: Doing | None = None
        self._is_plain = False
        self._known: dict[Partition, Ledger] = {}
        self._verifying: set[Partition] = set()
        self._parted: dict[Partition, int] = {}

    def open(self, number: int | None) -> None:
        """Read the keys of the queue. With a number it has found none before, and writes one first."""
        if number is not None:
            self.brokers.keys[number] = b"%d" % number * SIGNING_KEY_BYTES
        self.member.signing = Signing("jobs", self.brokers.keys)

    @property
    def now_s(self) -> float:
        """Its own clock, which is wrong."""
        return self.brokers.now_s + self.ahead_s

    @property
    def ledgers(self) -> dict[Partition, Ledger]:
        return self.member.settler.ledgers

    # ---- commands ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.member.settler.now_s = self.now_s

    def _carry_out(self, steps: Steps[T]) -> T:
        """Carry out all commands of the member at once."""
        answer: Any = None
        error: Exception | None = None
        while True:
            self._tick()
            try:
                command = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                self._look_at_ledgers()
                result: T = end.value
                return result
            answer = error = None
            try:
                answer = _finish(self._begin(command))
            except KafkaException as failure:
                error = failure

    def _begin(self, command: PortCall) -> Doing:
        if command.name == "execute":
            self._look_at_loaded()  # another partition may have been loaded in the same call
            self._note_plan(*command.arguments)
        return self.port.begin(command)

    # ---- the group -----------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Serve the callbacks of a rebalance; False if there is none."""
        if not self.rebalances:
            return False
        generation, owned = self.rebalances[0]
        gone, self.port.generation = sorted(self.owned - owned), generation
        self.end_round()
        if gone:
            self._carry_out(self.member.revoked(gone, lost=True))
        self._carry_out(self.member.assigned(sorted(owned - self.owned)))
        self.owned, self.port.generation = owned, None
        del self.rebalances[0]
        if self.rng.random() < 0.7:
            self.work()
            self.verify_all()
        return True

    def give_up(self, owners: Mapping[Partition, str]) -> None:
        """The callback of a rebalance comes before the partitions have another owner."""
        while self.poll():
            pass
        gone = sorted(each for each in self.owned if owners[each] != self.name)
        self.port.generation = self.brokers.generation
        self.end_round()
        self.port.land()
        self.port.giving_up = {each for each in gone if each in self.ledgers}
        self._carry_out(self.member.revoked(gone, lost=False))
        self.port.giving_up = set()
        self.port.generation = None
        self.owned -= set(gone)

    def leave(self) -> None:
        """Commit that nothing runs, and leave the group."""
        self.end_round()
        self.port.land()
        self.member.settler.stop(list(self.ledgers))
        is_first = True
        while is_first or self.member.settler.unknown is not None:
            is_first = False
            self._carry_out(self.member.settler.commit())
            self.port.land()
        self.member.leave()
        self.port.leave()
        self.owned = set()
        self._look_at_ledgers()

    @property
    def is_owner(self) -> bool:
        """Whether it has served all rebalances."""
        return not self.rebalances

    # ---- loading and verification --------------------------------------------------------------------------------

    def work(self) -> bool:
        """Take new partitions, and say what the logs of those that are verified are."""
        self._carry_out(self.member.work())
        self._tick()
        if self.member.wants_control:
            self._carry_out(self.member.control())
        return False

    def verify_all(self) -> None:
        """Let all verifications end: a log changes before or after them."""
        for _ in range(_MOST_STEPS):
            verifying = [each for each in sorted(self.owned) if each in self.member.new]
            if not verifying:
                return
            for partition in verifying:
                if partition in self.port.positions:
                    self._read(partition, 1)
            self.work()
        raise Violation("a verification does not end")

    def read_to_end(self) -> None:
        """Read all partitions to their ends, as a queue does that has nothing else to do."""
        for _ in range(2):  # the second time there is only the event of the end
            for partition in sorted(self.port.positions):
                self._read(partition, _MOST_STEPS)
            self.verify_all()

    def _look_at_ledgers(self) -> None:
        """Check what the member has found of logs."""
        for partition, ledger in self._known.items():
            if partition in self.owned and partition not in self.ledgers:
                self._parted.setdefault(partition, self.brokers.versions[ledger])  # its log parted while it was read
        for partition, ledger in self.ledgers.items():
            is_known = self._known.get(partition) is ledger
            if is_known and partition in self._verifying and partition not in self.member.new:
                self._check_verified(partition, ledger)
        self._look_at_loaded()
        self._known = dict(self.ledgers)
        self._verifying = {each for each in self.ledgers if each in self.member.new}
        self._parted = {each: version for each, version in self._parted.items() if each in self.owned}

    def _look_at_loaded(self) -> None:
        for partition, ledger in self.ledgers.items():
            if self._known.get(partition) is not ledger:
                self._check_loaded(partition, ledger)
                self._known[partition] = ledger

    def _check_loaded(self, partition: Partition, ledger: Ledger) -> None:
        brokers, own = self.brokers, self._parted.pop(partition, None)
        saved, version, self.loaded_at[partition] = self.port.loaded.pop(partition)
        if ledger.cuts != saved.cuts:
            is_sure = not brokers.logs[partition].is_restored and len(saved.lineage.epochs) < MAX_EPOCHS
            brokers.parted(
                partition, version if own is None else min(own, version), ledger.cuts[-1][0], is_sure=is_sure
            )
        brokers.knows(partition, ledger)
        others = {place: due_s for place, due_s in self.waits.items() if place[0] != partition}
        self.waits = others | {place: at for place, at in brokers.promised.items() if place[0] == partition}
        if not ledger.crash_count:
            return
        if own is not None:
            raise Violation(f"{partition}: a message is blamed, and its process has not ended")
        message = partition, saved.start.first
        if brokers.ran[partition] - {message}:
            raise Violation(f"{message} is blamed, and others ran")
        brokers.blamed.setdefault(message, set()).add(self.loaded_at[partition])

    def _check_verified(self, partition: Partition, ledger: Ledger) -> None:
        limit = self.brokers.limit_of(partition, ledger)
        if max(ledger.position, ledger.lineage.end) <= limit:
            self.brokers.knows(partition, ledger)
        elif ledger.lineage.batch is not None:
            raise Violation(f"{partition} is read on from {ledger.position}, and has lost what was from {limit} on")

    def look(self) -> bool:
        """A leader says that another leader epoch began, so the log of a partition is verified while it is read."""
        reading = sorted(each for each in self.port.positions if each in self.ledgers and each not in self.member.new)
        if not reading:
            return False
        partition = self.rng.choice(reading)
        self.port.change_leader(partition)
        return self._read(partition, 1)

    # ---- messages ------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read one to five records of each partition, or an event of it, and do what is due then."""
        for partition in sorted(self.port.positions):
            if self.rng.random() < 0.7:
                self._read(partition, self.rng.randint(1, 5))
        self.work()
        if self.rng.random() < 0.7:
            self.verify_all()  # in most runs of a few hundred steps, nothing else would happen
        return True

    def _read(self, partition: Partition, limit: int) -> bool:
        ledger = None if partition in self.member.new else self.ledgers.get(partition)
        epoch = None if ledger is None else ledger.lineage.epoch_before(self.port.positions[partition])
        polled = self.port.read(partition, limit, epoch)
        self._carry_out(self.member.read(polled))
        return polled[0].error() is None

    def take(self) -> bool:
        jobs = len(self.member.settler.jobs)
        self._tick()
        taken = self.member.take(Delivery, 1, leases=10 if len(self.held) % 3 == 2 else 1)
        for job in self.member.settler.jobs[jobs:]:
            self._check_given_up(job)
        for delivery in taken:
            self._check_taken(delivery)
        return bool(taken)

    def place(self, delivery: Delivery | Job) -> Place:
        if isinstance(delivery, Job):
            return self.brokers.place(delivery.partition, delivery.ledger, delivery.entry.offset)
        return self.brokers.place(delivery._partition, delivery._ledger, delivery._entry.offset)

    def _check_given_up(self, job: Job) -> None:
        """A message became a dead letter instead of a delivery."""
        place, letter = self.place(job), dead_letter.decode(job.records[0].headers)
        assert letter is not None
        if (letter.code == UNSIGNED) != (place in self.brokers.forged):
            raise Violation(f"{place} becomes a dead letter with the code {letter.code}")
        if letter.code == CRASHED and place[1] >= 0 and len(self.brokers.blamed.get(place, ())) < MAX_CRASHES:
            raise Violation(f"{place} is dead, and it did not crash twice alone")

    def _check_taken(self, delivery: Delivery) -> None:
        partition, ledger, entry, brokers = delivery._partition, delivery._ledger, delivery._entry, self.brokers
        place = self.place(delivery)
        if place in brokers.forged:
            raise Violation(f"{place}, a forged one, is delivered as {delivery.source}")
        brokers.check_source(partition, ledger, entry.item.timestamp()[1], entry.offset)
        if brokers.owners.get(partition) == self.name and self.is_owner and place[1] >= 0:
            self._check_start(delivery)
            if entry.offset in brokers.done(partition):
                raise Violation(f"{partition}: message {entry.offset} is delivered, and it was done")
            if brokers.origin(place) in brokers.final:
                raise Violation(f"{partition}: message {entry.offset} is delivered, and its guard was cancelled")
            self._check_order(partition, entry.offset)
            if brokers.now_s < brokers.promised.get(place, 0):
                raise Violation(f"{partition}: {entry.offset} is delivered before its delay is over")
        self.waits.pop(place, None)
        if self.rng.random() < 0.2:
            delivery._outputs = [records.output(delivery.source, "results", None, b"")]
        self.held.append(delivery)
        self.newest[entry] = delivery
        self.is_dead = brokers.origin(place) in brokers.poison

    def _check_start(self, delivery: Delivery) -> None:
        partition, entry, running = delivery._partition, delivery._entry, self.running()
        committed = self.brokers.saved(partition).start
        if not committed.first <= entry.offset < committed.end:
            raise Violation(f"{partition}: {entry.offset} starts, and no commit says so")
        group = delivery._ledger.starts.start
        new = {self.place(each) for each in self.held if self.is_held(each) and each._received_s + LEASE_S > self.now_s}
        if entry.is_suspect:
            if not group.group or any(each != partition or not group.first <= at < group.end for each, at in new):
                raise Violation(f"{partition}: the suspect {entry.offset} does not run alone")
            if group.group == 1 and running:
                raise Violation(f"{partition}: the suspect {entry.offset} would be blamed, and others run")
        elif any(self.ledgers[each].starts.start.group for each, _ in new if each in self.ledgers):
            raise Violation(f"{partition}: {entry.offset} runs beside suspects")

    def _check_order(self, partition: Partition, at: int) -> None:
        for offset in self.brokers.messages(partition) if self.ordered and partition != RETURNS else ():
            is_earlier = offset < at and offset % 4 == at % 4
            if is_earlier and not self.brokers.is_settled((partition, offset)):
                raise Violation(f"{partition}: {at} overtakes {offset}")

    def is_held(self, delivery: Delivery) -> bool:
        """Whether a delivery counts."""
        owns = self.member.settler.owns(delivery._partition, delivery._ledger)
        return owns and delivery._entry.state == HELD and delivery._entry.delivery == delivery._delivery

    def running(self) -> set[Place]:
        """The messages that receivers hold."""
        return {self.place(each) for each in self.held if self.is_held(each)}

    def answer(self) -> bool:
        """The receiver of a message says what became of it. It may be late: then it must be refused, if the message was
        delivered again."""
        if len(self.held) <= self.rng.choice((0, 3)):  # handlers take their time
            return False
        delivery, choice = self.held.pop(self.rng.randrange(len(self.held))), self.rng.random()
        if delivery.guard is not None:
            self._answer_guarded(delivery, delivery.guard)
        elif choice < 0.5:
            self._settle(delivery, DONE)
        elif choice < 0.8:
            self._settle(delivery, BIND)
        elif choice < 0.9:
            self._settle(delivery, RETRY)
        elif choice < 0.95:
            self._tick()
            self.member.settle(delivery, PUT_BACK)
        return True  # or it says nothing: the lease ends

    def _settle(self, delivery: Delivery, how: Settlement) -> None:
        is_over = delivery.is_settled
        written = delivery._outputs if how is DONE else []
        if how is BIND:
            written = [self.member.letter(delivery, REJECTED, "bad")]
        place = self.place(delivery)
        self._tick()
        verdict = self.member.settle(delivery, how, written, DELAY_S)
        if verdict is Verdict.UNSURE:
            self.unsure.append((delivery, self.now_s, how))
        elif verdict is Verdict.COUNTS and (is_over or self.newest[delivery._entry] is not delivery):
            raise Violation(f"a former receiver of {place} settles it")
        elif verdict is Verdict.COUNTS and self.member.settle(delivery, DONE) is Verdict.COUNTS:
            raise Violation(f"the receiver of {place} settles it twice")
        elif verdict is Verdict.COUNTS and how is RETRY:
            self.waits[place] = self.brokers.now_s + DELAY_S
        elif (
            verdict is Verdict.COUNTS
            and not written
            and self.member.settler.owns(delivery._partition, delivery._ledger)
        ):
            self.brokers.acked.add(place)

    def answer_unsure(self) -> bool:
        """A call that waits for a commit goes on, or is refused."""
        if not self.unsure:
            return False
        delivery, since_s, how = self.unsure[0]
        self._tick()
        is_sure = self.member.is_sure(delivery, since_s)
        if is_sure is None and self.now_s < since_s + _TIMEOUT_S:
            return False
        del self.unsure[0]
        if is_sure:
            self._settle(delivery, how)
        else:
            self.member.settle(delivery, PUT_BACK)
        return True

    def _answer_guarded(self, delivery: Delivery, guard: Guard) -> None:
        choice = self.rng.random()
        if choice < 0.6:
            if guard.cancel(0):
                self.brokers.accept(guard.id)
                if delivery._outputs:
                    raise Violation(f"{guard.id}: its message is acknowledged, and its outputs are lost")
        elif choice < 0.8:
            guard.leave(0)

    def pass_time(self) -> bool:
        self.brokers.now_s += self.rng.choice((1, 1, 1, 1, 8))
        return True

    # ---- commits -------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Take the next step of the round under way, or begin one."""
        answer: Any = None
        error: Exception | None = None
        if self._round is None:
            if not self.is_stable and self.member.settler.unknown is not None and self.rng.random() < 0.9:
                return False  # the brokers do not answer yet
            self._tick()
            if self.rng.random() < 0.05:
                self.member.settler.repeat()
            is_early = self.rng.random() < 0.5
            with_copy = self.rng.random() < 0.1
            self._round = self.member.round(with_copy=with_copy) if is_early else self.member.due_round()
            if self._round is None:
                return False
        elif self._doing is not None:
            try:
                next(self._doing)
                return True
            except StopIteration as end:
                answer = end.value
            except KafkaException as failure:
                error = failure
        self._go_on(answer, error)
        return True

    def _go_on(self, answer: Any, error: Exception | None = None) -> None:
        """Go on with the round under way: begin its next command, or end it."""
        assert self._round is not None
        self._tick()
        try:
            command = self._round.send(answer) if error is None else self._round.throw(error)
        except StopIteration:
            self._round = self._doing = None
        else:
            self._doing = self._begin(command)
            self._is_plain = command.name == "execute" and not command.arguments[0].in_transaction

    def end_round(self) -> None:
        """End the round under way at once. The answer to a plain commit cannot come in a callback."""
        while self._round is not None:
            assert self._doing is not None
            answer, error = CommitAnswer(Outcome.UNKNOWN), None
            if not self._is_plain or self.rng.random() < 0.5:
                try:
                    answer = _finish(self._doing)
                except KafkaException as failure:
                    error = failure
            self._go_on(answer, error)

    def _note_plan(self, plan: Plan) -> None:
        """Check a commit. It promises until when its messages wait, if the process knows the brokers' time."""
        self._check_recovery(plan)
        self._check_running(plan)
        for partition, commit in plan.commits.items():
            ledger = plan.ledgers[partition]
            waiting = [each.offset for each in ledger._open.values() if each.state == WAITING]
            places = [self.brokers.place(partition, ledger, offset) for offset in waiting]
            self.brokers.claims(partition, commit, ledger)
            waits = {place[1]: self.waits[place] for place in places if place in self.waits}
            self.brokers.promises[partition, commit] = waits if self.member.settler.clock.is_known else {}

    def _check_running(self, plan: Plan) -> None:
        """A commit names all messages that receivers hold: after a crash, one of them may be the cause."""
        for delivery in filter(self.is_held, self.held):
            start, offset = plan.starts.get(delivery._partition), delivery._entry.offset
            is_named = start is None or start.first <= offset < start.end
            if not (is_named or delivery._ledger.starts.is_stopped):
                raise Violation(f"{delivery._partition}: {offset} runs, and a commit does not say so")

    def _check_recovery(self, plan: Plan) -> None:
        """A process that loads the plan's commits, and reads the log, has the same open messages as this one."""
        for partition, commit in plan.commits.items():
            live = plan.ledgers[partition]
            # What ran is left out: the end of the process would count as a crash of a message that ran alone.
            loaded = Ledger(decode(commit.metadata, LOG, commit.offset)._replace(start=NO_START))
            if self.brokers.limit_of(partition, live) < live.position:
                continue  # it is verified first
            for offset in self.brokers.messages(partition):
                if offset < live.position:
                    entry = live._open.get(offset)
                    loaded.read(offset, offset, attempt=1 if entry is None else entry.first_attempt)
            wanted, found = opened(live), opened(loaded)
            for job in plan.jobs:
                if job.ledger is live:
                    wanted.pop(job.entry.offset, None)
            if wanted != found:
                raise Violation(f"{partition}: the process has {wanted}, and after a load of {commit} it has {found}")


def _finish(doing: Doing) -> Any:
    while True:
        try:
            next(doing)
        except StopIteration as end:
            return end.value


def opened(ledger: Ledger) -> dict[int, tuple[int, int, int]]:
    """Offset of each open message -> number of the next attempt, how often its process ended, until when it waits."""
    return {entry.offset: (entry.attempt, entry.crashes, entry.due_s) for entry in ledger._open.values()}
