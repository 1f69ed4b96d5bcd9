"""Who of the group has which partition, and where that worker answers: Kafka's own membership says both.

Each worker sends its address along when it joins, as Faust's assignor and Kafka Streams do (``application.server``).
Whoever wants to know asks the coordinator, which hands out what each member sent last, and what it was dealt. Faust's
own assignor has the group's leader spread the addresses with the deal instead: a static member that comes back at
another address stays known by its former one until the next rebalance, and itself fails an assertion
(``docs/adr/0009``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka.client import ConnectionGroup
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest

from timers.core.timer import TopicPartition

_STABLE = "Stable"
_ASK_AGAIN_S = 0.2

URL = "url"
"""Name, in what a member sends when it joins, of where it answers."""


class Unsettled(Exception):
    """Nobody can say now who has which partition; the sentence says why."""


class Member(NamedTuple):
    """A worker."""

    worker_id: str
    url: str
    """Where it answers; empty if it does not say."""


def assignor(url: str) -> type[RoundRobinPartitionAssignor]:
    """Round robin under its own name, so that workers which send no address may be in the group too."""

    class Advertising(RoundRobinPartitionAssignor):
        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            plain = super().metadata(topics)
            return ConsumerProtocolMemberMetadata(plain.version, plain.subscription, json.dumps({URL: url}).encode())

    return Advertising


async def members(consumer: Any) -> dict[TopicPartition, Member]:
    """The owner of each partition, asked now. On the consumer's event loop; may wait for as long as it is let.

    Raises:
        Unsettled: the coordinator does not answer, or knows no such group.
    """
    coordinator = consumer._coordinator
    while True:
        node = coordinator.coordinator_id
        if node is None:
            raise Unsettled("the group has no coordinator now")
        try:
            answer = await consumer._client.send(
                node, DescribeGroupsRequest([coordinator.group_id]), group=ConnectionGroup.COORDINATION
            )
        except KafkaError as error:
            raise Unsettled(f"the group's coordinator did not answer: {error!r}") from None
        error_code, _, state, _, _, described, *_ = answer.groups[0]
        if error_code:
            raise Unsettled(f"the group's coordinator refused: {for_code(error_code).__name__}")
        if state == _STABLE:
            return owners(described)
        await asyncio.sleep(_ASK_AGAIN_S)  # a rebalance: it lasts as long as the slowest worker takes to let go


def owners(described: Iterable[tuple[str, str, str, bytes, bytes]]) -> dict[TopicPartition, Member]:
    """Partition -> its owner, from (member id, client id, host, metadata, assignment) of each member."""
    owned = {}
    for _, worker_id, _, metadata, assignment in described:
        member = Member(worker_id, _url(metadata))
        if assignment:
            for topic, partitions in ConsumerProtocolMemberAssignment.decode(assignment).assignment:
                owned.update({(topic, partition): member for partition in partitions})
    return owned


def _url(metadata: bytes) -> str:
    """What a member says of itself: it need not be of this version."""
    try:
        url = json.loads(ConsumerProtocolMemberMetadata.decode(metadata).user_data)[URL]
    except (ValueError, KeyError, TypeError):
        return ""
    return url if isinstance(url, str) else ""
