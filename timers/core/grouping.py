"""Splits and joins sequences into groups of limited number and size, such as the records of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


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
