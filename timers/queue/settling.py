"""Decides which partitions a process has, what it commits next for them, and what the outcome of a commit means. Pure:
no I/O, no clock and no lock.

Acknowledgements need only a plain commit. What must happen together with a commit, such as the retry of a message or
its dead letter, is a :class:`Job`: its records, the offsets and the metadata go into one transaction. Rules, each with
the steps that break a promise without it:

1. *Between a plain commit that was not answered and its repetition there is no transaction.* The transaction says that
   message 7 is retried; the older plain commit arrives inside it. Kafka keeps the later one: the retry is visible, and
   7 is open again.
2. *While the outcome of a transaction is unknown there is no other commit.* It would say that messages are done whose
   retries may not exist, or that they are open although their retries do.
3. *A message with a job is open in plain commits.* Otherwise a crash between the two loses its retry.
4. *The member's generation is that of the rebalance after which the ledgers were loaded.* A process sleeps, loses a
   partition, joins again in the background and commits with its new generation: it overwrites the new owner's commit.
   Brokers check the generation of a member, and not that it owns the partition.
5. *A ledger is loaded after all transactions on its partition are decided.* Otherwise the new owner delivers messages
   whose retries become visible a moment later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from timers.core.lineage import Lineage
from timers.errors import QueueError, TimersError
from timers.queue import records
from timers.queue.entry import Entry
from timers.queue.ledger import Ledger, plan_starts
from timers.queue.metadata import BrokersClock, Commit, Loaded, Partition, encode, loaded_from, way_on
from timers.queue.port import (
    CommitAnswer,
    Counters,
    Job,
    Outcome,
    Places,
    Plan,
    Port,
    PortCall,
    Steps,
    Stored,
    Terms,
    do,
)
from timers.queue.verification import Verification
from timers.wire import topics
from timers.wire.dead_letter import REJECTED

_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_LAST_COMMIT_S = 3.0
_LAST_COMMIT_PAUSE_S = 0.1
_REFUSED = "its retry, its dead letter or an output is refused by the brokers"
_TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
_DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
_HELD_S, _MAX_HELD_S = 30.0, 600.0
"""A dead letter that the brokers refuse waits so long until it is tried again."""

MAX_JOBS = 2000
"""Largest number of jobs in a transaction, so that it ends long before its time-out."""


class _Owned:
    """A partition of this process."""

    def __init__(self, ledger: Ledger, log: str, committed: Commit | None) -> None:
        self.ledger = ledger
        self.log = log
        self.committed = committed
        self.copied: Commit | None = None
        self.is_full = False
        self.settled = 0


class Settler:
    """The partitions of one process, its jobs, and the commit under way.

    Args:
        group: name in sentences.
        now_s: time of the first event.

    Attributes:
        now_s: time of the present event, by the clock of leases.
        totals: what the process has counted.
        clock: the brokers' time, as of the last transaction.
        confirmed_s: when the last accepted commit was planned. The brokers accept commits only from members of the
            group, so the process owned its partitions then.
        ledger_is_lost: the topic of the copies was deleted.
        member: the group metadata to commit with. Set it in each rebalance, after :meth:`revoke`.
        jobs: those that are not committed. A message whose job is taken from here stays open.
        unknown: the transaction whose outcome is unknown; :meth:`resolve` ends this state.
        ledgers: the ledger of each partition.
        has_dropped: whether a partition was lost before all calls of receivers on its messages were committed.
        drops: how often that has happened.
    """

    def __init__(self, group: str, now_s: float) -> None:
        self.now_s = self.confirmed_s = now_s
        self.totals = Counters()
        self.clock = BrokersClock()
        self.ledger_is_lost = False
        self._group = group
        self._next_transaction = now_s
        self._pause_s = _PAUSE_S
        self._held: dict[Job, tuple[float, float]] = {}
        """Job whose dead letter is refused -> until when it waits, and for how many seconds."""
        self._places: Places
        self.unknown: Plan | None = None
        self.ledgers: dict[Partition, Ledger] = {}
        self.has_dropped = False
        self.drops = 0
        self._owned: dict[Partition, _Owned] = {}
        self.member: Any = None
        self.jobs: list[Job] = []
        self._plain_unanswered = False
        self._repeats = False

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def assign(self, partition: Partition, ledger: Ledger, log: str, committed: Commit | None) -> None:
        """Own a partition whose last commit is ``committed``."""
        self._owned[partition] = _Owned(ledger, log, committed)
        self.ledgers[partition] = ledger

    def revoke(self, partitions: Iterable[Partition]) -> int:
        """Drop the ledgers of partitions, and the jobs of their messages; return how many deliveries ended."""
        held = 0
        for partition in partitions:
            owned = self._owned.pop(partition, None)
            if owned is not None:
                del self.ledgers[partition]
                held += owned.ledger.held_count
                self._note_drop(owned.ledger.changes != owned.settled)
                owned.ledger.drop()
        kept = [job for job in self.jobs if self.owns(job.partition, job.ledger)]
        if len(kept) < len(self.jobs):  # the job of a guard has no letter, and no receiver waits for it
            self._note_drop(any(job.letter for job in self.jobs if not self.owns(job.partition, job.ledger)))
        self.jobs = kept
        return held

    def _note_drop(self, has_dropped: bool) -> None:
        self.has_dropped |= has_dropped
        self.drops += has_dropped

    def owns(self, partition: Partition, ledger: Ledger) -> bool:
        """Whether this ledger counts: the partition was not lost since it was loaded."""
        return self.ledgers.get(partition) is ledger

    @property
    def commits(self) -> dict[Partition, Commit]:
        """What is committed."""
        return {each: owned.committed for each, owned in self._owned.items() if owned.committed is not None}

    @property
    def copied(self) -> dict[Partition, Commit]:
        """The newest copies."""
        return {each: owned.copied for each, owned in self._owned.items() if owned.copied is not None}

    def forget_copies(self) -> None:
        """Let the next transaction copy all commits: their topic was made anew."""
        for owned in self._owned.values():
            owned.copied = None

    def metadata_bytes(self) -> int:
        """Return the length of the longest metadata that is committed."""
        return max((len(owned.committed.metadata) for owned in self._owned.values() if owned.committed), default=0)

    @property
    def is_full(self) -> bool:
        """Whether the metadata of a partition is too long to be committed until older messages are done."""
        return any(owned.is_full for owned in self._owned.values())

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Start no messages of these partitions any more. The next commit says that nothing runs."""
        for partition in partitions:
            if partition in self.ledgers:
                self.ledgers[partition].starts.stop()

    # ---- commits -------------------------------------------------------------------------------------------------

    def repeat(self) -> None:
        """Let the next plan commit all partitions, so that its outcome shows whether the process is a member."""
        self._repeats = True

    def plan(
        self, *, in_transaction: bool = False, with_jobs: bool = True, waiting: Collection[Job] = ()
    ) -> Plan | None:
        """Return the next commit; None if there is nothing to commit, or :meth:`resolve` must come first.

        Args:
            in_transaction: commit in a transaction also without jobs, if a transaction may begin now. Then all commits
                are in it of which no copy was written, because the transaction writes copies.
            with_jobs: False for a plain commit: jobs that cannot be done now do not delay acknowledgements.
            waiting: jobs that must wait, because a record of theirs cannot be written now.
        """
        if self.unknown is not None:
            return None
        may_have_jobs = with_jobs and not self._plain_unanswered
        jobs = list(islice((job for job in self.jobs if job not in waiting), MAX_JOBS)) if may_have_jobs else []
        by_ledger: dict[int, list[Entry]] = {}
        for job in jobs:
            by_ledger.setdefault(id(job.ledger), []).append(job.entry)
        starts = plan_starts(self.ledgers)
        commits, full = {}, set()
        for partition, owned in self._owned.items():
            saved = owned.ledger.saved(by_ledger.get(id(owned.ledger), ()))._replace(start=starts[partition])
            text = encode(saved, owned.log)
            owned.is_full = text is None
            if text is None:
                full.add(partition)
                del starts[partition]
            elif (
                (commit := Commit(saved.offset, text)) != owned.committed
                or (in_transaction and commit != owned.copied)
                or self._repeats
            ):
                commits[partition] = commit
            else:
                owned.settled = owned.ledger.changes
        jobs = [job for job in jobs if job.partition not in full]
        in_transaction = bool(jobs) or (in_transaction and not self._plain_unanswered)
        changes = {partition: self.ledgers[partition].changes for partition in commits}
        plan = Plan(in_transaction, self.member, dict(self.ledgers), commits, jobs, starts, changes)
        if commits:
            self._repeats = False
            return plan
        self._allow(plan)
        return None

    def _allow(self, plan: Plan, jobs: Iterable[Job] = ()) -> None:
        """Allow the starts of a plan that is committed, and finish the messages of its jobs."""
        finished: dict[Partition, list[Entry]] = {}
        for job in jobs:
            finished.setdefault(job.partition, []).append(job.entry)
        for partition, start in plan.starts.items():
            if self.owns(partition, plan.ledgers[partition]):
                plan.ledgers[partition].commit(start, finished.get(partition, ()))

    def succeed(self, plan: Plan) -> None:
        """Note that a plan was committed: only now the messages of its jobs are done."""
        for partition, commit in plan.commits.items():
            if self.owns(partition, plan.ledgers[partition]):
                self._owned[partition].committed = commit
                self._owned[partition].settled = plan.changes[partition]
                if plan.in_transaction:
                    self._owned[partition].copied = commit
        for job in plan.jobs:
            if job.on_commit is not None:
                job.on_commit()
        finished = set(plan.jobs)
        self.jobs = [job for job in self.jobs if job not in finished]
        self._allow(plan, plan.jobs)
        if not plan.in_transaction:
            self._plain_unanswered = False

    def fail(self, plan: Plan) -> None:
        """Note that a plan was refused, for one partition at least. The next plan repeats it."""
        self._forget(plan)
        if not plan.in_transaction:
            self._plain_unanswered = False

    def lose_answer(self, plan: Plan) -> None:
        """Note that it is unknown whether a plan was committed."""
        if plan.in_transaction:
            self.unknown = plan
        else:
            self._forget(plan)
            self._plain_unanswered = True

    def _forget(self, plan: Plan) -> None:
        """Forget what is committed for the partitions of a plan, so that the next plan commits them."""
        for partition in plan.commits:
            if self.owns(partition, plan.ledgers[partition]):
                self._owned[partition].committed = None

    def resolve(self, committed: Mapping[Partition, Commit | None]) -> None:
        """Decide the unknown transaction, after it was decided at the brokers.

        A commit with a job says that a message is done that is open in all earlier commits. So if something else is
        committed, the transaction was aborted, or the partition has another owner by now. In that case the brokers
        refuse what this process commits until the rebalance is served. Without a job the next plan repeats it.

        Args:
            committed: what is now committed for the partitions of the transaction.
        """
        plan, self.unknown = self.unknown, None
        assert plan is not None
        decided = {job.partition for job in plan.jobs if self.owns(job.partition, job.ledger)}
        if any(committed[partition] == plan.commits[partition] for partition in decided):
            self.succeed(plan)
        else:
            self._forget(plan)

    # ---- rounds --------------------------------------------------------------------------------------------------

    def commit_soon(self) -> Steps[None]:
        """Commit all that is to be committed, before partitions are given up. What fails is tried for some seconds."""
        give_up_s = self.now_s + _LAST_COMMIT_S
        while not (yield from self.commit()) and self.now_s < give_up_s:
            yield do(Port.sleep, _LAST_COMMIT_PAUSE_S)

    def commit(self, *, with_copy: bool = False, only_plain: bool = False) -> Steps[bool]:
        """Commit all that is to be committed now, in one commit or more; False if something of it was not.

        After a refused transaction there are only plain commits for a growing pause, so that a request topic without a
        leader does not delay acknowledgements.

        Args:
            with_copy: commit in a transaction, which also writes copies of the commits.
            only_plain: commit acknowledgements only.
        """
        if self.ledger_is_lost and not only_plain:
            yield from self._restore_ledger()
        while True:
            if self.unknown is not None and not (yield from self._decide(self.unknown)):
                return False
            may_transact = not only_plain and (yield from self._ask_leaders(with_copy))
            planned_s = self.now_s
            waiting = self._postpone() if may_transact else set()
            jobs = len(self.jobs)
            plan = self.plan(in_transaction=with_copy and may_transact, with_jobs=may_transact, waiting=waiting)
            is_full = self.is_full
            if plan is None:
                return not jobs and not is_full
            if (yield from self._execute(plan)) is not Outcome.COMMITTED:
                return False
            self.confirmed_s = planned_s
            if len(plan.jobs) == jobs - len(waiting) or not may_transact:
                return len(plan.jobs) == jobs and not is_full

    def _restore_ledger(self) -> Steps[None]:
        try:
            yield do(Port.restore_ledger)
        except (KafkaException, TimersError) as error:
            text = "topic %s is not made anew yet: %s"
            yield do(Port.warn, text, topics.queue_ledger(self._group), error)
            return
        self.ledger_is_lost = False
        self.forget_copies()
        self._next_transaction, self._pause_s = self.now_s, _PAUSE_S

    def _decide(self, plan: Plan) -> Steps[bool]:
        try:
            committed = yield do(Port.decide, plan)
        except KafkaException as error:
            text = "%s waits for the outcome of a transaction: %s"
            yield do(Port.warn, text, self._group, error.args[0])
            return False
        self.resolve(committed)
        return True

    def _ask_leaders(self, with_copy: bool) -> Steps[bool]:
        """Ask the leaders that a transaction needs, if there will be one; False if it cannot begin."""
        if self.now_s < self._next_transaction:
            return False
        jobs = list(self.jobs)
        if jobs or (with_copy and self.ledgers):
            try:
                self._places = yield do(Port.ask_leaders, jobs)
            except KafkaException as error:
                yield do(Port.warn, "a transaction of %s waits: %s", self._group, error.args[0])
                self._pause()
                return False
            yield from self._replace_refused(dict.fromkeys(self._places.denied(jobs), _DENIED))
        return True

    def _postpone(self) -> set[Job]:
        """Return the jobs that wait for a leader. Guards do not wait: their partition has a new owner soon."""
        are_complete = not self.jobs or self._places.are_complete
        waiting = set() if are_complete else {job for job in self.jobs if not self._places.has_place(job)}
        for job in [job for job in waiting if job.records[0].kind is records.Kind.GUARD]:
            self.jobs.remove(job)
            waiting.discard(job)
        self._held = {job: self._held[job] for job in self.jobs if job in self._held}
        return waiting | {job for job, (until_s, _) in self._held.items() if self.now_s < until_s}

    def _pause(self) -> None:
        """Begin no transaction for a growing time."""
        self._next_transaction = self.now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _execute(self, plan: Plan) -> Steps[Outcome]:
        began_s = self.now_s
        answer: CommitAnswer = yield do(Port.execute, plan)
        if answer.append_ms:
            self.clock.note(answer.append_ms / 1000, began_s, self.now_s)
        if answer.outcome is Outcome.COMMITTED:
            self.succeed(plan)
        elif answer.outcome is Outcome.REFUSED:
            self.fail(plan)
        else:
            self.lose_answer(plan)
        if answer.outcome is not Outcome.COMMITTED and plan.in_transaction:
            self._pause()
        elif plan.in_transaction:
            self._next_transaction, self._pause_s = self.now_s, _PAUSE_S
        yield from self._replace_refused(answer.refused)
        return answer.outcome

    def _replace_refused(self, refused: Mapping[Job, KafkaError]) -> Steps[None]:
        """Give up records that the brokers refuse: a dead letter of their message takes their place, without its value
        if it is too large. If it is refused for another reason, its message stays open, and no other one waits for
        it."""
        for job, error in refused.items():
            record, reason = job.records[0], f"{_REFUSED}: {error.str()}"
            if record.kind is records.Kind.GUARD:
                self.jobs.remove(job)
            elif record.kind is records.Kind.LETTER and (record.value is None or error.code() != _TOO_LARGE):
                yield self._hold(job, record, error)
            elif record.kind is records.Kind.LETTER or job.letter is None:
                job.records = [records.truncated_letter(record, reason)]
            else:
                self.totals.dead[REJECTED] += 1
                job.records = [job.letter(REJECTED, reason)]

    def _hold(self, job: Job, record: records.Record, error: KafkaError) -> PortCall:
        _, waited_s = self._held.get(job, (0.0, _HELD_S / 2))
        held_s = min(2 * waited_s, _MAX_HELD_S)
        self._held[job] = self.now_s + held_s, held_s
        text = (
            "the brokers refuse the dead letter of %s on topic %r (%s): the message stays open, and the dead letter is "
            "tried again in %g s. Look at the configuration of the topic: message.timestamp.type=LogAppendTime and "
            "cleanup.policy=delete are right"
        )
        return do(Port.complain, text, record.source, self._places.topic_of(record), error.str(), held_s)


_LOAD_AGAIN_S = 0.5
_MAX_LOAD_AGAIN_S = 5.0


class NewPartitions:
    """Takes what is loaded of new partitions, and verifies that their logs are those of before. Then it lets the
    settler own them. In callbacks of rebalances there are only :meth:`add` and :meth:`forget`, because a failed request
    must be repeated.

    Attributes:
        load_error: why ledgers cannot be loaded; empty if they can.
        refused: the partitions that are not read until an operator decides, and why.
    """

    def __init__(self, settler: Settler, terms: Terms) -> None:
        self._settler = settler
        self._terms = terms
        self.load_error = ""
        self.refused: dict[Partition, str] = {}
        self._waiting: set[Partition] = set()
        self._verifying: dict[Partition, Verification] = {}
        self._noted: set[Partition] = set()
        self._unasked: set[Partition] = set()
        self._parted: dict[Partition, tuple[int, int]] = {}
        self._logs: Mapping[str, str] = {}
        self._next_load, self._pause_s = settler.now_s, _LOAD_AGAIN_S

    def __contains__(self, partition: Partition) -> bool:
        """Whether what is read of a partition verifies its log."""
        return partition in self._verifying

    def __len__(self) -> int:
        """How many partitions have no ledger yet, or are verified."""
        return len(self._waiting) + len(self._verifying)

    def add(self, partitions: Iterable[Partition]) -> None:
        """Load these partitions soon."""
        self._waiting |= set(partitions)
        self._next_load, self._pause_s = self._settler.now_s, _LOAD_AGAIN_S

    def forget(self, partitions: Collection[Partition]) -> set[Partition]:
        """Forget partitions that have another owner; return those of them that are read."""
        read = set(partitions) - self._waiting - self.refused.keys()
        self._waiting -= set(partitions)
        for partition in partitions:
            self._verifying.pop(partition, None)
            self._parted.pop(partition, None)
            self.refused.pop(partition, None)
        return read

    def refuse(self, partition: Partition, reason: str) -> Steps[None]:
        """Stop a partition that is not read any more. The others go on: else each process that gets it would end.

        Raises:
            QueueError: the process has no other partition with messages.
        """
        settler = self._settler
        self.refused[partition] = reason
        self._waiting.discard(partition)
        if partition in settler.ledgers:
            yield from self._drop(partition)
        if all(topic != self._terms.topic for topic, _ in {*settler.ledgers, *self._waiting, *self._verifying}):
            raise QueueError(reason)
        text = "the queue %s does not read one of its partitions, and goes on with the others: %s"
        yield do(Port.complain, text, self._terms.name, reason)

    def note(self, partition: Partition, record: Any) -> None:
        """Note a record or an event of a partition whose log is verified."""
        if partition not in self._noted and self._verifying[partition].note(record):
            self._noted.add(partition)
        elif record.error() is None or record.error().code() == KafkaError._PARTITION_EOF:
            self._unasked.add(partition)  # only now it is known that the former position is not read any more

    def begin_verification(self, partition: Partition, ledger: Ledger, end: int) -> bool:
        """Verify the log of a partition that is read, because a leader epoch began or its leader says that it lost
        records. Returns False if no epoch is known.

        Args:
            end: the log is known to have records below it.
        """
        verification = Verification.of(Loaded(ledger.saved(), None, 0, end))
        if verification is None:
            return False
        self._verifying[partition] = verification
        self._noted.add(partition)
        return True

    def work(self) -> Steps[set[Partition]]:
        """Do what is to be done now. Returns the partitions that are read from another position on.

        Raises:
            QueueError: each partition has lost messages, or has another log, and this is not accepted; or another
                version wrote the metadata.
        """
        noted, self._noted = self._noted, set()
        noted &= self._verifying.keys()
        for partition in sorted(noted):
            try:
                yield from self._end_verification(partition)
            except QueueError as error:
                yield from self.refuse(partition, str(error))
        yield from self._ask()
        if self._waiting and self._settler.now_s >= self._next_load:
            yield from self._load()
        return noted

    def _end_verification(self, partition: Partition) -> Steps[None]:
        verification = self._verifying[partition]
        yield do(Port.stop, [partition])
        if not verification.is_over:
            yield from self._begin(partition, verification)
            return
        del self._verifying[partition]
        ledger, parted = self._settler.ledgers.get(partition), verification.parted
        if ledger is not None and parted is None:
            ledger.verify()
            yield do(Port.start, {partition: ledger.place})
        elif ledger is not None and parted is not None:
            yield from self._part(partition, ledger, parted)
        else:
            if parted is not None and partition not in self._parted:
                yield self._loss(partition, verification.loaded.saved.lineage, parted[0])
            yield from self._own(partition, verification.loaded, parted)

    def _begin(self, partition: Partition, verification: Verification) -> Steps[None]:
        """Begin the next step of a verification."""
        self._verifying[partition] = verification
        yield do(Port.start, {partition: verification.position})
        self._unasked.discard(partition)

    def _part(self, partition: Partition, ledger: Ledger, parted: tuple[int, int]) -> Steps[None]:
        """End all deliveries of a partition, and load it again."""
        yield self._loss(partition, ledger.lineage, parted[0])
        yield from self._drop(partition)
        self._parted[partition] = parted
        self.add([partition])

    def _drop(self, partition: Partition) -> Steps[None]:
        """Drop the ledger of a partition whose log is another one.

        What was settled is committed before: the log may have lost a message that was retried or rejected. This commit
        also comes after one that was not answered. Else that one might come after the partition is loaded, and what it
        says would be open again.
        """
        self._settler.stop([partition])
        yield do(Port.end_round)
        yield from self._settler.commit_soon()
        self._settler.totals.leases_lost += self._settler.revoke([partition])

    def _loss(self, partition: Partition, lineage: Lineage, at: int) -> PortCall:
        """Say that a log parts at an offset from the one that was read.

        Raises:
            QueueError: that is not accepted.
        """
        name = topics.partition_name(*partition)
        read = "" if lineage.batch is None else f", which was read to {lineage.batch.last_offset}"
        parted = (
            f"from {at} on, the log is not the one of before{read}: a leader without its newest records was elected, "
            f"or a disk has lost them. The messages of before that were not done from {at} on are gone"
        )
        if not self._terms.accepts_loss(name):
            raise QueueError(f"{name}: {parted}. {way_on(name)}")
        return do(Port.complain, "%s: %s. The queue delivers all messages that are there from %d on", name, parted, at)

    def _ask(self) -> Steps[None]:
        """Ask where leader epochs end, for the partitions that are read by now."""
        for partition in sorted(self._unasked & self._verifying.keys()):
            epoch = self._verifying[partition].question
            if epoch is None or (yield do(Port.ask, partition, epoch)):
                self._unasked.discard(partition)
        self._unasked &= self._verifying.keys()

    def _load(self) -> Steps[None]:
        """Load the waiting partitions, except those whose leaders do not answer."""
        try:
            stored: Stored = yield do(Port.load, sorted(self._waiting))
        except KafkaException as error:
            yield self._load_later(error.args[0].str())
            return
        self._logs = stored.logs
        for partition in stored.bounds:
            try:
                loaded, lost = self._loaded(stored, partition)
            except QueueError as error:
                yield from self.refuse(partition, str(error))
                continue
            for sentence in lost:
                yield do(Port.complain, "%s: %s", topics.partition_name(*partition), sentence)
            self._waiting.discard(partition)
            verification = Verification.of(loaded)
            if verification is None:
                yield from self._own(partition, loaded)
            else:
                yield from self._begin(partition, verification)
        self.load_error = ""
        if self._waiting:
            names = ", ".join(topics.partition_name(*each) for each in sorted(self._waiting))
            yield self._load_later(f"no leader of {names} answers")

    def _loaded(self, stored: Stored, partition: Partition) -> tuple[Loaded, list[str]]:
        name, log = topics.partition_name(*partition), stored.logs[partition[0]]
        commit, copy = stored.commits[partition], stored.copies.get(partition)
        return loaded_from(name, commit, copy, stored.bounds[partition], log, accepts=self._terms.accepts_loss(name))

    def _own(self, partition: Partition, loaded: Loaded, parted: tuple[int, int] | None = None) -> Steps[None]:
        """Deliver the messages of a partition from now on. ``parted``: where its log parts from the one of before."""
        loaded = loaded.cut(parted, self._parted.pop(partition, None))
        ledger = Ledger(loaded.known, log_end=loaded.high, clock=self._settler.clock)
        ledger.pass_holes(loaded.low)
        self._settler.totals.crashes += ledger.crash_count
        self._settler.assign(partition, ledger, self._logs[partition[0]], loaded.commit)
        yield do(Port.start, {partition: ledger.place})

    def _load_later(self, reason: str) -> PortCall:
        self.load_error = reason
        self._next_load = self._settler.now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_LOAD_AGAIN_S)
        return do(Port.warn, "the queue %s loads its partitions later: %s", self._terms.name, reason)
