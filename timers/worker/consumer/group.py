"""Finds the owner of each partition and the URL of its worker, from the group's membership in Kafka.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError, for_code

from timers.core.deals import RAISED, SUPPORTS, URL, deal, number
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.group import (
    STABLE,
    DescribedGroup,
    DescribedMember,
    assigned_partitions,
    dealing_assignor,
    describe_group,
    unowned_partitions,
    user_data,
)

_RETRY_S = 0.2


class Unsettled(Exception):
    """The owners of the partitions are not known now; the message says why."""


class Member(NamedTuple):
    """A worker in the group."""

    worker_id: str
    url: str
    """URL of its web port; empty if it sent none."""


class MemberLevels(NamedTuple):
    """What a worker says about feature levels."""

    worker_id: str
    supports: int
    raised: int


def assignor(sent: Callable[[], Mapping[str, Any]]) -> type[Any]:
    """The assignor of a worker that sends this user data. Other workers of the group may send other user data."""
    return dealing_assignor(sent, deal)


async def members(consumer: Any) -> dict[TopicPartition, Member]:
    """The owner of each partition, from the coordinator; see :func:`described`."""
    return owners((await described(consumer)).members)


async def member_levels(consumer: Any) -> list[MemberLevels]:
    """What all members say about feature levels; see :func:`described`."""
    return [levels_of(member) for member in (await described(consumer)).members]


def levels_of(member: DescribedMember) -> MemberLevels:
    """What a member said about feature levels when it joined."""
    sent = user_data(member)
    return MemberLevels(member[1], number(sent, SUPPORTS), number(sent, RAISED))


async def described(consumer: Any) -> DescribedGroup:
    """The group's members, from the coordinator. On the consumer's event loop; waits while the group rebalances.

    Raises:
        Unsettled: the coordinator does not answer, or does not know the group.
    """
    while True:
        try:
            group = await describe_group(consumer)
        except KafkaError as error:
            raise Unsettled(f"the group's coordinator did not answer: {error!r}") from None
        if group is None:
            raise Unsettled("the group has no coordinator now")
        if group.error_code:
            raise Unsettled(f"the group's coordinator refused: {for_code(group.error_code).__name__}")
        if group.state == STABLE:
            return group
        await asyncio.sleep(_RETRY_S)


async def unowned(consumer: Any, partitions: Mapping[str, Iterable[int]]) -> dict[TopicPartition, list[str]] | None:
    """Partitions without an owner -> ids of the workers that read the topic, sorted. On the consumer's event loop.

    Returns:
        None while the group rebalances, and while its coordinator is not known.

    Raises:
        KafkaError: the coordinator does not answer.
    """
    group = await describe_group(consumer)
    if group is None or group.error_code or group.state != STABLE:
        return None
    return unowned_partitions(group.members, partitions)


def owners(described: Iterable[DescribedMember]) -> dict[TopicPartition, Member]:
    """Partition -> its owner."""
    return {tp: Member(member[1], _url(member)) for member in described for tp in assigned_partitions(member)}


def _url(member: DescribedMember) -> str:
    """The URL that a member sent; empty if it sent none, like a worker of another version."""
    sent = user_data(member)
    url = sent.get(URL) if isinstance(sent, dict) else None
    return url if isinstance(url, str) else ""
