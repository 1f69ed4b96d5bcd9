"""Machines and workers that break [I21]: each offset is read at its feature level. The simulator must find each one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.edits import changed
from tests.simulation.kit import SimWorker
from tests.simulation.kit.next_level import LEVEL
from timers.core.fired import Command
from timers.core.machine import Machine
from timers.core.progress import FEATURE_LEVEL, History, SettingChange
from timers.core.timer import Fetched


class RaisesWithABatch(Machine):
    """[I21]: the level is raised from the begin of a batch that was decided at the level before."""

    _wanted = 0

    def raise_level(self, level: int) -> bool:
        self._wanted = level
        return False

    def accept(self, fetched: Fetched, commands: Sequence[Command] = ()) -> bool:
        start = self.progress.next_offset
        is_due = super().accept(fetched, commands)
        if self.progress.next_offset > start and self._wanted > self.progress.level:
            change = SettingChange(FEATURE_LEVEL, start, self._wanted)
            self.progress = replace(self.progress, settings=History((*self.progress.settings, change)))
        return is_due


class UpgradedWorker(SimWorker):
    """A worker of runs with two versions."""

    has_levels = True


CHANGED = {
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
