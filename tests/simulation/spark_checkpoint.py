"""What Spark keeps of a query between micro-batches: the states of the buckets, and what is planned. Simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from timers.core.timer import TopicPartition

PARTITIONS = 3
"""Partitions of each topic of requests."""


@dataclass
class Checkpoint:
    """What a query keeps: the committed states, the end of what was read, and the planned micro-batch."""

    states: list[bytes | None]
    """Of the buckets, encoded."""
    ends: dict[TopicPartition, int]
    ticks_read: int
    planned: tuple[dict[TopicPartition, int], int] | None = None
    done: dict[int, bytes | None] = field(default_factory=dict)
    """States of the buckets whose tasks have ended in the planned micro-batch."""

    @classmethod
    def new(cls, buckets: int, starts: Mapping[TopicPartition, int], ticks_read: int) -> Checkpoint:
        return cls([None] * buckets, dict(starts), ticks_read)

    def copy(self) -> Checkpoint:
        return Checkpoint(self.states[:], dict(self.ends), self.ticks_read, self.planned)
