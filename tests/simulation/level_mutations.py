"""Machines and workers that break [I21]: each offset is read at its feature level. The simulator must find each one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from timers.core.machine import Machine
from timers.core.progress import FEATURE_LEVEL, Progress, SettingChange
from timers.core.timer import Decoded
from timers.testing import SimWorker
from timers.testing.next_level import LEVEL
from timers.wire import progress as progress_record


class ReadsAllAtTheNewestLevel(Machine):
    """[I21]: the offset from which the level applies is forgotten: a replay reads all requests at the new level."""

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        settings = [change for change in self.progress.settings if change.name != FEATURE_LEVEL]
        settings.append(SettingChange(FEATURE_LEVEL, 0, self.progress.level))
        return self._reader.read(records, to_offset, replace(self.progress, settings=tuple(settings)))


class ForgetsTheRaiseInAReplay(Machine):
    """[I21]: a replay reads all requests at the first level."""

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        if not self.recovering:
            return super()._read(records, to_offset)
        settings = tuple(change for change in self.progress.settings if change.name != FEATURE_LEVEL)
        return self._reader.read(records, to_offset, replace(self.progress, settings=settings))


class RaisesWithABatch(Machine):
    """[I21]: the level is raised from the begin of a batch that was decided at the level before."""

    _wanted = 0

    def raise_level(self, level: int) -> bool:
        self._wanted = level
        return False

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        start = self.progress.next_offset
        super()._accept_new(records, to_offset)
        if self._wanted > self.progress.level:
            change = SettingChange(FEATURE_LEVEL, start, self._wanted)
            self.progress = replace(self.progress, settings=(*self.progress.settings, change))


class UpgradedWorker(SimWorker):
    """A worker of runs with two versions."""

    has_levels = True


class RaisesBeforeAllCan(UpgradedWorker):
    """[I21]: a machine is raised although a member of the group does not support the level."""

    def level_to_raise_to(self, allowed: int, supported: Iterable[int]) -> int:
        return allowed


class OlderVersionsReadOn(UpgradedWorker):
    """[I21]: a version that does not know the level ignores it."""

    def decode_progress(self, value: bytes | None) -> Progress:
        return progress_record.decode(value or b"", LEVEL)[0]
