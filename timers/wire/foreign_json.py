"""Decodes JSON that another program may have written."""

from __future__ import annotations

import json
from typing import Any


def decode(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or it is nested more deeply than Python's parser can read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
