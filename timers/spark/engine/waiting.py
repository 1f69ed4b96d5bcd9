"""The waiting timers of one bucket: slots of a timing wheel, whose timer batches are entries of Spark's state.

A slot is read at its first second at the latest: its timers are due then, or move to finer slots. Two rules keep this
work from coming all at once. Each bucket has a *phase*, so that the long slots of different buckets begin at different
times. And the timers of a long slot move in small steps before it begins.

Spark keeps the timers of a bucket in its state. A state call from Python costs 0.2 ms, and the state has no range scan.
So timers that are due at about the same time share one entry, a slot. Slots become longer with the distance from now:
the level of a slot is the highest 6-bit digit in which the due second differs from the current second. A bucket has at
most 64 slots of one level and 448 slots in total. A timer moves to a finer slot at most once for each level.

::

    level   length of a slot    64 slots cover
    0       1 s                 1 min
    1       64 s                68 min
    2       68 min              3 days
    3       3 days              194 days
    4       194 days            34 years
    ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol
from zlib import crc32

from timers.errors import CheckpointMismatch
from timers.spark.engine import timer_batches
from timers.spark.engine.timer_batches import Group

DIGIT_BITS = 6

SHIFTED_LEVELS = 5
"""The slots of the levels below this one begin at different times in different buckets."""


class Slot(NamedTuple):
    """A range of seconds: those that share all digits from the highest down to ``level``."""

    level: int
    number: int
    """The due second without its lowest ``level`` digits."""

    @property
    def first_s(self) -> int:
        return self.number << DIGIT_BITS * self.level

    @property
    def last_s(self) -> int:
        return ((self.number + 1) << DIGIT_BITS * self.level) - 1


def slot_of(due_s: int, now_s: int) -> Slot:
    """The slot for a timer that is due at ``due_s`` and is stored at second ``now_s``.

    Any slot that contains ``due_s`` is correct, because a bucket reads a slot at the first second of the slot. This
    choice makes such reads rare.
    """
    level = max(0, (due_s ^ max(0, now_s)).bit_length() - 1) // DIGIT_BITS
    return Slot(level, due_s >> DIGIT_BITS * level)


def phase_s(index: int, buckets: int) -> int:
    """Seconds by which the slots of a bucket begin earlier than those of the first one.

    It is another share of each length of slots.

    Args:
        index: of the bucket among all ``buckets``.
    """
    return sum(index * (1 << DIGIT_BITS * level) // buckets for level in range(1, SHIFTED_LEVELS))


CHUNK_BYTES = 1024 * 1024
"""Approximate limit for one timer batch, in bytes."""

PIECE_BYTES = 16 * 1024
"""Bytes of one state value. Up to Spark 4.0.1 the state server may read only a part of a large message (SPARK-53870),
and the call fails. A message of this size arrives complete."""

NEW_BYTES = 64 * 1024 * 1024
"""Bytes of timers that are held in memory before they are written to the state."""

LEAD_SHARE = 4
"""The timers of a long slot begin to move when a quarter of its length is left until it begins."""

LEAST_MOVED = 16
"""Pieces that move in one step at least: together they make fewer entries of finer slots than each alone."""


class ChunkKey(NamedTuple):
    """Key of a stored timer batch."""

    slot: Slot
    number: int
    """Number of the timer batch within its slot; it counts up."""


class Chunks(Protocol):
    """Storage for timer batches."""

    def take(self, key: ChunkKey) -> bytes:
        """Remove a timer batch and return it."""

    def put(self, key: ChunkKey, timer_batch: bytes) -> None:
        """Store a timer batch."""


class Filled(NamedTuple):
    """What the state has of a slot."""

    first: int
    """Number of its first timer batch."""
    end: int
    """Number after that of its last timer batch."""
    timers: int
    pieces: int
    """Number of state values. The cost of reading a slot follows it."""
    checksum: int
    """Of its timer batches. Two attempts of one micro-batch may store different timer batches under the same keys, and
    if both write to the storage of the checkpoint, that of a lost attempt may replace the other."""


class Waiting:
    """The waiting timers of a bucket.

    Args:
        slots: what the state has, by slot; changed by this object.
        chunks: the timer batches in the state.
        phase_s: seconds by which the slots of this bucket begin earlier than those of phase 0.
    """

    def __init__(self, slots: dict[Slot, Filled], chunks: Chunks, phase_s: int = 0) -> None:
        self._slots = slots
        self._chunks = chunks
        self._phase_s = phase_s
        self._new: dict[Slot, list[Group]] = {}
        self._new_bytes = 0

    @property
    def count(self) -> int:
        """Number of timers."""
        return sum(filled.timers for filled in self._slots.values()) + sum(
            group.timers for groups in self._new.values() for group in groups
        )

    def add(self, groups: Iterable[Group], now_s: int) -> None:
        """Add timers; ``now_s`` is the present second."""
        for group in groups:
            self._add(group, now_s + self._phase_s)

    def _add(self, group: Group, now: int) -> None:
        due = group.due_s + self._phase_s
        self._new.setdefault(slot_of(due, min(now, due)), []).append(group)
        self._new_bytes += len(group.data)
        if self._new_bytes >= NEW_BYTES:
            self.store()

    def take_due(self, until_s: int, most_bytes: int) -> tuple[list[Group], int]:
        """Remove timers that are due, in the order of due seconds.

        Args:
            until_s: the present second.
            most_bytes: take no further second after this number of bytes.

        Returns:
            The timers, and the second up to which they are complete.
        """
        found: list[Group] = []
        size = 0
        until = until_s + self._phase_s
        while (slot := self._first(until)) is not None:
            if slot.level:
                for group in self._take(slot):
                    self._add(group, slot.first_s)
            elif size >= most_bytes:
                return found, slot.first_s - 1 - self._phase_s
            else:
                second = list(self._take(slot))
                found += second
                size += sum(len(group.data) for group in second)
        return found, until_s

    def _first(self, until: int) -> Slot | None:
        """The slot to read next. Of two slots that begin together, the longer one: it may have timers of the other."""
        begun = [slot for slots in (self._slots, self._new) for slot in slots if slot.first_s <= until]
        return min(begun, key=lambda slot: (slot.first_s, -slot.level), default=None)

    def _take(self, slot: Slot) -> Iterator[Group]:
        filled = self._slots.pop(slot, None)
        new = self._new.pop(slot, [])
        self._new_bytes -= sum(len(group.data) for group in new)
        if filled is not None:
            checksum = filled.checksum
            for number in range(filled.first, filled.end):
                timer_batch = self._chunks.take(ChunkKey(slot, number))
                checksum ^= _checksum(number, timer_batch)
                yield from _unpack(slot, timer_batch)
            _check(slot, checksum)
        yield from new

    def move_ahead(self, now_s: int) -> None:
        """Move some timers of slots that begin soon to finer slots. Call in each micro-batch."""
        now = now_s + self._phase_s
        for slot, filled in list(self._slots.items()):
            left_s = slot.first_s - now
            if not slot.level or not 0 < left_s <= (1 << DIGIT_BITS * slot.level) // LEAD_SHARE:
                continue
            least = max(LEAST_MOVED, -(-filled.pieces // left_s))
            number = filled.first
            timers = pieces = taken = 0
            while number < filled.end and pieces < least:
                timer_batch = self._chunks.take(ChunkKey(slot, number))
                for group in _unpack(slot, timer_batch):
                    timers += group.timers
                    self._add(group, slot.first_s)
                taken ^= _checksum(number, timer_batch)
                number, pieces = number + 1, pieces + _pieces(timer_batch)
            rest = self._slots.pop(slot)
            checksum = rest.checksum ^ taken
            if rest.end > number:
                self._slots[slot] = Filled(number, rest.end, rest.timers - timers, rest.pieces - pieces, checksum)
            else:
                _check(slot, checksum)

    def store(self) -> None:
        """Write the timers that were added to the state."""
        new, self._new, self._new_bytes = self._new, {}, 0
        for slot, groups in new.items():
            self._store(slot, groups)

    def _store(self, slot: Slot, groups: list[Group]) -> None:
        first, number, timers, pieces, checksum = self._slots.get(slot, Filled(0, 0, 0, 0, 0))
        start = size = 0
        for end, group in enumerate(groups, 1):
            size += len(group.data)
            timers += group.timers
            if size >= CHUNK_BYTES or end == len(groups):
                timer_batch = timer_batches.pack(groups[start:end])
                self._chunks.put(ChunkKey(slot, number), timer_batch)
                pieces += _pieces(timer_batch)
                checksum ^= _checksum(number, timer_batch)
                number, start, size = number + 1, end, 0
        self._slots[slot] = Filled(first, number, timers, pieces, checksum)


def _unpack(slot: Slot, timer_batch: bytes) -> list[Group]:
    try:
        return timer_batches.unpack(timer_batch)
    except (ValueError, TypeError) as error:  # pieces of two attempts
        raise _mismatch(slot) from error


def _checksum(number: int, timer_batch: bytes) -> int:
    """The part of a timer batch in the checksum of its slot: parts are combined by exclusive or, in any order."""
    return crc32(timer_batch, number)


def _check(slot: Slot, rest: int) -> None:
    """Check that the timer batches of a slot, which were all read, are those that were stored.

    Raises:
        CheckpointMismatch: they are not.
    """
    if rest:
        raise _mismatch(slot)


def _mismatch(slot: Slot) -> CheckpointMismatch:
    return CheckpointMismatch(f"the checkpoint has other timers in slot {tuple(slot)} than its index says")


def _pieces(timer_batch: bytes) -> int:
    """Number of state values of a timer batch."""
    return -(-len(timer_batch) // PIECE_BYTES)
