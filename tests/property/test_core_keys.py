"""Order keys: byte order is timer order."""

from hypothesis import given
from hypothesis import strategies as st

from timers.core import keys

KEYS = st.tuples(
    st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 255, 256, 2**32, 99_999_999_999])),
    st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 255, 256, keys.MAX_OFFSET])),
)


@given(KEYS)
def test_a_key_comes_back(key: keys.OrderKey) -> None:
    assert keys.decode(keys.encode(key)) == key
    assert len(keys.encode(key)) == 16


@given(KEYS, KEYS)
def test_bytes_sort_as_keys_do(one: keys.OrderKey, other: keys.OrderKey) -> None:
    assert (keys.encode(one) < keys.encode(other)) == (one < other)
    assert (keys.encode(one) == keys.encode(other)) == (one == other)


@given(KEYS)
def test_never_is_below_every_key(key: keys.OrderKey) -> None:
    assert key > keys.NOTHING_FIRED


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 2))
def test_max_offset_stands_after_every_offset_of_its_second(due_s: int, offset: int) -> None:
    assert (due_s, offset) < (due_s, keys.MAX_OFFSET) < (due_s + 1, 0)
