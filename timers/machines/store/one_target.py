# cython: language_level=3, boundscheck=False, wraparound=False
"""Looks at the packed rows of an entry without unpacking them: compiled to machine code where there is a C compiler.

Of a paused or noisy target, a machine passes over millions of rows, under the interpreter lock that all partitions
share. Compiled, this takes 0.02 µs a row; to unpack it takes 0.35 µs (``docs/adr/0027``). Without a compiler the same
file is Python: then it is slow, and only tests use it.

It decides nothing. Every entry that it does not know gets None, and is unpacked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""


def one_target(value: bytes) -> tuple[str, int, int, int] | None:
    """Returns what an entry of the store has if all its rows have one callback topic; None: they have several, or
    :func:`timers.machines.store.layout.unpack` must say what they are.

    Args:
        value: a MessagePack array of arrays, whose first two items are an offset and a topic.

    Returns:
        (callback topic, first offset, last offset, number of rows)
    """
    data: cython.p_uchar = value
    end: cython.Py_ssize_t = len(value)
    at: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    size: cython.Py_ssize_t
    index: cython.Py_ssize_t
    left: cython.Py_ssize_t
    topic_at: cython.Py_ssize_t = 0
    topic_size: cython.Py_ssize_t = -1
    kind: cython.int
    width: cython.int
    first: cython.ulonglong = 0
    offset: cython.ulonglong = 0
    if end < 3:
        return None
    kind, at = data[0], 1
    if 0x90 <= kind <= 0x9F:
        rows = kind & 0x0F
    elif kind == 0xDC:
        rows, at = data[1], 3  # a byte of C has no room for the shifted one
        rows = rows << 8 | data[2]
    else:
        return None
    for _ in range(rows):
        if end - at < 3 or not 0x92 <= data[at] <= 0x9F:
            return None
        left = (data[at] & 0x0F) - 2
        kind = data[at + 1]
        at += 2
        if kind < 0x80:
            offset = kind
        elif 0xCC <= kind <= 0xCF:
            width = 1 << (kind - 0xCC)
            if end - at <= width:
                return None
            offset = 0
            for index in range(width):
                offset = offset << 8 | data[at + index]
            at += width
        else:
            return None
        if end - at < 2:
            return None
        kind = data[at]
        if 0xA0 <= kind <= 0xBF:
            size = kind & 0x1F
            at += 1
        elif kind == 0xD9:
            size = data[at + 1]
            at += 2
        else:
            return None
        if end - at < size:
            return None
        if topic_size < 0:
            first, topic_at, topic_size = offset, at, size
        elif size != topic_size:
            return None
        else:
            for index in range(size):
                if data[at + index] != data[topic_at + index]:
                    return None
        at += size
        while left:  # key, value, headers and origin, with all that is in them
            if at >= end:
                return None
            kind = data[at]
            at += 1
            left -= 1
            size = width = 0
            if kind < 0x80 or kind >= 0xE0 or kind == 0xC0:  # a small number, nil
                continue
            if 0xA0 <= kind <= 0xBF:
                size = kind & 0x1F
            elif 0x90 <= kind <= 0x9F:
                left += kind & 0x0F
            elif 0xCC <= kind <= 0xCF:
                size = 1 << (kind - 0xCC)
            elif 0xD0 <= kind <= 0xD3:
                size = 1 << (kind - 0xD0)
            elif 0xC4 <= kind <= 0xC6:  # bytes
                width = 1 << (kind - 0xC4)
            elif 0xD9 <= kind <= 0xDB:  # text
                width = 1 << (kind - 0xD9)
            elif kind == 0xDC:
                width = 2
            else:
                return None
            if end - at < width:
                return None
            for index in range(width):
                size = size << 8 | data[at + index]
            at += width
            if kind == 0xDC:
                left, size = left + size, 0
            if end - at < size:
                return None
            at += size
    if at != end or topic_size < 0:
        return None
    try:
        topic = data[topic_at : topic_at + topic_size].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return topic, first, offset, rows
