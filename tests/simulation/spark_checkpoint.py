"""What Spark keeps of a query between micro-batches: the states of the buckets, and what is planned. Simulated."""

from __future__ import annotations

from dataclasses import dataclass, field

from timers.spark.engine.waiting import ChunkKey

PARTITIONS = 3
"""Partitions of the topic of requests."""


@dataclass
class Chunks:
    """The timer batches of a bucket."""

    held: dict[ChunkKey, bytes] = field(default_factory=dict)

    def take(self, key: ChunkKey) -> bytes:
        return self.held.pop(key)

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        assert key not in self.held
        self.held[key] = timer_batch


Stored = tuple[bytes | None, dict[ChunkKey, bytes]]
"""The encoded state of a bucket, and its timer batches."""


@dataclass
class Checkpoint:
    """What a query keeps: the committed states, the end of what was read, and the planned micro-batch."""

    buckets: int
    states: list[Stored]
    ends: dict[int, int]
    ticks_read: int
    planned: tuple[dict[int, int], int] | None = None
    done: dict[int, Stored] = field(default_factory=dict)
    """States of the buckets whose tasks have ended in the planned micro-batch."""

    @classmethod
    def new(cls, buckets: int, ticks_read: int) -> Checkpoint:
        return cls(buckets, [(None, {})] * buckets, dict.fromkeys(range(PARTITIONS), 0), ticks_read)

    def copy(self) -> Checkpoint:
        states = [(state, dict(held)) for state, held in self.states]
        return Checkpoint(self.buckets, states, dict(self.ends), self.ticks_read, self.planned)
