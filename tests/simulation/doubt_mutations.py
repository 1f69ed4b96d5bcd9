"""Changes that each break one rule about logs that may lack requests [I29]. The simulator must find each one."""

from __future__ import annotations

from tests.simulation.edits import changed

DECIDED = "progress, use = decide_use(..., ..., ..., ..., ..., ...)"
COMMITTED = "min(applied, self.stores.committed.get(self.tp, applied))", "applied"

CHANGED = {
    "[I29] a doubtful log is read from its start": changed(
        ('doubt.worker not in ("", worker) or ...', "False"),
    ),
    "[I29] a refusal is forgotten": changed(("port.refuse(doubtful.progress)", "pass")),
    "[I29] a store counts beyond what its machine has committed": changed(COMMITTED),
    "[I29] progress is read without its doubt": changed(
        (DECIDED, f"{DECIDED}; progress = __import__('dataclasses').replace(progress, doubt=None)"),
    ),
    "[I29] a compacted topic is only reported": changed(("self.worker = worker", "pass")),
    "[I29] a store that a fenced machine has written is whole": changed(
        ('doubt.worker not in ("", worker)', "False"),
        COMMITTED,  # else only a fenced worker that was restarted shows it
    ),
    "[I29] a doubt ends when the topic is corrected": changed(
        ("self._leftovers.are_gone(committed.fired_through)", "True"),
    ),
}
