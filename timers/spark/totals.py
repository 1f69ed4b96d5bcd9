"""What a bucket of the engine tells the driver of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from timers.core.timer import TopicPartition


class Snapshot(NamedTuple):
    """What a machine knows of its newest snapshot; None: there is none."""

    unread: int
    """Offsets of the log since then."""
    applied: int | None
    bytes: int | None
    written_ms: int | None
    """When it was complete, by what this process knows. It may be an older one."""


class Total(NamedTuple):
    """What a bucket did in a micro-batch."""

    numbers: Mapping[str, float]
    """What its machines add to those of :meth:`timers.core.counters.Counters.numbers`."""
    waiting: Mapping[TopicPartition, tuple[int, int | None]]
    """Partition -> number of its timers, and the due second of the first one."""
    is_complete: bool
    snapshots: Mapping[TopicPartition, Snapshot]
    """Of the partitions that were opened."""
    answers: Sequence[tuple[int, Any, Exception | None]]
    """To the questions about partitions."""
