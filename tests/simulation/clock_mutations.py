"""Classes that each break one rule of clocks: which ticks count, and what has fired after a time was taken back.

The simulator must find each one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from timers.core.clock_guard import ClockGuard, Clocks, Seen
from timers.core.index import Index
from timers.core.keys import OrderKey
from timers.core.machine import Machine
from timers.core.operation import Entry
from timers.core.progress import Progress
from timers.core.timer import RowsByDue
from timers.partition import PartitionSpec
from timers.testing import SimStore, SimWorker


class CountsAllTicks(ClockGuard):
    """No tick is held."""

    def counts(self, append_ms: int, broker: int | None, clocks: Clocks, fired_s: Iterable[int] | None = ()) -> bool:
        return True


class LeapsAddUp(ClockGuard):
    """Each tick that counts moves the anchor, also one with which no second clock agrees."""

    def counts(self, append_ms: int, broker: int | None, clocks: Clocks, fired_s: Iterable[int] | None = ()) -> bool:
        counts = super().counts(append_ms, broker, clocks, fired_s)
        if counts:
            self.anchor = Seen(append_ms / 1000, clocks.boot_s)
        return counts


class ALaterClockAgrees(ClockGuard):
    """A second clock that is years ahead agrees with every tick."""

    def _agrees(self, tick: Seen, time_s: float) -> bool:
        return time_s >= tick.time_s - self._max_leap_s


class ABrokerAgreesWithItself(ClockGuard):
    """Two ticks of one broker count as two clocks."""

    @staticmethod
    def _others(seen: dict[int, Seen], tick: Seen, broker: int | None) -> list[Seen]:
        return ClockGuard._others(seen, tick, None)

    def _is_behind(self, tick: Seen, broker: int | None) -> bool:
        return False


class TheFirstTickCounts(ClockGuard):
    """At the start no second clock is asked."""

    def _leaps(self, tick: Seen) -> bool:
        return self.anchor is not None and super()._leaps(tick)


class AnyLaterFirstTickFollows(ClockGuard):
    """At the start each tick after what has fired counts, however far ahead it is."""

    def _follows(self, tick: Seen, fired_s: Iterable[int] | None, wall_s: float) -> bool:
        return self.anchor is None and all(tick.time_s >= second for second in fired_s or ())


class NoSecondClock(ClockGuard):
    """A held tick never counts."""

    def _agrees(self, tick: Seen, time_s: float) -> bool:
        return False


# ---- a time that was taken back -------------------------------------------------------------------------------------


class ReplaysHoles(Machine):
    """A replay stores timers that have fired by a wrong clock."""

    def _without_holes(self, rows: RowsByDue) -> RowsByDue:
        return rows


class JudgesWithoutHoles(Index):
    """The verdict on a timer that has fired by a wrong clock says that it was cancelled or replaced."""

    def _has_fired(self, entry: Entry, fired_through: OrderKey) -> bool:
        return entry[:2] <= fired_through


class KeepsHolesOnOpening(SimWorker):
    """A store is opened with timers that have fired by a wrong clock."""

    def open_store(self, spec: PartitionSpec, store: SimStore, progress: Progress) -> None:
        super().open_store(spec, store, replace(progress, settings=()))
