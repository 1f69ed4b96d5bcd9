"""The deal of partitions, case by case; ``tests/property/test_deals.py`` has random histories."""

from typing import Any

import pytest

from timers.core import levels
from timers.core.deals import OWNS, RAISED, STORES, SUPPORTS, Joined, deal, says_of_partitions

T = frozenset({"t"})


def member(
    owned: list[int] | None = None,
    stores: dict[int, int] | None = None,
    generation: int = 1,
    topic: str = "t",
    **sent: Any,
) -> Joined:
    """A reader of ``t`` that says what it had and has; without ``owned``, it says nothing of that."""
    said = {SUPPORTS: levels.SUPPORTED, RAISED: levels.FIRST_LEVEL, **sent}
    if owned is not None:
        own = [(topic, each) for each in owned]
        said |= says_of_partitions(generation, own, {(topic, each): at for each, at in (stores or {}).items()})
    return Joined(T, said)


def dealt(count: int, **members: Joined) -> dict[str, list[int]]:
    """Member -> its partitions of topic ``t``."""
    return {id: [partition for _, partition in share] for id, share in deal(members, {"t": count}).items()}


def test_a_new_member_takes_as_few_partitions_as_make_the_shares_equal() -> None:
    a, b = member([0, 1, 2, 3, 4, 5]), member([6, 7, 8, 9, 10, 11])
    shares = dealt(12, a=a, b=b, new=member([]))
    assert sorted(map(len, shares.values())) == [4, 4, 4]
    assert {*shares["a"]} < {*range(6)} and {*shares["b"]} < {*range(6, 12)}


def test_the_partitions_of_a_lost_member_are_shared_out_and_no_other_moves() -> None:
    shares = dealt(12, a=member([0, 1, 2, 3]), b=member([4, 5, 6, 7]))
    assert {0, 1, 2, 3} < {*shares["a"]} and {4, 5, 6, 7} < {*shares["b"]}
    assert sorted(map(len, shares.values())) == [6, 6]


def test_a_member_that_comes_back_gets_those_of_which_it_has_a_store() -> None:
    back = member([1, 5, 9], {1: 100, 5: 0, 9: 7}, generation=1)
    shares = dealt(
        12, a=member([0, 1, 2, 3, 4, 5], generation=2), b=member([6, 7, 8, 9, 10, 11], generation=2), back=back
    )
    assert len(shares["back"]) == 4 and {1, 5, 9} < {*shares["back"]}, "its old deal counts no more, and its stores do"


def test_of_two_stores_the_one_that_read_further_is_used_and_each_member_gets_one_of_its_own() -> None:
    shares = dealt(2, a=member([], {0: 5, 1: 9}), b=member([], {1: 10}))
    assert shares == {"a": [0], "b": [1]}
    shares = dealt(2, a=member([], {0: 5, 1: 9}), b=member([], {0: 1}))
    assert shares == {"a": [1], "b": [0]}


def test_an_owner_gives_those_away_of_which_others_have_stores() -> None:
    """``b`` would like 0 best, but then ``c`` would get none of which it has a store."""
    shares = dealt(3, a=member([0, 1, 2]), b=member([], {0: 9, 2: 1}), c=member([], {0: 5}))
    assert shares == {"a": [1], "b": [2], "c": [0]}


def test_a_claim_of_an_older_deal_does_not_count() -> None:
    shares = dealt(
        2, stale=member([0, 1], generation=3), owner=member([0, 1], generation=4), c=member([], generation=0)
    )
    assert len(shares["owner"]) == 1 and sum(map(len, shares.values())) == 2


def test_members_that_say_nothing_get_an_equal_share() -> None:
    shares = dealt(7, old=member(), older=member(), new=member([0, 1, 2, 3, 4, 5, 6]))
    assert sorted(map(len, shares.values())) == [2, 2, 3] and len(shares["new"]) == 3


@pytest.mark.parametrize(
    "strange",
    [
        None,
        7,
        [],
        {OWNS: 7, STORES: []},
        {OWNS: {"t": 7}, STORES: {"t": {"x": 1, "-1": 2, "99": 3, "²": 4}}},
        {OWNS: {"t": ["0", 99, -1, None, True]}, STORES: {"t": {"0": "far"}}},
    ],
)
def test_what_a_member_says_may_be_anything(strange: Any) -> None:
    sent = {SUPPORTS: levels.SUPPORTED, **strange} if isinstance(strange, dict) else strange
    shares = dealt(3, strange=Joined(T, sent), a=member([0, 1, 2]))
    assert sorted(each for share in shares.values() for each in share) == [0, 1, 2]


def test_one_more_partition_goes_to_the_member_with_the_fewest() -> None:
    members = {id: Joined(frozenset({"t", "u"}), {SUPPORTS: 5, RAISED: 4}) for id in "ab"}
    assert {id: len(share) for id, share in deal(members, {"t": 3, "u": 3}).items()} == {"a": 3, "b": 3}


def test_a_topic_is_dealt_to_its_readers() -> None:
    reader, other = (
        Joined(frozenset({"t", "u"}), {SUPPORTS: 5, RAISED: 4}),
        Joined(frozenset({"u"}), {SUPPORTS: 5, RAISED: 4}),
    )
    shares = deal({"reader": reader, "other": other}, {"t": 2, "u": 2, "read-by-no-member": 4})
    assert shares["reader"] >= [("t", 0), ("t", 1)] and [topic for topic, _ in shares["other"]] == ["u"]
