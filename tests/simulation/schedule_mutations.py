"""Classes that each break one rule of schedules; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.edits import changed
from timers.core.index import ScheduleIndex, latest
from timers.core.keys import NEVER
from timers.core.operation import OperationResults, offset_of
from timers.core.progress import Progress
from timers.core.timer import Decoded


class TombstonesEndAnyVersion(ScheduleIndex):
    """A tombstone of the engine ends any version, and superseded versions are not republished."""

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        return super().judge(decoded, progress, committed)._replace(superseded=())


class IgnoresTombstonesOfOthers(ScheduleIndex):
    """A tombstone of another version is ignored, although compaction erases the latest version too."""

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        kept = []
        known = self._store.entries({id for id, *_ in decoded.operations})
        for operation in decoded.operations:
            id, offset, *_ = operation
            entry, version = known.get(id), decoded.fired_versions.get(offset)
            if version is not None and entry is not None and offset_of(entry) != version:
                continue
            kept.append(operation)
            known.update(latest([operation]))
        return super().judge(replace(decoded, operations=kept), progress, committed)


class KeepsRepublishedVersions(ScheduleIndex):
    """A republished version is kept beside its copy."""

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        judged = super().judge(decoded, progress, committed)
        offsets = {offset for _, offset in judged.superseded}
        known = self._store.entries(judged.entries.keys())
        kept = {id: entry for id, entry in known.items() if entry is not None and offset_of(entry) in offsets}
        return judged._replace(entries={**judged.entries, **kept})


class RepublishesFiredVersions(ScheduleIndex):
    """A version that has fired is republished."""

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        return super().judge(decoded, replace(progress, fired_through=NEVER), committed)


CHANGED = {
    "[I9] the age of a store is checked by a tick only": changed(
        ("self._store_age is None or self._store_age.is_checked", "self._store_age is None or self._tick is not None"),
    ),
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
