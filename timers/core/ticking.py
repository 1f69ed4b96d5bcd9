"""Decides when the oscillator agent sends the next tick.

The broker's clock decides when a second begins. A delivery report contains this clock's time, in milliseconds, at a
moment between sending and acknowledgement. So the oscillator knows the broker's time with an error below one round
trip, whatever its own clock shows, and ticks just after the second begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TICK_VALUE = b"1"
"""No reader uses it: the time of a tick is its append time."""

TICK_TIMEOUT_S = 5.0
"""How long to wait for a tick's acknowledgement. After a lost tick, the next one fires the timers of both."""

GUARD_S = 0.001
"""Seconds after the beginning of a second at which to tick: append times are whole milliseconds."""

DRIFT = 0.0002
"""Maximum drift between two clocks (200 ppm): the error of an estimate grows by this rate."""


@dataclass(slots=True)
class Phase:
    """Estimate of the broker's clock: monotonic time + offset.

    All arguments except ``append_ms`` are seconds of one monotonic clock.
    """

    offset_s: float | None = None
    _low_s: float = 0.0
    _high_s: float = 0.0
    _observed_s: float = 0.0

    def observe(self, sent_s: float, acked_s: float, append_ms: int) -> None:
        """Use one delivery report: the broker's clock showed ``append_ms`` between ``sent_s`` and ``acked_s``.

        So the offset is between append - acked and append - sent (+ 1 ms). The estimate is the intersection of all such
        intervals. If an interval does not intersect the others, a clock was set, and the others are dropped.
        """
        append_s = append_ms / 1000
        low_s, high_s = append_s - acked_s, append_s - sent_s + 0.001
        if self.offset_s is not None:
            drift_s = (acked_s - self._observed_s) * DRIFT
            known_low_s, known_high_s = self._low_s - drift_s, self._high_s + drift_s
            if max(low_s, known_low_s) <= min(high_s, known_high_s):
                low_s, high_s = max(low_s, known_low_s), min(high_s, known_high_s)
        self._low_s, self._high_s, self._observed_s = low_s, high_s, acked_s
        # The broker sets the append time before it waits for replicas, so nearer to the sending than to the
        # acknowledgement: the estimate is at two thirds of the interval, not in its middle.
        self.offset_s = low_s + (high_s - low_s) * 2 / 3

    def next_second_at(self, now_s: float) -> float:
        """Returns the monotonic time just after the broker's next second begins; ``now_s`` without an estimate."""
        if self.offset_s is None:
            return now_s
        broker_s = now_s + self.offset_s
        return now_s + (int(broker_s) + 1 - broker_s) + GUARD_S

    def at(self, now_s: float) -> float | None:
        """Returns the broker's time at ``now_s`` in epoch seconds; None without an estimate."""
        return None if self.offset_s is None else now_s + self.offset_s


TRY_AGAIN_S = 30.0
"""Seconds after which a broker that did not answer gets a tick again, beside the one that counts."""


class TickPartitions:
    """Prefers brokers that answer. All times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._silent: dict[int, float] = {}

    def order(self, second: int, leaders: Mapping[int, int]) -> list[int]:
        """Returns the partitions to try one after the other, each of another broker; none if no partition has a leader.

        Args:
            second: ticks of different seconds begin with different partitions.
            leaders: partition -> id of the broker that leads it, without partitions that have no leader.
        """
        numbers = sorted(leaders)
        start = second % len(numbers) if numbers else 0
        first_of_broker: dict[int, int] = {}
        for partition in numbers[start:] + numbers[:start]:
            first_of_broker.setdefault(leaders[partition], partition)
        return sorted(first_of_broker.values(), key=lambda partition: leaders[partition] in self._silent)

    def note_silent(self, broker: int, now_s: float) -> None:
        """Note that a broker did not answer in time."""
        self._silent[broker] = now_s

    def note_answer(self, broker: int) -> None:
        """Note that a broker took a tick."""
        self._silent.pop(broker, None)

    def probe(self, leaders: Mapping[int, int], now_s: float) -> int | None:
        """Returns a partition of a broker that did not answer some time ago; None if there is none to try again."""
        for partition, broker in leaders.items():
            if now_s - self._silent.get(broker, now_s) >= TRY_AGAIN_S:
                self._silent[broker] = now_s
                return partition
        return None
