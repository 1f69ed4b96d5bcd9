"""The workloads: number, size and due seconds of timers."""

from __future__ import annotations

from dataclasses import dataclass, replace

PAYLOAD_BYTES = 100
PARTITIONS = 4


@dataclass(frozen=True)
class Workload:
    """``timers`` timers, due evenly over ``spread_s`` whole seconds, all published before the first is due."""

    name: str
    timers: int
    spread_s: int
    payload_bytes: int = PAYLOAD_BYTES
    partitions: int = PARTITIONS
    at_random: bool = False
    """Due at random over ``spread_s``, not evenly."""
    idle_s: int = 0
    """Seconds without timers before they are published, in which the CPU time of an idle system is measured."""
    is_received: bool = False
    """Whether a ``read_committed`` consumer receives the callbacks while they fire, and says how late they came."""

    @property
    def title(self) -> str:
        spread = "in one second" if self.spread_s == 1 else f"over {_span(self.spread_s)}"
        places = f", {self.partitions} partitions" if self.partitions != PARTITIONS else ""
        return f"{self.timers:,}{' at random' if self.at_random else ''} {spread}{places}"

    def smaller(self, factor: int) -> Workload:
        """The workload with a fraction of the timers and at most five seconds, to try out the benchmark."""
        spread_s = self.spread_s if self.at_random else min(self.spread_s, 5)
        return replace(self, timers=max(1_000, self.timers // factor), spread_s=spread_s)


def _span(seconds: int) -> str:
    days = seconds // DAY_S
    return f"{seconds} s" if not days else "a day" if days == 1 else f"{days:,} days"


DAY_S = 86_400

STORMS = (
    Workload("storm", 1_000_000, 20),
    Workload("burst", 500_000, 1),
    Workload("two_million", 2_000_000, 1),
    Workload("steady", 150_000, 30, is_received=True),
)
"""The four rows of the table that the engine is judged by; ``steady`` is 5,000 a second."""

WIDE = (Workload("wide", 19_200, 30, partitions=64, idle_s=20),)
"""Ten timers a second on each of 64 partitions."""

PENDING = (
    Workload("random_day", 3_000_000, DAY_S, at_random=True),
    Workload("random_years", 3_000_000, 3650 * DAY_S, at_random=True),
)
"""Accepted, and not fired. In ``random_years`` nearly each timer has a second of its own."""

OVERDUE = (Workload("overdue", 5_000_000, 60 * DAY_S, at_random=True),)
"""Due at random in the days before the system starts."""
QUICK_FACTOR = 20
