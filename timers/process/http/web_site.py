"""Listens for an application of aiohttp, with a limit of its connections and of the time for a request's head.

aiohttp has neither: it waits an hour for the rest of a head, on as many connections as there are files.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from timers.process.hosts import in_url
from timers.process.http.open_connections import OpenConnections

_BACKLOG = 1024
"""Connections that the kernel accepts before the process does."""

_PAUSE_S = 0.05
"""After a connection that could not be accepted. Without a file for it, it stays first in the kernel's queue."""


def limited(application: web.Application, connections: OpenConnections) -> web.Application:
    """Returns ``application``, which tells ``connections`` when it begins and ends to answer."""

    @web.middleware
    async def note(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connections.answering(request.protocol)
        try:
            return await handler(request)
        finally:
            connections.answered(request.protocol)

    application.middlewares.insert(0, note)
    return application


class LimitedSite(web.BaseSite):
    """Listens at one address. Its runner's application is one of :func:`limited`, with the same ``connections``."""

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        connections: OpenConnections,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context)
        self._host, self._port = host, port
        self._connections = connections
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """The address."""
        return f"http{'' if self._ssl_context is None else 's'}://{in_url(self._host)}:{self._port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is in use, or is not of this machine.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        await super().start()
        self._begin(self._accept(listener))
        self._begin(self._close_late())

    async def stop(self) -> None:
        """Stop listening. The runner closes the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().stop()

    def _begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError:  # too many open files, or the caller has gone
                    self._connections.close_oldest()
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._serve(accepted)
                await asyncio.sleep(0)  # accepting alone would not let the event loop read

    def _serve(self, accepted: socket.socket) -> None:
        server = self._runner.server
        assert server is not None, "the runner is set up"
        connection = _Connection(server(), self._connections)
        connecting = self._begin(self._connect(connection, accepted))

        def close() -> None:
            if connection.transport is None:
                connecting.cancel()
            else:
                connection.transport.abort()

        self._connections.opened(connection.handler, close)

    async def _connect(self, connection: _Connection, accepted: socket.socket) -> None:
        tls = self._ssl_context
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=self._connections.head_s if tls else None
            )
        except BaseException as error:
            self._connections.lost(connection.handler)
            accepted.close()
            if not isinstance(error, OSError):  # a handshake that failed is the caller's trouble
                raise

    async def _close_late(self) -> None:
        while True:
            await asyncio.sleep(self._connections.head_s / 10)
            self._connections.close_late()


class _Connection(asyncio.Protocol):
    """A connection of aiohttp, which tells when bytes come and when it is lost."""

    def __init__(self, handler: web.RequestHandler, connections: OpenConnections) -> None:
        self.handler = handler
        self.transport: asyncio.Transport | None = None
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._connections.received(self.handler)
        self.handler.data_received(data)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.lost(self.handler)
        self.handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()
