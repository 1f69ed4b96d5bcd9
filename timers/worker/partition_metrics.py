"""What other threads may read of a partition: its totals, how its transactions go, and whether its thread lives.

Kept for every partition that this process has ever owned, so that totals never go back. One thread writes, the one that
owns the machine; reading needs no lock, since each value is a number that is replaced whole.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from timers.core.counters import Counters, Histogram

TRANSACTION_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0)
"""Up to the longest that a transaction may last."""


HEARTBEAT_PAUSE_S = 1.0


class Heartbeat:
    """Shows that a thread makes progress."""

    def __init__(self) -> None:
        self._last_beat_at: float | None = None

    def beat(self) -> None:
        """Something was done, or waiting for a broker or for another thread is still allowed to go on."""
        self._last_beat_at = monotonic()

    def rest(self) -> None:
        """There is nothing to do: silence from now on is no sign of trouble."""
        self._last_beat_at = None

    @property
    def silent_s(self) -> float:
        """Seconds since the last beat; 0 while there is nothing to do."""
        last_beat_at = self._last_beat_at
        return 0.0 if last_beat_at is None else monotonic() - last_beat_at


async def keep_heartbeat(heartbeat: Heartbeat) -> None:
    """Show for ever that the event loop this runs on goes round."""
    while True:
        heartbeat.beat()
        await asyncio.sleep(HEARTBEAT_PAUSE_S)


class PartitionMetrics:
    """Measures one partition.

    Attributes:
        counters: what was accepted, fired and dead-lettered.
        transactions: seconds that committed transactions took, from their first record to the commit's answer.
        failed: reason -> transactions that were given up, or whose outcome was not known.
        reopened: how often the machine was dropped and opened again.
        oldest_due_s: due second of the next timer to fire, None if none waits; at most a second old.
        heartbeat: of the machine's thread.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.transactions = Histogram(TRANSACTION_BOUNDS_S)
        self.failed: dict[str, int] = {}
        self.reopened = 0
        self.oldest_due_s: int | None = None
        self.heartbeat = Heartbeat()

    def transaction_failed(self, reason: str) -> None:
        """Count a transaction that was not seen to commit."""
        self.failed[reason] = self.failed.get(reason, 0) + 1
