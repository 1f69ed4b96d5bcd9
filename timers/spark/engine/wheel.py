"""A hierarchical timing wheel: it assigns each waiting timer to a slot.

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

from typing import NamedTuple

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
