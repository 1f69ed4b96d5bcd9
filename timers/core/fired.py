"""Which accepted requests have fired: those up to one key, and those in a hole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timers.core.keys import OrderKey

MOVED_S = 2**56 - 1
"""Second in the key of a hole whose requests were moved to another app; above every due second."""


class Hole(NamedTuple):
    """Requests that do not fire any more although the present ``fired_through`` is below their keys [I24].

    A wrong clock set ``fired_through`` too far ahead, and an operator took it back. If it were only lowered, a replay
    would fire again what has fired. Or all that was pending was moved to another app.
    """

    before_offset: int
    """The requests below this offset,"""
    through: OrderKey
    """with a key up to this one."""


def reached(fired_through: OrderKey, holes: Sequence[Hole], offset: int) -> OrderKey:
    """Returns the key up to which an accepted request at ``offset`` has fired."""
    for hole in holes:
        if offset < hole.before_offset:
            fired_through = max(fired_through, hole.through)
    return fired_through
