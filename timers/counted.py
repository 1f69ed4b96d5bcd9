"""How a number and what it counts are written in messages for people."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """``1 timer``, ``2 timers``, ``1,000 timers``.

    Args:
        what: one of them, whose plural ends in s.
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
