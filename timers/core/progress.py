"""How far a machine has come: what every transaction carries, and all that a new owner needs besides the log."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timers.core.keys import NEVER, OrderKey


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that acceptance depends on, and the first offset it held for."""

    name: str
    from_offset: int
    value: int


@dataclass(frozen=True, slots=True)
class Progress:
    """State of one machine as committed.

    Pending are the requests below ``next_offset`` whose key is above ``fired_through``.
    """

    next_offset: int = 0
    """Offset of the first request not yet accepted."""

    fired_through: OrderKey = NEVER
    """Key of the last timer fired."""

    settings: tuple[SettingChange, ...] = ()
    """History of the settings of acceptance, oldest first: a replay must decide as the first reading did."""

    def setting_at(self, name: str, offset: int, default: int) -> int:
        """Value that setting ``name`` had for the record at ``offset``."""
        value = default
        for change in self.settings:
            if change.name == name and change.from_offset <= offset:
                value = change.value
        return value

    def with_setting(self, name: str, value: int) -> Progress:
        """The same, with ``name`` = ``value`` for everything not yet accepted."""
        known = [change for change in self.settings if change.name == name]
        if known and known[-1].value == value:
            return self
        return replace(self, settings=(*self.settings, SettingChange(name, self.next_offset, value)))

    def read_alike(self, history: tuple[SettingChange, ...], applied: int) -> bool:
        """Whether everything below ``applied`` was read under ``history`` as it was under this one. Progress that was
        lost, and with it its settings, contradicts nothing."""

        def below(changes: tuple[SettingChange, ...]) -> list[SettingChange]:
            return [change for change in changes if change.from_offset < applied]

        return not self.settings or below(self.settings) == below(history)

    def boundaries(self, from_offset: int, to_offset: int) -> list[int]:
        """Offsets inside (from, to) at which a setting changed: records on either side are read differently."""
        inside = {change.from_offset for change in self.settings if from_offset < change.from_offset < to_offset}
        return sorted(inside)
