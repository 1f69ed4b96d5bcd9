"""Reads a record batch in pieces of bounded size, whatever the batch unpacks to.

A batch of 1 MB may unpack to 32 GB with zstd, to 1 GB with gzip, to 255 MB with lz4 and to 21 MB with snappy. The
decompressors of cramjam, which aiokafka uses, take a batch only as a whole. So batches are unpacked in parts here.

Most batches unpack to less than :data:`PIECE_BYTES`, and are parsed at once by aiokafka's Cython parser. A larger one
is cut where records end: each record begins with its length. The same parser then reads each part, under the header of
the batch without its codec. A value above the limit is passed over: only its first bytes, length and hash are kept. The
bounds here only decide how much is in memory. The machine decides about a record from the length of its value.

By Kafka's protocol the name of a header is UTF-8, but no broker checks it. For another name aiokafka raises an error,
which would end this worker and each later one at the same record. Such records are parsed again as Java does, with
U+FFFD in place of bytes that are not UTF-8.

Private parts of aiokafka: ``DefaultRecordBatch`` takes a whole batch as bytes, ``_DefaultRecordBatchPy`` decodes names
of headers by ``bytearray.decode``.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import zlib
from collections.abc import Callable, Iterator
from struct import Struct, unpack_from
from typing import Any, NamedTuple, Protocol, SupportsIndex

import cramjam
import lz4.frame
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.util import decode_varint_py, encode_varint_py

from timers.core.lineage import Batch, PassedBatch
from timers.core.timer import CUT_VALUE_BYTES, CutValue
from timers.wire.formats import RequestRecord
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)


if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""Codecs, as the attributes of a batch name them."""

_XERIAL = b"\x82SNAPPY\0"
"""First bytes of snappy data that consists of blocks, each with its length. librdkafka writes one block without one."""

_XERIAL_HEADER_BYTES = 16

_SNAPPY_RATIO = 64
"""A snappy block unpacks to at most this many times its size; a block that claims more is damaged."""


class DamagedBatch(Exception):
    """Compressed data that cannot be unpacked, or ends too early."""


class Stream(Protocol):
    """Unpacked data that is read in parts."""

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, or one block of snappy; an empty result is the end.

        Raises:
            DamagedBatch: the data is damaged or cut short.
        """


def unpacked(codec: int, data: memoryview) -> Stream:
    """Return the unpacked data of a batch.

    Raises:
        DamagedBatch: the codec is not known.
    """
    if codec == NONE:
        return _Plain(data)
    if codec == GZIP:
        return _Frames(_GzipMember, data)
    if codec == SNAPPY:
        return _Snappy(bytes(data))
    if codec == LZ4:
        return _Frames(lz4.frame.LZ4FrameDecompressor, data)
    if codec == ZSTD:
        return _Frames(ZstdDecompressor, data)  # refuses windows above 128 MiB, as the brokers do
    raise DamagedBatch(f"codec {codec} is not known")


class _Plain:
    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        part, self._data = bytes(self._data[:size]), self._data[size:]
        return part


class _Frames:
    """One or more frames, one after another. Bytes after a frame that do not begin another one are ignored, as in
    Kafka's own clients."""

    def __init__(self, new_frame: Callable[[], Any], data: memoryview) -> None:
        self._new_frame = new_frame
        self._frame = new_frame()
        self._input: bytes | memoryview = data
        self._is_extra = False

    def read(self, size: int) -> bytes:
        try:
            while True:
                if self._frame.eof:
                    if not self._frame.unused_data:
                        return b""
                    self._input = self._frame.unused_data
                    self._frame, self._is_extra = self._new_frame(), True
                data: bytes = self._frame.decompress(self._input, max_length=size)
                self._input = b""
                if data:
                    self._is_extra = False
                    return data
                if not self._frame.eof and self._frame.needs_input:
                    raise EOFError("the data ends inside a frame")
        except (EOFError, RuntimeError, ZstdError, zlib.error) as error:
            if self._is_extra:
                return b""
            raise DamagedBatch(str(error)) from error


class _GzipMember:
    """A gzip member, with the methods of the other decompressors."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        return self._member.decompress(data or self._member.unconsumed_tail, max_length)


class _Snappy:
    """Snappy blocks. A block is unpacked as a whole: it has at most 21 times the size of its compressed data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._has_lengths = data.startswith(_XERIAL)
        self._next = _XERIAL_HEADER_BYTES if self._has_lengths else 0
        self._block = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._block and self._next < len(self._data):
            self._block = memoryview(self._unpack_next())
        part, self._block = bytes(self._block[:size]), self._block[size:]
        return part

    def _unpack_next(self) -> bytes:
        start, length = self._next, len(self._data) - self._next
        try:
            if self._has_lengths:
                length = unpack_from(">i", self._data, start)[0]
                start += 4
            block = self._data[start : start + length]
            if not 0 < length == len(block):
                raise DamagedBatch("the data ends inside a block")
            if cramjam.snappy.decompress_raw_len(block) > _SNAPPY_RATIO * length:
                raise DamagedBatch("a block claims to be larger than it can be")
            self._next = start + length
            return bytes(cramjam.snappy.decompress_raw(block))
        except DamagedBatch:
            raise
        except Exception as error:  # struct.error, and cramjam's, whose class differs between its versions
            raise DamagedBatch(str(error)) from error


PIECE_BYTES = 1024 * 1024
"""A piece ends with the record that brings it to this number of unpacked bytes."""

PIECE_RECORDS = 10_000
"""Maximum records of a piece. 1 MB can hold 10,000,000 empty ones, and each may become a dead letter."""

STEP_BYTES = 4 * 1024 * 1024
"""Bytes of a value that are skipped in one step. Between two steps, other partitions are read."""

ROOM_BYTES = 64 * 1024
"""Key and headers of a record with an allowed value seldom take more; then it is parsed whole."""

_MAX_VARINT_BYTES = 10
HEADER_BYTES = 61
_LENGTH = Struct(">i")
_LENGTH_AT = 8
_MAGIC_AT = 16
_BEFORE_LENGTH_END = 12
_ATTRIBUTES_AT = 22
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_COUNT_AT = 57
_HEADER = Struct(">qiibIhiqq")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset - base offset, first and last timestamp."""


def passed_batch(raw: memoryview | bytes) -> PassedBatch:
    """Return the leader epoch and the identifying fields of a batch that begins with its header."""
    base, _, epoch, magic, crc, _, last, _, max_timestamp_ms = _HEADER.unpack_from(raw)
    if magic < 2:  # brokers since Kafka 3.0 write no such batch; it has no epoch, and its last offset comes first
        return -1, Batch(base, base, 0, 0)
    return epoch, Batch(base, base + last, max_timestamp_ms, crc)


def has_append_time(raw: memoryview | bytes) -> bool:
    """Return whether the broker has set the times of a batch; if not, its producer has."""
    return bool(raw[_ATTRIBUTES_AT] & _APPEND_TIME_BIT)


class Piece(NamedTuple):
    """Some records of a batch; none while a large value is passed over."""

    records: list[Any]
    size: int
    """Bytes that the records unpacked to."""


_NOTHING = Piece([], 0)


def pieces(
    tp: TopicPartition, batch: Any, raw: memoryview, value_limit: Callable[[TopicPartition], int]
) -> Iterator[Piece]:
    """Yield the records of a batch, in pieces.

    Args:
        tp: partition of the batch.
        batch: the batch.
        raw: its bytes.
        value_limit: returns the largest limit that a partition ever had; a longer value becomes a :class:`CutValue`.

    Raises:
        CorruptRecordException: the batch is damaged.
    """
    if raw[_MAGIC_AT] < 2:  # brokers since Kafka 3.0 write no such batch
        yield Piece(list(batch), len(raw))
        return
    count = _LENGTH.unpack_from(raw, _COUNT_AT)[0]
    codec = raw[_ATTRIBUTES_AT] & _CODEC_BITS
    header, data = bytes(raw[:HEADER_BYTES]), raw[HEADER_BYTES:]
    try:
        if codec == NONE and len(data) <= PIECE_BYTES and count <= PIECE_RECORDS:
            yield Piece(_records(tp, batch, raw), len(raw))
            return
        stream = unpacked(codec, data)
        first = _read(stream, PIECE_BYTES + 1)
        if len(first) <= PIECE_BYTES and count <= PIECE_RECORDS:
            yield Piece(_parse(tp, header, first, count), len(first))
        else:
            yield from _Slicer(tp, header, stream, first, value_limit(tp)).slices(count)
    except DamagedBatch as error:
        where = f"{partition_name(*tp)}, from offset {batch.base_offset} on"
        raise CorruptRecordException(f"{where}: a batch cannot be unpacked: {error}") from error


def _read(stream: Stream, size: int) -> bytes:
    """Up to ``size`` bytes, fewer only at the end."""
    data = stream.read(size)
    while data and len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data


def _parse(tp: TopicPartition, header: bytes, data: bytes, count: int) -> list[Any]:
    """Records from their unpacked bytes."""
    whole = bytearray(header)
    whole += data
    _LENGTH.pack_into(whole, _LENGTH_AT, len(whole) - _BEFORE_LENGTH_END)
    whole[_ATTRIBUTES_AT] &= ~_CODEC_BITS
    _LENGTH.pack_into(whole, _COUNT_AT, count)
    return _records(tp, DefaultRecordBatch(whole), whole)


_warned: set[TopicPartition] = set()


def _records(tp: TopicPartition, batch: Any, raw: bytearray | memoryview) -> list[Any]:
    """All records of a batch without a codec."""
    try:
        return list(batch)
    except UnicodeDecodeError:
        if tp not in _warned:  # once, because any sender of requests can cause it
            _warned.add(tp)
            logger.warning(
                "%s: a header name after offset %d is not UTF-8; it is read with U+FFFD; "
                "this is not logged again for the partition",
                partition_name(*tp),
                batch.base_offset,
            )
        return list(LenientBatch(raw))


class LenientBatch(_DefaultRecordBatchPy):
    """A batch parsed in Python. A header name that is not UTF-8 is read as Java does, with U+FFFD."""

    _buffer: Any

    def __init__(self, raw: bytearray | memoryview) -> None:
        super().__init__(raw)
        self._buffer = _LenientBytes(self._buffer)

    def _read_msg(self, decode_varint: Any = decode_varint_py) -> Any:
        """One record. By default aiokafka decodes numbers in Cython, and reads behind the end of damaged bytes."""
        return super()._read_msg(decode_varint)


class _LenientBytes(bytearray):
    """Bytes whose ``decode`` replaces invalid UTF-8 with U+FFFD, as Java does."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        piece = super().__getitem__(index)
        return _LenientBytes(piece) if isinstance(piece, bytearray) else piece

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")


class _Slicer:
    """Cuts unpacked data where records end."""

    def __init__(self, tp: TopicPartition, header: bytes, stream: Stream, first: bytes, max_value_bytes: int) -> None:
        self._tp = tp
        self._header = header
        self._stream = stream
        self._data = first
        self._next = 0
        self._max_value_bytes = max_value_bytes

    def slices(self, count: int) -> Iterator[Piece]:
        """Yield ``count`` records."""
        while count > 0:
            data, found = self._whole_records(min(count, PIECE_RECORDS))
            if not found:
                self._need(_MAX_VARINT_BYTES)
                size, start = _varint(self._data, self._next)
                if size > self._max_value_bytes + ROOM_BYTES:
                    self._next = start
                    yield from self._large_record(size)
                    count -= 1
                    continue
                data, found = self._take(start - self._next + max(0, size)), 1
            yield Piece(_parse(self._tp, self._header, data, found), len(data))
            count -= found
        self._need(1)
        if self._next < len(self._data):
            raise DamagedBatch("data follows the last record")

    def _whole_records(self, max_records: int) -> tuple[bytes, int]:
        """The next records that are here as a whole, and their number. It takes 0.2 µs a record."""
        data, at, end = self._data, self._next, len(self._data)
        last_start = min(end - 1, at + PIECE_BYTES)
        found = 0
        while found < max_records and at < last_start:
            size = data[at]
            if size < 0x80:
                after = at + 1 + (size >> 1)
            elif (next_byte := data[at + 1]) < 0x80:
                after = at + 2 + ((size & 0x7F | next_byte << 7) >> 1)
            elif end - at < _MAX_VARINT_BYTES:
                break
            else:
                size, start = _varint(data, at)
                after = start + size
            if after > end or after <= at:
                break
            at, found = after, found + 1
        start, self._next = self._next, at
        return data[start:at], found

    def _need(self, size: int) -> None:
        """Read on until ``size`` bytes are here, or the data ends."""
        here = len(self._data) - self._next
        if here < size:
            more = _read(self._stream, max(size - here, PIECE_BYTES))
            self._data, self._next = self._data[self._next :] + more, 0

    def _take(self, size: int) -> bytes:
        self._need(size)
        start, self._next = self._next, self._next + size
        if size < 0 or self._next > len(self._data):
            raise DamagedBatch("a field is longer than the batch")
        return self._data[start : self._next]

    def _large_record(self, size: int) -> Iterator[Piece]:
        """Yield empty pieces, and then the record of ``size`` bytes that begins here.

        The parser gets the record without most of its value, which is passed over.
        """
        self._left = size
        attributes, time_delta, offset_delta = self._number(), self._number(), self._number()
        fields = [_as_varint(number) for number in (attributes, time_delta, offset_delta)]
        key_size = self._number()
        fields += [_as_varint(key_size), self._field(max(0, key_size))]
        value_size = self._number()
        cut = value_size > self._max_value_bytes
        value = self._field(CUT_VALUE_BYTES if cut else max(0, value_size))
        hashed = hashlib.sha256(value)
        rest = value_size - len(value)
        while cut and rest > 0:
            part = self._field(min(rest, STEP_BYTES))
            hashed.update(part)
            rest -= len(part)
            yield _NOTHING
        fields += [_as_varint(len(value) if value_size >= 0 else value_size), value, self._field(self._left)]
        small = b"".join(fields)
        (record,) = _parse(self._tp, self._header, _as_varint(len(small)) + small, 1)
        if cut:
            cut_value = CutValue.of(value, value_size, hashed.digest())
            record = RequestRecord(
                record.offset, record.key, cut_value, record.headers, record.timestamp, record.timestamp_type
            )
        yield Piece([record], len(small))

    def _number(self) -> int:
        self._need(_MAX_VARINT_BYTES)
        number, after = _varint(self._data, self._next)
        self._left -= after - self._next
        self._next = after
        return number

    def _field(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise DamagedBatch("a field is longer than its record")
        return self._take(size)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number of up to 10 bytes, and the index after it."""
    try:
        number, after = decode_varint_py(data, at)
    except (IndexError, ValueError):
        raise DamagedBatch("a number is cut short") from None
    return number, after


def _as_varint(number: int) -> bytes:
    """The bytes of a zigzag number."""
    encoded = bytearray()
    encode_varint_py(number, encoded.append)
    return bytes(encoded)
