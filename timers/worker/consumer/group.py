"""Finds the owner of each partition and the URL of its worker, from the group's membership in Kafka.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from aiokafka.errors import KafkaError, for_code

from timers.core.deals import RAISED, SUPPORTS, URL, number
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.group import (
    STABLE,
    DescribedGroup,
    DescribedMember,
    assigned_partitions,
    unowned_partitions,
    user_data,
)

_RETRY_S = 0.2


class Membership(Protocol):
    """One member of the app's group: a port, whose implementation is
    :class:`timers.kafka.aiokafka_internals.group_member.GroupMember`. Methods run on the consumer's event loop."""

    in_group: bool
    """Whether the last deal stands; false before the first one and during a rebalance. Any thread."""

    def rejoin(self) -> None:
        """Join again soon. The group rebalances if the member says something else than the last time, or leads."""

    def request_rebalance(self) -> None:
        """Let the group deal again soon."""

    async def leave(self) -> None:
        """Tell the group that the member ends, unless another one has its name by now. Not while it takes part."""

    async def confirms(self) -> bool | None:
        """Whether the coordinator, asked now, says that the last deal stands; None if it does not answer."""

    async def described(self) -> DescribedGroup | None:
        """State and members of the group; None while its coordinator is unknown.

        Raises:
            KafkaError: the coordinator does not answer.
        """

    async def find_group(self) -> DescribedGroup:
        """State and members of the group, whose coordinator is looked up if it is unknown.

        Raises:
            KafkaError: the coordinator does not answer.
        """


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


async def members(member: Membership) -> dict[TopicPartition, Member]:
    """The owner of each partition, from the coordinator; see :func:`described`."""
    return owners((await described(member)).members)


async def member_levels(member: Membership) -> list[MemberLevels]:
    """What all members say about feature levels; see :func:`described`."""
    return [levels_of(each) for each in (await described(member)).members]


def levels_of(member: DescribedMember) -> MemberLevels:
    """What a member said about feature levels when it joined."""
    sent = user_data(member)
    return MemberLevels(member[1], number(sent, SUPPORTS), number(sent, RAISED))


async def described(member: Membership) -> DescribedGroup:
    """The group's members, from the coordinator. On the consumer's event loop; waits while the group rebalances.

    Raises:
        Unsettled: the coordinator does not answer, or does not know the group.
    """
    while True:
        try:
            group = await member.described()
        except KafkaError as error:
            raise Unsettled(f"the group's coordinator did not answer: {error!r}") from None
        if group is None:
            raise Unsettled("the group has no coordinator now")
        if group.error_code:
            raise Unsettled(f"the group's coordinator refused: {for_code(group.error_code).__name__}")
        if group.state == STABLE:
            return group
        await asyncio.sleep(_RETRY_S)


async def unowned(
    member: Membership, partitions: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, list[str]] | None:
    """Partitions without an owner -> ids of the workers that read the topic, sorted. On the consumer's event loop.

    Returns:
        None while the group rebalances, and while its coordinator is not known.

    Raises:
        KafkaError: the coordinator does not answer.
    """
    group = await member.described()
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
