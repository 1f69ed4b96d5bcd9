"""What so many timers take: disks, memory, and the time of a takeover. Pure.

The formulas and their measurements are in docs/operations.md, "Capacity"; the chart's values for small, medium and
large apps are computed by them, too. ``timers doctor --plan`` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from timers.process.config.settings import Settings
from timers.process.counted import count, span

REQUEST_BYTES, ROW_BYTES = 26, 12
"""What a request in its log, and a timer in a store, take beside P: callback, callback key and callback topic."""

ROOM = 2
"""Stores: room for compaction, and for fired timers that are not removed yet."""

NAMED_SNAPSHOTS = 2

BASE_BYTES, PARTITION_BYTES, BACKLOG_BYTES = 110 * 10**6, 1_200_000, 4_000_000
"""Memory of a worker, of each partition, and of one that reads a backlog."""

RESTORED_PER_S, READ_PER_S = 500_000, 340_000
"""Timers of a snapshot that a worker restores, and records of a log that it reads, in a second (docs/operations.md,
"Snapshots"; docs/design.md, P8)."""

DAY_S, WEEK_S = 86_400, 7 * 86_400


@dataclass(frozen=True)
class Load:
    """What an app gets.

    Attributes:
        per_s: requests a second.
        wait_s: how long a timer waits on average.
        payload_bytes: P, callback with its key and its topic.
        workers: how many run; one of them may fail.
    """

    per_s: float
    wait_s: int
    payload_bytes: int = 500
    workers: int = 3

    @property
    def pending(self) -> int:
        """Timers that wait at a time, by Little's law."""
        return round(self.per_s * self.wait_s)

    def log_bytes(self, keep_s: float) -> float:
        """The log of requests on each replica, of which workers delete what is older than this and needed no more."""
        return keep_s * self.per_s * (self.payload_bytes + REQUEST_BYTES)

    def snapshot_bytes(self, factor: float) -> float:
        """Snapshots, and the part of the log after them, on each replica."""
        return (NAMED_SNAPSHOTS + factor) * self.stored_bytes

    @property
    def stored_bytes(self) -> int:
        return self.pending * (self.payload_bytes + ROW_BYTES)

    @property
    def worker_disk_bytes(self) -> float:
        """The disk of each worker while one of them is away."""
        return ROOM * self.stored_bytes / max(1, self.workers - 1)

    @property
    def partitions(self) -> int:
        """Partitions of the request topic: four for each worker (docs/operations.md, "Scaling")."""
        return 4 * self.workers

    def memory_bytes(self, settings: Settings) -> float:
        """Memory of each worker while one of them is away, and its partitions are read: three topics have them."""
        owned = -(-3 * self.partitions // max(1, self.workers - 1))
        firing = -(-self.partitions // max(1, self.workers - 1))
        room = owned * (PARTITION_BYTES + BACKLOG_BYTES) + firing * settings.chunk_bytes
        return BASE_BYTES + settings.store_memory_bytes + room

    @property
    def lost(self) -> float:
        """Pending timers of the partitions of one worker."""
        return self.pending / self.workers

    def restore_s(self) -> float:
        """How long the others restore the partitions of a worker that is lost, from their snapshots."""
        return self.lost / RESTORED_PER_S / max(1, self.workers - 1)

    def read_s(self, keep_s: float) -> float:
        """The same without snapshots: they read the logs of these partitions."""
        return self.per_s * max(keep_s, self.wait_s) / self.workers / READ_PER_S / max(1, self.workers - 1)


def lines(load: Load, settings: Settings) -> Iterator[tuple[str, float | None, str]]:
    """Name, value and words of each figure, by the settings of a worker."""
    keep_s = min(settings.log_keep_s, 100 * 365 * DAY_S)
    kept = load.snapshot_bytes(settings.snapshot_factor)
    yield "pending", load.pending, f"{count(load.pending)} timers wait at a time"
    yield "partitions", load.partitions, f"{load.partitions} of the request topic (TIMERS_PARTITIONS)"
    if settings.log_keep_s == float("inf"):
        yield "log", None, f"it grows without end, {_gb(load.log_bytes(DAY_S))} a day (TIMERS_LOG_KEEP_S)"
    else:
        log = load.log_bytes(keep_s)
        yield "log", log, f"{_gb(log)} on each replica: the requests of {span(keep_s)} (TIMERS_LOG_KEEP_S)"
    yield "snapshots", kept, f"{_gb(kept)} on each replica, at most (TIMERS_SNAPSHOT_FACTOR)"
    disk, left = load.worker_disk_bytes, max(1, load.workers - 1)
    yield "worker_disk", disk, f"{_gb(disk)} for each of {load.workers} workers, of which {left} must be enough"
    memory = load.memory_bytes(settings)
    yield "worker_memory", memory, f"{_gb(memory)} for each worker while it takes over"
    silent_s, restore_s = settings.session_timeout_s, load.restore_s()
    after_s = silent_s + restore_s
    yield "takeover", after_s, f"{span(after_s)} after a kill: {span(silent_s)} of silence, then snapshots are restored"
    yield "takeover_without_snapshots", load.read_s(keep_s), f"{span(load.read_s(keep_s))} if the logs must be read"
    yield "cold_tier", None, _cold(load)


def _cold(load: Load) -> str:
    if load.wait_s <= WEEK_S:
        return "of little use: timers wait for a week or less (docs/cold-tier.md)"
    hot = Load(load.per_s, WEEK_S, load.payload_bytes, load.workers)
    return (
        f"TIMERS_HOT_HORIZON_S={WEEK_S} leaves {count(hot.pending)} timers to the workers, with "
        f"{_gb(hot.worker_disk_bytes)} of disk for each; the others wait in a Delta table (docs/cold-tier.md)"
    )


def _gb(number: float) -> str:
    """Bytes in decimal units, in which disks are sold and the documents count."""
    for unit in ("MB", "GB", "TB"):
        number /= 10**6 if unit == "MB" else 1000
        if number < 1000 or unit == "TB":
            break
    return f"{number:,.1f} {unit}" if number < 100 else f"{number:,.0f} {unit}"
