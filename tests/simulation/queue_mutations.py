"""Ledgers, settlers and processes of a queue that each break one rule. The simulator must find each one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.simulation.queue_process import Held, Parts, SimProcess
from timers.client.retry import ATTEMPT
from timers.core.lineage import PassedBatch
from timers.queue.ledger import HELD, READY, BrokersClock, Entry, Ledger, Starts
from timers.queue.metadata import Saved, Start
from timers.queue.new_partitions import Loaded, Verification
from timers.queue.records import SENT, SOURCE, Identity, Signing
from timers.queue.sending import Guard
from timers.queue.settling import Commit, Job, Partition, Plan, Settler
from timers.wire.headers import Header


class CommitsWhileUnknown(Settler):
    def lose_answer(self, plan: Plan) -> None:
        self._plain_unanswered = True


class TakesUnknownForCommitted(Settler):
    def resolve(self, committed: Mapping[Partition, Commit | None]) -> None:
        plan, self.unknown = self.unknown, None
        assert plan is not None
        self.succeed(plan)


class TakesUnknownForAborted(Settler):
    def resolve(self, committed: Mapping[Partition, Commit | None]) -> None:
        self.unknown = None


class OpensATransactionAfterAnUnansweredCommit(Settler):
    def lose_answer(self, plan: Plan) -> None:
        if plan.in_transaction:
            super().lose_answer(plan)


class ForgetsJobsOfAFailedTransaction(Settler):
    def fail(self, plan: Plan) -> None:
        self.jobs = [job for job in self.jobs if job not in plan.jobs]
        super().fail(plan)


class FinishesBeforeTheCommit(Settler):
    def plan(self, **arguments: Any) -> Plan | None:
        plan = super().plan(**arguments)
        for job in plan.jobs if plan is not None else ():
            job.ledger.finish(job.entry)
        return plan


class KeepsLedgersOfLostPartitions(Settler):
    def revoke(self, partitions: Iterable[Partition]) -> int:
        return 0


class TakesBoundMessagesForDone(Ledger):
    def saved(self, finished: Iterable[Entry] = ()) -> Saved:
        return super().saved([entry for entry in self._open.values() if entry.state not in (READY, HELD)])


class CommitsThePosition(Ledger):
    def saved(self, finished: Iterable[Entry] = ()) -> Saved:
        return Saved(self.position)


class ForgetsWhatWasDone(Ledger):
    def __init__(self, saved: Saved, **arguments: Any) -> None:
        super().__init__(Saved(saved.offset), **arguments)


class AcceptsFormerDeliveries(Ledger):
    def ack(self, entry: Entry, delivery: int) -> bool:
        return super().ack(entry, entry.delivery)


class FreesTheLaneOfAWaitingMessage(Ledger):
    def wait(self, entry: Entry, delivery: int, until_s: float) -> bool:
        accepted = super().wait(entry, delivery, until_s)
        others = self._lanes.get(entry.lane or b"", deque())
        if accepted and len(others) > 1:
            others[1].state = READY
            self.starts.add(others[1])
        return accepted


class HasNoLanes(Ledger):
    def read(self, offset: int, item: Any, lane: bytes | None = None, attempt: int = 1, size: int = 0) -> bool:
        return super().read(offset, item, None, attempt, size)


class KeepsDroppedDeliveries(Ledger):
    def drop(self) -> None:
        pass


class AllowsBeforeTheCommit(Settler):
    def plan(self, **arguments: Any) -> Plan | None:
        plan = super().plan(**arguments)
        if plan is not None:
            self._allow(plan)
        return plan


class AllowsAfterARefusedCommit(Settler):
    def fail(self, plan: Plan) -> None:
        super().fail(plan)
        self._allow(plan)


class BeginsGroupsWhileOthersRun(Settler):
    def plan(self, **arguments: Any) -> Plan | None:
        held = {partition: ledger.held_count for partition, ledger in self.ledgers.items()}
        for ledger in self.ledgers.values():
            ledger.held_count = 0
        plan = super().plan(**arguments)
        for partition, ledger in self.ledgers.items():
            ledger.held_count = held[partition]
        return plan


class KeepsThePlanOfAPartitionGivenUp(Settler):
    def stop(self, partitions: Iterable[Partition]) -> None:
        pass


class BlamesEachSuspect(Ledger):
    def __init__(self, saved: Saved, **arguments: Any) -> None:
        super().__init__(saved, **arguments)
        suspects = range(saved.start.first, self.starts.suspects_end)
        self._crashes = {each: saved.crashes.get(each, 0) + 1 for each in suspects if saved.is_open(each)}


class ForgetsSuspects(Ledger):
    def __init__(self, saved: Saved, **arguments: Any) -> None:
        super().__init__(saved, **arguments)
        self.starts.suspects_end = 0


class ForgetsCrashes(Ledger):
    def saved(self, finished: Iterable[Entry] = ()) -> Saved:
        return super().saved(finished)._replace(crashes={})


class StartsWithoutACommit(Starts):
    def allow(self, start: Start) -> None:
        super().allow(start)
        self._horizon += 2


class DoesNotTakeBackTheHorizon(Starts):
    def forbid(self) -> None:
        pass


class FetchesTheNewestGeneration(SimProcess):
    def generation_of(self, plan: Plan) -> int:
        return self.brokers.generation


class LoadsBeforeTransactionsAreDecided(SimProcess):
    def may_load(self, partition: Partition) -> bool:
        return True


class ForgetsAttempts(Ledger):
    def saved(self, finished: Iterable[Entry] = ()) -> Saved:
        return super().saved(finished)._replace(attempts={})


class ForgetsWaits(Ledger):
    def saved(self, finished: Iterable[Entry] = ()) -> Saved:
        return super().saved(finished)._replace(waits={})


class TrustsItsOwnClock(BrokersClock):
    def note(self, append_s: float, sent_s: float, reported_s: float) -> None:
        super().note(0.0, 0.0, 0.0)


class AcknowledgesWithoutAVerdict(Guard):
    def cancel(self, timeout_s: float) -> bool:
        if not self.leave(timeout_s):
            return False
        self._client.cancel(self.id, timeout_s)
        return True


class SetsGuardsBeforeTheTransaction(SimProcess):
    def protect(self, held: Held) -> Guard:
        guard = super().protect(held)
        self.brokers.set_guard(guard.id, (held.partition, held.entry.offset))
        return guard


class SettlesBeforeItIsConfirmed(SimProcess):
    def refuse(self, held: Held) -> bool:
        return held.ledger.ack(held.entry, held.delivery)


class ExtendsItsGuard(SimProcess):
    def _answer_guarded(self, guard: Guard) -> bool:
        if guard.leave(0):
            self.brokers.set_guard(guard.id, self.brokers.guarded[guard.id])
        return True


class GuardsOrderedMessages(SimProcess):
    may_protect = True


class GuardsMessagesWithOutputs(SimProcess):
    def protect(self, held: Held) -> Guard:
        guard = super().protect(held)
        self.settler.jobs.append(Job(held.partition, held.ledger, held.entry, [""]))
        return guard


class BelievesEachReturn(Signing):
    def identity(self, own: Identity, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> Identity:
        claimed = dict(headers)
        return Identity((claimed[SOURCE] or b"").decode(), int(claimed[SENT] or 0), int(claimed[ATTEMPT] or 0) + 1)


class SignsTheKeyAndTheValueOnly(Signing):
    def _digest(self, secret: bytes, parts: Sequence[bytes | None]) -> bytes:
        return super()._digest(secret, parts[-2:])


class SignsWithTheNewestKey(Signing):
    def __init__(self, queue: str, keys: Mapping[int, bytes]) -> None:
        super().__init__(queue, keys)
        self._number = [*keys][-1]


class CountsItsOwnKeyOnly(Signing):
    def __init__(self, queue: str, keys: Mapping[int, bytes]) -> None:
        super().__init__(queue, dict([[*keys.items()][-1]]))


class TakesEachLogForTheSame(Verification):
    @classmethod
    def of(cls, loaded: Loaded) -> Verification | None:
        return None


class ComparesEpochsOnly(Verification):
    """The last record is not read: a number of an epoch that was given twice is not noticed."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._reads = False
        self._go_on()


class PartsAtTheLastRecord(Verification):
    def _end(self, at: int) -> None:
        super()._end(self._last)


class FollowsEachLeader(Ledger):
    """A record of a new leader epoch is accepted before the log was verified."""

    def follows(self, passed: PassedBatch) -> bool:
        return True


class KeepsItsPosition(Ledger):
    """What was passed above the last record is not read again after the log was verified."""

    def verify(self) -> None:
        position = self.position
        super().verify()
        self.position = position


def cutting(change: Callable[[Saved, Saved], Saved]) -> Parts:
    """What counts after a cut is changed, given what counted before and after it."""

    class Changed(Loaded):
        def cut(self, found: tuple[int, int] | None, own: tuple[int, int] | None) -> Loaded:
            after = super().cut(found, own)
            return after if after is self else after._replace(saved=change(self.saved, after.saved))

    return Parts(loaded=Changed)


def knows_no_epoch(before: Saved, after: Saved) -> Saved:
    """The log may have lost more of its end before a record above the cut is read."""
    return after if after.lineage.batch is not None else after._replace(lineage=after.lineage._replace(epochs=()))


class GoesOnWithItsDeliveries(SimProcess):
    """A process whose log parts delivers on what it has read."""

    def verify_read(self, partition: Partition, ledger: Ledger, end: int) -> None:
        ledger.verify()


class LoadsWhileACommitIsUnderWay(SimProcess):
    def reload(self) -> bool:
        for partition in list(self.parted):
            if self.may_load(partition):
                self.load(partition)
        return True


def with_starts(kind: type[Starts]) -> type[Ledger]:
    """A ledger with other starts."""

    class Changed(Ledger):
        def __init__(self, saved: Saved, **arguments: Any) -> None:
            super().__init__(saved, **arguments)
            self.starts.__class__ = kind

    return Changed


MUTATIONS = {
    "1 a transaction after a commit without an answer": Parts(settler=OpensATransactionAfterAnUnansweredCommit),
    "2 other commits while the outcome is unknown": Parts(settler=CommitsWhileUnknown),
    "2 an unknown outcome counts as committed": Parts(settler=TakesUnknownForCommitted),
    "2 an unknown outcome counts as aborted": Parts(settler=TakesUnknownForAborted),
    "3 a bound message is done in plain commits": Parts(ledger=TakesBoundMessagesForDone),
    "4 the newest generation": Parts(process=FetchesTheNewestGeneration),
    "4 ledgers survive a rebalance": Parts(settler=KeepsLedgersOfLostPartitions),
    "5 loaded before transactions are decided": Parts(process=LoadsBeforeTransactionsAreDecided),
    "memory moves before the commit": Parts(settler=FinishesBeforeTheCommit),
    "jobs of a failed transaction are forgotten": Parts(settler=ForgetsJobsOfAFailedTransaction),
    "the position is committed": Parts(ledger=CommitsThePosition),
    "a restart forgets what is done": Parts(ledger=ForgetsWhatWasDone),
    "a former receiver acknowledges": Parts(ledger=AcceptsFormerDeliveries),
    "a waiting message is overtaken": Parts(ledger=FreesTheLaneOfAWaitingMessage),
    "no lanes": Parts(ledger=HasNoLanes),
    "deliveries outlive their partition": Parts(ledger=KeepsDroppedDeliveries),
    "what a receiver is told does not count is done": Parts(process=SettlesBeforeItIsConfirmed),
    "a restart forgets attempts": Parts(ledger=ForgetsAttempts),
    "a restart forgets delays": Parts(ledger=ForgetsWaits),
    "delays end by the clock of another process": Parts(clock=TrustsItsOwnClock),
    "a guarded message is acknowledged without a verdict": Parts(guard=AcknowledgesWithoutAVerdict),
    "a guard is set before its transaction": Parts(process=SetsGuardsBeforeTheTransaction),
    "a guard is extended": Parts(process=ExtendsItsGuard),
    "ordered messages have guards": Parts(process=GuardsOrderedMessages),
    "a return that is not signed is believed": Parts(signing=BelievesEachReturn),
    "a signature counts for another message": Parts(signing=SignsTheKeyAndTheValueOnly),
    "two first starts sign with two keys": Parts(signing=SignsWithTheNewestKey),
    "only the newest key counts": Parts(signing=CountsItsOwnKeyOnly),
    "T4 no log is verified": Parts(verification=TakesEachLogForTheSame),
    "T4 the last record is not read again": Parts(verification=ComparesEpochsOnly, restores=True),
    "T4 a log parts at the last record": Parts(verification=PartsAtTheLastRecord),
    "T4 each leader is followed": Parts(ledger=FollowsEachLeader),
    "T4 markers that were passed stay passed": Parts(ledger=KeepsItsPosition),
    "T4 nothing is known below a cut": cutting(knows_no_epoch),
    "T10 what was done above a cut stays done": cutting(
        lambda before, after: after._replace(offset=before.offset, done=before.done)
    ),
    "T10 a loss counts as a crash": cutting(lambda before, after: after._replace(start=before.start)),
    "T10 sources without the number of the cut": cutting(lambda before, after: after._replace(cuts=before.cuts)),
    "T10 deliveries above a cut go on": Parts(process=GoesOnWithItsDeliveries),
    "T10 loaded again while a commit is under way": Parts(process=LoadsWhileACommitIsUnderWay),
    "a guarded message has outputs": Parts(process=GuardsMessagesWithOutputs),
    "starts 1 allowed before the commit": Parts(settler=AllowsBeforeTheCommit),
    "starts 1 allowed after a refused commit": Parts(settler=AllowsAfterARefusedCommit),
    "starts 1 more is started than a commit says": Parts(ledger=with_starts(StartsWithoutACommit)),
    "starts 1 allowed again without a commit": Parts(ledger=with_starts(DoesNotTakeBackTheHorizon)),
    "starts 1 no suspects": Parts(ledger=ForgetsSuspects),
    "starts 2 neighbours are blamed": Parts(ledger=BlamesEachSuspect),
    "starts 2 crashes are forgotten": Parts(ledger=ForgetsCrashes),
    "starts 3 a group begins while others run": Parts(settler=BeginsGroupsWhileOthersRun),
    "starts 4 a partition that was given up has suspects": Parts(settler=KeepsThePlanOfAPartitionGivenUp),
}
"""Rule -> the classes that break it. The numbers are those of :mod:`timers.queue.settling`, and of
:mod:`timers.queue.ledger` after the word starts."""
