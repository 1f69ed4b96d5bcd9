"""``If-Match``, ``If-None-Match`` and ``Idempotency-Key``: what a request with one of them asks of the engine.

The engine judges all of them, as the condition of a request for a timer with an id (:mod:`timers.core.only_if`). A key
becomes an id, which nothing but the same user with the same key makes. A second request of this id is refused; whether
it has the same body as the first one, a header of the first one says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiohttp import web

from timers.console.problems import Problem
from timers.console.users import Principal
from timers.core.operation import ABSENT
from timers.wire.printable import quoted
from timers.wire.topics import parse_source

IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY = "If-Match", "If-None-Match", "Idempotency-Key"

ALL = (IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY, "If-Unmodified-Since")
"""Headers that must not be ignored: a change without its condition is another change."""

_ETAGS = re.compile(r'\*|(W/)?"[^"]*"([ \t]*,[ \t]*(W/)?"[^"]*")*')
"""Values of these headers that HTTP knows."""

_KEY = re.compile(r"[ -~]{1,255}")


class Mark(NamedTuple):
    """Which key and which body a request came with, as hashes."""

    key: str
    body: str

    @classmethod
    def of(cls, user: Principal, key: str, body: Mapping[str, Any]) -> Mark:
        return cls(_sha256([user.name, key]), _sha256(body))

    @classmethod
    def decode(cls, value: bytes) -> Mark:
        """The mark in a record's header. Inverse: :meth:`encode`."""
        key, _, body = value.decode("ascii", "replace").partition("/")
        return cls(key, body)

    def encode(self) -> bytes:
        return f"{self.key}/{self.body}".encode()


def _code(text: str) -> str:
    """The code of the problem of a header that is none of those that the engine judges."""
    return "condition-unsupported" if _ETAGS.fullmatch(text) else "parameter-invalid"


def condition(request: web.Request) -> str | None:
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
    """The key of a request; None: it has none."""
    if IDEMPOTENCY_KEY not in request.headers:
        return None
    key = _only(request, IDEMPOTENCY_KEY)
    if not _KEY.fullmatch(key):
        raise Problem("parameter-invalid", f"{IDEMPOTENCY_KEY} is not 1 to 255 printable ASCII characters")
    return key


def id_of(user: Principal, mark: Mark) -> str:
    """The id of the timer that is set with a key."""
    return f"{_own_prefix(user)}{mark.key}"


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
