"""What holds hold of a group of rows is what they hold of each row."""

from hypothesis import given
from hypothesis import strategies as st

from timers.core.fired import NOISY, PAUSE, Hold, Holds, Hole, Moment
from timers.core.keys import NOTHING_FIRED
from timers.core.timer import Row

OFFSETS = st.integers(0, 12)
KEYS = st.tuples(st.integers(99, 101), OFFSETS)
MOMENTS = st.builds(Moment, OFFSETS, KEYS, st.integers(0, 2))
HOLDS = st.builds(
    Hold,
    target=st.sampled_from("ab"),
    reason=st.sampled_from([PAUSE, NOISY]),
    number=st.just(1),
    begin=MOMENTS,
    since_s=st.just(99),
    end=st.none() | MOMENTS,
    released=st.just(NOTHING_FIRED) | KEYS,
)
ROWS = st.lists(st.tuples(OFFSETS, st.sampled_from("abc")), min_size=1, max_size=8, unique_by=lambda row: row[0])


@given(st.lists(HOLDS, max_size=3), st.lists(st.builds(Hole, OFFSETS, KEYS), max_size=2), ROWS)
def test_a_group_is_held_as_are_its_rows(holds: list[Hold], holes: list[Hole], drawn: list[tuple[int, str]]) -> None:
    known = Holds(holds)
    rows: list[Row] = [(offset, target, None, b"", None, None) for offset, target in sorted(drawn)]
    assert known.held(100, rows, holes) == [row for row in rows if known.of((100, row[0]), row[1], holes) is not None]
