"""One request that passed all checks: its conditions, its entry in the log of changes, and the answer to it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from timers.console.access import Access, Principal
from timers.console.kafka_cluster import KafkaCluster
from timers.console.problems import Problem
from timers.console.routes import Route
from timers.console.signer import Signer
from timers.core.operation import ABSENT
from timers.core.printable import quoted, utc_text
from timers.errors import TimersError
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire.topics import parse_source

CONFIRMATION_VALID_S = 600.0
"""How long a confirmation is valid."""


BODY_S = 60.0
"""Time for the body of a request."""


@dataclass(frozen=True)
class ConsoleContext:
    """What the handlers of all requests share."""

    settings: Settings
    cluster: KafkaCluster
    access: Access
    signer: Signer
    streams: Counter[str] = field(default_factory=Counter)
    """User -> streams that are open."""

    def now_s(self) -> float:
        """Epoch seconds of this machine's clock; cursors end by it, and delays begin."""
        return Clock().now_s()


@dataclass(frozen=True)
class Call:
    """A request: its user may send it, and its parameters are as the table of routes says."""

    console: ConsoleContext
    request: web.Request
    route: Route
    user: Principal
    parameters: Mapping[str, Any]
    body: Mapping[str, Any]
    base_path: str
    address: str
    """Where the request comes from; behind a proxy, the address that the proxy names."""

    def check_topic(self, topic: str | None, what: str) -> None:
        """Refuse what a user asks for who may not use this callback topic; None: no topic is named."""
        if topic is not None and not self.user.may_use_topic(topic):
            raise Problem("topic-forbidden", f"you may not {what} topic {quoted(topic)}")


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


IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY = "If-Match", "If-None-Match", "Idempotency-Key"

CONDITION_HEADERS = (IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY, "If-Unmodified-Since")
"""Headers that must not be ignored: a change without its condition is another change."""

_ETAGS = re.compile(r'\*|(W/)?"[^"]*"([ \t]*,[ \t]*(W/)?"[^"]*")*')
"""Values of these headers that HTTP knows."""

_KEY = re.compile(r"[ -~]{1,255}")


def mark_of(user: Principal, key: str, body: Mapping[str, Any]) -> str:
    """The value of a record's header: which key and which body a request came with, as ``<hash>/<hash>``."""
    return f"{_sha256([user.name, key])}/{_sha256(body)}"


def _code(text: str) -> str:
    """The code of the problem of a header that is none of those that the engine judges."""
    return "condition-unsupported" if _ETAGS.fullmatch(text) else "parameter-invalid"


def condition_of(request: web.Request) -> str | None:
    """The condition of a request, as the header ``timer-if`` has it; None: it has none.

    Raises:
        Problem: it is wrong, or the engine cannot judge it, or it names what no version has.
    """
    given = [name for name in (IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY) if name in request.headers]
    if len(given) > 1:
        raise Problem("parameter-invalid", f"{' and '.join(given)} are two conditions: send one of them")
    if given in ([], [IDEMPOTENCY_KEY]):
        return None
    text = _only(request, given[0])
    if given == [IF_NONE_MATCH]:
        if text != "*":
            raise Problem(_code(text), f"{IF_NONE_MATCH} of a change is *, not {quoted(text[:100])}")
        return ABSENT
    tag = re.fullmatch(r'(W/)?"([^"]*)"', text)
    if tag is None:
        raise Problem(_code(text), f"{IF_MATCH} names one ETag, in quotes, and not {quoted(text[:100])}")
    if tag[1] or parse_source(tag[2]) is None:
        raise Problem("changed", f"no version of a timer has the ETag {text[:100]}")
    return tag[2]


def idempotency_key(request: web.Request) -> str | None:
    if IDEMPOTENCY_KEY not in request.headers:
        return None
    key = _only(request, IDEMPOTENCY_KEY)
    if not _KEY.fullmatch(key):
        raise Problem("parameter-invalid", f"{IDEMPOTENCY_KEY} is not 1 to 255 printable ASCII characters")
    return key


def id_of(user: Principal, mark: str) -> str:
    """The id of the timer that is set with a key."""
    return f"{_own_prefix(user)}{mark.partition('/')[0]}"


def is_own(user: Principal, id: str) -> bool:
    """Whether a key of this user made the id."""
    return id.startswith(_own_prefix(user))


def _own_prefix(user: Principal) -> str:
    return f"key-{_sha256(user.name)[:16]}-"


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _only(request: web.Request, name: str) -> str:
    values = request.headers.getall(name)
    if len(values) > 1:
        raise Problem("parameter-invalid", f"{name} is given twice")
    return values[0].strip()


_MAX_FIELDS = 30
_MAX_LISTED = 500_000
"""Characters of what is recorded of a batch; of a larger one its length and its hash."""

_MAX_CHARACTERS = 1000
"""A longer key or name is recorded by its length and its hash."""


async def record(call: Call, ids: list[str] | None = None) -> None:
    """Write the entry of a change; ``ids``: of the timers that a step changes.

    Raises:
        Problem: it could not be written, so the change must not be made.
    """
    ids = ids or _made_ids(call)
    fields = entry(call, call.console.now_s()) | ({"ids": ids} if ids else {})
    try:
        await call.console.cluster.record(json.dumps(fields).encode())
    except TimersError as error:
        raise Problem("not-recorded", f"the log of changes cannot be written, so nothing was done: {error}") from None


def _made_ids(call: Call) -> list[str]:
    """The id that an ``Idempotency-Key`` makes."""
    key = idempotency_key(call.request) if call.route.name == "setTimer" and call.body.get("id") is None else None
    return [] if key is None else [id_of(call.user, mark_of(call.user, key, call.body))]


def entry(call: Call, now_s: float) -> dict[str, Any]:
    """The entry of a change."""
    headers = call.request.headers
    return {
        "at": utc_text(int(now_s)),
        "at_ms": int(now_s * 1000),
        "user": call.user.name,
        "address": call.address,
        **({"proxy": call.request.remote} if call.request.remote != call.address else {}),
        "operation": call.route.name,
        "parameters": dict(call.parameters),
        "conditions": {each.name: headers[each.name][:300] for each in call.route.headers if each.name in headers},
        "body": _shown(call.body),
    }


_LISTED = ("id", "topic", "at", "delay")
"""What is recorded of each timer of a batch."""

_HIDDEN = ("value", "headers", "token", "timers")
"""Fields that may hold values of callbacks, or secrets."""


def _shown(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body; those that may hold values or secrets, and long ones, by their length and hash."""
    shown: dict[str, Any] = {}
    for name in [*[name for name in body if name not in _HIDDEN][:_MAX_FIELDS], *[n for n in _HIDDEN if n in body]]:
        text = json.dumps(body[name], sort_keys=True).encode()
        is_hidden = name in _HIDDEN or len(text) > _MAX_CHARACTERS
        hashed = {"json_bytes": len(text), "json_sha256": hashlib.sha256(text).hexdigest()}
        shown[name[:_MAX_CHARACTERS]] = hashed if is_hidden else body[name]
    if isinstance(timers := body.get("timers"), list):  # of a batch
        listed = [{name: each[name] for name in _LISTED if name in each} for each in timers if isinstance(each, dict)]
        if len(json.dumps(listed)) <= _MAX_LISTED:
            shown["timers"]["listed"] = listed
    return shown
