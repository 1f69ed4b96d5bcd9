"""Changes that each break one rule of clocks: which ticks count, and what has fired after a time was taken back.

The simulator must find each one.
"""

from __future__ import annotations

from tests.simulation.condition_mutations import WithoutConditions
from tests.simulation.edits import changed

HAS_FIRED = (
    "progress.is_past(key_of(entry))",
    "key_of(entry) <= progress.fired_through",
)

CHANGED = {
    "[I20] all ticks count": changed(
        ("tick = Seen(append_ms / 1000, clocks.boot_s)", "return True"),
    ),
    "[I20] small leaps add up": changed(
        (
            "if broker is not None:\n    self._counted[broker] = tick",
            "self.anchor = tick\nif broker is not None:\n    self._counted[broker] = tick",
        ),
    ),
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
