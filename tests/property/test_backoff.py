"""Delays between the attempts of a message."""

from hypothesis import given, settings
from hypothesis import strategies as st

from timers.client.retry import Backoff


@settings(deadline=None)  # a busy machine may need any time
@given(st.integers(1, 10**5), st.floats(0, 100), st.floats(1, 10), st.floats(0, 1), st.floats(0, 1))
def test_delays_are_limited_and_jitter_only_shortens_them(
    attempt: int, first_s: float, factor: float, jitter: float, chance: float
) -> None:
    backoff = Backoff(first_s, factor, most_s=1000, jitter=jitter)
    whole = backoff.delay_s(attempt)
    assert min(first_s, 1000) <= whole <= 1000
    assert whole * (1 - jitter) - 1e-9 <= backoff.delay_s(attempt, chance) <= whole
