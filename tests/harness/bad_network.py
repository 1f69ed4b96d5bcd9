"""A proxy between clients and a broker that cuts, delays and is silent, as a seed says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.harness.brokers import NEVER_KILLED
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import NODE_ID, free_port
from timers.cli.broker.process import HOST

LONGEST_SILENCE_S = 12.0
LONGEST_CALM_S = 3.0
LONGEST_DELAY_S = 1.0
BUFFER = 65_536


class BadNetwork:
    """Forwards connections to ``target_port``; good until :meth:`begin`, and again after :meth:`end`.

    Its troubles come one after another, with calm seconds between them: all connections are cut; new ones are cut at
    once for some seconds; bytes are late; nothing passes for up to :data:`LONGEST_SILENCE_S`, and then all of it does,
    or the connections are cut. Each concerns all connections or half of them.

    Attributes:
        port: where clients connect.
        troubles: how many there were.
    """

    def __init__(self, target_port: int, port: int) -> None:
        self.port = port
        self.troubles = 0
        self._target_port = target_port
        self._connections: set[Connection] = set()
        self._is_refusing = False
        self._trouble: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bad-network", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def begin(self, seed: int) -> None:
        """Let the troubles begin."""

        async def start() -> None:
            self._trouble = asyncio.ensure_future(self._make_trouble(random.Random(seed)))

        self._call(start())

    def end(self) -> None:
        """Let all bytes pass from now on."""

        async def stop() -> None:
            if self._trouble is not None:
                self._trouble.cancel()
                await asyncio.gather(self._trouble, return_exceptions=True)

        self._call(stop())

    def close(self) -> None:
        """Stop listening, and cut all connections."""

        async def stop() -> None:
            self._server.close()
            for connection in list(self._connections):
                connection.cut()

        self.end()
        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, HOST, self.port, limit=BUFFER)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection(HOST, self._target_port, limit=BUFFER)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(writer, to_writer)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._send_on(connection, reader, to_writer), self._send_back(connection, to_reader, writer)
            )
        finally:
            self._connections.discard(connection)
            connection.cut()

    async def _send_on(
        self, connection: Connection, reader: asyncio.StreamReader, to_writer: asyncio.StreamWriter
    ) -> None:
        """Send what a client sends on to the broker, until one of them closes the connection."""
        await connection.forward(reader, to_writer)

    async def _send_back(
        self, connection: Connection, to_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send what the broker answers back to the client, until one of them closes the connection."""
        await connection.forward(to_reader, writer)

    async def _make_trouble(self, draw: random.Random) -> None:
        kinds = [self._cut, self._refuse, self._delay, self._silence, self._silence]
        try:
            while True:
                each_in = draw.choice([1, 2])
                concerned = [one for one in sorted(self._connections, key=id) if draw.randrange(each_in) == 0]
                await draw.choice(kinds)(draw, concerned)
                self.troubles += 1
                await asyncio.sleep(draw.uniform(0.0, LONGEST_CALM_S))
        finally:
            self._is_refusing = False
            for connection in self._connections:
                connection.be_good()

    async def _cut(self, draw: random.Random, concerned: list[Connection]) -> None:
        for connection in concerned:
            connection.cut()

    async def _refuse(self, draw: random.Random, concerned: list[Connection]) -> None:
        self._is_refusing = True
        await self._cut(draw, concerned)
        await asyncio.sleep(draw.uniform(0.5, LONGEST_CALM_S))
        self._is_refusing = False

    async def _delay(self, draw: random.Random, concerned: list[Connection]) -> None:
        for connection in concerned:
            connection.delay_s = draw.uniform(0.05, LONGEST_DELAY_S)
        await asyncio.sleep(draw.uniform(0.5, LONGEST_SILENCE_S))
        for connection in concerned:
            connection.be_good()

    async def _silence(self, draw: random.Random, concerned: list[Connection]) -> None:
        for connection in concerned:
            connection.may_pass.clear()
        await asyncio.sleep(draw.uniform(0.5, LONGEST_SILENCE_S))
        if draw.random() < 0.5:
            await self._cut(draw, concerned)
        for connection in concerned:
            connection.be_good()


class Connection:
    """One connection, with its two directions."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.delay_s = 0.0
        self.may_pass = asyncio.Event()
        self.may_pass.set()

    def be_good(self) -> None:
        self.delay_s = 0.0
        self.may_pass.set()

    def cut(self) -> None:
        self.may_pass.set()
        for writer in self._writers:
            writer.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(BUFFER):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self.may_pass.wait()
                writer.write(data)
                await writer.drain()
        self.cut()


class DistantBroker:
    """An embedded broker with a second listener, whose clients reach it through a bad network only.

    Attributes:
        address: of the good listener.
        network: between the second listener and its clients.
    """

    def __init__(self, directory: Path, network: type[BadNetwork] = BadNetwork) -> None:
        port, inner, proxied, controller = (free_port() for _ in range(4))
        properties = {
            **NEVER_KILLED,
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{port},DISTANT://{HOST}:{inner},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port},DISTANT://{HOST}:{proxied}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,DISTANT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        self.embedded = EmbeddedBroker(directory, port, properties)
        self.address = self.embedded.start()
        self.network = network(inner, proxied)

    @property
    def distant_address(self) -> str:
        """Address of the broker behind the bad network."""
        return f"{HOST}:{self.network.port}"

    def stop(self) -> None:
        self.network.close()
        self.embedded.stop()
