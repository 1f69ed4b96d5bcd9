"""Classes that each break one rule of schedules; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.edits import changed
from timers.core.index import latest
from timers.core.keys import OrderKey
from timers.core.operation import ANY_VERSION, Operation, OperationResults
from timers.core.schedules import ScheduleIndex


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


CHANGED = {
    "schedules: no tombstone": changed(("schedule.tombstones(rows)", "()")),
    "schedules: a tombstone on another partition": changed(
        (
            "...(self._topic, self._partition, key, None, headers, now_ms)",
            "...(self._topic, (self._partition + 1) % self._topics.partitions(self._topic), "
            "key, None, headers, now_ms)",
        ),
    ),
    "schedules: a tombstone names another version": changed(
        (
            "schedule.tombstones(rows)",
            "[(key, schedule.tombstone_headers(max(0, int(headers[0][1]) - 1)))"
            " for key, headers in schedule.tombstones(rows)]",
        ),
    ),
    "schedules: a copy has a new time": changed(
        (
            "...(self._topic, self._partition, ..., ..., ..., timestamp_ms)",
            "...(self._topic, self._partition, ..., ..., ..., int(self._now_s() * 1000))",
        ),
    ),
}
