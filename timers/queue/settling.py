"""Decides what a process commits next for its partitions, and what the outcome of each commit means. Pure: no I/O.

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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from timers.queue.ledger import Entry, Ledger, plan_starts, wants_commit
from timers.queue.metadata import Start, encode

Partition: TypeAlias = tuple[str, int]

MAX_JOBS = 2000
"""Largest number of jobs in a transaction, so that it ends long before its time-out."""


class Commit(NamedTuple):
    """The committed offset of a partition, and its metadata."""

    offset: int
    metadata: str


@dataclass(eq=False)
class Job:
    """Records that are written in the transaction in which a message is done.

    Attributes:
        on_commit: called when the transaction is committed.
        letter: returns the dead letter of the message with a code and a reason, for records that the brokers refuse.
    """

    partition: Partition
    ledger: Ledger
    entry: Entry
    records: Sequence[Any]
    on_commit: Callable[[], None] | None = None
    letter: Callable[[str, str], Any] | None = None


@dataclass
class Plan:
    """One commit: in a transaction if there are jobs or the caller wants one, else a plain one.

    Attributes:
        in_transaction: whether it is a transaction.
        member: the group metadata to commit with.
        ledgers: the ledgers whose state it commits.
        starts: the messages that may be started when it is committed.
        changes: how many calls of receivers its ledgers had noted.
    """

    in_transaction: bool
    member: Any
    ledgers: dict[Partition, Ledger]
    commits: dict[Partition, Commit]
    jobs: list[Job]
    starts: dict[Partition, Start]
    changes: dict[Partition, int]


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

    Attributes:
        member: the group metadata to commit with. Set it in each rebalance, after :meth:`revoke`.
        jobs: those that are not committed. A message whose job is taken from here stays open.
        unknown: the transaction whose outcome is unknown; :meth:`resolve` ends this state.
        ledgers: the ledger of each partition.
        has_dropped: whether a partition was lost before all calls of receivers on its messages were committed.
    """

    def __init__(self) -> None:
        self.unknown: Plan | None = None
        self.ledgers: dict[Partition, Ledger] = {}
        self.has_dropped = False
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
                self.has_dropped |= owned.ledger.changes != owned.settled
                owned.ledger.drop()
        kept = [job for job in self.jobs if self.owns(job.partition, job.ledger)]
        if len(kept) < len(self.jobs):  # a guard has no letter, and is no call of a receiver
            self.has_dropped |= any(job.letter for job in self.jobs if not self.owns(job.partition, job.ledger))
        self.jobs = kept
        return held

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

    @property
    def wants_commit(self) -> bool:
        """Whether ready messages wait for a commit."""
        return wants_commit(self.ledgers)

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

    def _allow(self, plan: Plan) -> None:
        for partition, start in plan.starts.items():
            if self.owns(partition, plan.ledgers[partition]):
                plan.ledgers[partition].starts.allow(start)

    def succeed(self, plan: Plan) -> None:
        """Note that a plan was committed: only now the messages of its jobs are done."""
        for partition, commit in plan.commits.items():
            if self.owns(partition, plan.ledgers[partition]):
                self._owned[partition].committed = commit
                self._owned[partition].settled = plan.changes[partition]
                if plan.in_transaction:
                    self._owned[partition].copied = commit
        for job in plan.jobs:
            job.ledger.finish(job.entry)
            if job.on_commit is not None:
                job.on_commit()
        finished = set(plan.jobs)
        self.jobs = [job for job in self.jobs if job not in finished]
        self._allow(plan)
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
