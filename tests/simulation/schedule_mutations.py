"""Classes that each break one rule of schedules; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from timers.core.index import latest
from timers.core.keys import OrderKey
from timers.core.operation import ANY_VERSION, Operation, OperationResults
from timers.core.schedules import ScheduleIndex
from timers.core.timer import Row, Tick
from timers.testing import SimOutbox
from timers.testing.outbox import SimRecords
from timers.wire.formats import schedule


class TombstonesEndAnyVersion(ScheduleIndex):
    """A tombstone of the engine ends any version, and superseded versions are not republished."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey, committed: OrderKey) -> OperationResults:
        return super().judge(operations, fired_through, committed)._replace(superseded=())


class IgnoresTombstonesOfOthers(ScheduleIndex):
    """A tombstone of another version is ignored, although compaction erases the latest version too."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey, committed: OrderKey) -> OperationResults:
        kept = []
        known = self._store.entries({operation[0] for operation in operations})
        for operation in operations:
            entry = known.get(operation[0])
            if operation[2] is None and operation[3] != ANY_VERSION and entry is not None and entry[1] != operation[3]:
                continue
            kept.append(operation)
            known.update(latest([operation]))
        return super().judge(kept, fired_through, committed)


class KeepsRepublishedVersions(ScheduleIndex):
    """A republished version is kept beside its copy."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey, committed: OrderKey) -> OperationResults:
        judged = super().judge(operations, fired_through, committed)
        offsets = {offset for _, offset in judged.superseded}
        known = self._store.entries(judged.entries.keys())
        kept = {id: entry for id, entry in known.items() if entry is not None and entry[1] in offsets}
        return judged._replace(entries={**judged.entries, **kept})


class RepublishesFiredVersions(ScheduleIndex):
    """A version that has fired is republished."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey, committed: OrderKey) -> OperationResults:
        return super().judge(operations, (-1, 0), committed)


class WritesNoTombstones(SimOutbox):
    """A schedule that has fired gets no tombstone."""

    class new_records(SimRecords):  # SimOutbox makes its records with this class
        def add_tombstones(self, topic: str, partition: int, tombstones: Iterable[Any], now_ms: int) -> None:
            return None


class TombstonesOnAnotherPartition(SimOutbox):
    """A tombstone goes to the partition of its key, not to that of its schedule."""

    def begin(self, tick: Tick) -> None:
        super().begin(tick)
        self._records.partitions = self._log.partitions  # type: ignore[attr-defined]

    class new_records(SimRecords):  # SimOutbox makes its records with this class
        partitions = 1

        def add_tombstones(self, topic: str, partition: int, tombstones: Iterable[Any], now_ms: int) -> None:
            super().add_tombstones(topic, (partition + 1) % self.partitions, tombstones, now_ms)


class TombstonesNameAnOlderVersion(SimOutbox):
    """A tombstone names an older version than the one that has fired."""

    class new_records(SimRecords):  # SimOutbox makes its records with this class
        def add_tombstones(self, topic: str, partition: int, tombstones: Iterable[Any], now_ms: int) -> None:
            named = [(key, int(headers[0][1])) for key, headers in tombstones]
            behind = [(key, schedule.tombstone_headers(max(0, offset - 1))) for key, offset in named]
            super().add_tombstones(topic, partition, behind, now_ms)


class RepublishesWithANewTime(SimOutbox):
    """A republished version has a new append time."""

    def republish(self, rows: Sequence[Row]) -> None:
        before = len(self._records.added)
        super().republish(rows)
        copies = self._records.added[before:]
        self._records.added[before:] = [each._replace(timestamp_ms=self._log.clock.now_ms) for each in copies]
