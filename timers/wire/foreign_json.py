"""Decodes JSON that another program may have written."""

from __future__ import annotations

import json
from typing import Any


def decode(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON in UTF-8, or it is nested more deeply than Python's parser can read.
    """
    try:
        # Python's parser would guess the encoding of bytes, and take halves of surrogate pairs in them.
        return json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
