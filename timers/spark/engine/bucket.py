"""One bucket of timers: what waits in it, and what leaves it in a micro-batch. Pure; Spark keeps its state.

Every timer is in one bucket, and every tick comes to every bucket. State and input of a micro-batch are committed
together, so a bucket needs no memory of what has fired: what has fired is gone from it, and what is in it has not.
::

    turn(timer batches, tick):  what is due by the newest tick goes out, whether it came just now or waited; the rest
    waits

So a missed tick costs nothing, an old or repeated one changes nothing, and a request that comes after its second goes
out with the micro-batch that brings it, however far behind the ticks it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgpack

from timers.core.ticking import present
from timers.core.timer import Tick
from timers.errors import StoreError
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Item
from timers.spark.engine.wheel import Slot, slot_of

FORMAT = 2
"""Version of the state's bytes."""

CHUNK_BYTES = 4 * 1024 * 1024
"""About the most bytes in one entry of the state."""


class ChunkKey(NamedTuple):
    """Where a timer batch waits."""

    slot: Slot
    number: int
    """Timer batches of a slot are counted from 0."""


class Chunks(Protocol):
    """Timer batches that wait."""

    def take(self, key: ChunkKey) -> bytes:
        """A timer batch, which is there no more."""

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        """Keep a timer batch."""


class Filled(NamedTuple):
    """What a slot holds."""

    chunks: int
    timers: int


@dataclass
class BucketState:
    """What a bucket knows without looking at its timer batches."""

    tick: Tick | None = None
    """The present: the newest tick."""
    slots: dict[Slot, Filled] = field(default_factory=dict)

    @property
    def now_s(self) -> int:
        """Everything due by this second goes out; before the first tick that is nothing."""
        return timer_batches.AT_ONCE if self.tick is None else self.tick.second

    @property
    def pending(self) -> int:
        """Timers that wait."""
        return sum(filled.timers for filled in self.slots.values())

    def encode(self) -> bytes:
        """Inverse: :meth:`decode`."""
        tick_ms = None if self.tick is None else self.tick.append_ms
        slots = [(*slot, *filled) for slot, filled in self.slots.items()]
        return bytes(msgpack.packb((FORMAT, tick_ms, slots)))

    @classmethod
    def decode(cls, data: bytes) -> BucketState:
        """Read what :meth:`encode` wrote.

        Raises:
            StoreError: another version of the engine wrote it.
        """
        version, *rest = msgpack.unpackb(data)
        if version != FORMAT:
            raise StoreError(
                f"the checkpoint holds timers in format {version}, and this version of the engine reads {FORMAT}: "
                "go on with the version that wrote it"
            )
        tick_ms, slots = rest
        return cls(
            None if tick_ms is None else Tick(tick_ms),
            {Slot(level, number): Filled(chunks, timers) for level, number, chunks, timers in slots},
        )


class Bucket:
    """Takes turns.

    Attributes:
        state: as it is after the turn, once all that the turn yields was taken.
    """

    def __init__(self, state: BucketState, chunks: Chunks) -> None:
        self.state = state
        self._chunks = chunks

    def turn(self, arriving: Iterable[bytes], tick: Tick | None) -> Iterator[bytes]:
        """One micro-batch.

        Args:
            arriving: timer batches of requests read.
            tick: newest tick read.

        Yields:
            Timer batches of what goes out.
        """
        if tick is not None:
            self.state.tick = present(self.state.tick, tick)
        waiting: dict[Slot, list[Item]] = {}
        for timer_batch in arriving:
            due = self._sort(timer_batches.unpack(timer_batch), waiting)
            if due:
                yield timer_batches.pack(due)
        yield from self._drain(waiting)
        for slot, items in waiting.items():
            self._store(slot, items)

    def _sort(self, items: Iterable[Item], waiting: dict[Slot, list[Item]]) -> list[Item]:
        """Add to ``waiting`` what must wait; the rest."""
        now_s = self.state.now_s
        due: list[Item] = []
        for item in items:
            if item[0] <= now_s:
                due.append(item)
            else:
                waiting.setdefault(slot_of(item[0], now_s), []).append(item)
        return due

    def _drain(self, waiting: dict[Slot, list[Item]]) -> Iterator[bytes]:
        """What has come due of what is stored; what only came near is moved to ``waiting``."""
        now_s = self.state.now_s
        for slot in sorted((slot for slot in self.state.slots if slot.first_s <= now_s), key=lambda slot: slot.first_s):
            filled = self.state.slots.pop(slot)
            for index in range(filled.chunks):
                timer_batch = self._chunks.take(ChunkKey(slot, index))
                if slot.last_s <= now_s:
                    yield timer_batch
                else:
                    due = self._sort(timer_batches.unpack(timer_batch), waiting)
                    if due:
                        yield timer_batches.pack(due)

    def _store(self, slot: Slot, items: list[Item]) -> None:
        chunks, timers = self.state.slots.get(slot, Filled(0, 0))
        start = size = 0
        for end, (_, count, unit) in enumerate(items, 1):
            size += len(unit)
            timers += count
            if size >= CHUNK_BYTES or end == len(items):
                self._chunks.put(ChunkKey(slot, chunks), timer_batches.pack(items[start:end]))
                chunks, start, size = chunks + 1, end, 0
        self.state.slots[slot] = Filled(chunks, timers)
