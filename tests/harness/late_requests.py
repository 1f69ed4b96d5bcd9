"""A network between clients and a broker that delivers requests of transactions late, as a seed says.

A request that is held back is one that a network still has when its client has lost the connection: the client's
connection is cut, and the broker gets the request later, over another one. Without a login a broker cannot tell.
"""

import asyncio
import contextlib
import random
import struct
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.protocol.api import RequestHeader_v1, RequestStruct
from aiokafka.protocol.produce import ProduceRequest_v8
from aiokafka.protocol.transaction import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest

from tests.harness.bad_network import BadNetwork, Connection
from timers.cli.broker.process import HOST
from timers.kafka.aiokafka_internals.requests import EndTransaction, OffsetsInTransaction, ProduceInTransaction

PRODUCE, OPEN, END, OFFSETS = 0, 22, 26, 28
HELD = {PRODUCE: "produce", END: "end", OFFSETS: "offsets"}
_KNOWN = (InitProducerIdRequest, EndTxnRequest, EndTransaction, TxnOffsetCommitRequest, OffsetsInTransaction)
_STRUCTS: dict[tuple[int, int], type[RequestStruct]] = {
    (each.API_KEY, each.API_VERSION): each
    for each in (ProduceRequest_v8, *ProduceInTransaction._CLASSES, *(one for all in _KNOWN for one in all._CLASSES))
}

MOST_AFTER = 8
"""A held request comes before one of the next requests of its transactional id, at most this one: about the fourth
transaction, or the next opening."""

ANSWER_S = 5.0


class _Request(NamedTuple):
    frame: bytes
    """With its length before it."""
    layout: type[RequestStruct]
    id: str
    """Transactional id."""


@dataclass
class _Held:
    request: _Request
    after: int
    """Requests of the same id before it comes."""
    stage: int = 0
    """1: the end of its transaction was asked for, or another opening. 2: the next transaction appends. 3: it has."""

    def sees(self, key: int) -> int:
        """The stage after a further request. It ends a transaction only after the answers to what this has appended:
        then the markers of the former one are written, and its requests are of the past."""
        if self.stage == 3 or (self.stage == 2 and key in (END, OFFSETS)):
            return 3
        if key == OPEN or (key == END and self.stage == 0):
            return 1
        return 2 if key == PRODUCE and self.stage == 1 else self.stage


def _read(frame: bytes) -> _Request | None:
    """A request of a transaction, or None."""
    layout = _STRUCTS.get(struct.unpack_from(">hh", frame, 4))
    if layout is None:
        return None
    data = BytesIO(frame[4:])
    RequestHeader_v1.SCHEMA.decode(data)
    if layout.FLEXIBLE_VERSION:
        data.read(1)  # no tags
    return _Request(frame, layout, layout.SCHEMA.fields[0].decode(data))


class LateRequests(BadNetwork):
    """Forwards connections, and holds a share of the requests back after :meth:`hold_back`.

    Attributes:
        late: kind -> number of requests that came while a later transaction of their id was open, or after it, and were
            answered.
        codes: (kind, error code) -> how often their answers had it, for a request or one of its partitions.
    """

    def __init__(self, target_port: int, port: int) -> None:
        self.late: Counter[str] = Counter()
        self.codes: Counter[tuple[str, int]] = Counter()
        self._share = 0.0
        self._draw = random.Random(0)
        self._held: dict[str, list[_Held]] = {}
        super().__init__(target_port, port)

    def hold_back(self, share: float, seed: int = 0) -> None:
        """Hold this share of the requests back that append, commit offsets or end. With 0 no further ones."""
        self._draw, self._share = random.Random(seed), share

    def has_delivered(self, count: int) -> bool:
        """Whether this many requests have come late."""
        return self.late.total() >= count

    async def _send_on(
        self, connection: Connection, reader: asyncio.StreamReader, to_writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size))
                request = _read(frame)
                if request is not None:
                    await self._release(request)
                    if request.layout.API_KEY in HELD and self._draw.random() < self._share:
                        held = _Held(request, self._draw.randint(1, MOST_AFTER))
                        self._held.setdefault(request.id, []).append(held)
                        break
                to_writer.write(frame)
                await to_writer.drain()
                if request is not None:
                    self._note(request)
        connection.cut()

    async def _release(self, next_one: _Request) -> None:
        """Deliver the requests that come before the next one of their transactional id."""
        still = []
        for held in self._held.pop(next_one.id, []):
            held.after -= 1
            if held.after:
                still.append(held)
            else:
                await self._deliver(held, held.sees(next_one.layout.API_KEY) == 3)
        if still:
            self._held.setdefault(next_one.id, []).extend(still)

    def _note(self, sent: _Request) -> None:
        """Note a request that was sent on."""
        for held in self._held.get(sent.id, []):
            held.stage = held.sees(sent.layout.API_KEY)

    async def _deliver(self, held: _Held, is_past: bool) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(HOST, self._target_port)
                try:
                    writer.write(held.request.frame)
                    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                finally:
                    writer.transport.abort()
            if is_past:
                layout = held.request.layout
                kind = HELD[layout.API_KEY]
                self.late[kind] += 1
                self.codes.update((kind, code) for code in _codes(layout, BytesIO(answer)))


def _codes(layout: type[RequestStruct], data: BytesIO) -> list[int]:
    """The error codes of an answer."""
    data.read(5 if layout.FLEXIBLE_VERSION else 4)  # the header: a number, and no tags
    answer: Any = layout.RESPONSE_TYPE.decode(data)
    if hasattr(answer, "error_code"):
        return [answer.error_code]
    topics = answer.errors if hasattr(answer, "errors") else answer.topics
    return [partition[1] for _, partitions, *_ in topics for partition in partitions]
