"""How a number and what it counts are written in messages for people."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """``1 timer``, ``2 timers``, ``1,000 timers``.

    Args:
        what: one of them, whose plural ends in s.
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def per_second(rate: float) -> str:
    """``1,200/s``, ``3.1/s``, ``0.02/s``: a rate below 10 has two digits, so that a slow one is not shown as 0."""
    return f"{rate:,.0f}/s" if rate >= 10 or not rate else f"{float(f'{rate:.2g}'):.12g}/s"
