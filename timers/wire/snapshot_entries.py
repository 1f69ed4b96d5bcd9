# cython: language_level=3, boundscheck=False, wraparound=False
"""Cuts the stream of a snapshot into keys and values: compiled to machine code where there is a C compiler.

A restore is bound by the CPU of one thread, because all threads share the interpreter lock, and a machine may remember
millions of ids. Compiled, a key and its value take 0.07 µs; as Python 0.4 µs (``docs/adr/0027``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""

LENGTHS_BYTES = 8
"""Bytes of the two lengths before each key and value: 4 bytes each, big-endian."""


def cut(stream: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Returns the keys and values that are whole in a part of the stream, and the bytes behind them.

    The part begins with the lengths of a key and its value.
    """
    data: cython.p_uchar = stream
    size: cython.Py_ssize_t = len(stream)
    skipped: cython.Py_ssize_t = LENGTHS_BYTES
    at: cython.Py_ssize_t = 0
    middle: cython.Py_ssize_t
    end: cython.Py_ssize_t
    key_bytes: cython.Py_ssize_t
    value_bytes: cython.Py_ssize_t
    entries: list[Any] = []
    while size - at >= skipped:
        key_bytes, value_bytes = data[at], data[at + 4]  # a byte of C has no room for the shifted one
        key_bytes = key_bytes << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
        value_bytes = value_bytes << 24 | data[at + 5] << 16 | data[at + 6] << 8 | data[at + 7]
        middle = at + skipped + key_bytes
        end = middle + value_bytes
        if end > size:
            break
        entries.append((data[at + skipped : middle], data[middle:end]))
        at = end
    return entries, data[at:size] if at else stream
