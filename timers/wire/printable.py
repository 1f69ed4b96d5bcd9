"""Turns bytes of records into text for a terminal or for JSON."""

from __future__ import annotations

import base64
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(data: bytes | None) -> str:
    """Return the bytes as text, with line breaks and control characters escaped; ``null`` for None."""
    if data is None:
        return "null"
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], data.decode("utf-8", "backslashreplace"))


def json_value(data: bytes | None) -> str | dict[str, str] | None:
    """Return the bytes as a JSON string, or as ``{"base64": ...}`` if they are not UTF-8; None for None."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
