"""Declares one setting: a dataclass field with the parser, the unit and the reason of its variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from timers.config import variables


def setting(
    parse: Callable[[str, str], Any],
    why: str,
    *,
    default: Any = None,
    unit: str = "",
    env: str = "",
    may_be_empty: bool = False,
) -> Any:
    """A setting. Its variable is ``TIMERS_`` and its name in capitals, if ``env`` gives no other one."""
    metadata = {"env": env, "unit": unit, "why": why, "parse": parse, "may_be_empty": may_be_empty}
    return field(default=default, metadata=metadata)


def whole_number(bounds: tuple[int, int], why: str, *, default: int, unit: str = "", example: int | None = None) -> Any:
    """A setting that is a whole number within ``bounds``. Errors suggest ``example``, or else the default."""
    parse = variables.whole_number(*bounds, default if example is None else example)
    return setting(parse, why, default=default, unit=unit)
