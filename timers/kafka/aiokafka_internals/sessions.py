"""Logs aiokafka's connections in again before their session at the broker ends.

A broker with ``connections.max.reauth.ms`` ends a session after this time, or when its token ends if that is earlier:
it closes the connection at the next request (KIP-368). aiokafka connects again, but only after requests on their way
have failed: a worker that commits a transaction does not know whether it counts, and opens its producer anew. So a
connection logs in again, as Kafka's Java client does, at :data:`AGAIN_AT` of the time that the broker has stated.
Requests that are made meanwhile follow the login; those on their way are answered before it. A login without a token
is tried again until the broker closes the connection.

This module relies on:

==========================================================  ==========================================================
``aiokafka.conn.AIOKafkaConnection``                        looked up by that name for each connection
``AIOKafkaConnection.send(request, expect_response)``       called for each request; returns an awaitable of its answer
``AIOKafkaConnection._do_sasl_handshake()``                 logs in, by ``send``; raises what keeps it from that
``AIOKafkaConnection.close(reason, exc)``, ``connected()``  called at each end
``AIOKafkaConnection._writer``                              the stream; None before and after the connection
``_sasl_oauth_token_provider``                              the argument of this name
``SaslHandShakeRequest``, ``SaslAuthenticateRequest``       the requests of a login; the answer to the second one has
                                                            ``session_lifetime_ms``, 0 without an end
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from aiokafka import conn
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

logger = logging.getLogger(__name__)

AGAIN_AT = 0.8
"""Share of a session after which a connection logs in again: later than a token is renewed (``RENEW_AT`` there)."""

PAUSE_S = 1.5
"""Least time between two logins of a connection. A broker refuses a second one within a second."""


CLOSE_S = 2.0
"""After this time a connection is cut that cannot be closed in order: one with TLS waits 30 s for a broker that is
frozen, and one without TLS until the broker has taken what was sent, without a limit."""

END_S = 3.0
"""Half of the time that :func:`end_in_time` waits."""


async def end_in_time(closing: Coroutine[Any, Any, None]) -> None:
    """Wait for a call that closes something of aiokafka, but for at most 6 s, whatever it raises.

    aiokafka cancels its tasks and waits for their end. One that is just waiting for another task, or has just got its
    answer, may miss this cancel and go on: a second cancel ends the wait. And CancelledError of such a task comes out
    of the call, which the caller must not take for its own.
    """
    task = asyncio.ensure_future(closing)
    for _ in range(2):
        if (await asyncio.wait({task}, timeout=END_S))[0]:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("a client was not closed in order", exc_info=error)
            return
        task.cancel()


NEXT_S = 0.3
"""An address that has not answered for this time is no longer waited for alone."""


async def bootstrapped(arguments: Mapping[str, Any]) -> AIOKafkaClient:
    """A client that knows the brokers from the first of its addresses that answers.

    aiokafka itself asks one address after the other, and waits 40 s for one that is silent.

    Raises:
        KafkaError: no address answers.
    """
    addresses = list(arguments["bootstrap_servers"])
    asked: dict[asyncio.Task[None], AIOKafkaClient] = {}
    try:
        while True:
            if addresses:
                client = AIOKafkaClient(**{**arguments, "bootstrap_servers": addresses.pop(0)})
                asked[asyncio.create_task(client.bootstrap())] = client
            wait_s = NEXT_S if addresses else None
            for task in (await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                client = asked.pop(task)
                error = task.exception()
                if error is None:
                    return client
                await end_in_time(client.close())
                if not asked and not addresses:
                    raise error
    finally:
        for task, client in asked.items():
            task.cancel()
            await end_in_time(client.close())


def keep_logged_in() -> None:
    """From now on all connections of aiokafka in this process log in again before their session ends."""
    conn.AIOKafkaConnection = Connection
    conn.log.addFilter(_is_no_login)


def _is_no_login(record: logging.LogRecord) -> bool:
    """A filter that drops aiokafka's DEBUG records of login requests: they contain passwords and tokens."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(type(argument).__name__.startswith("SaslAuthenticate") for argument in arguments)


class Connection(AIOKafkaConnection):
    """A connection that logs in again before its session ends."""

    _session_s = 0.0
    """Stated at the last login; 0 without an end."""
    _next_login: asyncio.TimerHandle | None = None
    _login: asyncio.Task[None] | None = None  # asyncio itself keeps no task alive
    _held: asyncio.Future[None] | None = None
    """Done after the login that runs; other requests wait for it."""

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        """Send a request, after a login that runs."""
        if isinstance(request, SaslAuthenticateRequest):
            return self._noting_session(super().send(request, expect_response))
        if self._held is None or isinstance(request, SaslHandShakeRequest):
            sent: Awaitable[Any] = super().send(request, expect_response)
            return sent
        return self._send_after(self._held, request, expect_response)

    async def _noting_session(self, answer: Awaitable[Any]) -> Any:
        response = await answer
        self._session_s = getattr(response, "session_lifetime_ms", 0) / 1000
        return response

    async def _send_after(self, login: asyncio.Future[None], request: Any, expect_response: bool) -> Any:
        await asyncio.shield(login)
        return await self.send(request, expect_response)

    async def _do_sasl_handshake(self) -> None:
        await super()._do_sasl_handshake()
        self._log_in_after(AGAIN_AT * self._session_s)

    def _log_in_after(self, pause_s: float) -> None:
        if self._session_s and self.connected():
            self._next_login = self._loop.call_later(max(PAUSE_S, pause_s), self._begin)

    def _begin(self) -> None:
        self._login = asyncio.ensure_future(self._log_in_again())

    async def _log_in_again(self) -> None:
        try:
            # After the first request of a login the broker takes nothing but the second one, which has the token.
            if self._sasl_oauth_token_provider is not None:
                await self._sasl_oauth_token_provider.token()
        except KafkaError:  # the source of tokens has logged it
            self._log_in_after(PAUSE_S)
            return
        if not self.connected():
            return
        self._held = self._loop.create_future()
        try:
            await self._do_sasl_handshake()
        except Exception as error:
            if self.connected():
                logger.warning("broker %s:%s: a login failed, and its session ends: %s", self.host, self.port, error)
                self.close(reason=CloseReason.AUTH_FAILURE, exc=error)
        finally:
            held, self._held = self._held, None
            held.set_result(None)

    def close(self, reason: CloseReason | None = None, exc: BaseException | None = None) -> Any:
        """Close the connection."""
        if self._next_login is not None:
            self._next_login.cancel()
        writer, closed = self._writer, super().close(reason, exc)
        if writer is not None:
            cut = self._loop.call_later(CLOSE_S, writer.transport.abort)
            closed.add_done_callback(lambda _: cut.cancel())
        return closed
