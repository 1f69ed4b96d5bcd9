"""Requests that aiokafka lacks, each in one version of Kafka's protocol, which all supported brokers know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import HeartbeatRequest, HeartbeatResponse_v1, LeaveGroupRequest
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

_TEXT = String("utf-8")

UNKNOWN_EPOCH = -1

ANY_REPLICA = -1


def by_topic(places: Mapping[tuple[str, int], tuple[Any, ...]]) -> list[tuple[str, list[Any]]]:
    """Partitions and their fields as requests have them: (topic, partitions of it). One without fields is a number."""
    found: dict[str, list[Any]] = {}
    for (topic, partition), fields in places.items():
        found.setdefault(topic, []).append((partition, *fields) if fields else partition)
    return [*found.items()]


class OneVersion(Request[RequestStruct]):
    """A request with these fields; a subclass names the layout of request and answer.

    A flexible one has tagged fields at the end of both headers, and of each structure of its layout (KIP-482).
    """

    API_KEY = -1

    def __init_subclass__(
        cls, key: int, version: int, fields: Schema, answer: Schema, *, is_flexible: bool = False
    ) -> None:
        named = {"API_KEY": key, "API_VERSION": version}
        response = type(f"{cls.__name__}Answer", (Response,), {**named, "SCHEMA": answer})
        own = {"FLEXIBLE_VERSION": is_flexible, "SCHEMA": fields, "RESPONSE_TYPE": response}
        struct = type(f"{cls.__name__}Fields", (RequestStruct,), {**named, **own})
        cls.API_KEY = key
        cls._CLASSES = (struct,)

    def __init__(self, *fields: Any) -> None:
        self.fields = fields

    def build(self, request_struct_class: type[RequestStruct]) -> RequestStruct:
        return request_struct_class(*self.fields)


class NamedHeartbeat(
    OneVersion,
    key=HeartbeatRequest.API_KEY,
    version=3,
    fields=Schema(("group", _TEXT), ("generation_id", Int32), ("member_id", _TEXT), ("group_instance_id", _TEXT)),
    answer=HeartbeatResponse_v1.SCHEMA,
):
    """A heartbeat with the name of the member, its group instance id, which aiokafka's heartbeats lack."""


class NamedLeave(
    OneVersion,
    key=LeaveGroupRequest.API_KEY,
    version=3,
    fields=Schema(("group", _TEXT), ("members", Array(("member_id", _TEXT), ("group_instance_id", _TEXT)))),
    answer=Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("members", Array(("member_id", _TEXT), ("group_instance_id", _TEXT), ("error_code", Int16))),
    ),
):
    """The request of a static member to leave its group: aiokafka's has no name, so its static members never leave."""


_ASKED_EPOCHS = Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))
_EPOCH_ENDS = Array(("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end_offset", Int64))


class EpochRequest(
    OneVersion,
    key=23,
    version=3,
    fields=Schema(("replica_id", Int32), ("topics", Array(("topic", _TEXT), ("partitions", _ASKED_EPOCHS)))),
    answer=Schema(("throttle_time_ms", Int32), ("topics", Array(("topic", _TEXT), ("partitions", _EPOCH_ENDS)))),
):
    """Kafka's ``OffsetForLeaderEpoch``."""
