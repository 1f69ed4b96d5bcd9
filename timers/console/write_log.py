"""Records each change in the topic ``<app>-console-log``, before it is made: who, when and what.

A value is recorded by its length and its hash: the log may be read by more people than the timers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from timers.console.call import Call
from timers.console.problems import Problem
from timers.errors import TimersError
from timers.wire.query import format_due

_MAX_FIELDS = 30
_MAX_LISTED = 500_000
"""Characters of what is recorded of a batch; of a larger one its length and its hash."""

_MAX_CHARACTERS = 1000
"""A longer key or name is recorded by its length and its hash."""


async def record(call: Call) -> None:
    """Write the entry of a change.

    Raises:
        Problem: it could not be written, so the change must not be made.
    """
    await _write(call, entry(call, call.console.now_s()))


async def record_ids(call: Call, ids: list[str]) -> None:
    """Write the entry of a change of these timers. Raises as :func:`record`."""
    await _write(call, {**entry(call, call.console.now_s()), "ids": ids})


async def _write(call: Call, fields: dict[str, Any]) -> None:
    try:
        await call.console.cluster.record(json.dumps(fields).encode())
    except TimersError as error:
        raise Problem("not-recorded", f"the log of changes cannot be written, so nothing was done: {error}") from None


def entry(call: Call, now_s: float) -> dict[str, Any]:
    """The entry of a change."""
    headers = call.request.headers
    return {
        "at": format_due(int(now_s)),
        "at_ms": int(now_s * 1000),
        "user": call.user.name,
        "address": call.address,
        **({"proxy": call.request.remote} if call.request.remote != call.address else {}),
        "operation": call.route.name,
        "parameters": dict(call.parameters),
        "conditions": {each.name: headers[each.name][:300] for each in call.route.headers if each.name in headers},
        "body": _without_values(call.body),
    }


_LISTED = ("id", "topic", "at", "delay")
"""What is recorded of each timer of a batch."""

_HIDDEN = ("value", "headers", "token", "timers")
"""Fields that may hold values of callbacks, or secrets."""


def _without_values(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body without its value, token and headers. Sizes are limited: wrong bodies are recorded too."""
    names = [name for name in body if name not in _HIDDEN][:_MAX_FIELDS]
    shown = {name[:_MAX_CHARACTERS]: _shortened(body[name]) for name in names}
    hidden = {name: _hashed(body[name]) for name in _HIDDEN if name in body}
    if isinstance(timers := body.get("timers"), list):  # of a batch
        listed = [{name: each[name] for name in _LISTED if name in each} for each in timers if isinstance(each, dict)]
        if len(json.dumps(listed)) <= _MAX_LISTED:
            hidden["timers"]["listed"] = listed
    return {**shown, **hidden}


def _shortened(value: Any) -> Any:
    return value if len(json.dumps(value)) <= _MAX_CHARACTERS else _hashed(value)


def _hashed(value: Any) -> dict[str, Any]:
    text = json.dumps(value, sort_keys=True).encode()
    return {"json_bytes": len(text), "json_sha256": hashlib.sha256(text).hexdigest()}
