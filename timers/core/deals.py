"""Deals the partitions of the request topics to the members of the group: only what must move moves.

In Kafka's group protocol one member, the leader, decides for all. Each member says, when it joins, which partitions
the last deal gave to it and of which it has a store on its disk. The leader gives

* each member an equal share of each topic, within one partition;
* as many partitions as this allows to the members that had them in the last deal: their machines stay open;
* the others to members that have a store of them, if such members still lack partitions: they read less of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from timers.core import levels
from timers.core.timer import TopicPartition

# JSON keys in what a member says when it joins.
URL = "url"
"""The worker's URL."""
SUPPORTS = "supports"
"""The highest feature level that the worker supports."""
RAISED = "raised"
"""The highest feature level that a machine of the app was raised to, as far as the worker knows."""
GENERATION = "generation"
"""Number of the last deal in which the worker took part."""
OWNS = "owns"
"""What that deal gave to it: topic -> partitions."""
STORES = "stores"
"""Of what the worker has a store: topic -> partition as text -> offset up to which it was written. If that is not
known, small numbers: the greatest one for the store that was used last."""


class Joined(NamedTuple):
    """A member of the group, as its leader sees it."""

    topics: Collection[str]
    """The topics that it reads."""
    sent: Any
    """The JSON value that it sent; None: it sent something else, as members of other programs do."""


def deal(members: Mapping[str, Joined], partitions: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Returns the partitions of each member.

    Args:
        partitions: topic -> number of its partitions. Topics that no member reads are ignored.
    """
    able = able_members({id: member.sent for id, member in members.items()})
    owners = _owners(members)
    shares: dict[str, list[TopicPartition]] = {id: [] for id in members}
    for topic in sorted(partitions):
        readers = sorted(id for id in able if topic in members[id].topics)
        if readers:
            had = {id: {p for p in range(partitions[topic]) if owners.get((topic, p)) == id} for id in readers}
            stores = {id: _stores(members[id].sent, topic) for id in readers}
            dealt = {id: len(share) for id, share in shares.items()}
            given = _deal_topic(partitions[topic], had, stores, dealt)
            for id in readers:
                shares[id].extend((topic, partition) for partition in sorted(given[id]))
    return shares


def able_members(sent: Mapping[str, Any]) -> list[str]:
    """The members that may own partitions; see :func:`timers.core.levels.able_members`.

    Args:
        sent: member id -> what the member sent when it joined.
    """
    raised = max((number(each, RAISED) for each in sent.values()), default=0)
    return levels.able_members({id: number(each, SUPPORTS) for id, each in sent.items()}, raised)


def number(sent: Any, name: str) -> int:
    """A number that a member sent; 0 if it sent none. No worker of this app sends no feature level."""
    return _number(sent.get(name)) if isinstance(sent, dict) else 0


def says_of_partitions(
    generation: int, owned: Iterable[TopicPartition], stores: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    """What a member says, when it joins, about the partitions that it has.

    Args:
        owned: what it gave to the member.
        stores: stores of the member -> offset up to which each was written, see :data:`STORES`.
    """
    owns: dict[str, list[int]] = {}
    has: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(owned):
        owns.setdefault(topic, []).append(partition)
    for (topic, partition), applied in sorted(stores.items()):
        has.setdefault(topic, {})[str(partition)] = applied
    return {GENERATION: generation, OWNS: owns, STORES: has}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _dict(sent: Any, name: str) -> Mapping[str, Any]:
    found = sent.get(name) if isinstance(sent, dict) else None
    return found if isinstance(found, dict) else {}


def _owners(members: Mapping[str, Joined]) -> dict[TopicPartition, str]:
    """Partition -> id of the member that had it in the last deal; if two say so, the one of the newer deal."""
    owners: dict[TopicPartition, str] = {}
    in_order = sorted(members, key=lambda id: (number(members[id].sent, GENERATION), id))
    for id in in_order:  # the newest deal is the last one, and replaces what older ones say
        for topic, owned in _dict(members[id].sent, OWNS).items():
            for partition in owned if isinstance(owned, list) else ():
                if isinstance(partition, int):
                    owners[topic, partition] = id
    return owners


def _stores(sent: Any, topic: str) -> dict[int, int]:
    """Partition -> offset up to which the member's store was written."""
    of_topic = _dict(sent, STORES).get(topic)
    pairs = of_topic.items() if isinstance(of_topic, dict) else ()
    return {
        int(partition): _number(applied) for partition, applied in pairs if partition.isascii() and partition.isdigit()
    }


def _deal_topic(
    count: int, had: Mapping[str, set[int]], stores: Mapping[str, Mapping[int, int]], dealt: Mapping[str, int]
) -> dict[str, set[int]]:
    """Returns the partitions of one topic that each of its readers gets.

    Args:
        had: reader -> what the last deal gave to it. The order of the readers decides between equal ones.
        stores: reader -> partition -> offset of its store.
        dealt: reader -> number of partitions of other topics that it gets.
    """
    least, more = divmod(count, len(had))
    # If the count cannot be divided evenly, some readers get one more: first those that would otherwise lose a
    # partition, then those that have the fewest partitions of other topics.
    by_need = sorted(had, key=lambda id: (len(had[id]) <= least, dealt[id]))
    size = {id: least + (place < more) for place, id in enumerate(by_need)}
    owner = {partition: id for id, owned in had.items() for partition in owned}
    excess = {id: max(0, len(owned) - size[id]) for id, owned in had.items()}
    lacks = {id: max(0, size[id] - len(owned)) for id, owned in had.items()}
    taken = _by_stores(owner, excess, lacks, stores, count)
    for partition, id in taken.items():
        lacks[id] -= 1
        if partition in owner:
            excess[owner[partition]] -= 1
    left = [partition for partition in range(count) if partition not in owner and partition not in taken]
    for id, owned in had.items():
        left += sorted(owned - taken.keys(), reverse=True)[: excess[id]]
    for partition in left:
        id = max(lacks, key=lambda each: (lacks[each] > 0, -dealt[each] - size[each] + lacks[each]))
        taken[partition] = id
        lacks[id] -= 1
    given = {id: owned - taken.keys() for id, owned in had.items()}
    for partition, id in taken.items():
        given[id].add(partition)
    return given


def _by_stores(
    owner: Mapping[int, str],
    excess: Mapping[str, int],
    lacks: Mapping[str, int],
    stores: Mapping[str, Mapping[int, int]],
    count: int,
) -> dict[int, str]:
    """Partition -> a reader that lacks partitions and has a store of it: as many as possible (augmenting paths).

    Args:
        owner: partition -> the reader that had it. Partitions without one are free.
        excess: reader -> how many of its partitions it must give away.
        lacks: reader -> how many it must get.
        stores: reader -> partition -> offset of its store.
    """
    taken: dict[int, str] = {}
    given_away = dict.fromkeys(excess, 0)
    wanted = {
        id: sorted(
            (p for p in stores[id] if p < count and (p not in owner or excess[owner[p]])),
            key=lambda p: (-stores[id][p], p),
        )
        for id in lacks
    }

    def find(id: str, asked: set[str], givers: set[str]) -> bool:
        """Give a partition to ``id``. Another reader may change to another one; ``asked`` and ``givers`` were tried."""
        asked.add(id)
        for partition in wanted[id]:
            giver = owner.get(partition, "")
            if partition in taken:
                rivals = [partition]
            elif giver and given_away[giver] == excess[giver]:  # the giver gives no more: for this one it keeps another
                rivals = [] if giver in givers else [each for each in taken if owner.get(each) == giver]
                givers.add(giver)
            else:
                if giver:
                    given_away[giver] += 1
                taken[partition] = id
                return True
            for rival in rivals:
                if taken[rival] not in asked and find(taken[rival], asked, givers):
                    del taken[rival]
                    taken[partition] = id
                    return True
        return False

    for id, lacking in lacks.items():
        for _ in range(lacking):
            if not find(id, set(), set()):
                break
    return taken
