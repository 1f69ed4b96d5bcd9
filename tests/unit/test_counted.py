"""Messages say `1 timer` and `2 timers`."""

import pytest

from timers.process.counted import counted, duration, pace, per_second


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


@pytest.mark.parametrize(
    ("number", "seconds", "said"),
    [
        *((50, 600, "1 in 12 s"), (1, 600, "1 in 10 min"), (200, 300, "1 in 1.5 s"), (0, 600, "0 a second")),
        *((600, 600, "1 a second"), (930, 300, "3.1 a second"), (2_000_000, 600, "3,333 a second")),
    ],
)
def test_a_slow_release_is_said_by_its_gap(number: int, seconds: int, said: str) -> None:
    assert pace(number, seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0s"), (90, "1m30s"), (600, "10m"), (863_913_600, "9999d"), (90_061, "1d1h1m1s")]
)
def test_a_duration_is_said_as_options_take_it(seconds: int, said: str) -> None:
    assert duration(seconds) == said
