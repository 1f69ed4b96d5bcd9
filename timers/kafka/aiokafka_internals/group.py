"""What members of a consumer group say and have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import for_code

from timers.wire import foreign_json

DescribedMember: TypeAlias = tuple[str, str, str, bytes, bytes]
"""Member id, client id, host, metadata, assignment."""


STABLE = "Stable"
"""State of a group whose members have their assignments. In other states its members have no metadata."""


class DescribedGroup(NamedTuple):
    """The coordinator's answer about a group."""

    state: str
    members: list[DescribedMember]


def described(response: Any) -> DescribedGroup:
    """The group in an answer to a request for one group.

    Raises:
        KafkaError: the coordinator refuses, or has moved.
    """
    error_code, name, state, _, _, members, *_ = response.groups[0]
    if error_code:
        raise for_code(error_code)(name)
    return DescribedGroup(state, members)


def assigned_partitions(member: DescribedMember) -> list[tuple[str, int]]:
    """The partitions that a member owns."""
    if not member[4]:
        return []
    assignment = ConsumerProtocolMemberAssignment.decode(member[4]).assignment
    return [(topic, partition) for topic, partitions in assignment for partition in partitions]


def subscription_of(metadata: bytes) -> tuple[frozenset[str], Any]:
    """The topics that a member reads, and the JSON value that it sent with them. Of another program: none, and None."""
    try:
        decoded = ConsumerProtocolMemberMetadata.decode(metadata)
    except ValueError:
        return frozenset(), None
    return frozenset(decoded.subscription), decoded_json(decoded.user_data)


def unowned_partitions(
    members: Iterable[DescribedMember], partitions: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], list[str]]:
    """Partitions without an owner -> client ids of the members that subscribe the topic, sorted.

    A member does not read an assigned partition of a topic that it does not subscribe, so it does not own it.

    Args:
        members: of a stable group.
        partitions: topic -> its partitions. Topics that no member subscribes are ignored.
    """
    subscribers: dict[str, list[str]] = {}
    owned = set()
    for member in members:
        topics, _ = subscription_of(member[3])
        for topic in topics:
            subscribers.setdefault(topic, []).append(member[1])
        owned |= {tp for tp in assigned_partitions(member) if tp[0] in topics}
    return {
        (topic, partition): sorted(subscribers[topic])
        for topic in subscribers.keys() & partitions.keys()
        for partition in partitions[topic]
        if (topic, partition) not in owned
    }


def user_data(member: DescribedMember) -> Any:
    """The JSON value that a member sent when it joined; None if it sent something else."""
    return subscription_of(member[3])[1]


def decoded_json(sent: bytes | None) -> Any:
    """The JSON value in bytes that another program sent; None if they are none."""
    try:
        return foreign_json.decode(sent or b"null")
    except ValueError:
        return None
