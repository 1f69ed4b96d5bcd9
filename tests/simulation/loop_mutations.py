"""Changes that each break one branch of :class:`timers.core.loop.Loop`. The simulator must find each one."""

from __future__ import annotations

from tests.simulation.edits import changed

CHANGED = {
    "loop: no rewind after a gap": changed(("read_again_from = refused.position", "pass")),
    "loop: a tick starts no drain": changed(("self.firing = self._commit_due = True", "self._commit_due = True")),
    "loop: one chunk for each tick": changed(
        ("self.firing and self.machine.fire_chunk()", "self.firing and self.machine.fire_chunk() and False"),
    ),
    "loop: no drain after acceptance": changed(("self.firing = is_draining = True", "pass")),
    "loop: no drain after a replay": changed(
        (
            "recovering and not self.recovering or self.released_s != released_s",
            "not recovering and self.released_s != released_s",
        ),
    ),
    "loop: no drain after the barrier": changed(
        (
            "recovering and not self.recovering or self.released_s != released_s",
            "recovering and (not self.recovering or self.released_s != released_s)",
        ),
    ),
    "loop: passing time is not committed": changed(
        (
            "even_if_idle or committed.fired_through == NEVER",
            "committed.fired_through == NEVER",
        ),
    ),
    "loop: accepts at any time": changed(
        (
            "bool(self.fetches) and self.machine.takes(self.fetches[0])",
            "bool(self.fetches)",
        ),
    ),
    "loop: no progress is committed": changed(
        ('not changed or self._tick is None or "commit_progress" not in STEPS[self.state]', "True"),
    ),
}
