"""One bucket of timers: decides in each micro-batch which timers fire and which wait. Pure; Spark keeps its state.

Each timer belongs to one bucket, and each bucket gets each tick. In a micro-batch, a bucket sends the arriving and the
waiting timers that are due by the newest tick, and stores the others. Spark commits the state and the input of a
micro-batch together: a timer is in the state exactly until it has fired, so a bucket needs no record of fired timers.

This also covers the irregular cases. After a missed tick, the next tick fires more timers. An old or duplicate tick
changes nothing. A request that arrives after its due second fires in the micro-batch that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgpack

from timers.core.clock_guard import ClockGuard, Clocks, Seen
from timers.core.ticking import latest_tick
from timers.core.timer import Tick
from timers.errors import StoreError
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Item
from timers.spark.engine.wheel import Slot, slot_of

FORMAT = 3
"""Version of the encoded state. Version 2 has no anchor."""

CHUNK_BYTES = 4 * 1024 * 1024
"""Approximate limit for one entry of the state, in bytes."""


class ChunkKey(NamedTuple):
    """Key of a stored timer batch."""

    slot: Slot
    number: int
    """Index of the timer batch within its slot, from 0."""


class Chunks(Protocol):
    """Storage for waiting timer batches."""

    def take(self, key: ChunkKey) -> bytes:
        """Remove a timer batch and return it."""

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        """Store a timer batch."""


class Anchor(NamedTuple):
    """The anchor of the clock guard [I20], and the machine whose clock it belongs to."""

    boot_id: str
    """Names one run of one machine: the clock since boot continues only there."""
    seen: Seen

    @classmethod
    def of(cls, boot_id: str, seen: Seen | None) -> Anchor | None:
        """Return the anchor, if there is one and it can be used again."""
        return cls(boot_id, seen) if seen is not None and boot_id else None


class Filled(NamedTuple):
    """How much a slot contains."""

    chunks: int
    timers: int


@dataclass
class BucketState:
    """The state of a bucket, without its timer batches."""

    tick: Tick | None = None
    """The newest tick; its second is the current second."""
    slots: dict[Slot, Filled] = field(default_factory=dict)
    anchor: Anchor | None = None
    """The last tick with which a second clock agreed."""

    @property
    def now_s(self) -> int:
        """The current second: timers that are due by it fire. Before the first tick no timer is due."""
        return timer_batches.AT_ONCE if self.tick is None else self.tick.second

    @property
    def pending(self) -> int:
        return sum(filled.timers for filled in self.slots.values())

    def encode(self) -> bytes:
        """Inverse: :meth:`decode`."""
        tick_ms = None if self.tick is None else self.tick.append_ms
        slots = [(*slot, *filled) for slot, filled in self.slots.items()]
        anchor = None if self.anchor is None else (self.anchor.boot_id, *self.anchor.seen)
        return bytes(msgpack.packb((FORMAT, tick_ms, slots, anchor)))

    @classmethod
    def decode(cls, data: bytes) -> BucketState:
        """Read the bytes that :meth:`encode` wrote."""
        version, *rest = msgpack.unpackb(data)
        if version not in (2, FORMAT):
            raise StoreError(
                f"the checkpoint has timers in format {version}, but this version of the engine reads format "
                f"{FORMAT}: run the version that wrote the checkpoint"
            )
        tick_ms, slots, *rest = rest
        boot_id, *seen = (rest and rest[0]) or (None,)
        return cls(
            None if tick_ms is None else Tick(tick_ms),
            {Slot(level, number): Filled(chunks, timers) for level, number, chunks, timers in slots},
            None if boot_id is None else Anchor(boot_id, Seen(*seen)),
        )


class Bucket:
    """Separates due timers from waiting ones, one micro-batch at a time.

    Attributes:
        state: complete after a micro-batch once the caller has taken all that :meth:`process` yields.
    """

    def __init__(self, state: BucketState, chunks: Chunks) -> None:
        self.state = state
        self._chunks = chunks

    def counted(self, ticks_ms: Iterable[int], guard: ClockGuard, clocks: Clocks, boot_id: str) -> Tick | None:
        """Judge ticks [I20], and return the newest one that counts.

        Each micro-batch may run on another machine, so the guard is new each time and gets its anchor from the state.

        Args:
            ticks_ms: the last tick of each partition.
            guard: a new guard.
            clocks: of the machine.
            boot_id: names the present run of the machine.
        """
        state = self.state
        if state.anchor is not None and state.anchor.boot_id == boot_id:
            guard.anchor = state.anchor.seen
        fired_s = [] if state.tick is None else [state.tick.second]
        # The broker is not known: Spark does not say which one leads a partition.
        counted = [tick_ms for tick_ms in ticks_ms if guard.counts(tick_ms, None, clocks, fired_s)]
        state.anchor = Anchor.of(boot_id, guard.anchor)
        return Tick(max(counted)) if counted else None

    def process(self, arriving: Iterable[bytes], tick: Tick | None) -> Iterator[bytes]:
        """Process one micro-batch: send the due timers, store the others."""
        if tick is not None:
            self.state.tick = latest_tick(self.state.tick, tick)
        waiting: dict[Slot, list[Item]] = {}
        for timer_batch in arriving:
            due = self._split(timer_batches.unpack(timer_batch), waiting)
            if due:
                yield timer_batches.pack(due)
        yield from self._take_due(waiting)
        for slot, items in waiting.items():
            self._store(slot, items)

    def _split(self, items: Iterable[Item], waiting: dict[Slot, list[Item]]) -> list[Item]:
        """Add the items that are not due to ``waiting``, and return the due ones."""
        now_s = self.state.now_s
        due: list[Item] = []
        for item in items:
            if item[0] <= now_s:
                due.append(item)
            else:
                waiting.setdefault(slot_of(item[0], now_s), []).append(item)
        return due

    def _take_due(self, waiting: dict[Slot, list[Item]]) -> Iterator[bytes]:
        """Yield the stored timers that are due; add the others of their slots to ``waiting``, for finer slots."""
        now_s = self.state.now_s
        for slot in sorted((slot for slot in self.state.slots if slot.first_s <= now_s), key=lambda slot: slot.first_s):
            filled = self.state.slots.pop(slot)
            for index in range(filled.chunks):
                timer_batch = self._chunks.take(ChunkKey(slot, index))
                if slot.last_s <= now_s:
                    yield timer_batch
                else:
                    due = self._split(timer_batches.unpack(timer_batch), waiting)
                    if due:
                        yield timer_batches.pack(due)

    def _store(self, slot: Slot, items: list[Item]) -> None:
        chunks, timers = self.state.slots.get(slot, Filled(0, 0))
        start = size = 0
        for end, (_, count, payload) in enumerate(items, 1):
            size += len(payload)
            timers += count
            if size >= CHUNK_BYTES or end == len(items):
                self._chunks.put(ChunkKey(slot, chunks), timer_batches.pack(items[start:end]))
                chunks, start, size = chunks + 1, end, 0
        self.state.slots[slot] = Filled(chunks, timers)
