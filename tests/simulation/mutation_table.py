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
from tests.simulation.edits import Mutation, changed, sending

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
    "[I14] the former owner is not fenced": sending(p.DoesNotFence),
    "[I14] progress is not read to the end": changed(worker=p.ReadsProgressToLastStableOffset),
    "[I14] progress of an aborted transaction counts": changed(worker=p.BelievesAbortedProgress),
    "[P3] progress is not in the transaction": sending(p.ProgressOutsideTheTransaction),
    "[I13] requests are read uncommitted": changed(worker=p.ReadsUncommitted),
    "[I23] memory decides whether a value is too large": changed(worker=p.MemoryDecides),
    "passed over: the range of another partition": changed(worker=p.PassesOverAsAnotherPartition),
    "[P2] the sender's clock is believed": changed(worker=m.UsesTheSendersClock),
}
