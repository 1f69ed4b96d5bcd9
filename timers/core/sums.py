# cython: language_level=3
"""Looks at each of many rows: compiled to machine code where there is a C compiler (``docs/adr/0027``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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


def fire_alike(
    rows: Sequence[Any],
    start: int,
    repeat_name: str,
    nominal_name: str,
    own: Collection[str],
    known: Mapping[tuple[bytes, bytes], tuple[Sequence[Any], Any]],
    followers: list[Any],
    new_follower: Callable[[Any], Any],
    sent: list[Any],
) -> int:
    """Add what follows each of the next rows, and what it sends, as it was decided for others that are alike.

    Args:
        rows: of one due second.
        start: index of the first one.
        repeat_name: of the first header of an occurrence, its rule. The second one is its version.
        nominal_name: of the third one, its nominal second; other occurrences have another one there.
        own: names of the headers that no callback has.
        known: (rule, nominal second) -> last headers of the callback, and what follows.
        followers: gets (callback, version, what follows), made by ``new_follower``.
        sent: gets the rows that are sent.

    Returns:
        Index of the first row that is no such occurrence, or for which nothing is known.
    """
    index: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = len(rows)
    plan = last_rule = last_nominal = None
    while index < end:
        offset, topic, key, value, headers, origin = rows[index]
        if not headers or len(headers) < 3 or headers[0][0] != repeat_name:
            break
        version = headers[1]
        name, nominal = headers[2]
        if name != nominal_name or version[1] is None:
            break
        rest = headers[3:] or None
        if rest is not None and rest[0][0] in own:
            break
        rule = headers[0][1]
        if plan is None or rule != last_rule or nominal != last_nominal:
            last_rule, last_nominal, plan = rule, nominal, known.get((rule, nominal))
            if plan is None:
                break
        ending, following = plan
        followers.append(new_follower(((offset, topic, key, value, rest, origin), version[1], following)))
        sent.append((offset, topic, key, value, [*(rest or ()), version, *ending], origin))
        index += 1
    found: int = index
    return found
