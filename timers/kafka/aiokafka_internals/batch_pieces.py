"""Reads a record batch in pieces of bounded size, whatever the batch unpacks to, as Java's consumer does.

A batch of 1 MB may unpack to 32 GB with zstd, to 1 GB with gzip, to 255 MB with lz4 and to 21 MB with snappy. The
decompressors of cramjam, which aiokafka uses, take a batch only as a whole. So batches are unpacked in parts here.

Most batches unpack to less than :data:`PIECE_BYTES`, and are parsed at once by aiokafka's Cython parser. A larger one
is cut where records end: each record begins with its length. The same parser then reads each part, under the header of
the batch without its codec. A value above the limit is passed over: only its first bytes, length and hash are kept. The
bounds here only decide how much is in memory. The machine decides about a record from the length of its value.

What brokers have taken must be read as Java's consumer reads it. Brokers unpack a compressed batch and step over its
records, by the lengths of keys, values and headers (Kafka: ``LogValidator``, ``DefaultRecord.readPartiallyFrom``). So:

* They have checked that the declared records are there. What follows the last of them is ignored.
* They have checked what Java's streams check. Checksums and sizes inside the compressed data, which Java ignores or
  computes in its own way, are ignored here too: the checksum of the batch covers all its bytes.
* They have not checked the length of a record in a compressed batch, and the offsets of an uncompressed one. Such a
  batch may be one that no consumer can read, from some record on. The records before it are returned.

aiokafka's parser differs from Java in rare cases: the attributes of a record are one byte, lengths have 32 bits, and
the name of a header that is not UTF-8 is read with U+FFFD. What that parser refuses is parsed again here, as Java does.

Private parts of aiokafka: ``DefaultRecordBatch`` takes a whole batch as bytes.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from struct import Struct, unpack_from
from typing import Any, NamedTuple

import cramjam
import lz4.block
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import encode_varint_py

from timers.core.lineage import Batch, PassedBatch
from timers.core.timer import CUT_VALUE_BYTES, CutValue
from timers.kafka.aiokafka_internals.record_starts import are_plain
from timers.wire.record import RequestRecord
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)


if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor
else:
    from backports.zstd import ZstdDecompressor

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""Codecs, as the attributes of a batch name them."""

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_LEAST_PACKED_BYTES, _MOST_PACKED_BYTES = 128, 64 * 1024
"""Compressed bytes that a decompressor gets at a time, twice as many each time. It copies what follows the end of a
member or frame, of which a batch may have 100,000 empty ones."""

_PART_BYTES = 1024 * 1024
"""Bytes that are unpacked in one step, except those of a block of snappy or lz4."""


class DamagedBatch(Exception):
    """Data that cannot be unpacked or parsed, or ends too early."""


class Stream:
    """Unpacked data that is read in parts.

    Args:
        parts: the data. It may raise any exception if the compressed data is damaged.

    Attributes:
        damage: why there is no more data; None if there is no reason but its end.
    """

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""
        self.damage: str | None = None

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes; fewer only at the end of the data, or where it is damaged."""
        parts, here = [self._rest], len(self._rest)
        while here < size and (part := self._next()):
            parts.append(part)
            here += len(part)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size] if self._rest else data

    def _next(self) -> bytes:
        try:
            for part in self._parts:
                if part:
                    return part
        except Exception as error:  # each library has its own, and the class of cramjam's differs between its versions
            self.damage = str(error) or type(error).__name__
        return b""


def unpacked(codec: int, data: memoryview) -> Iterator[bytes]:
    """Yield the unpacked data of a batch.

    Raises:
        Exception: the data is damaged or ends too early, or the codec is not known.
    """
    if codec == NONE:
        for start in range(0, len(data), _PART_BYTES):
            yield bytes(data[start : start + _PART_BYTES])
    elif codec == GZIP:
        yield from _gzip(data)
    elif codec == SNAPPY:
        yield from _snappy(data)
    elif codec == LZ4:
        yield from _lz4(data)
    elif codec == ZSTD:
        yield from _zstd(data)
    else:
        raise DamagedBatch(f"codec {codec} is not known")


_GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT, _GZIP_CHECKSUM = 0x04, 0x08, 0x10, 0x02
_GZIP_FIXED_BYTES = 10
_GZIP_TRAILER_BYTES = 8


def _gzip(data: memoryview) -> Iterator[bytes]:
    """Members of gzip. Bytes after a member that do not begin another one are ignored, as in Java.

    zlib refuses flags that Java ignores, so it does not get the headers.
    """
    at = _end_of_gzip_header(data, 0)
    while at:
        member = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        packed: bytes | memoryview = b""
        size = _LEAST_PACKED_BYTES
        while not member.eof:
            if not packed:
                packed = data[at : at + size]
                at, size = at + len(packed), min(2 * size, _MOST_PACKED_BYTES)
            part = member.decompress(packed, _PART_BYTES)
            packed = member.unconsumed_tail
            if not (part or packed or member.eof or at < len(data)):
                raise DamagedBatch("the data ends inside a member of gzip")
            yield part
        at += _GZIP_TRAILER_BYTES - len(member.unused_data)
        try:
            at = _end_of_gzip_header(data, at)
        except (DamagedBatch, IndexError):
            return


def _end_of_gzip_header(data: memoryview, start: int) -> int:
    """Index after the header of a member (RFC 1952)."""
    if bytes(data[start : start + 3]) != b"\x1f\x8b\x08":
        raise DamagedBatch("no header of gzip")
    flags, at = data[start + 3], start + _GZIP_FIXED_BYTES
    if flags & _GZIP_EXTRA:
        at += 2 + data[at] + (data[at + 1] << 8)
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            while data[at]:
                at += 1
            at += 1
    if flags & _GZIP_CHECKSUM:
        at += 2
    if at > len(data):
        raise DamagedBatch("the data ends inside a header of gzip")
    return at


_XERIAL = b"\x82SNAPPY\0"
"""First bytes of snappy data that consists of blocks, each with its length. librdkafka writes one block without one."""

_XERIAL_HEADER_BYTES = 16

_SNAPPY_RATIO = 64
"""A snappy block unpacks to at most this many times its size; a block that claims more is damaged."""


def _snappy(data: memoryview) -> Iterator[bytes]:
    """One block of snappy, or streams of blocks as snappy-java writes them, one stream after another.

    Fewer than four bytes after the last block are ignored, as in Java. A block is unpacked as a whole: it has at most
    21 times the size of its compressed data.
    """
    if len(data) < _XERIAL_HEADER_BYTES or data[: len(_XERIAL)] != _XERIAL:
        yield _unpacked_block(data)
        return
    at = _XERIAL_HEADER_BYTES
    while at + 4 <= len(data):
        # The header of a further stream: as a length, these bytes would be negative.
        if data[at : at + 4] == _XERIAL[:4]:
            at += _XERIAL_HEADER_BYTES
            continue
        size = unpack_from(">i", data, at)[0]
        block = data[at + 4 : at + 4 + size]
        if not 0 < size == len(block):
            raise DamagedBatch("the data ends inside a block of snappy")
        yield _unpacked_block(block)
        at += 4 + size


_MAX_BLOCK_BYTES = 256 * 1024 * 1024
"""Largest size of a block of snappy, which needs memory for all of it. By default brokers take no batch above 1 MB,
which unpacks to 21 MB. Clients make blocks of 32 KiB, or one of a batch."""


def _unpacked_block(block: memoryview) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_RATIO * len(block):
        raise DamagedBatch("a block of snappy claims to be larger than it can be")
    if size > _MAX_BLOCK_BYTES:
        raise DamagedBatch(f"a block of snappy unpacks to {size} bytes; at most {_MAX_BLOCK_BYTES} are read")
    return bytes(cramjam.snappy.decompress_raw(block))


_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE = 0x10, 0x08
_LZ4_IS_PLAIN = 1 << 31


def _lz4(data: memoryview) -> Iterator[bytes]:
    """The first frame of lz4; Java ignores what follows it. Its blocks do not depend on each other, which Java demands.

    The library's own reader of frames checks the size of the content, which Java ignores.
    """
    if data[:4] != _LZ4_MAGIC:
        raise DamagedBatch("no header of lz4")
    flags, sizes = data[4], data[5]
    max_bytes = 1 << (8 + 2 * (sizes >> 4 & 7))
    at = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while size := unpack_from("<I", data, at)[0]:
        is_plain, size = size & _LZ4_IS_PLAIN, size & ~_LZ4_IS_PLAIN
        block = data[at + 4 : at + 4 + size]
        if len(block) < size:
            raise DamagedBatch("the data ends inside a block of lz4")
        yield bytes(block) if is_plain else lz4.block.decompress(block, uncompressed_size=max_bytes)
        at += 4 + size + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)


def _zstd(data: memoryview) -> Iterator[bytes]:
    """Frames of zstd. Windows above 128 MiB are refused, as by the brokers."""
    at = 0
    while at < len(data):
        frame, size = ZstdDecompressor(), _LEAST_PACKED_BYTES
        while not frame.eof:
            packed: bytes | memoryview = b""
            if frame.needs_input:
                packed = data[at : at + size]
                at, size = at + len(packed), min(2 * size, _MOST_PACKED_BYTES)
                if not packed:
                    raise DamagedBatch("the data ends inside a frame of zstd")
            yield frame.decompress(packed, max_length=_PART_BYTES)
        at -= len(frame.unused_data)


PIECE_BYTES = 1024 * 1024
"""A piece ends with the record that brings it to this number of unpacked bytes."""

PIECE_RECORDS = 10_000
"""Maximum records of a piece. 1 MB can hold 10,000,000 empty ones, and each may become a dead letter."""

STEP_BYTES = 4 * 1024 * 1024
"""Bytes of a value that are skipped in one step. Between two steps, other partitions are read."""

ROOM_BYTES = 64 * 1024
"""Key and headers of a record with an allowed value seldom take more; then it is parsed whole."""

MAX_ROOM_BYTES = 32 * 1024 * 1024
"""Largest size of the key and the headers of a record together, of which only a bomb has more: by default brokers take
no batch above 1 MB, but it may unpack to 32 GB. Java's consumer needs memory for the whole record."""

_MAX_VARINT_BYTES = 10
_VARINT_BYTES, _VARLONG_BYTES = 5, 10
"""Most bytes of a number of 32 and of 64 bits. Further bits of the last byte are left out, as in Java."""

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
    # Formats before magic 2 have no leader epoch, and their first field is the batch's last offset. Brokers since
    # Kafka 3.0 write no such batch.
    if magic < 2:
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


class UnreadableBatch(CorruptRecordException):
    """A batch that is damaged, or is such that no consumer can read all of it.

    Attributes:
        from_offset: of its first record that cannot be read.
        end_offset: the offset after its last record; ``from_offset`` if that is not known.
    """

    from_offset: int
    end_offset: int
    raw: bytes

    @property
    def read_on_from(self) -> int:
        """The offset from which the log is read on, if the batch is passed over: also if its end is not known."""
        return max(self.end_offset, self.from_offset + 1)


_MAX_GAP = 1 << 31
"""The offsets of a batch differ by less."""


def end_of_damaged(raw: memoryview, after: memoryview) -> int:
    """Returns where a batch with a wrong checksum ends, by its header or the batch after it; 0 if that is not known.

    The last offset in its header may be of the damaged bytes. It is trusted if the number of records agrees with it.
    """
    if len(raw) >= HEADER_BYTES and raw[_MAGIC_AT] == 2:
        base, *_, last, _, _ = _HEADER.unpack_from(raw)
        if last + 1 == _LENGTH.unpack_from(raw, _COUNT_AT)[0] > 0:
            return int(base + last + 1)
    if len(after) > _MAGIC_AT and after[_MAGIC_AT] == 2:  # a fetch may end inside a batch
        base, following = (int.from_bytes(each[:8], "big") for each in (raw, after))
        return following if following - base < _MAX_GAP else 0  # else its length is damaged: no batch begins there
    return 0


def unreadable(
    tp: TopicPartition, batch: Any, raw: memoryview, next_offset: int, reason: str, end_offset: int | None = None
) -> UnreadableBatch:
    """Returns the error of a batch of which all records below ``next_offset`` were read.

    Args:
        end_offset: where it ends, if its header may be damaged; None: as its header says.
    """
    codec = raw[_ATTRIBUTES_AT] & _CODEC_BITS
    name = CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else str(codec)
    from_offset = max(next_offset, batch.base_offset)
    end_offset = max(from_offset, batch.next_offset if end_offset is None else end_offset)
    offsets = f"with the offsets {from_offset} to {end_offset - 1}" if end_offset > from_offset else f"at {from_offset}"
    error = UnreadableBatch(
        f"{partition_name(*tp)}: the record batch {offsets} (compression: {name}) cannot be read: {reason}"
    )
    error.from_offset, error.end_offset, error.raw = from_offset, end_offset, bytes(raw)
    return error


def pieces(
    tp: TopicPartition, batch: Any, raw: memoryview, value_limit: Callable[[TopicPartition], int]
) -> Iterator[Piece]:
    """Yield the records of a batch, in pieces.

    Args:
        raw: its bytes.
        value_limit: returns the largest limit that a partition ever had; a longer value becomes a :class:`CutValue`.

    Raises:
        UnreadableBatch: the next record cannot be read.
    """
    if raw[_MAGIC_AT] < 2:  # brokers since Kafka 3.0 write no such batch
        try:
            yield Piece(list(batch), len(raw))
        except Exception as error:
            raise unreadable(tp, batch, raw, batch.base_offset, repr(error)) from error
        return
    count = _LENGTH.unpack_from(raw, _COUNT_AT)[0]
    codec = raw[_ATTRIBUTES_AT] & _CODEC_BITS
    data = raw[HEADER_BYTES:]
    reader = _Slicer(tp, bytes(raw[:HEADER_BYTES]), Stream(unpacked(codec, data)))
    try:
        if codec == NONE and len(data) <= PIECE_BYTES and count <= PIECE_RECORDS:
            records, size = reader.parsed(batch, bytes(raw), HEADER_BYTES, count), len(raw)
        else:
            records, size = reader.parsed_at_once(count)
        if records is not None:
            yield Piece(records, size)
        else:
            yield from reader.slices(count, value_limit(tp))
    except Exception as error:  # mostly DamagedBatch; whatever the bytes are, they are not to stop the worker
        reason = str(reader.damage or error) if isinstance(error, DamagedBatch) else repr(error)
        raise unreadable(tp, batch, raw, reader.next_offset, reason) from error


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Java replaces these bytes with one U+FFFD, and Python with three or two."""

_REPLACEMENT = "\ufffd".encode()

_warned: set[TopicPartition] = set()


class _Slicer:
    """Cuts unpacked data where records end, and parses the records.

    Attributes:
        next_offset: above the last record that was returned.
    """

    def __init__(self, tp: TopicPartition, header: bytes, stream: Stream) -> None:
        self._tp = tp
        self._header = header
        self._stream = stream
        self._data = b""
        self._next = 0
        self._base, *_, last, self._first_ms, self._max_ms = _HEADER.unpack_from(header)
        self._last = self._base + last
        self.next_offset = self._base
        self._max_value_bytes = 0

    @property
    def damage(self) -> str | None:
        """Why there is no more data; None if all of it was there, or the reason is not known."""
        return self._stream.damage

    def parsed(self, batch: Any, data: bytes, start: int, count: int) -> list[Any] | None:
        """All records of a batch without a codec; None if aiokafka's parser cannot be trusted with it.

        Args:
            data: has their bytes, from ``start`` on.
            count: their number.
        """
        after, last = self.next_offset - 1 - self._base, self._last - self._base
        if not are_plain(data, start, count, after, last):
            return None
        try:
            records = list(batch)
        except Exception:  # CorruptRecordException, UnicodeDecodeError, and MemoryError of a length that lies
            return None
        if records:
            self.next_offset = records[-1].offset + 1
        return records

    def parsed_at_once(self, count: int) -> tuple[list[Any] | None, int]:
        """All records, and how many bytes they unpack to; None if they must be cut, or parsed one after another."""
        self._data = self._stream.read(PIECE_BYTES + 1)
        small = len(self._data) <= PIECE_BYTES and count <= PIECE_RECORDS
        return self._parsed_part(self._data, count) if small else None, len(self._data)

    def _parsed_part(self, data: bytes, count: int) -> list[Any] | None:
        header = bytearray(self._header)
        _LENGTH.pack_into(header, _LENGTH_AT, HEADER_BYTES + len(data) - _BEFORE_LENGTH_END)
        header[_ATTRIBUTES_AT] &= ~_CODEC_BITS
        _LENGTH.pack_into(header, _COUNT_AT, count)
        return self.parsed(DefaultRecordBatch(header + data), data, 0, count)

    def slices(self, count: int, max_value_bytes: int) -> Iterator[Piece]:
        """Yield ``count`` records. What follows them is ignored."""
        self._max_value_bytes = max_value_bytes
        while count > 0:
            start = self._next
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
            records = self._parsed_part(data, found)
            if records is not None:
                yield Piece(records, len(data))
            else:
                yield from self._one_by_one(data, found)
            count -= found

    def _one_by_one(self, data: bytes, count: int) -> Iterator[Piece]:
        """Yield records as Java parses them. If one cannot be parsed, those before it are returned first."""
        records: list[Any] = []
        damage, at = None, 0
        try:
            for _ in range(count):
                size, start = _varint(data, at)
                at = start + size
                if not start <= at <= len(data):
                    raise DamagedBatch(f"the record after offset {self.next_offset - 1} claims a length of {size}")
                record = self._record(data[start:at])
                if record is not None:
                    records.append(record)
        except DamagedBatch as error:
            damage = error
        if records:
            yield Piece(records, len(data))
        if damage is not None:
            raise damage

    def _record(self, body: bytes) -> RequestRecord | None:
        """A record from the bytes after its length; None if a consumer passes over it, because a record before it has
        a higher offset.

        Raises:
            DamagedBatch: its fields do not fill it, or its offset is not one of the batch.
        """
        time_delta, at = _varint(body, 1, _VARLONG_BYTES)  # after one byte of attributes
        offset_delta, at = _varint(body, at)
        key, at = _field(body, at)
        value, at = _field(body, at)
        left, at = _varint(body, at)
        if not 0 <= left <= len(body) - at:
            raise DamagedBatch(f"a record claims to have {left} headers")
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(left):
            name, at = _field(body, at)
            if name is None:
                raise DamagedBatch("a header has no name")
            content, at = _field(body, at)
            headers.append((self._header_name(name), content))
        if at != len(body):
            raise DamagedBatch("the length of a record is not that of its fields")
        offset = self._base + offset_delta
        if offset > self._last:
            raise DamagedBatch(f"a record claims the offset {offset}, which is not in the batch")
        if offset < self.next_offset:
            return None
        self.next_offset = offset + 1
        has_append_time = self._header[_ATTRIBUTES_AT] & _APPEND_TIME_BIT
        time_ms = self._max_ms if has_append_time else _signed(self._first_ms + time_delta, 64)
        return RequestRecord(offset, key, value, headers, time_ms, int(bool(has_append_time)))

    def _header_name(self, name: bytes) -> str:
        try:
            return name.decode()
        except UnicodeDecodeError:
            if self._tp not in _warned:  # once, because any sender of requests can cause it
                _warned.add(self._tp)
                logger.warning(
                    "%s: a header name after offset %d is not UTF-8; it is read with U+FFFD; "
                    "this is not logged again for the partition",
                    partition_name(*self._tp),
                    self._base,
                )
            return _SURROGATE.sub(_REPLACEMENT, name).decode(errors="replace")

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
            more = self._stream.read(max(size - here, PIECE_BYTES))
            self._data, self._next = self._data[self._next :] + more, 0

    def _take(self, size: int) -> bytes:
        self._need(size)
        start, self._next = self._next, self._next + size
        if self._next > len(self._data):
            raise DamagedBatch("a record is longer than the batch")
        return self._data[start : self._next]

    def _large_record(self, size: int) -> Iterator[Piece]:
        """Yield empty pieces, and then the record of ``size`` bytes that begins here.

        The parser gets the record without most of its value, which is passed over.
        """
        self._left = size
        fields = [self._part(1)]
        fields += [_as_varint(self._number(_VARLONG_BYTES)), _as_varint(self._number())]
        key_size = self._number()
        self._check_room(key_size)
        fields += [_as_varint(key_size), self._part(max(0, key_size))]
        value_size = self._number()
        self._check_room(self._left - max(0, value_size))
        cut = value_size > self._max_value_bytes
        value = self._part(CUT_VALUE_BYTES if cut else max(0, value_size))
        hashed = hashlib.sha256(value)
        rest = value_size - len(value)
        while cut and rest > 0:
            part = self._part(min(rest, STEP_BYTES))
            hashed.update(part)
            rest -= len(part)
            yield _NOTHING
        fields += [_as_varint(len(value) if value_size >= 0 else value_size), value, self._part(self._left)]
        small = b"".join(fields)
        record = self._record(small)
        if cut and record is not None:
            record = record._replace(value=CutValue.of(value, value_size, hashed.digest()))
        yield Piece([] if record is None else [record], len(small))

    def _check_room(self, size: int) -> None:
        if size > MAX_ROOM_BYTES:
            raise DamagedBatch(
                f"the key or the headers of a record unpack to {size} bytes; at most {MAX_ROOM_BYTES} are read"
            )

    def _number(self, max_bytes: int = _VARINT_BYTES) -> int:
        self._need(_MAX_VARINT_BYTES)
        number, after = _varint(self._data, self._next, max_bytes)
        self._left -= after - self._next
        self._next = after
        return number

    def _part(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise DamagedBatch("a field is longer than its record")
        return self._take(size)


def _varint(data: bytes, at: int, max_bytes: int = _VARINT_BYTES) -> tuple[int, int]:
    """A zigzag number, and the index after it."""
    number = 0
    for index in range(max_bytes):
        if at + index >= len(data):
            raise DamagedBatch("the data ends inside a number")
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            number &= 0xFFFFFFFF if max_bytes == _VARINT_BYTES else 0xFFFFFFFFFFFFFFFF
            return (number >> 1) ^ -(number & 1), at + index + 1
    raise DamagedBatch(f"a number has more than {max_bytes} bytes")


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Bytes after their length, and the index after them; None if the length is negative."""
    size, start = _varint(data, at)
    if size < 0:
        return None, start
    if size > len(data) - start:
        raise DamagedBatch("a field is longer than its record")
    return data[start : start + size], start + size


def _signed(number: int, bits: int) -> int:
    """What is left of a number in so many bits."""
    number &= (1 << bits) - 1
    return number - (number >> (bits - 1) << bits)


def _as_varint(number: int) -> bytes:
    """The bytes of a zigzag number."""
    encoded = bytearray()
    encode_varint_py(number, encoded.append)
    return bytes(encoded)
