"""Listings: one page of the pending timers of many partitions, ordered by due second, topic, partition and offset.

Partitions change while they are listed, so a page is no snapshot. A page tells up to which position it is complete, and
the next page begins there. So a timer that is pending all the time is listed exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple, Protocol, TypeAlias

from timers.core.keys import MAX_OFFSET, OrderKey

Position: TypeAlias = tuple[int, str, int, int]
"""(due second, topic, partition, offset): the place of a timer in the order of all partitions."""

LIST_START: Position = (-1, "", -1, -1)
"""The position before all timers."""


class Listed(NamedTuple):
    """One timer of a page."""

    position: Position
    timer: Any
    """Its description; this module does not read it."""


class Page(NamedTuple):
    """Some pending timers, in ascending position."""

    listed: Sequence[Listed]
    through: Position | None
    """The page is complete up to this position, inclusive; None: no timers follow."""


class NoAnswer(Exception):
    """A source does not answer."""


class Source(Protocol):
    """One partition, or all partitions of a worker."""

    async def read(self, after: Position, limit: int) -> Page:
        """Returns at most ``limit`` timers above ``after``. ``through`` is above ``after`` too.

        Raises:
            NoAnswer: the source does not answer; its owner reports the reason.
        """


def key_after(position: Position, topic: str, partition: int) -> OrderKey:
    """Returns the order key after which the timers of a partition are after ``position``."""
    due_s, *source, offset = position
    if source == [topic, partition]:
        return due_s, offset
    return (due_s, MAX_OFFSET) if (topic, partition) < tuple(source) else (due_s - 1, MAX_OFFSET)


def share_of(limit: int, sources: int) -> int:
    """Returns how many timers to read from a source at a time, for a page of ``limit`` timers.

    Rather too many: a source whose timers are used up is read again while the others wait.
    """
    return min(limit, max(32, 2 * limit // max(1, sources)))


async def merge(sources: Sequence[Source], after: Position, limit: int, enough: Callable[[], bool]) -> Page:
    """Returns one page of many sources, and reads no source further than necessary.

    Args:
        sources: a timer is in one source only.
        after: end of the page before.
        enough: called before a source is read a second time; True ends the page early.
    """
    share = share_of(limit, len(sources))
    listed: list[Listed] = []
    # The next timer of each source, or the position up to which the source was read. A source that has ended is absent.
    heads: list[tuple[Position, int, Listed | None]] = [(after, number, None) for number in range(len(sources))]
    heapify(heads)
    pages: dict[int, tuple[Iterator[Listed], Position | None]] = {}
    while heads:
        position, number, head = heads[0]
        if len(listed) == limit:
            return Page(listed, listed[-1].position)
        if head is not None:
            listed.append(head)
        elif position > after and enough():
            return Page(listed, position)
        else:
            try:
                page = await sources[number].read(position, share)
            except NoAnswer:
                heappop(heads)
                continue
            pages[number] = iter(page.listed), page.through
        rest, through = pages[number]
        head = next(rest, None)
        if head is not None:
            heapreplace(heads, (head.position, number, head))
        elif through is not None:
            heapreplace(heads, (through, number, None))
        else:
            heappop(heads)
    return Page(listed, None)
