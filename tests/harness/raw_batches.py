"""Record batches that brokers take and no usual client writes, and a producer that sends bytes as they are."""

import socket
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import pack, unpack

import cramjam
import lz4.frame
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c, decode_varint, encode_varint

from tests.harness.waiting import DEADLINE_S

Fields = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

_Packer = Callable[[list[bytes]], bytes]
"""Returns the data of a batch, from its encoded records."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HEADER_BYTES = 61


def encoded(records: Sequence[Fields], time_ms: int) -> list[bytes]:
    """The bytes of each record; all have the same time."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, (key, value, headers) in enumerate(records):
        assert builder.append(index, time_ms, key, value, headers) is not None
    data = bytes(builder.build())[HEADER_BYTES:]
    found = []
    while data:
        size, start = decode_varint(data)
        found.append(data[: start + size])
        data = data[start + size :]
    return found


def batch(data: bytes, codec: int, count: int, time_ms: int) -> bytes:
    """A batch that declares ``count`` records."""
    head = pack(">qiibIhiqqqhii", 0, 49 + len(data), 0, 2, 0, codec, count - 1, time_ms, time_ms, -1, -1, -1, count)
    whole = bytearray(head + data)
    whole[17:21] = pack(">I", calc_crc32c(bytes(whole[21:])))
    return bytes(whole)


def xerial(*blocks: bytes, version: int = 1) -> bytes:
    """A stream as snappy-java writes it."""
    return b"\x82SNAPPY\0" + pack(">ii", version, 1) + b"".join(map(xerial_block, blocks))


def xerial_block(data: bytes) -> bytes:
    packed = bytes(cramjam.snappy.compress_raw(data))
    return pack(">i", len(packed)) + packed


def lz4_frame(data: bytes, size: int | None = None, **options: object) -> bytes:
    """A frame whose blocks do not depend on each other; ``size`` is the one that it claims to unpack to."""
    frame = bytearray(lz4.frame.compress(data, block_linked=False, store_size=size is not None, **options))
    if size is not None:
        frame[6:14] = pack("<q", size)
        frame[14] = _lz4_checksum(bytes(frame[4:14]))
    return bytes(frame)


def _lz4_checksum(descriptor: bytes) -> int:
    """The checksum of the ten bytes between the magic number of a frame and it."""
    prime = 374761393
    digest = prime + len(descriptor)
    for at in range(0, len(descriptor) - 3, 4):
        digest = (digest + int.from_bytes(descriptor[at : at + 4], "little") * 3266489917) & 0xFFFFFFFF
        digest = ((digest << 17 | digest >> 15) * 668265263) & 0xFFFFFFFF
    for byte in descriptor[len(descriptor) & ~3 :]:
        digest = (digest + byte * prime) & 0xFFFFFFFF
        digest = ((digest << 11 | digest >> 21) * 2654435761) & 0xFFFFFFFF
    digest = ((digest ^ digest >> 15) * 2246822519) & 0xFFFFFFFF
    digest = ((digest ^ digest >> 13) * 3266489917) & 0xFFFFFFFF
    return (digest ^ digest >> 16) >> 8 & 0xFF


def gzip_member(data: bytes, flags: int = 0, fields: bytes = b"") -> bytes:
    """A member; ``fields`` are those that ``flags`` name."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + fields
    return head + body + pack("<II", zlib.crc32(data), len(data))


def zstd_frame(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


_SKIPPABLE = b"\x50\x2a\x4d\x18\3\0\0\0abc"


@dataclass(frozen=True)
class Unusual:
    """A batch of ten records that brokers take.

    Attributes:
        codec: its number.
        data: returns its data.
        declared: how many records its header declares.
        read: the indexes of the records that Java's consumer reads.
    """

    codec: int
    data: _Packer
    declared: int = 10
    read: Sequence[int] = range(10)

    def batch(self, records: Sequence[Fields], time_ms: int) -> bytes:
        assert len(records) == 10
        return batch(self.data(encoded(records, time_ms)), self.codec, self.declared, time_ms)


def _in_two(pack_one: Callable[[bytes], bytes]) -> _Packer:
    return lambda records: pack_one(b"".join(records[:5])) + pack_one(b"".join(records[5:]))


def _then(pack_one: Callable[[bytes], bytes], after: bytes) -> _Packer:
    return lambda records: pack_one(b"".join(records)) + after


def _with(index: int, change: Callable[[bytes], bytes], pack_one: Callable[[bytes], bytes] = bytes) -> _Packer:
    """A record is another one; ``change`` gets what follows its length."""

    def packed(records: list[bytes]) -> bytes:
        _, start = decode_varint(records[index])
        body = change(records[index][start:])
        return pack_one(b"".join([*records[:index], _number(len(body)) + body, *records[index + 1 :]]))

    return packed


def _number(number: int) -> bytes:
    found = bytearray()
    encode_varint(number, found.append)
    return bytes(found)


_ATTRIBUTES_AT, _OFFSET_AT = 0, 2


def _byte(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:at] + bytes([value]) + body[at + 1 :]


def _in_five_bytes(body: bytes) -> bytes:
    """The offset of a record as a number of five bytes, of which Java ignores the last bits."""
    return body[:_OFFSET_AT] + bytes([body[_OFFSET_AT] | 0x80, 0x80, 0x80, 0x80, 0x70]) + body[_OFFSET_AT + 1 :]


READABLE = {
    "two streams of xerial": Unusual(SNAPPY, _in_two(xerial)),
    "a stream of xerial of version 2 in two blocks": Unusual(
        SNAPPY, lambda records: xerial(b"".join(records[:5]), b"".join(records[5:]), version=2)
    ),
    "two bytes after a stream of xerial": Unusual(SNAPPY, _then(xerial, b"\0\0")),
    "an empty block at the end of a stream of xerial": Unusual(SNAPPY, _then(xerial, xerial_block(b""))),
    "the header of a stream of xerial after another one": Unusual(SNAPPY, _then(xerial, xerial())),
    "snappy without xerial": Unusual(SNAPPY, _then(lambda data: bytes(cramjam.snappy.compress_raw(data)), b"")),
    "a second frame of lz4": Unusual(LZ4, _in_two(lz4_frame), 5, range(5)),
    "garbage after a frame of lz4": Unusual(LZ4, _then(lz4_frame, b"garbage")),
    "a skippable frame after a frame of lz4": Unusual(LZ4, _then(lz4_frame, _SKIPPABLE)),
    "lz4 with all checksums": Unusual(
        LZ4, _then(lambda data: lz4_frame(data, content_checksum=True, block_checksum=True), b"")
    ),
    "lz4 with a wrong size": Unusual(LZ4, _then(lambda data: lz4_frame(data, size=7), b"")),
    "gzip in two members": Unusual(GZIP, _in_two(gzip_member)),
    "garbage after gzip": Unusual(GZIP, _then(gzip_member, b"garbage" * 9)),
    "gzip with reserved flags": Unusual(GZIP, _then(lambda data: gzip_member(data, 0xE0), b"")),
    "gzip with a name and extra fields": Unusual(
        GZIP, _then(lambda data: gzip_member(data, 0x1C, b"\3\0abcname\0comment\0"), b"")
    ),
    "zstd in two frames": Unusual(ZSTD, _in_two(zstd_frame)),
    "a skippable frame after zstd": Unusual(ZSTD, _then(zstd_frame, _SKIPPABLE)),
    "a record with attributes": Unusual(NONE, _with(3, _byte(_ATTRIBUTES_AT, 0x80))),
    "a record with attributes, compressed": Unusual(SNAPPY, _with(3, _byte(_ATTRIBUTES_AT, 0xFF), xerial)),
    "an offset in five bytes": Unusual(ZSTD, _with(3, _in_five_bytes, zstd_frame)),
    "an offset twice": Unusual(NONE, _with(3, _byte(_OFFSET_AT, 4)), read=[0, 1, 2, 4, 5, 6, 7, 8, 9]),
    "an offset that is too high": Unusual(NONE, _with(3, _byte(_OFFSET_AT, 14)), read=[0, 1, 2, 3, 8, 9]),
}
"""Brokers take them, and Java's consumer reads them.

Of the last two it reads only what has a higher offset than the records before. The record with the index 3 has the
offset of another one.
"""


def _length(change: int) -> _Packer:
    """The record with the index 3 claims another length, which brokers do not look at in a compressed batch."""
    return lambda records: zstd_frame(
        b"".join([*records[:3], _number(decode_varint(records[3])[0] + change) + records[3][1:], *records[4:]])
    )


UNREADABLE = {
    "a record that claims to be shorter": Unusual(ZSTD, _length(-1), read=range(3)),
    "a record that claims to be longer": Unusual(ZSTD, _length(2), read=range(3)),
    "an offset behind the batch": Unusual(NONE, _with(3, _byte(_OFFSET_AT, 20)), read=range(3)),
}
"""Brokers take them. Java's consumer reads three records and then fails, except for the last batch, of which it reads
what depends on how it was fetched."""


def requests(name: str, target: str, due_s: int) -> list[Fields]:
    """Ten requests, whose values begin with a name."""
    return [(b"%d" % due_s, f"{name}/{index}".encode(), [("timer-topic", target.encode())]) for index in range(10)]


def produce(address: str, topic: str, partition: int, data: bytes) -> int:
    """Send a batch as it is, with a Produce request of version 7; the leader is the broker at this address.

    Returns:
        The error code of the broker; 0: it has taken the batch.
    """
    host, _, port = address.rpartition(":")
    name = topic.encode()
    body = pack(">hhiih", -1, -1, 10_000, 1, len(name)) + name  # no transaction, acks of all, one topic
    body += pack(">iii", 1, partition, len(data)) + data
    client = b"raw"
    message = pack(">hhih", 0, 7, 1, len(client)) + client + body
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        connection.sendall(pack(">i", len(message)) + message)
        stream = connection.makefile("rb")
        (size,) = unpack(">i", stream.read(4))
        answer = stream.read(size)
    at = 4 + 4 + 2 + len(name) + 4 + 4  # correlation id, one topic, its name, one partition, its number
    return int(unpack(">h", answer[at : at + 2])[0])
