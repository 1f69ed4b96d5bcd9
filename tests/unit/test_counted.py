"""Messages say `1 timer` and `2 timers`."""

from __future__ import annotations

import pytest

from timers.counted import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 timers"), (1, "1 timer"), (2, "2 timers"), (1_000_000, "1,000,000 timers")]
)
def test_one_is_singular(number: int, said: str) -> None:
    assert counted(number, "timer") == said
