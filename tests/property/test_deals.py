"""Random histories of a group: each deal is balanced, moves only what must move, and no partition has two owners.

``python -m tests.property.test_deals HISTORIES`` runs more of them.
"""

import random
import sys
from collections.abc import Mapping

import pytest

from timers.core import levels
from timers.core.deals import RAISED, SUPPORTS, Joined, deal, says_of_partitions
from timers.core.timer import TopicPartition

EVENTS = 6
QUICK = 400


class Group:
    """A group and its history."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.topics = {name: self._random.randint(1, 9) for name in "tuv"[: self._random.randint(1, 3)]}
        self.generation = 0
        self.members: dict[str, Joined] = {}
        self.had: dict[TopicPartition, str] = {}
        self._gone: list[tuple[str, Joined]] = []
        self._stores: dict[str, dict[TopicPartition, int]] = {}
        for _ in range(self._random.randint(1, 4)):
            self._add()

    def _add(self) -> None:
        name = f"w{self.generation}-{len(self.members)}-{self._random.randint(0, 99)}"
        some = [topic for topic in self.topics if self._random.random() < 0.9]
        level = levels.SUPPORTED if self._random.random() < 0.9 else levels.SUPPORTED - 1
        sent = {SUPPORTS: level, RAISED: self._random.choice([0, 0, 0, level]), **says_of_partitions(0, (), {})}
        self.members[name] = Joined(frozenset(some), sent)

    def event(self) -> None:
        """One thing happens to the group."""
        kind = self._random.choice(["add", "add", "leave", "leave", "back", "wipe", "grow", "stale", "nothing"])
        name = self._random.choice(sorted(self.members))
        if kind == "add":
            self._add()
        elif kind == "leave" and len(self.members) > 1:
            self._gone.append((name, self.members.pop(name)))
        elif kind == "back" and self._gone:
            name, back = self._gone.pop(self._random.randrange(len(self._gone)))
            self.members[name] = back  # what it says of the last deal in which it took part is old
        elif kind == "wipe":
            self._stores.pop(name, None)
        elif kind == "grow":
            self.topics[self._random.choice(sorted(self.topics))] += self._random.randint(1, 3)
        elif kind == "stale":
            self._stores.setdefault(name, {})["t", self._random.randint(0, 9)] = self._random.randint(0, 5)
        for name, member in self.members.items():
            stores = self._stores.get(name, {})
            owned = [tp for tp, owner in self.had.items() if owner == name]
            generation = self.generation if owned else member.sent["generation"]
            if owned:
                says = says_of_partitions(generation, owned, stores)
            else:
                says = {**says_of_partitions(generation, (), stores), "owns": member.sent["owns"]}
            self.members[name] = member._replace(sent={**member.sent, **says})

    def deal(self) -> dict[str, list[TopicPartition]]:
        """Deal, check the deal, and let it be."""
        shares = deal(self.members, self.topics)
        check(shares, self)
        self.generation += 1
        self.had = {tp: name for name, share in shares.items() for tp in share}
        for tp, name in self.had.items():
            self._stores.setdefault(name, {})[tp] = self.generation
        for name, share in shares.items():
            member = self.members[name]
            says = says_of_partitions(self.generation, share, self._stores.get(name, {}))
            self.members[name] = member._replace(sent={**member.sent, **says})
        return shares


def able(members: Mapping[str, Joined]) -> list[str]:
    """The members that support the highest level that one of them names; all, if there are none."""
    raised = max(member.sent[RAISED] for member in members.values())
    return [name for name, member in members.items() if member.sent[SUPPORTS] >= raised] or list(members)


def claim(group: Group, tp: TopicPartition) -> str:
    """The member that says that the last deal gave it a partition; of several, the one with the newest deal."""
    sent = [(member.sent["generation"], name, member.sent["owns"]) for name, member in group.members.items()]
    return max(((number, name) for number, name, owns in sent if tp[1] in owns.get(tp[0], ())), default=(0, ""))[1]


def check(shares: Mapping[str, list[TopicPartition]], group: Group) -> None:
    assert shares.keys() == group.members.keys()
    dealt = [tp for share in shares.values() for tp in share]
    assert len(dealt) == len(set(dealt)), "a partition has two owners"
    for topic, count in group.topics.items():
        readers = [name for name in able(group.members) if topic in group.members[name].topics]
        wanted = {(topic, partition) for partition in range(count)} if readers else set()
        assert {tp for tp in dealt if tp[0] == topic} == wanted, "each partition of a topic that is read has an owner"
        given = {name: {tp for tp in shares[name] if tp[0] == topic} for name in readers}
        if not readers:
            continue
        sizes = sorted(map(len, given.values()))
        assert sizes[-1] - sizes[0] <= 1, "a topic is dealt in equal shares"
        had = {name: {tp for tp in wanted if claim(group, tp) == name} for name in readers}
        least, more = divmod(count, len(readers))
        most_kept = sum(min(len(owned), least) for owned in had.values())
        most_kept += min(more, sum(len(owned) > least for owned in had.values()))
        assert sum(len(given[name] & had[name]) for name in readers) == most_kept, "only what must move moves"
        check_stores(given, had, group)


def check_stores(
    given: Mapping[str, set[TopicPartition]], had: Mapping[str, set[TopicPartition]], group: Group
) -> None:
    """No two members could exchange what they got anew, so that more of it is on the disk of its member."""

    def has(name: str, tp: TopicPartition) -> bool:
        return str(tp[1]) in group.members[name].sent["stores"].get(tp[0], {})

    new = [(name, tp) for name in given for tp in given[name] - had[name]]
    without = [(name, tp) for name, tp in new if not has(name, tp)]
    for name, tp in without:
        for other, other_tp in new:
            gain = has(name, other_tp) + has(other, tp) - has(name, tp) - has(other, other_tp)
            assert gain <= 0 or other == name, f"{name} and {other} should have exchanged {tp} and {other_tp}"


def run(seed: int) -> None:
    """One history."""
    group = Group(seed)
    group.deal()
    for _ in range(EVENTS):
        group.event()
        shares = group.deal()
    assert group.deal() == shares, "nothing happened"


@pytest.mark.slow
def test_each_deal_is_balanced_and_moves_only_what_must_move() -> None:
    for seed in range(QUICK):
        run(seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        try:
            run(number)
        except Exception:
            print(f"history {number}")
            raise
    print(f"{sys.argv[1]} histories")
