"""How far a partition may be read, so that its metadata has room whatever subset of the read messages is done. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from timers.queue.metadata import layout, run_size

RESERVE_BYTES = 512
"""Part of the metadata that is kept free: for its first fields, and because the last batch may exceed the limit."""

OFFSETS_A_CHARACTER = 6
_CHARACTERS_OF_READ = 2
"""Of a message that is read before others that were done before a restart."""


def read_limit(opened: Sequence[int], position: int, done_ahead: Collection[tuple[int, int]], room: int) -> int:
    """Return the offset from which on messages should not be read.

    Args:
        opened: offsets of the open messages, ascending.
        position: all offsets below it were read.
        done_ahead: spans above the position that were done before a restart, ascending.
        room: characters of the metadata that may be used.
    """
    parts = worst_parts(opened, position)
    if not done_ahead:
        _, _, worst, worst_before_bits = layout(parts)
        rooms = room - worst, OFFSETS_A_CHARACTER * (room - worst_before_bits)
        return position + max(0, *rooms)
    end = position
    for first, next_end in done_ahead:
        parts.append((run_size(first - end, next_end - first), next_end - end))
        end = next_end
    room -= layout(parts).characters
    if room >= _CHARACTERS_OF_READ:
        return position + room // _CHARACTERS_OF_READ
    if not opened:  # the last commit had no room to spare; reading some messages makes room
        return position + 16
    return position


def worst_parts(opened: Sequence[int], position: int) -> list[tuple[int, int]]:
    """Return at most how many characters the open offsets take, whatever subset of them is done: parts for
    :func:`timers.queue.metadata.layout`, each of consecutive offsets and the done ones that follow.

    An open message takes one character, and the gap after it those of its length. This is enough for all subsets,
    because a gap of three parts takes no more characters than the parts, and ``n`` consecutive messages take at most
    ``n``: if every second one is done.

    Args:
        opened: ascending.
        position: end of the last gap.
    """
    parts = []
    count, first = len(opened), 0
    while first < count:
        end = _end_of_run(opened, first)
        next_open = opened[end] if end < count else position
        gap = next_open - opened[end - 1] - 1
        parts.append((end - first + (gap.bit_length() + 4) // 5, next_open - opened[first]))
        first = end
    return parts


def _end_of_run(offsets: Sequence[int], first: int) -> int:
    """Return the index after the consecutive offsets that begin at index ``first``. Looks at few of them."""
    base = offsets[first] - first
    last, step = first, 1
    while last + step < len(offsets) and offsets[last + step] - last - step == base:
        last += step
        step *= 2
    while step:
        if last + step < len(offsets) and offsets[last + step] - last - step == base:
            last += step
        step //= 2
    return last + 1
