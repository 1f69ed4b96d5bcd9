"""The pace of a backlog, for any requests at any times."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from timers.core.limits import Pace

PER_S = st.integers(1, 50)
ASKED = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 120)), max_size=30)
"""(seconds that pass, timers)"""


@given(PER_S, ASKED)
def test_every_timer_gets_a_second_and_no_second_too_many(per_s: int, asked: list[tuple[int, int]]) -> None:
    pace, now_s, given_out = Pace(per_s), 1000, Counter[int]()
    for passed_s, count in asked:
        now_s += passed_s
        shares = list(pace.spread(now_s, count))
        assert sum(some for _, some in shares) == count
        assert all(second >= now_s and some > 0 for second, some in shares)
        given_out.update(dict(shares))
    assert all(count <= per_s for count in given_out.values())


@given(PER_S, ASKED, st.integers(0, 200))
def test_no_room_is_wasted_while_there_is_a_backlog(per_s: int, asked: list[tuple[int, int]], backlog: int) -> None:
    pace = Pace(per_s)
    total = sum(count for _, count in asked) + backlog
    seconds = [second for _, count in [*asked, (0, backlog)] for second, _ in pace.spread(1000, count)]
    assert set(seconds) == set(range(1000, 1000 - (-total // per_s)))


@given(PER_S, st.integers(1, 1000), st.integers(0, 999))
def test_when_the_clock_was_set_back_the_count_starts_anew(per_s: int, count: int, back_s: int) -> None:
    pace = Pace(per_s)
    list(pace.spread(1000, count))
    if back_s < 999:
        assert next(pace.spread(back_s, 1)) == (back_s, 1)
