"""Changes that each break one rule of timers with an id; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from tests.simulation.condition_mutations import WithoutConditions
from tests.simulation.edits import changed

VERSION = "None if due_s is None else (due_s, offset, append_s)"
NOTED = f"known[id] = entries[id] = {VERSION}"
THROUGH = "second if second is None or self._barrier is None else self._barrier.through(second)"


CHANGED = {
    "ids: replaced rows fire": changed(
        ("ids = [id_bytes(row[5][0]) for _, rows in due for row in rows if row[5] is not None]", "ids = []"),
        worker=WithoutConditions,
    ),
    "ids: a batch is judged without its earlier records": changed(
        (NOTED, f"entries[id] = {VERSION}"), worker=WithoutConditions
    ),
    "ids: a late cancel changes nothing": changed(
        (
            NOTED,
            f"if due_s is not None or entry is None or verdicts[-1].verdict != ALREADY_FIRED:\n    {NOTED}",
        ),
        worker=WithoutConditions,
    ),
    "ids: swept by uncommitted progress": changed(
        ("self._index.sweep(self.committed)", "self._index.sweep(self.progress)"), worker=WithoutConditions
    ),
    "ids: a second fires before its requests are read": changed((THROUGH, "second")),
    "ids: only the first second waits": changed(
        (THROUGH, f"None if ({THROUGH}) is None else second"),
    ),
    "ids: an end that an own transaction held back counts": changed(("end in held_from", "False")),
    "ids: replay skips fired versions": changed(
        (
            "rows, entries = ... if self._index is None else ...",
            """
fired = [
    row[0]
    for due_s, group in decoded.rows.items()
    for row in group
    if (due_s, row[0]) <= self.progress.fired_through
]
decoded.operations = [each for each in decoded.operations if each[1] not in fired]
rows, entries = ... if self._index is None else ...
""",
        ),
    ),
    "ids: replay gives verdicts": changed(
        (
            "rows, entries = ... if self._index is None else ...",
            """
again = self._reader.decode(records, to_offset, self.progress)
verdicts = () if self._index is None else self._index.settle(
    again, self.progress, self.committed.fired_through
)[1].verdicts
if verdicts and self._tick is not None:
    self._outbox.begin(self._tick)
    self._outbox.commit(self.progress, Output(verdicts=verdicts))
rows, entries = ... if self._index is None else ...
""",
        ),
    ),
    "ids: a callback names no version": changed(
        (
            "h.identity(id_bytes(origin[0]), ...)",
            "[each for each in h.identity(id_bytes(origin[0]), ...) if each[0] != h.TIMER_SOURCE]",
        ),
        (
            "h.identity(id_bytes(origin.timer_id), ...)",
            "[each for each in h.identity(id_bytes(origin.timer_id), ...) if each[0] != h.TIMER_SOURCE]",
        ),
    ),
    "ids: no verdicts": changed(("self.transaction.answer(output.verdicts)", "None")),
}
