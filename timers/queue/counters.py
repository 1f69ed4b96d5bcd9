"""What a process counts about its queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Totals since the queue was opened, and the present state, of one process.

    Attributes:
        received: deliveries to receivers.
        acked: calls of ``ack`` that counted.
        retried: retries, of messages and of handlers that failed.
        dead: code of dead letters -> how many.
        leases_lost: deliveries that ended because the lease was over, or because the partition moved.
        crashes: messages whose process ended while it ran alone, or whose child process ended.
        handling_s: sum of the seconds between each delivery and the call that settled it.
        in_flight: messages with receivers now.
        ready: messages that wait for receivers now.
        depth: messages of the process's partitions that are not done.
        oldest_ms: epoch milliseconds at which the oldest of these came to its topic, as far as it was read; None if
            there is none.
        partitions: partitions of the process now, also those of the returns topic.
        ledger_bytes: longest metadata of their last commits.
    """

    received: int = 0
    acked: int = 0
    retried: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    leases_lost: int = 0
    crashes: int = 0
    handling_s: float = 0.0
    in_flight: int = 0
    ready: int = 0
    depth: int = 0
    oldest_ms: int | None = None
    partitions: int = 0
    ledger_bytes: int = 0
