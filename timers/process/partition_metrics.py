"""Measurements of a partition that other threads read: totals, transactions, and the heartbeat of its thread.

They are kept for every partition that this process has ever owned, so that totals never decrease. Only the machine's
thread writes them. Readers need no lock: each value is one number.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from timers.core.counters import Counters, Histogram

TRANSACTION_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0)
"""Bounds of the histogram; the last one is the transaction timeout."""

WAIT_BOUNDS_S = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 300.0, 3600.0)
"""Bounds of the waits until a machine fires: from a planned stop to a log that is read from its start."""

FROM_STORE, FROM_SNAPSHOT, FROM_LOG = "store", "snapshot", "log"
"""From what a machine began: its store on this disk, a snapshot, or its whole log."""

HEARTBEAT_PAUSE_S = 1.0

# Names and help texts of the metrics that a worker and the engine on Spark have in common.
FIRED = "timers_fired_total", "Callbacks sent to their topics, committed."
DEAD_LETTERED = "timers_dead_lettered_total{code}", "Dead letters written, committed, by timer-error code."
RETRIED = (
    "timers_retried_total",
    "Moves of timers to the retry topic: their target failed or can never take them, or a backlog is spread out.",
)
FOLLOWED = "timers_occurrences_total", "Occurrences of repeating timers, appended to their log, committed."
MENDED = (
    "timers_occurrences_mended_total",
    "Occurrences of repeating timers that the log had lost, and that were appended again, committed.",
)
ZONE_UNKNOWN = (
    "timers_zone_unknown_total",
    "How often the next occurrence of a repeating timer was not found, because the worker does not know its zone, "
    "committed. Each such timer looks again once a minute.",
)
MISSED = (
    "timers_occurrences_missed_total{reason}",
    "Occurrences of repeating timers that were not sent, committed. reason: superseded, late, over-cap (the catch-up "
    "of a timer left them out), held (while its topic was paused), never (a rule without any).",
)
LAG = (
    "timers_lag_seconds{way}",
    "Seconds from the start of the due second to the end of the transaction with the callback, by the brokers' clock. "
    "One observation for each callback. way: waited (the timer waited for its second), late (the request came after "
    "its second), retried (the timer came from the retry topic), held (its topic was paused or noisy).",
)
BUILD = (
    "timers_build_info{version,compiled,zone_data}",
    "Always 1. compiled: yes, or no if the worker was installed without a C compiler: then it needs more CPU. "
    "zone_data: version of the rules of time zones, by which repeating timers fire.",
)
OPEN_CIRCUITS = (
    "timers_open_circuits",
    "Callback topics that failed and have not taken a record of this worker since; their timers go through the retry "
    "topic. A topic that nothing tries again counts for up to 30 minutes after its last failure.",
)
GROUP_TAKEN = (
    "timers_group_taken",
    "1 while another program has the group of the workers, and gets their partitions or keeps them out; or that of the "
    "engine on Spark, which fires, but which others may not see.",
)
PENDING = "timers_pending{topic,partition}", "Timers stored and not yet fired."
SNAPSHOT_UNREAD = (
    "timers_snapshot_unread_offsets{topic,partition}",
    "Offsets of the request log since the newest snapshot: a worker without a store reads them, and the snapshot.",
)
SNAPSHOT_OFFSET = (
    "timers_snapshot_offset{topic,partition}",
    "Offset of the request log up to which the newest snapshot holds what is pending.",
)
SNAPSHOT_BYTES = (
    "timers_snapshot_bytes{topic,partition}",
    "Size of the newest snapshot before compression, rounded up to 512 KB.",
)
SNAPSHOT_AGE = (
    "timers_snapshot_age_seconds{topic,partition}",
    "Seconds since the newest snapshot was complete. Absent for up to 11 minutes after a takeover.",
)
OVERDUE = (
    "timers_oldest_overdue_seconds{topic,partition}",
    "How long the oldest stored timer has been due, by the brokers' clock; 0 if no stored timer is due.",
)

FENCED = "fenced"
"""Why a transaction failed: another owner has fenced the machine."""


class Heartbeat:
    """Time of a thread's last progress."""

    def __init__(self) -> None:
        self._last_beat_at: float | None = None

    def beat(self) -> None:
        """Note progress: a step is done, or a wait for a broker or another thread is still within its timeout."""
        self._last_beat_at = monotonic()

    def rest(self) -> None:
        """Note that there is no work: from now on silence is normal."""
        self._last_beat_at = None

    @property
    def silent_s(self) -> float:
        """Seconds since the last progress; 0 while there is no work."""
        last_beat_at = self._last_beat_at
        return 0.0 if last_beat_at is None else monotonic() - last_beat_at


async def keep_heartbeat(heartbeat: Heartbeat) -> None:
    """Update the heartbeat of the event loop that runs this, every second, until cancelled."""
    while True:
        heartbeat.beat()
        await asyncio.sleep(HEARTBEAT_PAUSE_S)


class PartitionMetrics:
    """Measurements of one partition.

    Attributes:
        counters: what was accepted, fired and dead-lettered.
        transactions: seconds that committed transactions took, from their first record to the commit's answer.
        failed: reason -> transactions that failed, or whose outcome is not known.
        is_leaving: whether its machine fires until a new owner fences it: that is how a planned handover ends.
        reopened: how often the machine was opened again after a failure.
        unforeseen: how often it failed with an exception that no code expects.
        snapshots: how often a snapshot was named.
        snapshots_failed: how often one was given up.
        snapshot_ms: when the newest one was complete, in epoch milliseconds of the brokers' clock; None: not known.
        opened_at: monotonic time at which the machine was opened last; None: never.
        opened_from: where its state came from then: :data:`FROM_STORE`, :data:`FROM_SNAPSHOT` or :data:`FROM_LOG`.
        transaction_version: of Kafka's transactions that its producer makes; 0 before its first opening.
        ahead_from: the same of a machine that reads ahead; empty after the opening that follows.
        waits: how long the oldest due timer had waited whenever the machine began to fire; 0: no timer was due.
        restoring_s: seconds for which snapshots were restored.
        log_start: first offset of the log, when it was last looked at for a deletion; None: not yet.
        trimmed_bytes: size of the requests that were deleted.
        trim_refused: whether something stands against the deletion of requests that nothing needs.
        ids_in_place: of requests with an id that were looked at, those on the partition of murmur2.
        ids_elsewhere: the others.
        oldest_due_s: due second of the next timer to fire, None if there is none; a worker updates it every second.
        throttled_s: seconds for which the machine has waited because of a quota of the brokers.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.transactions = Histogram(TRANSACTION_BOUNDS_S)
        self.failed: dict[str, int] = {}
        self.is_leaving = False
        self.reopened = self.unforeseen = 0
        self.snapshots = 0
        self.snapshots_failed = 0
        self.snapshot_ms: int | None = None
        self.restoring_s = 0.0
        self.opened_at: float | None = None
        self.opened_from = self.ahead_from = ""
        self.transaction_version = 0
        self.waits = Histogram(WAIT_BOUNDS_S)
        self.log_start: int | None = None
        self.trimmed_bytes = 0
        self.trim_refused = False
        self.ids_in_place = self.ids_elsewhere = 0
        self.oldest_due_s: int | None = None
        self.heartbeat = Heartbeat()
        self.throttled_s = 0.0

    def transaction_failed(self, reason: str) -> None:
        """Count a transaction that failed, or whose outcome is not known; but not the end of a planned handover."""
        if reason != FENCED or not self.is_leaving:
            self.failed[reason] = self.failed.get(reason, 0) + 1
