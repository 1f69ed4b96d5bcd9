"""All mutations, by the rule that they break."""

from __future__ import annotations

from tests.simulation import clock_mutations as k
from tests.simulation import cold_mutations as c
from tests.simulation import condition_mutations as ci
from tests.simulation import delivery_mutations as d
from tests.simulation import doubt_mutations as o
from tests.simulation import id_mutations as i
from tests.simulation import level_mutations as lv
from tests.simulation import loop_mutations as lm
from tests.simulation import mutations as m
from tests.simulation import progress_mutations as p
from tests.simulation import schedule_mutations as s
from timers.core.clock_guard import ClockGuard
from timers.core.delivery import Delivery
from timers.core.horizon import Horizon
from timers.core.index import Index
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.only_if import ConditionalIndex
from timers.core.schedules import ScheduleIndex
from timers.testing import Parts, SimOutbox, SimWorker
from timers.testing.worker import REAL

Mutation = tuple[Parts, type[SimWorker]]
"""The classes that a simulated worker is made of, and the class of the worker."""


def machine(broken: type[Machine], **others: type) -> Mutation:
    return Parts(machine=broken, **others), SimWorker


def outbox(broken: type[SimOutbox]) -> Mutation:
    return Parts(outbox=broken), SimWorker


def policy(change: type[Delivery]) -> Mutation:
    """The methods of ``change`` replace those of the delivery policy, and of its variants."""
    return Parts(outbox=type(change.__name__, (SimOutbox,), {"policy_change": change})), SimWorker


def worker(broken: type[SimWorker]) -> Mutation:
    return REAL, broken


def horizon(broken: type[Horizon]) -> Mutation:
    return Parts(horizon=broken), SimWorker


def schedules(broken: type[ScheduleIndex]) -> Mutation:
    return Parts(schedule_index=broken), SimWorker


def loop(broken: type[Loop]) -> Mutation:
    return Parts(loop=broken), SimWorker


def index(broken: type[ConditionalIndex]) -> Mutation:
    return Parts(conditional_index=broken), SimWorker


def plain_index(broken: type[Index]) -> Mutation:
    """In runs in which timers with an id have no conditions."""
    return Parts(index=broken), ci.WithoutConditions


def upgraded(broken: type[Machine]) -> Mutation:
    """In runs with two versions of workers."""
    return Parts(machine=broken), lv.UpgradedWorker


def guard(broken: type[ClockGuard]) -> Mutation:
    return Parts(guard=broken), SimWorker


MUTATIONS: dict[str, Mutation] = {
    "[I1] an old next_offset is committed": machine(m.CommitsAnOldNextOffset),
    "[I1] next_offset on opening ignores the store": machine(m.IgnoresTheStoreOnOpening),
    "[I1] requests that the former owner had not read are dropped": worker(m.DropsWhatFormerOwnerHadNotRead),
    "[I1] timers that another worker fired are kept on opening": worker(m.KeepsFiredRowsOnOpening),
    "[I2] stored before committed": machine(m.StoresBeforeCommit),
    "[I2] late rows are stored": machine(m.StoresLateRows),
    "[I2] memory changes before the commit": (
        Parts(machine=m.ChangesMemoryBeforeCommit),
        m.ContinuesAfterFailure,
    ),
    "[I5] a machine goes on after an unforeseen failure": worker(m.ContinuesAfterAnUnforeseenFailure),
    "[I3] fired_through is the whole second after a chunk": machine(m.CommitsTheWholeSecond),
    "[I3] timers that have not fired are deleted": machine(m.DeletesTheWholeSecond),
    "[I3] deleted before the commit": machine(m.DeletesBeforeCommit, store=m.StoreWithoutDeleteCheck),
    "[I4] replay filters by whole seconds": machine(m.ReplaysByWholeSeconds),
    "[I4] replay does not filter": machine(m.ReplaysEverything),
    "[I15] replay does not discard its output": machine(m.EmitsAgainInReplay),
    "[I15] fires while recovering": machine(m.FiresWhileRecovering),
    "ids: replaced rows fire": plain_index(i.FiresReplacedRows),
    "ids: replay skips fired versions": machine(i.ReplaySkipsFiredVersions),
    "ids: replay gives verdicts": machine(i.SendsVerdictsInReplay),
    "ids: a batch is judged without its earlier records": plain_index(i.JudgesWithoutEarlierRecords),
    "ids: a late cancel changes nothing": plain_index(i.IgnoresLateCancels),
    "ids: a callback names no version": outbox(i.FiresWithoutSource),
    "ids: no verdicts": outbox(i.SendsNoVerdicts),
    "ids: swept by uncommitted progress": (Parts(machine=i.SweepsByUncommittedProgress), ci.WithoutConditions),
    "ids: a second fires before its requests are read": (Parts(barrier=i.FiresBeforeRequestsAreRead), SimWorker),
    "ids: only the first second waits": (Parts(barrier=i.OnlyFirstSecondWaits), SimWorker),
    "[I27] conditions are ignored": index(ci.IgnoresConditions),
    "[I27] a replay takes refused requests": index(ci.ReplaysRefusedRequests),
    "[I27] refused requests keep their rows": index(ci.KeepsRefusedRows),
    "[I27] refused requests go cold": index(ci.ForwardsRefusedRequests),
    "[I27] refused requests get no verdict": index(ci.SendsNoRefusals),
    "[I27] what has fired is absent": index(ci.FiredIsAbsent),
    "[I27] what has fired is swept": index(ci.SweepsWhatHasFired),
    "[I27] pending ids are swept": index(ci.SweepsPendingIds),
    "[I27] cancelled ids are absent": index(ci.CancelledIsAbsent),
    "[I27] a cancel of nothing counts": index(ci.CancelsOfNothingCount),
    "[I27] the present retention decides": index(ci.UsesThePresentRetention),
    "[I27] the time is not stored": index(ci.ForgetsTheTime),
    "[I27] a copy has a source of its own": index(ci.CopiesHaveTheirOwnSource),
    "[I27] no change is too late": index(ci.IsNeverTooLate),
    "[I27] a batch is judged without its earlier records": index(ci.JudgesByTheStoreAlone),
    "[I27] a verdict forgets what a wrong clock has fired": index(ci.JudgesWithoutHoles),
    "cold: every copy counts": horizon(c.CountsEveryCopy),
    "cold: a restart forgets which copy counted": horizon(c.RemembersCopiesInMemoryOnly),
    "cold: the last copy counts": horizon(c.TheLastCopyCounts),
    "cold: a replay uses the present horizon": horizon(c.UsesThePresentHorizon),
    "cold: a copy needs no seal": horizon(c.ChecksNoSeal),
    "cold: a copy and a change in one fetch": horizon(c.DoesNotSplitFetches),
    "cold: a cold version counts as fired": horizon(c.ColdCountsAsFired),
    "cold: which copy counted is forgotten too soon": horizon(c.ForgetsCopiesAtTheNextSweep),
    "cold: forwarded requests are kept": horizon(c.ForwardsAndKeeps),
    "cold: forwarded without a commit": machine(c.ForwardsWithoutACommit),
    "cold: forwarded again in a replay": machine(c.ForwardsAgainInReplay),
    "cold: forwarded without headers": outbox(c.ForwardsWithoutHeaders),
    "cold: a promoted timer has another source": machine(c.FiresCopiesWithAnotherSource),
    "levels: all requests are read at the newest level": upgraded(lv.ReadsAllAtTheNewestLevel),
    "levels: a raise is forgotten in a replay": upgraded(lv.ForgetsTheRaiseInAReplay),
    "levels: raised with a batch": upgraded(lv.RaisesWithABatch),
    "levels: raised before all members can": worker(lv.RaisesBeforeAllCan),
    "levels: older versions read on": worker(lv.OlderVersionsReadOn),
    "loop: a tick starts no drain": loop(lm.FiresNothingAtATick),
    "loop: one chunk for each tick": loop(lm.StopsAfterOneChunk),
    "loop: no drain after acceptance": loop(lm.FiresNothingAfterAcceptance),
    "loop: no drain after a replay": loop(lm.FiresNothingAfterAReplay),
    "loop: no drain after the barrier": loop(lm.FiresNothingAfterTheBarrier),
    "loop: passing time is not committed": loop(lm.CommitsNoIdleSeconds),
    "loop: no rewind after a gap": loop(lm.ReadsOnAfterAGap),
    "loop: accepts at any time": loop(lm.AcceptsAtAnyTime),
    "loop: no progress is committed": loop(lm.CommitsNoProgress),
    "[I5] a commit of unknown outcome is repeated in a new transaction": outbox(m.RepeatsUnknownCommit),
    "[I5] a machine is used after a failed transaction": worker(m.ContinuesAfterFailure),
    "[I7] gaps are ignored": machine(m.IgnoresGaps),
    "schedules: a tombstone ends any version": schedules(s.TombstonesEndAnyVersion),
    "schedules: a tombstone of another version changes nothing": schedules(s.IgnoresTombstonesOfOthers),
    "schedules: a version stays beside its copy": schedules(s.KeepsRepublishedVersions),
    "schedules: a fired version is republished": schedules(s.RepublishesFiredVersions),
    "schedules: no tombstone": outbox(s.WritesNoTombstones),
    "schedules: a tombstone on another partition": outbox(s.TombstonesOnAnotherPartition),
    "schedules: a tombstone names another version": outbox(s.TombstonesNameAnOlderVersion),
    "schedules: a copy has a new time": outbox(s.RepublishesWithANewTime),
    "[I13] offsets are counted as records": machine(m.CountsOffsetsAsRecords),
    "[I8] a witness of progress is ignored": worker(p.IgnoresTheWitness),
    "[I8] an older witness replaces the progress": worker(p.BelievesTheWitness),
    "[I8] a witness is sent with new requests only": outbox(p.SendsAWitnessWithNewRequestsOnly),
    "[I14] the former owner is not fenced": outbox(p.DoesNotFence),
    "[I14] progress is read before fencing": worker(p.ReadsProgressBeforeFencing),
    "[I14] progress is not read to the end": worker(p.ReadsProgressToLastStableOffset),
    "[I14] progress of an aborted transaction counts": worker(p.BelievesAbortedProgress),
    "[P3] progress is not in the transaction": outbox(p.ProgressOutsideTheTransaction),
    "[I13] requests are read uncommitted": worker(p.ReadsUncommitted),
    "[I23] memory decides whether a value is too large": worker(p.MemoryDecides),
    "[P2] the sender's clock is believed": worker(m.UsesTheSendersClock),
    "[P2] a tick proves the next second": worker(m.FiresOneSecondEarly),
    "[I10] accepts while the clock is behind": machine(m.AcceptsWhileTheClockIsBehind),
    "[I10] fires by the former time after the clock went back": machine(m.FiresByTheFormerTime),
    "[I20] all ticks count": guard(k.CountsAllTicks),
    "[I20] small leaps add up": guard(k.LeapsAddUp),
    "[I20] a later clock agrees": guard(k.ALaterClockAgrees),
    "[I20] a broker agrees with itself": guard(k.ABrokerAgreesWithItself),
    "[I20] the first tick counts": guard(k.TheFirstTickCounts),
    "[I20] any first tick after what has fired counts": guard(k.AnyLaterFirstTickFollows),
    "[I20] a held tick never counts": guard(k.NoSecondClock),
    "[I24] a replay stores what a wrong clock has fired": machine(k.ReplaysHoles),
    "[I24] a verdict forgets what a wrong clock has fired": plain_index(k.JudgesWithoutHoles),
    "[I24] a store keeps what a wrong clock has fired": worker(k.KeepsHolesOnOpening),
    "[I29] a compacted topic is only reported": machine(o.NotesNoDoubt),
    "[I29] a doubt ends when the topic is corrected": machine(o.EndsDoubtsAtOnce),
    "[I29] a doubtful log is read from its start": worker(o.OpensInDoubt),
    "[I29] a refusal is forgotten": worker(o.ForgetsRefusals),
    "[I29] progress is read without its doubt": worker(o.KeepsDoubtsToItself),
    "[P1] postponed timers are dropped": outbox(m.DropsPostponed),
    "[P3] postponed timers fire twice": outbox(m.FiresPostponed),
    "[P3] a postponed timer has another source": policy(m.PostponesWithAnotherSource),
    "delivery: rules are ignored": policy(d.IgnoresCallbackRules),
    "delivery: topics of other apps' workers are targets": policy(d.AllowsProgressOfOtherApps),
    "delivery: open circuits are ignored": policy(d.SendsToOpenCircuits),
    "delivery: a topic is missing if no broker says that it exists": policy(d.TakesSilenceForMissing),
    "delivery: timers of a topic without an answer are dropped": policy(d.DropsTimersOfUnansweredTopics),
    "delivery: retries need the leader of their partition": outbox(d.RetriesNeedTheirPartition),
    "delivery: dead letters need the leader of their partition": outbox(d.DeadLettersNeedTheirPartition),
    "delivery: cold requests need the leader of their partition": outbox(d.ColdRequestsNeedTheirPartition),
    "delivery: verdicts need the leader of their partition": outbox(d.VerdictsNeedTheirPartition),
    "delivery: all timers go to the topic of the first": policy(d.UsesTheTopicOfTheFirst),
    "delivery: no topic is split": policy(d.DoesNotSplit),
    "delivery: too large timers are dropped": policy(d.DropsTooLarge),
    "delivery: callbacks to the request topic are not checked": policy(d.ChecksNoChainedRequest),
    "delivery: timers of a failing topic are dropped": policy(d.DropsTimersOfFailingTopics),
    "delivery: too large timers are retried": policy(d.RetriesTooLarge),
    "delivery: postponed for ever": policy(d.PostponesWithoutLimit),
    "delivery: dead letter at the first failed retry": policy(d.DeadLetterAtFirstRetry),
    "delivery: a first attempt does not count": policy(d.CountsNoFirstAttempt),
    "delivery: tried again at once": policy(d.RetriesAtOnce),
    "delivery: tried for ever": policy(d.RetriesWithoutLimit),
    "delivery: a retried timer has another source": policy(d.RetriesWithAnotherSource),
    "delivery: a retried timer is sent as a new one": policy(d.FiresRetriesAsNewRequests),
    "delivery: a postponed schedule gets no tombstone": policy(d.PostponedScheduleGetsNoTombstone),
    "delivery: a rejected schedule gets no tombstone": policy(d.RejectedScheduleGetsNoTombstone),
    "delivery: a rejected record that is no schedule gets a tombstone": policy(d.EndsRejectedRequests),
    "delivery: a refusal is not noted": policy(d.NotesNoRefusal),
    "delivery: one callback without a key ends all of its topic": policy(d.RefusesAllWhereOneHadNoKey),
    "delivery: callbacks without a key are refused again and again": policy(d.ForgetsWhichTopicsNeedKeys),
    "delivery: refused callbacks are dropped": policy(d.DropsRefusals),
    "delivery: a transaction with refused records is committed": outbox(d.CommitsWithoutRefused),
    "delivery: a transaction with refused records is not aborted": outbox(d.KeepsRefusedTransactions),
    "delivery: all records beside a refused one are refused": outbox(d.RefusesWholeBatches),
    "delivery: chunks never shrink": outbox(d.NeverShrinks),
    "delivery: shrunk chunks split no stored group": outbox(d.SplitsNoGroup),
    "delivery: shrunk chunks split no fetch": machine(d.SplitsNoFetch),
    "delivery: a part of a fetch counts as the whole": machine(d.AcceptsOnePartOfAFetch),
    "delivery: a part of a stored group counts as the whole": machine(d.FiresOnePartOfAGroup),
    "[P6] bad requests are dropped": machine(m.DropsBadRequests),
    "[P6] two dead letters for one bad request": outbox(m.WritesTwoDeadLetters),
}
