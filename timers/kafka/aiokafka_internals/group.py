"""The consumer's group membership and connection, which aiokafka keeps private."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

DescribedMember: TypeAlias = tuple[str, str, str, bytes, bytes]
"""Member id, client id, host, metadata, assignment."""

MEMBER_REQUESTS = (HeartbeatRequest, JoinGroupRequest, SyncGroupRequest)
"""Requests that carry the id of the member that sends them."""


class DescribedGroup(NamedTuple):
    """The coordinator's answer about a group."""

    error_code: int
    state: str
    members: list[DescribedMember]


def call_with_each_response(consumer: AIOKafkaConsumer, on_response: Callable[[Any, float, Any], None]) -> None:
    """Call ``on_response(request, sent_at, response)`` for each response, before aiokafka handles it.

    ``sent_at`` is a monotonic time. ``on_response`` may change the response.
    """
    send = consumer._client.send

    async def send_and_report(node_id: int, request: Any, **kwargs: Any) -> Any:
        sent_at = monotonic()
        response = await send(node_id, request, **kwargs)
        on_response(request, sent_at, response)
        return response

    consumer._client.send = send_and_report


def member_id(request: Any) -> str:
    """The member id in one of :data:`MEMBER_REQUESTS`; empty for a member that has not joined yet."""
    return str(request._member_id)


def refresh_metadata(consumer: AIOKafkaConsumer) -> None:
    """Fetch topic metadata again soon; the group rebalances if partitions were added or removed."""
    consumer._client.force_metadata_update()


def rejoin(consumer: AIOKafkaConsumer) -> None:
    """Join the group again soon. The group rebalances if the member sends something else than the last time."""
    consumer._coordinator.request_rejoin()


async def is_owner(consumer: AIOKafkaConsumer, tp: TopicPartition) -> bool | None:
    """Whether the coordinator, asked now, confirms that the consumer owns ``tp``; None if it does not answer."""
    coordinator = consumer._coordinator
    generation = coordinator.generation
    alive = await coordinator._do_heartbeat()
    if coordinator.generation != generation or coordinator.need_rejoin(consumer._subscription.subscription):
        return False  # the group removed this member, or a rebalance has begun
    return tp in consumer.assignment() if alive else None


async def describe_group(consumer: AIOKafkaConsumer) -> DescribedGroup | None:
    """State and members of the consumer's group; None while its coordinator is unknown.

    Raises:
        KafkaError: the coordinator does not answer.
    """
    coordinator = consumer._coordinator
    node_id = coordinator.coordinator_id
    if node_id is None:
        return None
    request = DescribeGroupsRequest([coordinator.group_id])
    return described(await consumer._client.send(node_id, request, group=ConnectionGroup.COORDINATION))


def described(response: Any) -> DescribedGroup:
    """The group in an answer to a request for one group."""
    error_code, _, state, _, _, members, *_ = response.groups[0]
    return DescribedGroup(error_code, state, members)


def assigned_partitions(member: DescribedMember) -> list[tuple[str, int]]:
    """The partitions that a member owns."""
    if not member[4]:
        return []
    assignment = ConsumerProtocolMemberAssignment.decode(member[4]).assignment
    return [(topic, partition) for topic, partitions in assignment for partition in partitions]


def user_data(member: DescribedMember) -> Any:
    """The JSON value that a member sent when it joined; None if it sent something else."""
    try:
        return _json(ConsumerProtocolMemberMetadata.decode(member[3]).user_data)
    except ValueError:
        return None


def _json(sent: bytes | None) -> Any:
    try:
        return json.loads(sent or b"null")
    except ValueError:
        return None


def assignor_with_user_data(
    sent: Mapping[str, Any], choose: Callable[[Mapping[str, Any]], Collection[str]]
) -> type[RoundRobinPartitionAssignor]:
    """The round robin assignor, which also sends ``sent``, as it is then, as JSON each time the member joins.

    Args:
        sent: JSON values by name.
        choose: gets member id -> what the member sent, and returns the ids of the members that may own partitions.
    """

    class AssignorWithUserData(RoundRobinPartitionAssignor):
        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            chosen = choose({id: _json(metadata.user_data) for id, metadata in members.items()})
            without = {id: ConsumerProtocolMemberAssignment(cls.version, [], b"") for id in members}
            given: dict[str, ConsumerProtocolMemberAssignment] = super().assign(
                cluster, {id: members[id] for id in chosen}
            )
            return without | given

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            plain = super().metadata(topics)
            return ConsumerProtocolMemberMetadata(plain.version, plain.subscription, json.dumps(sent).encode())

    return AssignorWithUserData
