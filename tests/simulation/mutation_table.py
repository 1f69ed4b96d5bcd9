"""All mutations, by the rule that they break."""

from __future__ import annotations

from tests.simulation import clock_mutations as k
from tests.simulation import cold_mutations as c
from tests.simulation import condition_mutations as ci
from tests.simulation import delivery_mutations as d
from tests.simulation import doubt_mutations as o
from tests.simulation import hold_mutations as hm
from tests.simulation import id_mutations as i
from tests.simulation import level_mutations as lv
from tests.simulation import life_mutations as lf
from tests.simulation import loop_mutations as lm
from tests.simulation import mutations as m
from tests.simulation import progress_mutations as p
from tests.simulation import schedule_mutations as s
from tests.simulation.edits import Mutation
from tests.simulation.kit import Parts, SimWorker
from timers.core.clock_guard import ClockGuard
from timers.core.horizon import Horizon
from timers.core.index import Index, ScheduleIndex
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.only_if import ConditionalIndex


def machine(broken: type[Machine], **others: type) -> Mutation:
    return Mutation(Parts(machine=broken, **others))


def worker(broken: type[SimWorker]) -> Mutation:
    return Mutation(worker=broken)


def horizon(broken: type[Horizon]) -> Mutation:
    return Mutation(Parts(horizon=broken))


def schedules(broken: type[ScheduleIndex]) -> Mutation:
    return Mutation(Parts(schedule_index=broken))


def loop(broken: type[Loop]) -> Mutation:
    return Mutation(Parts(loop=broken))


def index(broken: type[ConditionalIndex]) -> Mutation:
    return Mutation(Parts(conditional_index=broken))


def plain_index(broken: type[Index]) -> Mutation:
    """Returns the mutation in runs in which timers with an id have no conditions."""
    return Mutation(Parts(index=broken), ci.WithoutConditions)


def upgraded(broken: type[Machine]) -> Mutation:
    """In runs with two versions of workers."""
    return Mutation(Parts(machine=broken), lv.UpgradedWorker)


def guard(broken: type[ClockGuard]) -> Mutation:
    return Mutation(Parts(guard=broken))


MUTATIONS: dict[str, Mutation] = {
    **p.CHANGED,
    **s.CHANGED,
    **k.CHANGED,
    **c.CHANGED,
    **ci.CHANGED,
    **d.CHANGED,
    **hm.CHANGED,
    **o.CHANGED,
    **i.CHANGED,
    **lv.CHANGED,
    **lf.CHANGED,
    **lm.CHANGED,
    **m.CHANGED,
    "[I1] next_offset on opening ignores the store": machine(m.IgnoresTheStoreOnOpening),
    "[I3] timers that have not fired are deleted": machine(m.DeletesTheWholeSecond),
    "[I15] fires while recovering": machine(m.FiresWhileRecovering),
    "ids: replaced rows fire": plain_index(i.FiresReplacedRows),
    "ids: a batch is judged without its earlier records": plain_index(i.JudgesWithoutEarlierRecords),
    "ids: a late cancel changes nothing": plain_index(i.IgnoresLateCancels),
    "ids: swept by uncommitted progress": Mutation(Parts(machine=i.SweepsByUncommittedProgress), ci.WithoutConditions),
    "ids: a second fires before its requests are read": Mutation(Parts(barrier=i.FiresBeforeRequestsAreRead)),
    "ids: only the first second waits": Mutation(Parts(barrier=i.OnlyFirstSecondWaits)),
    "[I27] a replay takes refused requests": index(ci.ReplaysRefusedRequests),
    "[I27] what has fired is swept": index(ci.SweepsWhatHasFired),
    "cold: every copy counts": horizon(c.CountsEveryCopy),
    "cold: a restart forgets which copy counted": horizon(c.RemembersCopiesInMemoryOnly),
    "cold: a replay uses the present horizon": horizon(c.UsesThePresentHorizon),
    "cold: a copy needs no seal": horizon(c.ChecksNoSeal),
    "cold: a copy and a change in one fetch": horizon(c.DoesNotSplitFetches),
    "cold: a cold version counts as fired": horizon(c.ColdCountsAsFired),
    "cold: which copy counted is forgotten too soon": horizon(c.ForgetsCopiesAtTheNextSweep),
    "levels: raised with a batch": upgraded(lv.RaisesWithABatch),
    "loop: no rewind after a gap": loop(lm.ReadsOnAfterAGap),
    "[I7] gaps are ignored": machine(m.IgnoresGaps),
    "schedules: a tombstone ends any version": schedules(s.TombstonesEndAnyVersion),
    "schedules: a tombstone of another version changes nothing": schedules(s.IgnoresTombstonesOfOthers),
    "schedules: a version stays beside its copy": schedules(s.KeepsRepublishedVersions),
    "schedules: a fired version is republished": schedules(s.RepublishesFiredVersions),
    "[I13] offsets are counted as records": machine(m.CountsOffsetsAsRecords),
    "[I14] the former owner is not fenced": Mutation(Parts(producer=p.DoesNotFence)),
    "[I14] progress is not read to the end": worker(p.ReadsProgressToLastStableOffset),
    "[I14] progress of an aborted transaction counts": worker(p.BelievesAbortedProgress),
    "[P3] progress is not in the transaction": Mutation(Parts(producer=p.ProgressOutsideTheTransaction)),
    "[I13] requests are read uncommitted": worker(p.ReadsUncommitted),
    "[I23] memory decides whether a value is too large": worker(p.MemoryDecides),
    "passed over: the range of another partition": worker(p.PassesOverAsAnotherPartition),
    "[P2] the sender's clock is believed": worker(m.UsesTheSendersClock),
    "[I10] accepts while the clock is behind": machine(m.AcceptsWhileTheClockIsBehind),
    "[I10] fires by the former time after the clock went back": machine(m.FiresByTheFormerTime),
    "[I20] all ticks count": guard(k.CountsAllTicks),
    "[I20] small leaps add up": guard(k.LeapsAddUp),
}
