"""Finds the owner of each partition and the URL of its worker, from the group's membership in Kafka.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from aiokafka.errors import KafkaError

from timers.core.deals import RAISED, SUPPORTS, URL, number
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.group import (
    STABLE,
    DescribedGroup,
    DescribedMember,
    assigned_partitions,
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

    async def describe(self) -> DescribedGroup:
        """State and members of the group.

        Raises:
            KafkaError: the coordinator is not known, does not answer, or refuses.
        """


class Unsettled(Exception):
    """The owners of the partitions are not known now; the message says why."""


class Member(NamedTuple):
    """A worker in the group, and what it said of itself when it joined."""

    worker_id: str
    url: str = ""
    """URL of its web port; empty if it sent none, like a worker of another version."""
    supports: int = 0
    """The highest feature level that it supports."""
    raised: int = 0
    """The highest one that a machine was raised to, as far as it knows."""


def member_of(described: DescribedMember) -> Member:
    """The worker that the coordinator describes."""
    sent = user_data(described)
    url = sent.get(URL) if isinstance(sent, dict) else None
    return Member(described[1], url if isinstance(url, str) else "", number(sent, SUPPORTS), number(sent, RAISED))


def owners(described: Iterable[DescribedMember]) -> dict[TopicPartition, Member]:
    """Partition -> its owner."""
    return {tp: member_of(member) for member in described for tp in assigned_partitions(member)}


async def described(member: Membership) -> list[DescribedMember]:
    """The group's members, from the coordinator. On the consumer's event loop; waits while the group rebalances.

    Raises:
        Unsettled: the coordinator does not answer, or does not know the group.
    """
    while True:
        try:
            group = await member.describe()
        except KafkaError as error:
            raise Unsettled(f"the group's coordinator did not answer: {error!r}") from None
        if group.state == STABLE:
            return group.members
        await asyncio.sleep(_RETRY_S)
