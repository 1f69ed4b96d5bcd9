"""Classes that each break one rule of clocks: which ticks count, and what has fired after a time was taken back.

The simulator must find each one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.condition_mutations import WithoutConditions
from tests.simulation.edits import changed
from timers.core.clock_guard import ClockGuard, Clocks, Seen


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


# ---- a time that was taken back -------------------------------------------------------------------------------------


HAS_FIRED = (
    "progress.is_past(key_of(entry))",
    "key_of(entry) <= progress.fired_through",
)

CHANGED = {
    "[I24] a store keeps what a wrong clock has fired": changed(("store.applied <= hole.before_offset", "False")),
    "[I20] a later clock agrees": changed(
        ("abs(time_s - tick.time_s) <= self._max_leap_s", "time_s >= tick.time_s - self._max_leap_s"),
    ),
    "[I20] a broker agrees with itself": changed(
        ("id != broker and tick.boot_s - each.boot_s < FRESH_S", "tick.boot_s - each.boot_s < FRESH_S"),
        ("newest_s is not None and newest_s - tick.time_s > CLOCK_STEP_BACK_S", "False"),
    ),
    "[I20] the first tick counts": changed(
        ("self.anchor is None or tick.time_s > ...", "self.anchor is not None and tick.time_s > ..."),
    ),
    "[I20] any first tick after what has fired counts": changed(
        ("self.anchor is None and abs(wall_s - tick.time_s) <= NEW_APP_LEAP_S", "self.anchor is None"),
        (
            "self.anchor is None and newest_s is not None and 0 <= int(tick.time_s) - newest_s <= self._max_leap_s",
            "self.anchor is None and (newest_s is None or int(tick.time_s) >= newest_s)",
        ),
    ),
    "[I20] a held tick never counts": changed(("abs(time_s - tick.time_s) <= self._max_leap_s", "False")),
    "[I24] a replay stores what a wrong clock has fired": changed(
        ("not has_fired((due_s, row[0]), row[1])", "True"),
    ),
    "[I24] a verdict forgets what a wrong clock has fired": changed(HAS_FIRED, worker=WithoutConditions),
    "[I27] a verdict forgets what a wrong clock has fired": changed(HAS_FIRED),
}
