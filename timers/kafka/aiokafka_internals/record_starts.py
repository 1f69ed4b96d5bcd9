# cython: language_level=3, boundscheck=False, wraparound=False
"""Looks at the first fields of records: compiled to machine code where there is a C compiler (``docs/adr/0027``).

Python compiles no loop over bytes. Compiled, this one takes some nanoseconds a record, as Python 0.5 µs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""


def are_plain(data: bytes, start: int, count: int, after: int, last: int) -> bool:
    """Returns whether aiokafka's parser and Java's agree about where the fields of records begin, and on their offsets.

    aiokafka takes the attributes of a record, which are one byte, for a number of any length. Brokers do not check the
    offsets of an uncompressed batch.

    Args:
        data: the unpacked records.
        start: where the first one begins.
        count: their number.
        after: each offset, as a distance from the base offset of the batch, is above that of the record before, and the
            first one is above this one.
        last: the largest such distance.
    """
    octets: cython.p_uchar = data
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start
    whole: cython.Py_ssize_t = len(data)
    left: cython.Py_ssize_t = count
    before: cython.longlong = after
    highest: cython.longlong = last
    number: cython.longlong
    shift: cython.int
    field: cython.int
    byte: cython.int
    while left > 0:
        left -= 1
        for field in range(3):  # length; attributes and time; offset
            if field == 1:
                if at >= end or octets[at] >= 0x80:
                    return False
                at += 1
            number = shift = 0
            while True:
                if at >= (whole if field == 0 else end):
                    return False
                byte = octets[at]
                at += 1
                if field != 1:
                    number |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if field != 1 and shift > 21:  # a number of more than 28 bits is left to Java's rules
                    return False
            if number & 1:  # it is negative
                return False
            number >>= 1
            if field == 0:
                end = at + number
                if end > whole:
                    return False
            elif field == 2:
                if number <= before or number > highest:
                    return False
                before = number
        at = end
    return True
