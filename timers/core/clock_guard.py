"""Decides which ticks count, so that one wrong clock does not fire everything [I20].

A broker whose clock is wrong appends ticks with a wrong time. A tick that is too far ahead of the expected time is
held: it counts only after a second clock has agreed with it. A second clock is another broker's, or the caller's own.
The guard only holds ticks back: it changes no time.

::

    expected = anchor + time that has passed since the anchor
    tick <= expected + max_leap_s                   counts
    tick  > expected + max_leap_s                   held, until a second clock agrees within max_leap_s

The anchor is the last tick with which a second clock agreed. Other ticks do not move it, so several small leaps cannot
add up to a large one. At the start there is no anchor: a second clock must agree, or the tick must follow closely what
the app has fired. In a new app nothing has fired: then the first tick may differ from the wall clock by a time zone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from timers.core.printable import utc_text
from timers.core.timer import CLOCK_STEP_BACK_S

FRESH_S = 10.0
"""For this many seconds after its last tick, the time of a broker is known."""

NEW_APP_LEAP_S = 26 * 3600
"""The first tick of a new app may differ this much from the wall clock: time zones differ by as many hours, and a
clock that shows local time as UTC must not keep a first worker from starting."""

ACCEPT_MARGIN_S = 3600
"""The instant that a sentence proposes for TIMERS_ACCEPT_TIME is this much later than the tick."""


class Clocks(NamedTuple):
    """What the caller's own clocks show."""

    boot_s: float
    """Seconds of a clock that is never set and does not stop while the machine sleeps."""
    wall_s: float
    """Epoch seconds."""


class Seen(NamedTuple):
    """A time, and when it was read."""

    time_s: float
    boot_s: float

    def at(self, boot_s: float) -> float:
        return self.time_s + boot_s - self.boot_s


class HeldTicks(NamedTuple):
    """Ticks of one broker that do not count."""

    broker: int | None
    first: Seen
    """The first of them."""
    last: Seen
    """The newest of them."""
    wall_s: float
    """The caller's wall clock when the newest one was read."""

    @property
    def sentence(self) -> str:
        """What is held, and the setting that accepts it."""
        owner = "a broker" if self.broker is None else f"broker {self.broker}"
        tick_s = self.last.time_s
        return (
            f"ticks of {owner} are held: their time is {utc_text(tick_s)}, this machine's clock shows "
            f"{utc_text(self.wall_s)}, and no second clock agrees with them. Correct the clock that is wrong; if the "
            f"ticks are right, start with TIMERS_ACCEPT_TIME={utc_text(tick_s + ACCEPT_MARGIN_S)}"
        )


class ClockGuard:
    """Judges ticks. Not thread-safe.

    Args:
        max_leap_s: how far ahead of the expected time a tick may be, and how far a second clock may differ from it.
        accept_s: instant up to which an operator accepts ticks; None: none.

    Attributes:
        anchor: the last tick with which a second clock agreed, or the first one.
        agreed: the last tick with which a second clock or an operator agreed.
    """

    def __init__(self, max_leap_s: int, accept_s: int | None = None) -> None:
        self._max_leap_s = max_leap_s
        self._accept_s = accept_s
        self.anchor: Seen | None = None
        self.agreed: Seen | None = None
        self._read: dict[int, Seen] = {}
        self._counted: dict[int, Seen] = {}
        self._holds: dict[int | None, HeldTicks] = {}

    def holds(self, boot_s: float) -> list[HeldTicks]:
        """Returns the held ticks of each broker, without brokers that have not ticked for :data:`FRESH_S`."""
        return [hold for hold in list(self._holds.values()) if boot_s - hold.last.boot_s < FRESH_S]

    def counts(self, append_ms: int, broker: int | None, clocks: Clocks, fired_s: Iterable[int] | None = ()) -> bool:
        """Judge a tick.

        Args:
            broker: id of the broker that appended it; None: not known.
            fired_s: seconds up to which partitions of the app have fired; None: no partition has. Used at the start
                only.

        Returns:
            Whether the tick may be used. If not, nothing may depend on its time.
        """
        tick = Seen(append_ms / 1000, clocks.boot_s)
        if broker is not None:
            self._read[broker] = tick
        hold = self._holds.pop(broker, None)
        if self._is_behind(tick, broker):
            if broker is not None:
                # So the broker's next tick counts if the clocks of all brokers went back.
                self._counted.pop(broker, None)
            return False
        # A tick that is too far ahead counts only if a second clock agrees.
        leaps = self.anchor is None or tick.time_s > self.anchor.at(tick.boot_s) + self._max_leap_s
        first = hold.first if hold else tick
        # After a leap, ticks of other brokers from before the leap agree only with the former time: they prove nothing.
        newer_than_s = first.boot_s if leaps else tick.boot_s - FRESH_S
        if self._agrees(tick, clocks.wall_s) or self._broker_agrees(tick, broker, newer_than_s):
            self.anchor = self.agreed = tick
        elif leaps:
            if self._accept_s is not None and tick.time_s <= self._accept_s + self._max_leap_s:
                self.agreed = tick
            elif not self._follows(tick, fired_s, clocks.wall_s):
                self._holds[broker] = HeldTicks(broker, first, tick, clocks.wall_s)
                return False
            self.anchor = tick
        if broker is not None:
            self._counted[broker] = tick
        return True

    def _is_behind(self, tick: Seen, broker: int | None) -> bool:
        """Whether another broker's newer time counts: a slow broker does not set the time back."""
        newest_s = max((seen.at(tick.boot_s) for seen in self._others(self._counted, tick, broker)), default=None)
        return newest_s is not None and newest_s - tick.time_s > CLOCK_STEP_BACK_S

    def _agrees(self, tick: Seen, time_s: float) -> bool:
        """Whether a clock agrees, in both directions: a clock that is years ahead does not agree with every tick."""
        return abs(time_s - tick.time_s) <= self._max_leap_s

    def _broker_agrees(self, tick: Seen, broker: int | None, newer_than_s: float) -> bool:
        """Whether another broker's clock agrees, read after ``newer_than_s``."""
        if broker is None:  # the tick may come from any broker, also from the only other one
            return False
        others = self._others(self._read, tick, broker)
        return any(seen.boot_s > newer_than_s and self._agrees(tick, seen.at(tick.boot_s)) for seen in others)

    def _follows(self, tick: Seen, fired_s: Iterable[int] | None, wall_s: float) -> bool:
        """Whether a first tick follows closely what has fired, as after a restart, or is the first of a new app."""
        if fired_s is None:
            return self.anchor is None and abs(wall_s - tick.time_s) <= NEW_APP_LEAP_S
        newest_s = max(fired_s, default=None)
        return self.anchor is None and newest_s is not None and 0 <= int(tick.time_s) - newest_s <= self._max_leap_s

    @staticmethod
    def _others(seen: dict[int, Seen], tick: Seen, broker: int | None) -> list[Seen]:
        """The fresh times of the other brokers."""
        return [each for id, each in seen.items() if id != broker and tick.boot_s - each.boot_s < FRESH_S]
