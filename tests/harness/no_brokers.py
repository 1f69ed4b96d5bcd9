"""A network between clients and a broker that lets clients of librdkafka lose the addresses of all brokers.

:mod:`timers.kafka.lost_brokers` says when they do: an answer about topics names no broker, as a broker that stops may
give it, and the connection breaks while the client reads the answer. So that it is still reading then, also on an idle
machine, the answer here has many topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from io import BytesIO

from aiokafka.protocol.types import CompactString, Int16, Int32, TaggedFields, UnsignedVarInt32

from tests.harness.bad_network import BadNetwork, Connection

METADATA, FIRST_WITH_IDS = 3, 10
TOPICS = 2000
_NAME, _TAGS = CompactString("utf-8"), TaggedFields
_NO_TOPIC_ID = bytes(16)


class NoBrokers(BadNetwork):
    """Forwards connections. After :meth:`lose`, the next answer about topics that a client gets names no broker."""

    def __init__(self, target_port: int, port: int) -> None:
        self._losing: set[str] = set()
        self._asked: dict[Connection, dict[int, str]] = {}
        """For each connection, the number of a request -> the id of the client that is about to lose."""
        super().__init__(target_port, port)

    def lose(self, client_id: str) -> None:
        """Let a client with this id lose all brokers when it asks about topics again."""
        self._losing.add(client_id)

    def lose_no_more(self) -> None:
        """Let all clients get true answers."""
        self._losing.clear()

    async def _send_on(
        self, connection: Connection, reader: asyncio.StreamReader, to_writer: asyncio.StreamWriter
    ) -> None:
        asked = self._asked.setdefault(connection, {})
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                key, version, number, size = struct.unpack_from(">hhih", frame)
                client_id = frame[10 : 10 + max(size, 0)].decode()
                if key == METADATA and version >= FIRST_WITH_IDS and client_id in self._losing:
                    self._losing.discard(client_id)
                    asked[number] = client_id
                to_writer.write(len(frame).to_bytes(4) + frame)
                await to_writer.drain()
        del self._asked[connection]
        connection.cut()

    async def _send_back(
        self, connection: Connection, to_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(to_reader)
                client_id = self._asked[connection].pop(int.from_bytes(frame[:4], signed=True), None)
                if client_id is not None:
                    frame = without_brokers(frame)
                writer.write(len(frame).to_bytes(4) + frame)
                if client_id is not None:
                    writer.close()  # after what was written
                    return
                await writer.drain()
        connection.cut()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """A request or an answer, without its length."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def without_brokers(answer: bytes) -> bytes:
    """An answer about topics (Metadata, version 10 to 13) with more topics, and without brokers."""
    data = BytesIO(answer)
    begin = data.read(4 + 1 + 4)  # the number of the request, no tags, the throttle time
    for _ in range(UnsignedVarInt32.decode(data) - 1):
        Int32.decode(data), _NAME.decode(data), Int32.decode(data), _NAME.decode(data), _TAGS.decode(data)
    first = data.tell()
    _NAME.decode(data), Int32.decode(data)  # the cluster and its controller
    cluster = answer[first : data.tell()]
    topics = UnsignedVarInt32.decode(data) - 1
    more = b"".join(
        Int16.encode(0)
        + _NAME.encode(f"more-{number}")
        + _NO_TOPIC_ID[:-4]
        + Int32.encode(number + 1)
        + b"\0"  # not internal
        + UnsignedVarInt32.encode(1)  # no partitions
        + Int32.encode(0)  # operations that are allowed
        + _TAGS.encode({})
        for number in range(TOPICS)
    )
    count = UnsignedVarInt32.encode(1 + topics + TOPICS)
    return b"".join((begin, UnsignedVarInt32.encode(1), cluster, count, more, data.read()))
