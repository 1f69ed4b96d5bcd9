"""Changes that break [I21]: each offset is read at its feature level. The simulator must find each one."""

from __future__ import annotations

from tests.simulation.edits import changed
from tests.simulation.kit import SimWorker
from tests.simulation.kit.next_level import LEVEL
from timers.core.progress import FEATURE_LEVEL


class UpgradedWorker(SimWorker):
    """A worker of runs with two versions."""

    has_levels = True


CHANGED = {
    "levels: raised with a batch": changed(
        (
            "self.progress.level >= level or self.commit_change(...)",
            "vars(self).__setitem__('wanted', level)",
        ),
        (
            "self.progress = new_progress",
            """
self.progress, wanted = new_progress, vars(self).get("wanted", 0)
if to_offset > progress.next_offset and wanted > progress.level:
    self.progress = replace(new_progress, settings=progress.with_setting(FEATURE_LEVEL, wanted).settings)
""",
        ),
        worker=UpgradedWorker,
    ),
    "levels: raised before all members can": changed(("min((allowed, *supported))", "allowed"), worker=UpgradedWorker),
    "levels: older versions read on": changed(
        (
            "progress_record.decode(record, self.supported, partition_name(*tp), machine)",
            f"progress_record.decode(record, {LEVEL}, partition_name(*tp), machine)",
        ),
        ("seen.level > self.supported", "False"),
        worker=UpgradedWorker,
    ),
    "levels: all requests are read at the newest level": changed(
        ("progress.setting_at(FEATURE_LEVEL, offset, FIRST)", "progress.level"),
        worker=UpgradedWorker,
    ),
    "levels: a raise is forgotten in a replay": changed(
        (
            "self._reader.decode(records, to_offset, self.progress)",
            "self._reader.decode(records, to_offset, replace(self.progress, settings=type(self.progress.settings)("
            f"each for each in self.progress.settings if each.name != {FEATURE_LEVEL!r} or not self.recovering)))",
        ),
        worker=UpgradedWorker,
    ),
}
