"""Random events of machines."""

from typing import Any, TypeAlias

from hypothesis import strategies as st

Event: TypeAlias = tuple[str, Any]
"""What happens to a machine, and its argument."""

FETCH = st.tuples(st.just("fetch"), st.integers(1, 6))
FLOW = st.tuples(st.sampled_from(["chunk", "commit"]), st.none())
TROUBLE = st.tuples(st.sampled_from(["lost", "restart", "lose disk"]), st.none())


def events(*kinds: st.SearchStrategy[Event], at_most: int = 50) -> st.SearchStrategy[list[Event]]:
    """Lists long enough for something to happen, which Hypothesis' own are not, and short ones to shrink to."""
    event = st.one_of(*kinds)
    return st.one_of(st.lists(event, min_size=20, max_size=at_most), st.lists(event, max_size=20))
