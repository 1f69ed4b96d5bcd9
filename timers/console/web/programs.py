"""The same timer for a shell and for Python, ready to be copied. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from timers.client.times import parse_duration
from timers.errors import InvalidTimerError
from timers.wire.printable import printable_json


def of(body: Mapping[str, Any], base_url: str) -> dict[str, str]:
    """``curl`` and ``python`` that set the timer with this body."""
    return {"curl": curl(body, base_url), "python": python(body)}


def curl(body: Mapping[str, Any], base_url: str) -> str:
    """A line for a shell."""
    text = printable_json(json.dumps(dict(body), ensure_ascii=False))
    url = shlex.quote(f"{base_url}/v1/timers")
    return f"curl -X POST {url} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(text)}"


def python(body: Mapping[str, Any]) -> str:
    """A program with the client library."""
    arguments = [repr(body.get(name)) for name in ("topic", "key", "value")]
    at = body.get("at", "")
    is_instant = bool(at) and not at.isdigit()
    if "delay" in body:
        arguments.append(f"delay={_seconds(body['delay'])}")
    elif at:
        arguments.append(f"at=datetime.fromisoformat({at!r})" if is_instant else f"at={at}")
    arguments += [f"{name}={body[name]!r}" for name in ("token", "id") if name in body]
    lines = ["from datetime import datetime", ""] if is_instant else []
    lines += ["from timers.client import TimersClient", "", "with TimersClient() as client:"]
    return "\n".join([*lines, f"    client.schedule({', '.join(arguments)})"])


def _seconds(text: str) -> str:
    try:
        return str(parse_duration(text))
    except InvalidTimerError:
        return repr(text)
