"""Splits and joins sequences into groups of limited number and size, such as the records of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from timers.core.sums import bytes_of
from timers.core.timer import DueRows

T = TypeVar("T")

RUN_BYTES = 256 * 1024
"""Stored groups are looked up in the index together up to this size."""


def groups(items: Iterable[T], size_of: Callable[[T], int], max_items: int, max_size: int) -> Iterator[list[T]]:
    """Yield the items in order, in groups. An item larger than ``max_size`` is a group of its own."""
    group: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (len(group) == max_items or total + size > max_size):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def runs(scanned: Iterable[DueRows], max_rows: int, max_bytes: int) -> Iterator[tuple[list[DueRows], int, int]]:
    """Yields what is looked up in the index together: (rows by due second, number of rows, their size in bytes).

    Each stored group holds the timers of one fetch and second, often only a few. Each later step has a cost for
    each call.
    """
    run: list[DueRows] = []
    before = count = size = 0
    for due_s, rows in scanned:
        group_bytes = bytes_of(rows)
        if run and (size + group_bytes > max_bytes or before + count >= max_rows):
            yield run, count, size
            run, before, count, size = [], before + count, 0, 0
        run.append((due_s, rows))
        count += len(rows)
        size += group_bytes
    if run:
        yield run, count, size
