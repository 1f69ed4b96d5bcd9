"""Finds the owner of each partition and the URL of its worker, from the group's membership in Kafka.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError, for_code

from timers.core import levels
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.group import (
    STABLE,
    DescribedGroup,
    DescribedMember,
    assigned_partitions,
    assignor_with_user_data,
    describe_group,
    unowned_partitions,
    user_data,
)

_RETRY_S = 0.2

# JSON keys in the user data that a worker sends when it joins.
URL = "url"
"""The worker's URL."""
SUPPORTS = "supports"
"""The highest feature level that the worker supports."""
RAISED = "raised"
"""The highest feature level that a machine of the app was raised to, as far as the worker knows."""


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


def sent_by(url: str) -> dict[str, Any]:
    """The user data that a worker with this URL sends when it joins. The worker may change it before it joins again."""
    return {URL: url, SUPPORTS: levels.SUPPORTED, RAISED: levels.FIRST}


def assignor(sent: MutableMapping[str, Any]) -> type[Any]:
    """The assignor of a worker that sends this user data. Other workers of the group may send other user data."""
    return assignor_with_user_data(sent, able_members)


def able_members(sent: Mapping[str, Any]) -> list[str]:
    """The members that the leader of the group may give partitions to; see :func:`timers.core.levels.able_members`.

    Args:
        sent: member id -> what the member sent when it joined.
    """
    raised = max(_level(each, RAISED) for each in sent.values())
    return levels.able_members({id: _level(each, SUPPORTS) for id, each in sent.items()}, raised)


async def members(consumer: Any) -> dict[TopicPartition, Member]:
    """The owner of each partition, from the coordinator; see :func:`described`."""
    return owners((await described(consumer)).members)


async def member_levels(consumer: Any) -> list[MemberLevels]:
    """What all members say about feature levels; see :func:`described`."""
    return [levels_of(member) for member in (await described(consumer)).members]


def levels_of(member: DescribedMember) -> MemberLevels:
    """What a member said about feature levels when it joined."""
    sent = user_data(member)
    return MemberLevels(member[1], _level(sent, SUPPORTS), _level(sent, RAISED))


def _level(sent: Any, name: str) -> int:
    """A feature level that a member sent; 0 if it sent none, as no worker of this app does."""
    level = sent.get(name) if isinstance(sent, dict) else None
    return level if isinstance(level, int) else 0


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
