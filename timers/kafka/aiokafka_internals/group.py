"""The consumer's group membership and connection, which aiokafka keeps private."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import (
    HeartbeatRequest,
    HeartbeatResponse_v1,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from timers.core.deals import Joined
from timers.wire import foreign_json

DescribedMember: TypeAlias = tuple[str, str, str, bytes, bytes]
"""Member id, client id, host, metadata, assignment."""


class NamedHeartbeatResponse(HeartbeatResponse_v1):
    API_VERSION = 3


class NamedHeartbeatStruct(RequestStruct):
    API_KEY = HeartbeatRequest.API_KEY
    API_VERSION = 3
    RESPONSE_TYPE = NamedHeartbeatResponse
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("generation_id", Int32),
        ("member_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
    )


class NamedHeartbeat(Request[NamedHeartbeatStruct]):
    """A heartbeat with the name of the member, its group instance id, which aiokafka's heartbeats lack."""

    API_KEY = HeartbeatRequest.API_KEY

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def build(self, request_struct_class: type[NamedHeartbeatStruct]) -> NamedHeartbeatStruct:
        return request_struct_class(*self._fields)


class NamedLeaveResponse(Response):
    API_KEY = LeaveGroupRequest.API_KEY
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "members",
            Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")), ("error_code", Int16)),
        ),
    )


class NamedLeaveStruct(RequestStruct):
    API_KEY = LeaveGroupRequest.API_KEY
    API_VERSION = 3
    RESPONSE_TYPE = NamedLeaveResponse
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("members", Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")))),
    )


class NamedLeave(Request[NamedLeaveStruct]):
    """The request of a static member to leave its group: aiokafka's has no name, so its static members never leave."""

    API_KEY = LeaveGroupRequest.API_KEY

    def __init__(self, group: str, member_id: str, name: str) -> None:
        self._fields = group, [(member_id, name)]

    def build(self, request_struct_class: type[NamedLeaveStruct]) -> NamedLeaveStruct:
        return request_struct_class(*self._fields)


HEARTBEAT, JOIN, SYNC = HeartbeatRequest | NamedHeartbeat, JoinGroupRequest, SyncGroupRequest
"""Classes of the requests that carry the id of the member that sends them."""

STABLE = "Stable"
"""State of a group whose members have their assignments. In other states its members have no metadata."""

_NONCE = "nonce"
"""JSON key in the user data: random text that a member changes to get a rebalance."""


class DescribedGroup(NamedTuple):
    """The coordinator's answer about a group."""

    error_code: int
    state: str
    members: list[DescribedMember]


def call_with_each_response(consumer: AIOKafkaConsumer, on_response: Callable[[Any, Any], None]) -> None:
    """Call ``on_response(request, response)``, which may change the response, before aiokafka handles it."""
    send = consumer._client.send

    async def send_and_report(node_id: int, request: Any, **kwargs: Any) -> Any:
        response = await send(node_id, request, **kwargs)
        on_response(request, response)
        return response

    consumer._client.send = send_and_report


def refresh_metadata(consumer: AIOKafkaConsumer) -> None:
    """Fetch topic metadata again soon; the group rebalances if partitions were added or removed."""
    consumer._client.force_metadata_update()


def rejoin(consumer: AIOKafkaConsumer) -> None:
    """Join the group again soon. The group rebalances if the member sends something else than the last time."""
    consumer._coordinator.request_rejoin()


def generation(consumer: AIOKafkaConsumer) -> int:
    """Number of the deal in which the consumer took part last."""
    return int(consumer._coordinator.generation)


async def is_owner(consumer: AIOKafkaConsumer, tp: TopicPartition) -> bool | None:
    """Whether the coordinator, asked now, confirms that the consumer owns ``tp``; None if it does not answer."""
    coordinator = consumer._coordinator
    generation = coordinator.generation
    alive = await coordinator._do_heartbeat()
    if coordinator.generation != generation or coordinator.need_rejoin(consumer._subscription.subscription):
        return False  # the group removed this member, or a rebalance has begun
    return tp in consumer.assignment() if alive else None


async def ask_for_name(consumer: AIOKafkaConsumer) -> None:
    """Ask the coordinator whether another member has this one's name; see :func:`call_with_each_response`.

    Raises:
        KafkaError: the coordinator is not known, or does not answer.
    """
    coordinator = consumer._coordinator
    if coordinator.member_id:  # a member without an id is not known to have the name itself
        fields = coordinator.group_id, coordinator.generation, coordinator.member_id, coordinator._group_instance_id
        await coordinator._send_req(NamedHeartbeat(*fields))


async def describe_group(consumer: AIOKafkaConsumer) -> DescribedGroup | None:
    """State and members of the consumer's group; None while its coordinator is unknown.

    Raises:
        KafkaError: the coordinator does not answer.
    """
    return await describe(consumer._coordinator)


async def describe(coordinator: Any) -> DescribedGroup | None:
    """The same as :func:`describe_group`, for aiokafka's part of a consumer that talks to the group's coordinator."""
    node_id = coordinator.coordinator_id
    if node_id is None:
        return None
    request = DescribeGroupsRequest([coordinator.group_id])
    return described(await coordinator._client.send(node_id, request, group=ConnectionGroup.COORDINATION))


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


def subscription(member: DescribedMember) -> frozenset[str]:
    """The topics that a member subscribes; none if it sent something else."""
    try:
        return frozenset(ConsumerProtocolMemberMetadata.decode(member[3]).subscription) if member[3] else frozenset()
    except ValueError:
        return frozenset()


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
        topics = subscription(member)
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
    try:
        return _json(ConsumerProtocolMemberMetadata.decode(member[3]).user_data)
    except ValueError:
        return None


def _json(sent: bytes | None) -> Any:
    try:
        return foreign_json.decode(sent or b"null")
    except ValueError:
        return None


class DealingAssignor(RoundRobinPartitionAssignor):
    """An assignor with the name of round robin, so that members of all versions can be in one group.

    Attributes:
        sent: returns the user data, JSON values by name; called each time the member joins.
        deal: returns the partitions of each member; see :func:`timers.core.deals.deal`.
    """

    sent: ClassVar[Callable[[], Mapping[str, Any]]]
    deal: ClassVar[Callable[[Mapping[str, Joined], Mapping[str, int]], Mapping[str, Sequence[tuple[str, int]]]]]
    _nonce: ClassVar[dict[str, str]]

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        joined = {id: Joined(frozenset(each.subscription), _json(each.user_data)) for id, each in members.items()}
        topics = {topic for each in joined.values() for topic in each.topics}
        shares = cls.deal(joined, {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics})
        return {id: _assignment(cls.version, share) for id, share in shares.items()}

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        plain, sent = super().metadata(topics), {**cls.sent(), **cls._nonce}
        return ConsumerProtocolMemberMetadata(plain.version, plain.subscription, json.dumps(sent).encode())

    @classmethod
    def change_metadata(cls) -> None:
        """Send other bytes from now on. The group rebalances when a member joins with other bytes than before."""
        cls._nonce[_NONCE] = secrets.token_hex(8)


def _assignment(version: int, share: Sequence[tuple[str, int]]) -> ConsumerProtocolMemberAssignment:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in share:
        by_topic.setdefault(topic, []).append(partition)
    return ConsumerProtocolMemberAssignment(version, sorted(by_topic.items()), b"")


def dealing_assignor(
    sent: Callable[[], Mapping[str, Any]],
    deal: Callable[[Mapping[str, Joined], Mapping[str, int]], Mapping[str, Sequence[tuple[str, int]]]],
) -> type[DealingAssignor]:
    """An assignor for one member; for the arguments see the attributes of the class."""
    return type("Assignor", (DealingAssignor,), {"sent": staticmethod(sent), "deal": staticmethod(deal), "_nonce": {}})
