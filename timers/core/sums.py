# cython: language_level=3
"""Looks at each of many rows: compiled to machine code where there is a C compiler (``docs/adr/0027``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""


def bytes_of(rows: Sequence[Any]) -> int:
    """Returns the size of topics, keys, values, headers and ids of rows, in bytes; limits on memory use it."""
    size: cython.Py_ssize_t = 0
    for _, topic, key, value, headers, origin in rows:
        size += len(topic) + len(key or "") + len(value)
        if origin:
            size += len(origin[0]) + len(origin[3] or "")
        if headers:
            for name, content in headers:
                size += len(name) + len(content or b"")
    whole: int = size
    return whole


def are_for(topic: str, due: Sequence[tuple[int, Sequence[Any]]]) -> bool:
    """Returns whether all rows of some due seconds have this callback topic."""
    for _, rows in due:
        for row in rows:  # a generator takes longer, compiled or not
            if row[1] != topic:
                return False
    return True


def count_with(name: str, due: Sequence[tuple[int, Sequence[Any]]]) -> int:
    """Returns the number of rows whose first header has this name."""
    found: cython.Py_ssize_t = 0
    for _, rows in due:
        for row in rows:
            headers = row[4]
            if headers and headers[0][0] == name:
                found += 1
    number: int = found
    return number
