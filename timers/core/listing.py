"""A page of what waits in many partitions, in one order: due second, topic, partition, offset.

Partitions change while they are listed, so a page is no snapshot. What waits all the time is listed once, whatever the
sizes of pages: each says up to which position it is complete, and the next one begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple, Protocol, TypeAlias

from timers.core.keys import MAX_OFFSET, OrderKey

Position: TypeAlias = tuple[int, str, int, int]
"""(due second, topic, partition, offset): where a timer stands among those of all partitions."""

START: Position = (-1, "", -1, -1)
"""Before everything."""


class Listed(NamedTuple):
    """One timer of a page."""

    position: Position
    timer: Any
    """What is said of it; opaque here."""


class Page(NamedTuple):
    """Some of what waits, in ascending position."""

    listed: Sequence[Listed]
    through: Position | None
    """Complete up to here, inclusive; None: there is no more."""


class Silent(Exception):
    """A source does not answer, or not any more."""


class Source(Protocol):
    """One partition, or all of a worker's."""

    async def read(self, after: Position, limit: int) -> Page:
        """At most ``limit`` above ``after``; ``through`` is above it too.

        Raises:
            Silent: it has nothing more to say; why, its owner knows.
        """


def key_after(position: Position, topic: str, partition: int) -> OrderKey:
    """The order key of one partition after which its timers stand after ``position``."""
    due_s, *where, offset = position
    if where == [topic, partition]:
        return due_s, offset
    return (due_s, MAX_OFFSET) if (topic, partition) < tuple(where) else (due_s - 1, MAX_OFFSET)


def share_of(limit: int, sources: int) -> int:
    """How many timers to read of each source at a time, for a page of ``limit``."""
    return min(limit, max(16, 2 * limit // max(1, sources)))


async def merge(sources: Sequence[Source], after: Position, limit: int, enough: Callable[[], bool]) -> Page:
    """One page out of many sources, each read no further than it takes.

    Args:
        sources: each with timers that no other has.
        after: where the page before ended.
        limit: most timers.
        enough: asked before each reading but the first of each source: whether to end here, with what there is.
    """
    share = share_of(limit, len(sources))
    listed: list[Listed] = []
    # The next timer of each source, or the position up to which it has been read. One that has ended is not in it.
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
            except Silent:
                heappop(heads)
                continue
            pages[number] = iter(page.listed), page.through
        rest, through = pages[number]
        following = next(rest, None)
        if following is not None:
            heapreplace(heads, (following.position, number, following))
        elif through is not None:
            heapreplace(heads, (through, number, None))
        else:
            heappop(heads)
    return Page(listed, None)
