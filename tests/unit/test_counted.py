"""Messages say `1 timer` and `2 timers`."""

from __future__ import annotations

import pytest

from timers.process.counted import counted, per_second


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 timers"), (1, "1 timer"), (2, "2 timers"), (1_000_000, "1,000,000 timers")]
)
def test_one_is_singular(number: int, said: str) -> None:
    assert counted(number, "timer") == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(0, "0/s"), (0.004, "0.004/s"), (0.25, "0.25/s"), (3.14, "3.1/s"), (9.96, "10/s"), (1234.5, "1,234/s")],
)
def test_a_slow_rate_is_not_shown_as_none(rate: float, said: str) -> None:
    assert per_second(rate) == said
