"""Whoever breaks a rule of the design is told by the simulator, within a bounded number of runs."""

from __future__ import annotations

import pytest

from tests.simulation import cold_mutations as c
from tests.simulation import delivery_mutations as d
from tests.simulation import loop_mutations as lm
from tests.simulation import mutations as m
from tests.simulation import schedule_mutations as s
from timers.core.delivery import Delivery
from timers.core.horizon import Horizon
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.schedules import ScheduleIndex
from timers.testing import Parts, SimOutbox, SimulationFailed, Simulator, SimWorker, Violation
from timers.testing.worker import SOUND

SEEDS = 2000
"""Most seeds that a mutation may survive. Most die within ten; the rarest takes some hundred."""


def machine(broken: type[Machine], **others: type) -> tuple[Parts, type[SimWorker]]:
    return Parts(machine=broken, **others), SimWorker


def outbox(broken: type[SimOutbox]) -> tuple[Parts, type[SimWorker]]:
    return Parts(outbox=broken), SimWorker


def policy(change: type[Delivery]) -> tuple[Parts, type[SimWorker]]:
    """The methods of ``change`` replace those of the delivery policy, and of its variants."""
    return Parts(outbox=type(change.__name__, (SimOutbox,), {"policy_change": change})), SimWorker


def worker(broken: type[SimWorker]) -> tuple[Parts, type[SimWorker]]:
    return SOUND, broken


def horizon(broken: type[Horizon]) -> tuple[Parts, type[SimWorker]]:
    return Parts(horizon=broken), SimWorker


def schedules(broken: type[ScheduleIndex]) -> tuple[Parts, type[SimWorker]]:
    return Parts(schedule_index=broken), SimWorker


def loop(broken: type[Loop]) -> tuple[Parts, type[SimWorker]]:
    return Parts(loop=broken), SimWorker


MUTATIONS: dict[str, tuple[Parts, type[SimWorker]]] = {
    "[I1] an old next_offset is committed": machine(m.CommitsAnOldNextOffset),
    "[I1] next_offset on open forgets the store": machine(m.ForgetsWhatTheStoreHolds),
    "[I1] what another owner passed over is dropped on open": worker(m.DropsWhatAnotherPassedOver),
    "[I1] what has fired meanwhile is kept on open": worker(m.KeepsWhatHasFired),
    "[I2] stored before committed": machine(m.StoresBeforeCommit),
    "[I2] late rows are stored": machine(m.StoresLateRows),
    "[I2] memory moves before the commit": (Parts(machine=m.MovesMemoryBeforeCommit), m.SurvivesLost),
    "[I3] (second, MAX) after a cut scan": machine(m.ClaimsTheWholeSecond),
    "[I3] more is deleted than has fired": machine(m.DeletesTheWholeSecond),
    "[I3] deleted before the commit": machine(m.DeletesBeforeCommit, store=m.ForgivingStore),
    "[I4] replay filters by whole seconds": machine(m.ReplaysByWholeSeconds),
    "[I4] replay does not filter": machine(m.ReplaysEverything),
    "[I15] replay does not discard its outputs": machine(m.EmitsAgainInReplay),
    "[I15] fires while recovering": machine(m.FiresWhileRecovering),
    "ids: dead rows fire": (Parts(index=m.FiresTheDead), SimWorker),
    "ids: replay skips what is past": machine(m.ReplaysOnlyWhatWaits),
    "ids: replay gives verdicts": machine(m.JudgesAgainInReplay),
    "ids: a batch does not see itself": (Parts(index=m.JudgesByTheStore), SimWorker),
    "ids: a late cancel is forgotten": (Parts(index=m.RemembersWhatItCouldNotCancel), SimWorker),
    "ids: no verdicts": outbox(m.KeepsVerdictsToItself),
    "ids: swept by what is not committed": machine(m.SweepsByWhatIsNotCommitted),
    "ids: a second fires unread": (Parts(barrier=m.FiresBeforeItHasRead), SimWorker),
    "ids: only the first second waits": (Parts(barrier=m.WaitsForTheFirstEndOnly), SimWorker),
    "cold: every copy counts": horizon(c.CountsEveryCopy),
    "cold: a restart forgets which copy counted": horizon(c.RemembersInMemoryOnly),
    "cold: the last copy counts": horizon(c.TheLastCopyCounts),
    "cold: a replay judges by the horizon of now": horizon(c.JudgesByTheHorizonOfNow),
    "cold: a copy needs no seal": horizon(c.BelievesAnybody),
    "cold: a copy and a change in one fetch": horizon(c.TakesFetchesWhole),
    "cold: what is away counts as fired": horizon(c.NothingIsCold),
    "cold: which copy counted is forgotten too soon": horizon(c.ForgetsAtOnce),
    "cold: what goes cold is kept as well": horizon(c.ForwardsAndKeeps),
    "cold: sent away outside of a transaction": machine(c.ForwardsWithoutACommit),
    "cold: sent away again in a replay": machine(c.ForwardsAgainInReplay),
    "cold: sent away without its headers": outbox(c.ForwardsWithoutHeaders),
    "cold: comes back under a new name": machine(c.FiresCopiesUnderANewName),
    "loop: a tick starts no drain": loop(lm.FiresNothingAtATick),
    "loop: one chunk for each tick": loop(lm.StopsAfterOneChunk),
    "loop: no drain after acceptance": loop(lm.FiresNothingAfterAcceptance),
    "loop: no rewind after a gap": loop(lm.ReadsOnAfterAGap),
    "loop: accepts at any time": loop(lm.AcceptsAtAnyTime),
    "loop: no progress is committed": loop(lm.CommitsNoProgress),
    "[I5] a new transaction on a guess": outbox(m.TriesAgainOnAGuess),
    "[I5] a machine goes on after a failed transaction": worker(m.SurvivesLost),
    "[I7] gaps are ignored": machine(m.IgnoresGaps),
    "schedules: a tombstone ends whatever version it meets": schedules(s.LetsTombstonesErase),
    "schedules: a tombstone of another version changes nothing": schedules(s.IgnoresTombstonesOfOthers),
    "schedules: a version stays beside its copy": schedules(s.KeepsWhatItAppendsAgain),
    "schedules: what has fired is appended again": schedules(s.AppendsWhatHasFired),
    "schedules: no tombstone": outbox(s.LeavesNoTombstone),
    "schedules: a tombstone on another partition": outbox(s.HashesTombstones),
    "schedules: a tombstone names another version": outbox(s.LeavesTombstonesBehind),
    "schedules: a copy has a new time": outbox(s.CopiesWithANewTime),
    "[I13] offsets are counted as records": machine(m.CountsOffsetsAsRecords),
    "[I14] nobody is fenced": outbox(m.FencesNobody),
    "[I14] progress is read before fencing": worker(m.ReadsProgressBeforeFencing),
    "[I14] progress is not read to the end": worker(m.ReadsProgressToTheLastStableOffset),
    "[P3] progress is not in the transaction": outbox(m.ProgressOutsideTheTransaction),
    "[I13] requests are read uncommitted": worker(m.ReadsUncommitted),
    "[P2] the sender's clock is believed": worker(m.BelievesTheTicksKey),
    "[P2] a tick proves the next second": worker(m.FiresASecondAhead),
    "[I10] accepts while the clock stands back": machine(m.NeverHolds),
    "[I10] fires by a time that was taken back": machine(m.KeepsTheTimeThatWasTakenBack),
    "[P1] what is over the catch-up rate is dropped": outbox(m.DropsWhatItPostpones),
    "[P3] what is over the catch-up rate fires twice": outbox(m.FiresWhatItPostpones),
    "[P3] what comes from the retry topic has a new name": policy(m.PostponesUnderANewName),
    "delivery: rules are ignored": policy(d.IgnoresTheRules),
    "delivery: open circuits are ignored": policy(d.SendsToOpenCircuits),
    "delivery: one topic decides for all": policy(d.JudgesByTheFirst),
    "delivery: no topic is split": policy(d.DoesNotSplit),
    "delivery: what does not fit is dropped": policy(d.DropsWhatDoesNotFit),
    "delivery: any timer sets any other": policy(d.SetsAnyTimer),
    "delivery: what cannot be sent is dropped": policy(d.DropsWhatCannotBeSent),
    "delivery: what is too large to retry is dropped": policy(d.DropsWhatIsTooLargeToRetry),
    "delivery: postponed for ever": policy(d.PostponesForEver),
    "delivery: given up at once": policy(d.GivesUpAtOnce),
    "delivery: tried for ever": policy(d.TriesForEver),
    "delivery: a retried timer has a new name": policy(d.RetriesUnderANewName),
    "delivery: a retried timer is sent as a new one": policy(d.SendsRetriesAsNew),
    "delivery: a postponed schedule stays": policy(d.EndsOnlyWhatFires),
    "delivery: an overdue schedule stays": policy(d.KeepsOverdueSchedules),
    "delivery: a refusal is not noted": policy(d.NotesNoRefusal),
    "delivery: what was refused is dropped": policy(d.DropsRefusals),
    "delivery: the rest is committed": outbox(d.CommitsTheRest),
    "delivery: the rest is sent twice": outbox(d.KeepsRefusedTransactions),
    "[P6] bad requests are dropped": machine(m.DropsBadRequests),
    "[P6] bad requests are answered twice": outbox(m.AnswersTwice),
}


def first_red(parts: Parts, kind: type[SimWorker]) -> SimulationFailed | None:
    """The first failure that a checker found; one of the store's own assertions may come before it in some runs."""
    found = None
    for seed in range(SEEDS):
        try:
            Simulator(seed, parts=parts, worker=kind).run()
        except SimulationFailed as failure:
            found = failure
            if isinstance(failure.__cause__, Violation):
                break
    return found


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_is_found(rule: str) -> None:
    failure = first_red(*MUTATIONS[rule])
    assert failure is not None, f"{SEEDS} runs without {rule}, and nobody noticed"
    assert isinstance(failure.__cause__, Violation), f"found, but not by a checker: {failure}"
