# cython: language_level=3, boundscheck=False, wraparound=False
"""Reads plain native requests: compiled to machine code where there is a C compiler (``docs/adr/0027``).

Python compiles no loop over bytes, and protobuf makes an object for each request. Compiled, this loop takes 0.2 µs a
request; :func:`timers.wire.future.decode` takes 0.8 µs without it. Without a compiler the same file is Python: then it
is slow, and only tests use it, as the reference of what was compiled.

It decides nothing. A request is plain if its key is valid, its topic was found to be valid in an earlier request of the
same call, it has no headers, and each field of its ``Future`` comes at most once, in the order of the numbers. The
complete reader gets all other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""


def read_plain(
    records: Iterable[Any],
    max_request_bytes: int,
    rows_by_key: dict[Any, list[Any]],
    topics: dict[bytes, str],
    read: Callable[[Sequence[Any]], object],
    begin: Callable[[Any], list[Any] | None],
) -> None:
    """Append the row of each plain request to the rows of its key, and give every other record to ``read``.

    Args:
        records: in ascending offset.
        max_request_bytes: a larger value is not plain.
        rows_by_key: raw key -> rows of its due second; ``read`` and ``begin`` add to it.
        topics: UTF-8 of a legal topic -> the topic; ``read`` adds to it.
        read: called with a record that is not plain; all records before it were read.
        begin: returns the rows of a key that is not in ``rows_by_key``; None if it is not valid.
    """
    limit: cython.Py_ssize_t = max_request_bytes
    data: cython.p_uchar
    last_name: bytes = b""
    last_data: cython.p_uchar = last_name
    last_size: cython.Py_ssize_t = -1
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    size: cython.Py_ssize_t
    index: cython.Py_ssize_t
    tag: cython.int
    last_tag: cython.int
    byte: cython.int
    shift: cython.int
    topic_at: cython.Py_ssize_t
    topic_end: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_end: cython.Py_ssize_t
    is_plain: cython.bint
    request: bytes
    topic = None
    for record in records:
        value = record.value
        if type(value) is not bytes or record.headers:
            read((record,))
            continue
        request = value
        data, at, end = request, 0, len(request)
        topic_at = topic_end = key_at = key_end = value_at = value_end = 0
        last_tag = 0
        is_plain = end <= limit
        while is_plain and at < end:
            tag = data[at]
            at += 1
            size = shift = 0
            byte = 0x80
            while byte >= 0x80 and at < end and shift < 28:  # a length of more than 4 bytes is not plain
                byte = data[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            if byte >= 0x80 or size > end - at or tag <= last_tag:
                is_plain = False
            elif tag == 0x0A:  # field 1, with a length
                topic_at, topic_end = at, at + size
            elif tag == 0x12:
                key_at, key_end = at, at + size
            elif tag == 0x1A:
                value_at, value_end = at, at + size
            else:
                is_plain = False
            last_tag = tag
            at += size
        if not is_plain:
            read((record,))
            continue
        size = topic_end - topic_at
        is_same = size == last_size
        index = 0
        while is_same and index < size:
            is_same = data[topic_at + index] == last_data[index]
            index += 1
        if not is_same:
            last_name = data[topic_at:topic_end]
            last_data, last_size = last_name, size
            topic = topics.get(last_name)
        if topic is None:
            last_size = -1  # `read` may add it
            read((record,))
            continue
        try:
            key = data[key_at:key_end].decode("utf-8")
        except UnicodeDecodeError:
            read((record,))
            continue
        due = record.key
        rows = rows_by_key.get(due)
        if rows is None:
            rows = begin(due)
        if rows is None:
            read((record,))
            continue
        rows.append((record.offset, topic, key, data[value_at:value_end], None, None))
