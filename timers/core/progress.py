"""Progress: the state of a machine that each transaction commits. A new owner needs only progress and log."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timers.core.keys import NEVER, OrderKey
from timers.core.levels import FIRST

# Names in the settings history. Never change these strings: progress records hold them.
MAX_REQUEST_BYTES = "TIMERS_MAX_REQUEST_BYTES"
"""Maximum bytes of a request value."""
REJECT_OVERDUE = "reject-overdue"
"""1: requests that were due before they were sent are rejected; 0: they fire."""
PARTITIONS = "partitions"
"""Number of partitions of a topic of timers with ids. The partition of an id depends on it, so a change must be
noticed. Acceptance does not depend on it."""
HOT_HORIZON = "TIMERS_HOT_HORIZON_S"
"""The horizon in seconds; 0: no timer goes cold."""
SEAL = "cold-seal"
"""Secret of the partition's seals. Drawn when the partition first has a horizon."""
FEATURE_LEVEL = "feature-level"
"""The feature level of the machine (:mod:`timers.core.levels`). It only rises."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting of acceptance, and the first offset for which it has this value."""

    name: str
    from_offset: int
    value: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Committed state of one machine.

    The requests below ``next_offset`` with a key above ``fired_through`` are pending.
    """

    next_offset: int = 0
    """Offset of the first request that is not yet accepted."""

    fired_through: OrderKey = NEVER
    """Order key of the last timer that fired."""

    settings: tuple[SettingChange, ...] = ()
    """History of the settings of acceptance, oldest first. A replay decides by the value at each offset [I4]."""

    @property
    def level(self) -> int:
        """The feature level that the machine was raised to, also if the log has lost the records since then."""
        return max((change.value for change in self.settings if change.name == FEATURE_LEVEL), default=FIRST)

    def setting_at(self, name: str, offset: int, default: int) -> int:
        """Returns the value of setting ``name`` for the record at ``offset``."""
        value = default
        for change in self.settings:
            if change.name == name and change.from_offset <= offset:
                value = change.value
        return value

    def knows(self, name: str) -> bool:
        """Returns whether the history has a value of setting ``name``."""
        return any(change.name == name for change in self.settings)

    def largest(self, name: str) -> int:
        """Returns the largest value that setting ``name`` ever had; 0 if it has no history."""
        return max((change.value for change in self.settings if change.name == name), default=0)

    def with_setting(self, name: str, value: int) -> Progress:
        """Returns a progress in which setting ``name`` has ``value`` from ``next_offset`` on."""
        earlier = [change for change in self.settings if change.name == name]
        if earlier and earlier[-1].value == value:
            return self
        return replace(self, settings=(*self.settings, SettingChange(name, self.next_offset, value)))

    def has_same_history(self, history: tuple[SettingChange, ...], applied: int) -> bool:
        """Whether ``history`` and this history agree on all records below ``applied``.

        Progress without settings follows a loss of the progress topic, and agrees with every history.
        """

        def below(changes: tuple[SettingChange, ...]) -> list[SettingChange]:
            return [change for change in changes if change.from_offset < applied]

        return not self.settings or below(self.settings) == below(history)

    def boundaries(self, from_offset: int, to_offset: int) -> list[int]:
        """Returns the offsets inside (from, to) at which a setting changed, in ascending order."""
        inside = {change.from_offset for change in self.settings if from_offset < change.from_offset < to_offset}
        return sorted(inside)
