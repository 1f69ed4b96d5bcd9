"""Requests that aiokafka lacks, each in one version of Kafka's protocol, which all supported brokers know.

Their fields are in the order of Kafka's own files (``clients/src/main/resources/common/message``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, UnsupportedVersionError
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

_NUMBERS = {"bool": Boolean, "int8": Int8, "int16": Int16, "int32": Int32, "int64": Int64}
_PLAIN = {**_NUMBERS, "string": String("utf-8")}
_FLEXIBLE = {**_NUMBERS, "string": CompactString("utf-8"), "bytes": CompactBytes}

_WORD = re.compile(r"\w+|\[\w+\]|\?\{|[\[\]{}]")

UNKNOWN_EPOCH = -1

ANY_REPLICA = -1

UNKNOWN_REQUEST_ERRORS = IncompatibleBrokerVersion, NotImplementedError, UnsupportedVersionError
"""Errors of a request that a broker does not know: aiokafka raises the first two. A broker may answer with the third
to a request that it knows, if what is asked needs a feature that is switched off."""


def by_topic(places: Mapping[tuple[str, int], tuple[Any, ...]]) -> list[tuple[str, list[Any]]]:
    """Partitions and their fields as requests have them: (topic, partitions of it). One without fields is a number."""
    found: dict[str, list[Any]] = {}
    for (topic, partition), fields in places.items():
        found.setdefault(topic, []).append((partition, *fields) if fields else partition)
    return [*found.items()]


class _Nullable:
    """A structure that may be missing: a byte says so."""

    def __init__(self, fields: Schema) -> None:
        self._fields = fields

    def decode(self, data: BytesIO) -> Any:
        return self._fields.decode(data) if Int8.decode(data) >= 0 else None


def layout(text: str, *, is_flexible: bool = True) -> Schema:
    """The layout that a text says: names and types of fields, as ``code int16, topics [topic string, places [int32]]``.

    ``[...]`` is an array, of structures or of a type; ``{...}`` is a structure, and ``?{...}`` one that may be missing.
    In a flexible version (KIP-482), strings and arrays are compact, and each structure ends with ``tags``.
    """
    return _structure(iter(_WORD.findall(text)), is_flexible=is_flexible)


def _structure(words: Iterator[str], *, is_flexible: bool) -> Schema:
    types, array = (_FLEXIBLE, CompactArray) if is_flexible else (_PLAIN, Array)
    fields: list[tuple[str, Any]] = []
    for name in words:
        if name in "]}":
            break
        kind = next(words)
        if kind.endswith(("[", "{")):
            inner = _structure(words, is_flexible=is_flexible)
            fields.append((name, array(inner) if kind == "[" else _Nullable(inner) if kind == "?{" else inner))
        else:
            fields.append((name, array(types[kind[1:-1]]) if kind.startswith("[") else types[kind]))
    return Schema(*fields, *[("tags", TaggedFields)] * is_flexible)


class OneVersion(Request[RequestStruct]):
    """A request in one version; a subclass says the :func:`layout` of its fields and of the answer.

    A flexible one has tagged fields at the end of both headers, too.
    """

    API_KEY = -1

    def __init_subclass__(cls, key: int, version: int, fields: str, answer: str, *, is_flexible: bool = True) -> None:
        named = {"API_KEY": key, "API_VERSION": version}
        read = layout(answer, is_flexible=is_flexible)
        response = type(f"{cls.__name__}Answer", (Response,), {**named, "SCHEMA": read})
        sent = layout(fields, is_flexible=is_flexible)
        own = {"FLEXIBLE_VERSION": is_flexible, "SCHEMA": sent, "RESPONSE_TYPE": response}
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
    fields="group string, generation_id int32, member_id string, group_instance_id string",
    answer="throttle_time_ms int32, error_code int16",
    is_flexible=False,
):
    """A heartbeat with the name of the member, its group instance id, which aiokafka's heartbeats lack."""


class NamedLeave(
    OneVersion,
    key=LeaveGroupRequest.API_KEY,
    version=3,
    fields="group string, members [member_id string, group_instance_id string]",
    answer="""
        throttle_time_ms int32, error_code int16,
        members [member_id string, group_instance_id string, error_code int16]
    """,
    is_flexible=False,
):
    """The request of a static member to leave its group: aiokafka's has no name, so its static members never leave."""


class EpochRequest(
    OneVersion,
    key=23,
    version=3,
    fields="""
        replica_id int32,
        topics [topic string, partitions [partition int32, current_leader_epoch int32, leader_epoch int32]]
    """,
    answer="""
        throttle_time_ms int32,
        topics [
            topic string,
            partitions [error_code int16, partition int32, leader_epoch int32, end_offset int64]
        ]
    """,
    is_flexible=False,
):
    """Kafka's ``OffsetForLeaderEpoch``."""


NO_TAGS: dict[int, bytes] = {}

PRODUCE_KEY, END_KEY, OFFSETS_KEY = 0, 26, 28


class ProduceInTransaction(
    OneVersion,
    key=PRODUCE_KEY,
    version=12,
    fields="""
        transactional_id string, acks int16, timeout_ms int32,
        topics [topic string, partitions [partition int32, records bytes]]
    """,
    answer="""
        topics [
            topic string,
            partitions [
                partition int32, error_code int16, offset int64, append_time_ms int64, log_start int64,
                record_errors [index int32, why string], why string
            ]
        ],
        throttle_time_ms int32
    """,
):
    """Appends batches, and adds their partitions to the transaction (version 2 of transactions, KIP-890)."""


class EndTransaction(
    OneVersion,
    key=END_KEY,
    version=5,
    fields="transactional_id string, producer_id int64, producer_epoch int16, committed bool",
    answer="throttle_time_ms int32, error_code int16, producer_id int64, producer_epoch int16",
):
    """Ends a transaction of version 2. The answer has the id and the epoch of the next one."""


class OffsetsInTransaction(
    OneVersion,
    key=OFFSETS_KEY,
    version=5,
    fields="""
        transactional_id string, group string, producer_id int64, producer_epoch int16,
        generation_id int32, member_id string, group_instance_id string,
        topics [topic string, partitions [partition int32, offset int64, leader_epoch int32, metadata string]]
    """,
    answer="throttle_time_ms int32, topics [topic string, partitions [partition int32, error_code int16]]",
):
    """Commits offsets of a group, and adds the group to the transaction (version 2 of transactions)."""


class FeaturesRequest(
    OneVersion,
    key=18,
    version=3,
    fields="software string, software_version string",
    answer="error_code int16, keys [key int16, lowest int16, highest int16], throttle_time_ms int32",
):
    """Kafka's ``ApiVersions``: the tagged fields of the answer have the features of the cluster (KIP-584)."""


FeaturesRequest._CLASSES[0].parse_response_header = lambda _, data: ResponseHeader_v0.decode(data)
"""Its answer has the old header, so that a broker can answer any version of it."""

FINALIZED = CompactArray(layout("name string, highest int16, lowest int16"))
EPOCH_TAG, FINALIZED_TAG = 1, 2


def finalized_features(answer: Any) -> tuple[int, dict[str, int]]:
    """Epoch of the features that the cluster has finalized, and name -> level, of an answer to a FeaturesRequest."""
    tags = answer.tags
    epoch = Int64.decode(BytesIO(tags[EPOCH_TAG])) if EPOCH_TAG in tags else -1
    levels = FINALIZED.decode(BytesIO(tags[FINALIZED_TAG])) if FINALIZED_TAG in tags else []
    return epoch, {name: highest for name, highest, *_ in levels or ()}
