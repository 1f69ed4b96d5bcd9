"""The rules of schedules, broken one at a time; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.index import latest
from timers.core.keys import OrderKey
from timers.core.operation import ANY_VERSION, Judged, Operation
from timers.core.schedules import ScheduleIndex
from timers.core.timer import Row
from timers.testing import SimOutbox


class LetsTombstonesErase(ScheduleIndex):
    """A tombstone of ours ends whatever version it meets, and nothing is appended again."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        return super().judge(operations, fired_through)._replace(superseded=())


class IgnoresTombstonesOfOthers(ScheduleIndex):
    """A tombstone that is about another version changes nothing here; in the log it erases all the same."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        kept = []
        known = self._store.entries({operation[0] for operation in operations})
        for operation in operations:
            entry = known.get(operation[0])
            if operation[2] is None and operation[3] != ANY_VERSION and entry is not None and entry[1] != operation[3]:
                continue
            kept.append(operation)
            known.update(latest([operation]))
        return super().judge(kept, fired_through)


class KeepsWhatItAppendsAgain(ScheduleIndex):
    """A version stays alive beside its copy."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        judged = super().judge(operations, fired_through)
        offsets = {offset for _, offset in judged.superseded}
        known = self._store.entries(judged.entries.keys())
        kept = {id: entry for id, entry in known.items() if entry is not None and entry[1] in offsets}
        return judged._replace(entries={**judged.entries, **kept})


class AppendsWhatHasFired(ScheduleIndex):
    """A version that has fired is appended again behind the tombstone of another."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        return super().judge(operations, (-1, 0))


class LeavesNoTombstone(SimOutbox):
    """What has fired stays in its topic."""

    def _add_tombstone(self, row: Row) -> None:
        return None


class HashesTombstones(SimOutbox):
    """A tombstone goes where its key hashes to, not where its schedule came from."""

    def _add_tombstone(self, row: Row) -> None:
        super()._add_tombstone(row)
        partition = (self._partition + 1) % self._log.partitions
        self._outgoing[-1] = self._outgoing[-1]._replace(partition=partition)


class LeavesTombstonesBehind(SimOutbox):
    """A tombstone names the version before the one that has fired."""

    def _add_tombstone(self, row: Row) -> None:
        super()._add_tombstone((max(0, row[0] - 1), *row[1:]))


class CopiesWithANewTime(SimOutbox):
    """What is appended again is as if it were new."""

    def republish(self, rows: Sequence[Row]) -> None:
        super().republish(rows)
        self._outgoing = [each._replace(timestamp_ms=None) for each in self._outgoing]
