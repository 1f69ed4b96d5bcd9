"""All mutations, by the rule that they break."""

from tests.simulation import delivery_mutations as d
from tests.simulation import hold_mutations as hm
from tests.simulation import life_mutations as lf
from tests.simulation import machine_mutations as mm
from tests.simulation import mutations as m
from tests.simulation import progress_mutations as p
from tests.simulation.edits import Mutation, changed, sending

MUTATIONS: dict[str, Mutation] = {
    **p.CHANGED,
    **d.CHANGED,
    **hm.CHANGED,
    **lf.CHANGED,
    **mm.CHANGED,
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
