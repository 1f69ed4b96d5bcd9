# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Writes the records of callbacks: compiled to machine code where there is a C compiler (``docs/adr/0027``).

aiokafka's builder gets a list of headers for each record, which Python makes of tuples and bytes. Here a callback goes
into its batch without them, in a fifth of the time. Without a compiler the same file is Python: then it is slow, and
only tests use it, as the reference of what was compiled. ``callback_batch.pxd`` has the types that a compiler needs.

It decides nothing, and writes byte for byte what aiokafka's builder writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from aiokafka.record.util import calc_crc32c

if TYPE_CHECKING:
    import cython

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""Whether this module was compiled to machine code."""

_HEADER = Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset, first and last time, producer's id, epoch and
sequence, number of records."""

_BEFORE_LENGTH_END = 12
_BEFORE_CRC_END = 21
_CRC_AT = 17
_MAGIC = 2
_TRANSACTIONAL = 0x10
_ID_HEADER = b"\x10timer-id"
_DUE_HEADER = b"\x12timer-due"
_LENGTHS = tuple(bytes([2 * length]) for length in range(64))
"""Length of a value -> the length in a header: those that are one byte."""
_NULL = b"\1"
"""The length of a value that is null."""
_NAMES: dict[str, bytes] = {}
"""Name of a header -> its length and the name, as a record has them: most records have the same names."""
MAX_NAMES, MAX_NAME_BYTES = 200, 100
"""Any client can write names: so many are kept, and none that is longer."""
_FIRST_ROOM = 2048
_NUMBERS_ROOM = 64
"""Bytes that suffice for the numbers of a record, or of a header."""


class CallbackBatch:
    """A transactional batch for one partition: what aiokafka's sender needs of a batch, and no more.

    Attributes:
        offsets: of the request of each record so far, or None if a record is no callback; the caller of ``add`` appends
            it.
    """

    def __init__(self, max_bytes: int, first: Any = None) -> None:
        self.offsets: list[int | None] = []
        self._data = bytearray(_FIRST_ROOM)
        self._room = _FIRST_ROOM
        self._end = _HEADER.size
        self._max_bytes = max_bytes
        self._count = 0
        self._first_ms = self._last_ms = 0
        self._state = (-1, -1, 0)
        self._built: bytearray | None = None
        self._texts: list[str] = []
        """Names of the headers of the last record: that of the next one mostly has the same at the same places,"""
        self._names: list[bytes] = []
        """and what they are in a record."""
        if first is not None:
            self.add(0, *first)

    def add(self, place: int, now_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Any]) -> Any:
        """Add a record. Returns None if the batch is full."""
        is_added = self._write(now_ms, key, value, headers, b"", -1, b"", 0)
        return True if is_added else None

    def _write(
        self,
        now_ms: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Any],
        id_prefix: bytes,
        number: cython.longlong,
        ending: bytes,
        ending_count: cython.Py_ssize_t,
    ) -> cython.bint:
        """Write a record unless the batch is full.

        Args:
            headers: the first ones.
            id_prefix, number: the header ``timer-id`` follows with these as its value, unless the number is negative.
            ending: the last headers, encoded.
            ending_count: number of these.
        """
        key_size: cython.Py_ssize_t = -1 if key is None else len(key)
        value_size: cython.Py_ssize_t = -1 if value is None else len(value)
        before_size: cython.Py_ssize_t = 0
        header_count: cython.Py_ssize_t = 0
        known_count: cython.Py_ssize_t = len(self._texts)
        content_size: cython.Py_ssize_t
        place: cython.Py_ssize_t
        text: str
        content: bytes | None
        name: bytes
        prefix_size: cython.Py_ssize_t = len(id_prefix)
        ending_size: cython.Py_ssize_t = len(ending)
        digits: cython.Py_ssize_t = 0
        id_size: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        at: cython.Py_ssize_t
        rest: cython.longlong
        delta_ms: cython.longlong = now_ms - self._first_ms if self._count else 0
        if number >= 0:
            digits = 1
            rest = number
            while rest >= 10:
                rest = rest // 10
                digits += 1
            id_size = len(_ID_HEADER) + _size_of(prefix_size + digits) + prefix_size + digits
        for text, content in headers:
            if header_count < known_count and self._texts[header_count] == text:
                name = self._names[header_count]
            else:
                name = _name(text)
                del self._texts[header_count:], self._names[header_count:]
                self._texts.append(text)
                self._names.append(name)
                known_count = header_count + 1
            content_size = -1 if content is None else len(content)
            before_size += len(name) + _size_of(content_size) + max(content_size, 0)
            header_count += 1
        header_count += ending_count + (number >= 0)
        size = (
            1
            + _size_of(delta_ms)
            + _size_of(self._count)
            + _size_of(key_size)
            + max(key_size, 0)
            + _size_of(value_size)
            + max(value_size, 0)
            + _size_of(header_count)
            + before_size
            + id_size
            + ending_size
        )
        if self._count and self._end + _size_of(size) + size > self._max_bytes:
            return False
        if self._end + size + _NUMBERS_ROOM > self._room:
            self._grow(self._end + size + _NUMBERS_ROOM)
        data: cython.p_uchar = self._data
        at = _put(data, self._end, size)
        data[at] = 0
        at = _put(data, at + 1, delta_ms)
        at = _put(data, at, self._count)
        at = _put(data, at, key_size)
        if key is not None:
            at = _copy(data, at, key, key_size)
        at = _put(data, at, value_size)
        if value is not None:
            at = _copy(data, at, value, value_size)
        at = _put(data, at, header_count)
        for place, (_, content) in enumerate(headers):
            name = self._names[place]
            at = _copy(data, at, name, len(name))
            content_size = -1 if content is None else len(content)
            at = _put(data, at, content_size)
            if content is not None:
                at = _copy(data, at, content, content_size)
        if number >= 0:
            at = _copy(data, at, _ID_HEADER, len(_ID_HEADER))
            at = _put(data, at, prefix_size + digits)
            at = _copy(data, at, id_prefix, prefix_size)
            rest = number
            size = digits
            while size > 0:
                size -= 1
                data[at + size] = 48 + rest % 10
                rest = rest // 10
            at += digits
        self._end = _copy(data, at, ending, ending_size)
        if not self._count:
            self._first_ms = self._last_ms = now_ms
        elif now_ms > self._last_ms:
            self._last_ms = now_ms
        self._count += 1
        return True

    def _grow(self, size: int) -> None:
        room = max(2 * self._room, size)
        self._data.extend(bytes(room - self._room))
        self._room = room

    # ---- what aiokafka's sender calls -----------------------------------------------------------------------------

    def seal(self) -> None:
        """Do nothing: the batch knows the number of its records."""

    def close(self) -> None:
        """Do nothing: the sender adds no records."""

    def closed(self) -> bool:
        return True

    def record_count(self) -> int:
        return self._count

    def size(self) -> int:
        return self._end

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._state = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytearray:
        if self._built is None:
            data, size = self._data, self._end
            del data[size:]
            length = size - _BEFORE_LENGTH_END
            times = self._first_ms, self._last_ms
            last = max(self._count - 1, 0)
            fields = 0, length, -1, _MAGIC, 0, _TRANSACTIONAL, last, *times, *self._state, self._count
            _HEADER.pack_into(data, 0, *fields)
            data[_CRC_AT:_BEFORE_CRC_END] = calc_crc32c(data[_BEFORE_CRC_END:]).to_bytes(4, "big")
            self._built = data
        return self._built


def write_callbacks(
    due: Sequence[tuple[int, Sequence[Any]]],
    topic: str,
    partitions: int,
    batches: dict[int, CallbackBatch],
    full: list[tuple[str, int, CallbackBatch]],
    max_bytes: int,
    now_ms: int,
    id_prefix: bytes,
    fired: Sequence[Any],
    identity: Callable[[Any, bytes], list[Any]],
) -> None:
    """Write the callbacks of timers, in order, each into the batch of its key's partition.

    Args:
        due: the rows of each due second.
        batches: partition -> the batch that is being filled; a first one is added.
        full: (topic, partition, batch) of full batches; more are added.
        max_bytes: size of a batch.
        id_prefix: with the offset of a row it is the id of a timer without an origin.
        fired: the headers after ``timer-due``.
        identity: returns the headers of a timer with an origin, from it and from its id.
    """
    ending_count: cython.Py_ssize_t = len(fired) + 1
    after_due = encode_headers(fired)
    last: bytes
    number: cython.longlong
    partition: cython.long
    batch: CallbackBatch
    for due_s, rows in due:
        digits = b"%d" % due_s
        last = b"".join((_DUE_HEADER, _LENGTHS[len(digits)], digits, after_due))
        for row in rows:
            offset, _, key, value, headers, origin = row
            if type(key) is str:
                key = key.encode()
            if partitions == 1:
                partition = 0
            elif key is None:
                partition = offset % partitions
            else:
                partition = (murmur2(key, len(key)) & 0x7FFFFFFF) % partitions
            number = offset
            shown = headers or ()
            if origin is not None:
                shown = [*shown, *identity(origin, id_prefix + str(offset).encode())]
                number = -1
            found = batches.get(partition)
            if found is None:
                found = batches[partition] = CallbackBatch(max_bytes)
            batch = found
            if not batch._write(now_ms, key, value, shown, id_prefix, number, last, ending_count):
                full.append((topic, partition, batch))
                batch = batches[partition] = CallbackBatch(max_bytes)
                batch._write(now_ms, key, value, shown, id_prefix, number, last, ending_count)
            batch.offsets.append(offset)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return headers as a record has them, without their number."""
    parts: list[bytes] = []
    size: cython.Py_ssize_t
    value: bytes | None
    for text, value in headers:
        parts.append(_name(text))
        if value is None:
            parts.append(_NULL)
        else:
            size = len(value)
            parts.append(_LENGTHS[size] if size < len(_LENGTHS) else _number(size))
            parts.append(value)
    return b"".join(parts)


def _name(text: str) -> bytes:
    """Return the name of a header as a record has it, with its length."""
    name = _NAMES.get(text)
    if name is None:
        encoded = text.encode()
        name = _number(len(encoded)) + encoded
        if len(_NAMES) < MAX_NAMES and len(encoded) <= MAX_NAME_BYTES:
            _NAMES[text] = name
    return name


def _number(number: cython.longlong) -> bytes:
    """Return a zigzag number."""
    room = bytearray(_NUMBERS_ROOM)
    at: cython.Py_ssize_t = _put(room, 0, number)
    return bytes(room[:at])


def _size_of(number: cython.longlong) -> cython.Py_ssize_t:
    """Return the size of a zigzag number."""
    size: cython.int = 1
    rest: cython.ulonglong = (number << 1) ^ (number >> 63)
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


def _put(data: cython.p_uchar, at: cython.Py_ssize_t, number: cython.longlong) -> cython.Py_ssize_t:
    """Write a zigzag number. Returns the index after it."""
    rest: cython.ulonglong = (number << 1) ^ (number >> 63)
    while rest >= 0x80:
        data[at] = rest & 0x7F | 0x80
        rest >>= 7
        at += 1
    data[at] = rest
    return at + 1


def _copy(
    data: cython.p_uchar, at: cython.Py_ssize_t, source: cython.p_const_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write bytes. Returns the index after them."""
    index: cython.Py_ssize_t
    for index in range(size):
        data[at + index] = source[index]
    return at + size


def murmur2(data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.ulonglong:
    """Return Kafka's hash of a key; see :mod:`timers.wire.key_partition`."""
    multiplier: cython.ulonglong = 0x5BD1E995
    mask: cython.ulonglong = 0xFFFFFFFF
    mixed: cython.ulonglong
    hashed: cython.ulonglong = 0x9747B28C
    at: cython.Py_ssize_t = 0
    hashed ^= size
    while at + 4 <= size:
        mixed = data[at + 3]
        mixed = mixed << 24 | data[at + 2] << 16 | data[at + 1] << 8 | data[at]
        mixed = mixed * multiplier & mask
        mixed = (mixed ^ mixed >> 24) * multiplier & mask
        hashed = (hashed * multiplier ^ mixed) & mask
        at += 4
    if size - at >= 3:
        hashed ^= data[at + 2] << 16
    if size - at >= 2:
        hashed ^= data[at + 1] << 8
    if size - at >= 1:
        hashed = (hashed ^ data[at]) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15
