"""Finds the owner of each partition and the URL of its worker, from the group's membership in Kafka.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError, for_code

from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.group import (
    DescribedMember,
    assigned_partitions,
    assignor_with_user_data,
    describe_group,
    user_data,
)

_STABLE = "Stable"
_RETRY_S = 0.2

URL = "url"
"""JSON key of a worker's URL in the user data that it sends when it joins."""


class Unsettled(Exception):
    """The owners of the partitions are not known now; the message says why."""


class Member(NamedTuple):
    """A worker in the group."""

    worker_id: str
    url: str
    """URL of its web port; empty if it sent none."""


def assignor(url: str) -> type[Any]:
    """The assignor of a worker with this URL. Workers that send no URL may be in the same group."""
    return assignor_with_user_data({URL: url})


async def members(consumer: Any) -> dict[TopicPartition, Member]:
    """The owner of each partition, from the coordinator. On the consumer's event loop; waits while the group
    rebalances.

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
        if group.state == _STABLE:
            return owners(group.members)
        await asyncio.sleep(_RETRY_S)


def owners(described: Iterable[DescribedMember]) -> dict[TopicPartition, Member]:
    """Partition -> its owner."""
    return {tp: Member(member[1], _url(member)) for member in described for tp in assigned_partitions(member)}


def _url(member: DescribedMember) -> str:
    """The URL that a member sent; empty if it sent none, like a worker of another version."""
    sent = user_data(member)
    url = sent.get(URL) if isinstance(sent, dict) else None
    return url if isinstance(url, str) else ""
