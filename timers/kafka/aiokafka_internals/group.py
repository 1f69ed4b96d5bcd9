"""What members of a consumer group say and have.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import for_code

from timers.core.deals import RAISED, SUPPORTS, URL, number
from timers.core.timer import TopicPartition
from timers.wire.printable import decode_json

STABLE = "Stable"
"""State of a group whose members have their assignments. In other states its members have no metadata."""


class Member(NamedTuple):
    """A worker in the group, and what it said of itself when it joined."""

    worker_id: str
    url: str = ""
    """URL of its web port; empty if it sent none, like a worker of another version."""
    supports: int = 0
    """The highest feature level that it supports."""
    raised: int = 0
    """The highest one that a machine was raised to, as far as it knows."""
    topics: frozenset[str] = frozenset()
    """That it reads."""
    partitions: tuple[TopicPartition, ...] = ()
    """That it owns."""


class DescribedGroup(NamedTuple):
    """The coordinator's answer about a group."""

    state: str
    members: list[Member]


def described(response: Any) -> DescribedGroup:
    """The group in an answer to a request for one group.

    Raises:
        KafkaError: the coordinator refuses, or has moved.
    """
    error_code, name, state, _, _, members, *_ = response.groups[0]
    if error_code:
        raise for_code(error_code)(name)
    return DescribedGroup(state, [member_of(client, *sent) for _, client, _, *sent in members])


def member_of(worker_id: str, metadata: bytes, assignment: bytes) -> Member:
    """A member, from its client id and what the coordinator has of it."""
    topics, sent = subscription_of(metadata)
    url = sent.get(URL) if isinstance(sent, dict) else None
    levels = number(sent, SUPPORTS), number(sent, RAISED)
    return Member(worker_id, url if isinstance(url, str) else "", *levels, topics, partitions_in(assignment))


def partitions_in(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that a leader dealt to a member; none if it did not know this member, or is another program."""
    if not assignment:
        return ()
    try:
        dealt = ConsumerProtocolMemberAssignment.decode(assignment).assignment
    except (TypeError, ValueError):
        return ()
    return tuple((topic, partition) for topic, partitions in dealt for partition in partitions)


def subscription_of(metadata: bytes) -> tuple[frozenset[str], Any]:
    """The topics that a member reads, and the JSON value that it sent with them. Of another program: none, and None."""
    try:
        decoded = ConsumerProtocolMemberMetadata.decode(metadata)
    except (TypeError, ValueError):
        return frozenset(), None
    topics = frozenset(decoded.subscription)
    try:
        return topics, decode_json(decoded.user_data or b"null")
    except ValueError:
        return topics, None


def owners(members: Iterable[Member]) -> dict[TopicPartition, Member]:
    """Partition -> its owner."""
    return {tp: member for member in members for tp in member.partitions}


def unowned_partitions(
    members: Iterable[Member], partitions: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, list[str]]:
    """Partitions without an owner -> ids of the workers that read the topic, sorted.

    A member does not read an assigned partition of a topic that it does not subscribe, so it does not own it.

    Args:
        members: of a stable group.
        partitions: topic -> its partitions. Topics that no member subscribes are ignored.
    """
    subscribers: dict[str, list[str]] = {}
    owned = set()
    for member in members:
        for topic in member.topics:
            subscribers.setdefault(topic, []).append(member.worker_id)
        owned |= {tp for tp in member.partitions if tp[0] in member.topics}
    return {
        (topic, partition): sorted(subscribers[topic])
        for topic in subscribers.keys() & partitions.keys()
        for partition in partitions[topic]
        if (topic, partition) not in owned
    }
