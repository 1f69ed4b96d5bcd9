"""Requests that aiokafka lacks, each in one version of Kafka's protocol, which all supported brokers know."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, UnsupportedVersionError
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.group import HeartbeatRequest, HeartbeatResponse_v1, LeaveGroupRequest
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

_TEXT = String("utf-8")

UNKNOWN_EPOCH = -1

ANY_REPLICA = -1

UNKNOWN_REQUEST = IncompatibleBrokerVersion, NotImplementedError, UnsupportedVersionError
"""Errors of a request that a broker does not know: aiokafka raises the first two. A broker may answer with the third
to a request that it knows, if what is asked needs a feature that is switched off."""


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


_COMPACT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
"""The last field of each structure of a flexible version (KIP-482)."""

NO_TAGS: dict[int, bytes] = {}


def _topics(*fields: tuple[str, Any]) -> tuple[str, CompactArray]:
    """The field of a flexible version that has partitions by topic, each with these fields."""
    partitions = CompactArray(("partition", Int32), *fields, _TAGS)
    return "topics", CompactArray(("topic", _COMPACT), ("partitions", partitions), _TAGS)


PRODUCE_KEY, END_KEY, OFFSETS_KEY = 0, 26, 28


class ProduceInTransaction(
    OneVersion,
    key=PRODUCE_KEY,
    version=12,
    is_flexible=True,
    fields=Schema(
        ("transactional_id", _COMPACT),
        ("acks", Int16),
        ("timeout_ms", Int32),
        _topics(("records", CompactBytes)),
        _TAGS,
    ),
    answer=Schema(
        _topics(
            ("error_code", Int16),
            ("offset", Int64),
            ("append_time_ms", Int64),
            ("log_start", Int64),
            ("record_errors", CompactArray(("index", Int32), ("why", _COMPACT), _TAGS)),
            ("why", _COMPACT),
        ),
        ("throttle_time_ms", Int32),
        _TAGS,
    ),
):
    """Appends batches, and adds their partitions to the transaction (version 2 of transactions, KIP-890)."""


class EndTransaction(
    OneVersion,
    key=END_KEY,
    version=5,
    is_flexible=True,
    fields=Schema(
        ("transactional_id", _COMPACT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("committed", Boolean),
        _TAGS,
    ),
    answer=Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        _TAGS,
    ),
):
    """Ends a transaction of version 2. The answer has the id and the epoch of the next one."""


class OffsetsInTransaction(
    OneVersion,
    key=OFFSETS_KEY,
    version=5,
    is_flexible=True,
    fields=Schema(
        ("transactional_id", _COMPACT),
        ("group", _COMPACT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation_id", Int32),
        ("member_id", _COMPACT),
        ("group_instance_id", _COMPACT),
        _topics(("offset", Int64), ("leader_epoch", Int32), ("metadata", _COMPACT)),
        _TAGS,
    ),
    answer=Schema(
        ("throttle_time_ms", Int32),
        _topics(("error_code", Int16)),
        _TAGS,
    ),
):
    """Commits offsets of a group, and adds the group to the transaction (version 2 of transactions)."""


class FeaturesRequest(
    OneVersion,
    key=18,
    version=3,
    is_flexible=True,
    fields=Schema(("software", _COMPACT), ("software_version", _COMPACT), _TAGS),
    answer=Schema(
        ("error_code", Int16),
        ("keys", CompactArray(("key", Int16), ("lowest", Int16), ("highest", Int16), _TAGS)),
        ("throttle_time_ms", Int32),
        _TAGS,
    ),
):
    """Kafka's ``ApiVersions``: the tagged fields of the answer have the features of the cluster (KIP-584)."""


FeaturesRequest._CLASSES[0].parse_response_header = lambda _, data: ResponseHeader_v0.decode(data)
"""Its answer has the old header, so that a broker can answer any version of it."""

FINALIZED = CompactArray(("name", _COMPACT), ("highest", Int16), ("lowest", Int16), _TAGS)
EPOCH_TAG, FINALIZED_TAG = 1, 2


def finalized_features(answer: Any) -> tuple[int, dict[str, int]]:
    """Epoch of the features that the cluster has finalized, and name -> level, of an answer to a FeaturesRequest."""
    tags = answer.tags
    epoch = Int64.decode(BytesIO(tags[EPOCH_TAG])) if EPOCH_TAG in tags else -1
    levels = FINALIZED.decode(BytesIO(tags[FINALIZED_TAG])) if FINALIZED_TAG in tags else []
    return epoch, {name: highest for name, highest, *_ in levels or ()}
