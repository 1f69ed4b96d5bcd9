"""Where a timer waits: slots of a timing wheel with as many wheels as a due second has digits.

A bucket of timers lives in Spark's state, whose calls from Python cost a fifth of a millisecond each, and which knows
no range scan. So timers that are due at about the same time share an entry, the coarser the further away they are: a
slot. Its level is the highest digit, of 6 bits, in which its seconds differ from the present one. Then a bucket has at
most 64 slots of a level and 448 in all, whatever it holds; and a timer moves at most once a level, towards its second.

::

    level   a slot is     slots of it reach
    0       1 s           1 min
    1       64 s          68 min
    2       68 min        3 days
    3       3 days        194 days
    4       194 days      34 years
    ...
"""

from __future__ import annotations

from typing import NamedTuple

DIGIT_BITS = 6


class Slot(NamedTuple):
    """All seconds that share their digits down to one level."""

    level: int
    number: int
    """The due second without its lowest ``level`` digits."""

    @property
    def first_s(self) -> int:
        """First due second of the slot."""
        return self.number << DIGIT_BITS * self.level

    @property
    def last_s(self) -> int:
        """Last due second of the slot."""
        return ((self.number + 1) << DIGIT_BITS * self.level) - 1


def slot_of(due_s: int, now_s: int) -> Slot:
    """The slot in which a timer waits that is stored at second ``now_s``.

    Any slot that holds the second would be right: a slot is looked at when one of its seconds has come. This one makes
    that rare.
    """
    level = max(0, (due_s ^ max(0, now_s)).bit_length() - 1) // DIGIT_BITS
    return Slot(level, due_s >> DIGIT_BITS * level)
