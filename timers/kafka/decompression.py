"""Unpacks the records of a compressed batch in parts, so that memory does not follow from what a batch unpacks to.

A batch of 1 MB may unpack to 32 GB with zstd, to 1 GB with gzip, to 255 MB with lz4 and to 21 MB with snappy. The
decompressors of cramjam, which aiokafka uses, take a batch only as a whole.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from struct import unpack_from
from typing import Any, Protocol

import cramjam
import lz4.frame

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
