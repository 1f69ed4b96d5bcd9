"""Keys and values of a store, as bytes (format version :data:`FORMAT`).

::

    due_s (8) | offset (8)     ->  msgpack array of rows, all of that due second
    0xFD number (8)            ->  msgpack map of id -> entry of the index as an array, or nil
    0xFE id                    ->  due_s (8) | offset (8) | append second (8), for a cancelled id with due_s -1
                                   | 2^63 + offset of the request (8), for a promoted copy
                                   | 2^62 + offset of the definition (8) | digest (8) | append second of the
                                     definition (8), for a timer that repeats; with 1 byte more for its last
                                     occurrence
                                   | bytes of key (8) | key | value, for a message that a marker tracks
    0xFF "applied"             ->  8 bytes
    0xFF "count"               ->  since (8) | to (8) | records (8) | sure to (8): how many records the log has there
    0xFF "history"             ->  msgpack array of [setting, from offset, value]
    0xFF "identity"            ->  text
    0xFF "lineage"             ->  msgpack array of [[epoch, first offset], ...], header of the last batch or nil, end
    0xFF "pending"             ->  8 bytes
    0xFF "read-through"        ->  8 bytes

Numbers are big-endian, so that the order of keys is the order in which timers fire.

One entry holds all timers of one fetched batch that share a due second, under the key of the first of them. The next
batch has higher offsets, so entries of one second do not overlap. Compared with one entry for each timer this saves
0.7 µs of 1.9 µs per timer when written, and more when read (``docs/adr/0002``). A timer without others in its second
is an entry of one row.

Only stores of timers with an id have entries of the index (0xFE) and of its journal (0xFD,
:mod:`timers.machines.store.memory_limit`). A version
that is replaced or cancelled stays in its entry until its second is scanned: to write the entry again would take more
time than it saves space.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgpack

from timers.core.grouping import groups
from timers.core.lineage import Batch, Lineage, RecordCount
from timers.core.operation import Entry, chain_of, further_fields_of, message_of, request_of, version_of
from timers.core.sums import bytes_of
from timers.core.timer import Row

FORMAT = 2
"""Part of the identity: a store of another version is emptied and rebuilt from the log."""

GROUP_ROWS = 512
"""Maximum rows in one entry. So a chunk exceeds its limit by at most this number of rows."""

GROUP_BYTES = 1024 * 1024
"""Maximum bytes in one entry, unless a single row is larger."""

JOURNAL = b"\xfd"
INDEX = b"\xfe"
OTHER = b"\xff"
ROWS_END = JOURNAL

APPLIED = OTHER + b"applied"
COUNT = OTHER + b"count"
HISTORY = OTHER + b"history"
IDENTITY = OTHER + b"identity"
LINEAGE = OTHER + b"lineage"
PENDING = OTHER + b"pending"
READ_THROUGH = OTHER + b"read-through"

LAST_S = 2**56 - 1
"""A second above every due second, whose keys are below ``ROWS_END``."""

U64 = struct.Struct(">Q")
_CHAIN = struct.Struct(">qQqQ8sq")
_COUNT = struct.Struct(">QQQQ")
ENTRY = struct.Struct(">qQq")
"""The last number is signed: records from before the topic had LogAppendTime may have no time, which is -1 ms."""

_REQUEST = 1 << 63
"""Added to the offset of a promoted copy's request: a length of a key is smaller."""

_DEFINITION = 1 << 62
"""Added to the offset of a definition."""

_ANY_TEXT = "surrogatepass"
"""How to encode ids that are not UTF-8; see :func:`timers.core.timer.id_text`."""


def journal_key(number: int) -> bytes:
    """The key of one batch of the index journal."""
    return JOURNAL + U64.pack(number)


def pack_entry(entry: Entry) -> bytes:
    """The value of an entry of the index. Inverse: :func:`unpack_entry`."""
    if (chain := chain_of(entry)) is not None:  # the entry is written each time the timer fires
        due_s, offset, append_s, version, digest, begun_s = chain
        packed = _CHAIN.pack(due_s, offset, append_s, _DEFINITION + version, digest, begun_s)
        return packed if chain is entry else packed + b"\1"
    if not further_fields_of(entry):
        return ENTRY.pack(*entry)
    head, message = ENTRY.pack(*version_of(entry)), message_of(entry)
    if message is None:
        return head + U64.pack(_REQUEST + request_of(entry))
    return b"".join((head, U64.pack(len(message[0])), *message))


def unpack_entry(value: bytes) -> Entry:
    size = len(value)
    if size >= _CHAIN.size:  # a timer that repeats is looked up each time it fires
        due_s, offset, append_s, number, digest, begun_s = _CHAIN.unpack_from(value)
        if _DEFINITION <= number < _REQUEST:
            chain = due_s, offset, append_s, number - _DEFINITION, digest, begun_s
            return chain if size == _CHAIN.size else (*chain, True)
    due_s, offset, append_s = ENTRY.unpack_from(value)
    if size == ENTRY.size:
        return due_s, offset, append_s
    (number,) = U64.unpack_from(value, ENTRY.size)
    if number >= _REQUEST:
        return due_s, offset, append_s, number - _REQUEST
    if number >= _DEFINITION:
        raise ValueError(f"an entry of {size} bytes is too short for a timer that repeats")
    start = ENTRY.size + U64.size
    end = start + number
    return due_s, offset, append_s, value[start:end], value[end:]


def pack_lineage(lineage: Lineage, known: Lineage | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values for a lineage, without those that are the same for ``known``. The count has a key of its
    own: it changes with each fetch, and versions that do not know it leave it as it is, with its former end."""
    *others, counted = lineage
    if known is None or others != list(known[:-1]):
        yield LINEAGE, msgpack.packb(others)
    if counted is not None and (known is None or counted != known.counted):
        yield COUNT, _COUNT.pack(*counted)


def unpack_lineage(value: bytes | None, count: bytes | None) -> Lineage:
    """Returns the lineage in the values of its keys. Inverse of :func:`pack_lineage`."""
    known = None if count is None else RecordCount(*_COUNT.unpack(count))
    if value is None:
        return Lineage(counted=known)
    epochs, batch, end = msgpack.unpackb(value, use_list=False)
    return Lineage(epochs, None if batch is None else Batch(*batch), end, known)


def packer() -> Callable[[Sequence[Row]], bytes]:
    """A function that packs rows into the value of one entry. Only one thread may call it: it reuses its buffer."""
    pack_text = msgpack.Packer(use_bin_type=True).pack

    def pack(rows: Sequence[Row]) -> bytes:
        try:
            packed: bytes = pack_text(rows)
        except UnicodeEncodeError:  # with this option, other entries would take a third longer
            packed = msgpack.packb(rows, use_bin_type=True, unicode_errors=_ANY_TEXT)
        return packed

    return pack


unpack: Callable[[Any], list[Row]] = partial(msgpack.unpackb, use_list=False, unicode_errors=_ANY_TEXT)
"""The rows of one entry."""


def row_count(value: bytes) -> int:
    """The number of rows in an entry: the length of an array of MessagePack. Others raise as :data:`unpack` does."""
    kind = value[0]
    if 0x90 <= kind < 0xA0:
        return kind & 15
    if kind not in (0xDC, 0xDD):
        raise ValueError(f"an entry begins with byte {kind:#x}, which begins no array")
    return int.from_bytes(value[1 : 3 if kind == 0xDC else 5])


def parts(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows of one due second, in groups that become one entry each."""
    for start in range(0, len(rows), GROUP_ROWS):
        part = rows[start : start + GROUP_ROWS]
        if len(part) == 1 or bytes_of(part) <= GROUP_BYTES:
            yield part
        else:
            yield from groups(part, lambda row: bytes_of([row]), GROUP_ROWS, GROUP_BYTES)
