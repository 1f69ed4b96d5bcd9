"""One request that passed all checks, and the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from timers.clock import Clock
from timers.config.settings import Settings
from timers.console.kafka_cluster import KafkaCluster
from timers.console.problems import Problem
from timers.console.routes import Route
from timers.console.signing import Signer
from timers.console.users import Principal

BODY_S = 60.0
"""Time for the body of a request."""


@dataclass(frozen=True)
class Console:
    """What all handlers share."""

    settings: Settings
    cluster: KafkaCluster
    signer: Signer

    def now_s(self) -> float:
        """Epoch seconds of this machine's clock; cursors end by it, and delays begin."""
        return Clock().now_s()


@dataclass(frozen=True)
class Call:
    """A request: its user may send it, and its parameters are as the table of routes says."""

    console: Console
    request: web.Request
    route: Route
    user: Principal
    parameters: Mapping[str, Any]
    body: Mapping[str, Any]
    base_path: str
    address: str
    """Where the request comes from; behind a proxy, the address that the proxy names."""


@dataclass(frozen=True)
class Reply:
    """An answer with JSON, or with bytes of another type."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


async def whole_body(request: web.Request) -> bytes:
    """The bytes of a request's body.

    Raises:
        Problem: they are not what its headers say, the connection ended first, or it took longer than BODY_S.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except (web.RequestPayloadError, BadHttpMessage, ConnectionError, TimeoutError) as error:
        why = f"the body does not end, or is not encoded as its headers say ({type(error).__name__})"
        raise Problem("parameter-invalid", why) from None


Handler: TypeAlias = Callable[[Call], Awaitable[Reply | web.StreamResponse]]
