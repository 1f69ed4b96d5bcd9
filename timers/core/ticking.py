"""When to tick: the broker's phase, learned from delivery reports.

The broker's clock decides when a second begins. A report says what that clock showed (to the millisecond) somewhere
between sending and acknowledgement; so the oscillator knows the broker's time to within one round trip, whatever its
own clock shows, and ticks just after the second turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from timers.core.timer import Tick

CLOCK_STEP_BACK_S = 2
"""A broker clock this far behind what it has shown is wrong, not merely skewed [I10]."""

GUARD_S = 0.001
"""Aim this far behind the turn: append times are whole milliseconds."""

DRIFT = 0.0002
"""Two clocks drift apart by less than this (200 ppm): knowledge widens so fast as it grows old."""


def present(known: Tick | None, seen: Tick) -> Tick:
    """The present, once ``seen`` was read: old and duplicate ticks change nothing.

    A tick further back than :data:`CLOCK_STEP_BACK_S` is not old: the broker's clock went back, and what it shows now
    is the time, also for what the former time has not fired yet [I10].
    """
    newer = known is None or seen.append_ms > known.append_ms or seen.second < known.second - CLOCK_STEP_BACK_S
    return seen if newer or known is None else known


@dataclass(slots=True)
class Phase:
    """Estimate of the broker's clock as monotonic time + offset.

    All arguments are seconds of one monotonic clock, but for ``append_ms``.
    """

    offset_s: float | None = None
    _low_s: float = 0.0
    _high_s: float = 0.0
    _learned_s: float = 0.0

    def observe(self, sent_s: float, acked_s: float, append_ms: int) -> None:
        """Learn from one delivery report: the broker showed ``append_ms`` between ``sent_s`` and ``acked_s``.

        So the offset lies between append - acked and append - sent (+ 1 ms), and where all such spans meet. A fast way
        there bounds how early a tick can be, a fast way back how late. A span that does not meet the others says that a
        clock was set: the others are forgotten.
        """
        append_s = append_ms / 1000
        low_s, high_s = append_s - acked_s, append_s - sent_s + 0.001
        if self.offset_s is not None:
            drift_s = (acked_s - self._learned_s) * DRIFT
            known_low_s, known_high_s = self._low_s - drift_s, self._high_s + drift_s
            if max(low_s, known_low_s) <= min(high_s, known_high_s):
                low_s, high_s = max(low_s, known_low_s), min(high_s, known_high_s)
        self._low_s, self._high_s, self._learned_s = low_s, high_s, acked_s
        # The broker stamps a record before it waits for replicas, so nearer to the sending: two thirds up the span.
        self.offset_s = low_s + (high_s - low_s) * 2 / 3

    def next_turn(self, now_s: float) -> float:
        """Monotonic time just after the broker's next second begins; ``now_s`` if nothing is known yet."""
        if self.offset_s is None:
            return now_s
        broker_s = now_s + self.offset_s
        return now_s + (int(broker_s) + 1 - broker_s) + GUARD_S

    def at(self, now_s: float) -> float | None:
        """The broker's time at ``now_s``, in epoch seconds; None if nothing is known yet."""
        return None if self.offset_s is None else now_s + self.offset_s

    def second_at(self, now_s: float) -> int | None:
        """The broker's second at ``now_s``, None if nothing is known yet."""
        return None if self.offset_s is None else int(now_s + self.offset_s)
