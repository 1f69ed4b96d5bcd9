"""Classes that each break one rule of timers with an id; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from tests.simulation.edits import changed
from timers.core.index import Index, latest
from timers.core.machine import Machine
from timers.core.operation import ALREADY_FIRED, OperationResults
from timers.core.progress import Progress
from timers.core.second_barrier import SecondBarrier
from timers.core.timer import Decoded, DueRows


class FiresReplacedRows(Index):
    """A row fires although the index no longer holds its version."""

    def alive(self, due: list[DueRows]) -> list[DueRows]:
        return due


class JudgesWithoutEarlierRecords(Index):
    """Each record of a batch is judged by the store, without the earlier records of the batch."""

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        judge = super().judge
        judged = [judge(Decoded(operations=[each]), progress, committed) for each in decoded.operations]
        return OperationResults(latest(decoded.operations), [verdict for each in judged for verdict in each.verdicts])


class IgnoresLateCancels(Index):
    """A cancel that comes too late does not change the entry of the timer."""

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        judged = super().judge(decoded, progress, committed)
        late = {verdict.offset for verdict in judged.verdicts if verdict.verdict == ALREADY_FIRED}
        last = {id: offset for id, offset, _, _ in decoded.operations}
        kept = {id: entry for id, entry in judged.entries.items() if entry is not None or last[id] not in late}
        return judged._replace(entries=kept)


class SweepsByUncommittedProgress(Machine):
    """Ids are deleted by a ``fired_through`` that is not committed: after a crash it is lower."""

    def commit_progress(self, *, even_if_idle: bool = False) -> bool:
        if self._index is not None and not self.recovering:
            self._index.sweep(self.progress)
        return super().commit_progress(even_if_idle=even_if_idle)


class FiresBeforeRequestsAreRead(SecondBarrier):
    """Timers fire when their second begins, although the log has unread requests."""

    def through(self, second: int) -> int | None:
        return second


class OnlyFirstSecondWaits(SecondBarrier):
    """Only the first second waits for unread requests."""

    def through(self, second: int) -> int | None:
        return None if super().through(second) is None else second


CHANGED = {
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
