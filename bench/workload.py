"""The workloads of the storm: number, size and due seconds of timers."""

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

    @property
    def title(self) -> str:
        rate = f"in one second ({self.timers:,})" if self.spread_s == 1 else f"over {self.spread_s} s"
        return f"{self.timers:,} {rate.split(' (')[0]}"

    def smaller(self, factor: int) -> Workload:
        """The workload with a fraction of the timers and at most five seconds, to try out the benchmark."""
        return replace(self, timers=max(1_000, self.timers // factor), spread_s=min(self.spread_s, 5))


STORMS = (
    Workload("storm", 1_000_000, 20),
    Workload("burst", 500_000, 1),
    Workload("two_million", 2_000_000, 1),
    Workload("steady", 150_000, 30),
)
"""The four rows of the table that the engine is judged by; ``steady`` is 5,000 a second."""
QUICK_FACTOR = 20
