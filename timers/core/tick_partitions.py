"""Chooses the partition of the oscillator topic that each tick goes to."""

from __future__ import annotations

from collections.abc import Mapping

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
