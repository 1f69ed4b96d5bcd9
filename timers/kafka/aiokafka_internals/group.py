"""What members of a consumer group say and have, and requests of theirs that aiokafka lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import HeartbeatRequest, HeartbeatResponse_v1, LeaveGroupRequest
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

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


STABLE = "Stable"
"""State of a group whose members have their assignments. In other states its members have no metadata."""


class DescribedGroup(NamedTuple):
    """The coordinator's answer about a group."""

    error_code: int
    state: str
    members: list[DescribedMember]


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
