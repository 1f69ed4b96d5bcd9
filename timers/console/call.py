"""One request that passed all checks, and the answer to it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import secrets
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
from timers.console.users import Principal
from timers.errors import SettingsError

_MIN_SECRET_BYTES = 32
_MAX_SECRET_BYTES = 64 * 1024

CONFIRM_S = 600.0
"""How long a confirmation is valid."""


class Signer:
    """Signs texts for one user, one purpose and a limited time.

    Raises:
        SettingsError: the secret is too short.
    """

    def __init__(self, settings: Settings) -> None:
        path = settings.console_secret_file
        if path is None:
            self._key = secrets.token_bytes(_MIN_SECRET_BYTES)
            return
        with path.open("rb") as file:
            self._key = file.read(_MAX_SECRET_BYTES).strip()
        if len(self._key) < _MIN_SECRET_BYTES:
            raise SettingsError(
                f"TIMERS_CONSOLE_SECRET_FILE={str(path)!r} has fewer than {_MIN_SECRET_BYTES} bytes "
                "(try: openssl rand -hex 32)"
            )

    def sign(self, purpose: str, user: Principal, content: Any, until_s: float) -> str:
        """A text that holds ``content`` until the epoch second ``until_s``."""
        payload = _base64(json.dumps([content, int(until_s)], separators=(",", ":")).encode())
        return f"{payload}.{self._signature(purpose, user, payload)}"

    def open(self, purpose: str, user: Principal, text: str, now_s: float) -> Any:
        """The content of a text that :meth:`sign` made for this purpose and user.

        Raises:
            Problem: it is another text, or its time is over.
        """
        payload, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(purpose, user, payload).encode()):
            raise Problem("cursor-invalid", f"this {purpose} was not made for you by this console")
        try:
            content, until_s = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (binascii.Error, ValueError):
            raise Problem("cursor-invalid", f"this {purpose} cannot be read") from None
        if now_s > until_s:
            raise Problem("cursor-invalid", f"this {purpose} is too old: begin again")
        return content

    def _signature(self, purpose: str, user: Principal, payload: str) -> str:
        text = json.dumps([purpose, user.name, payload]).encode()
        return _base64(hmac.digest(self._key, text, "sha256"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


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

HANDLERS: dict[str, Handler] = {}
"""Name of a route -> its handler; without those that are the server's own."""


def handles(route: str) -> Callable[[Handler], Handler]:
    """Make the function that follows the handler of a route."""

    def enter(handler: Handler) -> Handler:
        HANDLERS[route] = handler
        return handler

    return enter
