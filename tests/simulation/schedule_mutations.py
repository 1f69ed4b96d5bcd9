"""Changes that each break one rule of schedules; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from tests.simulation.edits import changed

JUDGED = "return OperationResults(entries, superseded=superseded)"

CHANGED = {
    "schedules: a tombstone ends any version": changed((JUDGED, "return OperationResults(entries)")),
    "schedules: a tombstone of another version changes nothing": changed(
        (
            "version = decoded.fired_versions.get(offset)",
            """
version = decoded.fired_versions.get(offset)
entry = entries[id] if id in entries else self._store.entries([id]).get(id)
if version is not None and entry is not None and offset_of(entry) != version:
    continue
""",
        ),
    ),
    "schedules: a version stays beside its copy": changed(
        (
            JUDGED,
            """
offsets = {offset for _, offset in superseded}
former = self._store.entries(entries.keys())
entries.update({id: entry for id, entry in former.items() if entry is not None and offset_of(entry) in offsets})
return OperationResults(entries, superseded=superseded)
""",
        ),
    ),
    "schedules: a fired version is republished": changed(
        ("entry is not None and offset_of(entry) != version and not ...", "entry and offset_of(entry) != version"),
    ),
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
