"""Requests for groups of other kinds than the classic one: those of KIP-848, of Kafka Streams and of share consumers.

A group's id is used by one kind at a time. Of a group of another kind, the classic request says that it is dead and
has no members; the brokers tell each kind by a request of its own. All are flexible (KIP-482).
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from timers.kafka.aiokafka_internals.requests import OneVersion

CONSUMER, STREAMS, SHARE = "consumer", "streams", "share"
"""Kinds of groups."""

GROUP_ID_NOT_FOUND = 69
"""Kafka's error code: there is no group of this kind with this id. aiokafka has no name for it."""


class _Nullable:
    """A structure that may be missing: a byte says so."""

    def __init__(self, *fields: tuple[str, Any]) -> None:
        self._fields = _structure(*fields)

    def decode(self, data: BytesIO) -> Any:
        return self._fields.decode(data) if Int8.decode(data) >= 0 else None


def _structure(*fields: tuple[str, Any]) -> Schema:
    return Schema(*fields, ("tags", TaggedFields))


def _several(*fields: tuple[str, Any]) -> CompactArray:
    return CompactArray(*fields, ("tags", TaggedFields))


_TEXT = CompactString("utf-8")
_TEXTS, _NUMBERS = CompactArray(_TEXT), CompactArray(Int32)

_ASKED = _structure(("groups", _TEXTS), ("include_authorized_operations", Boolean))


def _answer(own: tuple[tuple[str, Any], ...], *member: tuple[str, Any]) -> Schema:
    """The layout of an answer.

    Args:
        own: fields of a group of this kind.
    """
    group = (
        ("error_code", Int16),
        ("error_message", _TEXT),
        ("group", _TEXT),
        ("state", _TEXT),
        ("group_epoch", Int32),
        ("assignment_epoch", Int32),
        *own,
        ("members", _several(*member)),
        ("authorized_operations", Int32),
    )
    return _structure(("throttle_time_ms", Int32), ("groups", _several(*group)))


_TOPICS = _structure(
    ("topics", _several(("id_begin", Int64), ("id_end", Int64), ("topic", _TEXT), ("partitions", _NUMBERS)))
)
_ASSIGNOR = (("assignor", _TEXT),)
_OF_CONSUMER = (
    ("member_id", _TEXT),
    ("instance_id", _TEXT),
    ("rack_id", _TEXT),
    ("member_epoch", Int32),
    ("client_id", _TEXT),
    ("client_host", _TEXT),
    ("subscribed_topics", _TEXTS),
    ("subscribed_regex", _TEXT),
    ("assignment", _TOPICS),
    ("target_assignment", _TOPICS),
)

_SETTINGS = _several(("key", _TEXT), ("value", _TEXT))
_INTERNAL_TOPICS = _several(
    ("topic", _TEXT), ("partitions", Int32), ("replication_factor", Int16), ("configs", _SETTINGS)
)
_TASKS = _several(("subtopology", _TEXT), ("partitions", _NUMBERS))
_TASK_OFFSETS = _several(("subtopology", _TEXT), ("partition", Int32), ("offset", Int64))
_ALL_TASKS = _structure(("active", _TASKS), ("standby", _TASKS), ("warmup", _TASKS))
_TOPOLOGY = _Nullable(
    ("epoch", Int32),
    (
        "subtopologies",
        _several(
            ("id", _TEXT),
            ("source_topics", _TEXTS),
            ("sink_topics", _TEXTS),
            ("changelog_topics", _INTERNAL_TOPICS),
            ("repartition_topics", _INTERNAL_TOPICS),
        ),
    ),
)


class DescribeConsumerGroup(
    OneVersion,
    key=69,
    version=1,
    fields=_ASKED,
    answer=_answer(_ASSIGNOR, *_OF_CONSUMER, ("member_type", Int8)),
    is_flexible=True,
):
    """Kafka's ``ConsumerGroupDescribe``, of brokers from 4.0 on: its members may also use the classic protocol."""


class DescribeConsumerGroupOfKafka3(
    OneVersion, key=69, version=0, fields=_ASKED, answer=_answer(_ASSIGNOR, *_OF_CONSUMER), is_flexible=True
):
    """The same of brokers from 3.7 on, which do not say which protocol a member uses."""


class DescribeStreamsGroup(
    OneVersion,
    key=89,
    version=0,
    fields=_ASKED,
    answer=_answer(
        (("topology", _TOPOLOGY),),
        ("member_id", _TEXT),
        ("member_epoch", Int32),
        ("instance_id", _TEXT),
        ("rack_id", _TEXT),
        ("client_id", _TEXT),
        ("client_host", _TEXT),
        ("topology_epoch", Int32),
        ("process_id", _TEXT),
        ("user_endpoint", _Nullable(("host", _TEXT), ("port", Int16))),
        ("client_tags", _SETTINGS),
        ("task_offsets", _TASK_OFFSETS),
        ("task_end_offsets", _TASK_OFFSETS),
        ("assignment", _ALL_TASKS),
        ("target_assignment", _ALL_TASKS),
        ("is_classic", Boolean),
    ),
    is_flexible=True,
):
    """Kafka's ``StreamsGroupDescribe``."""


class DescribeShareGroup(
    OneVersion,
    key=77,
    version=1,
    fields=_ASKED,
    answer=_answer(
        _ASSIGNOR,
        ("member_id", _TEXT),
        ("rack_id", _TEXT),
        ("member_epoch", Int32),
        ("client_id", _TEXT),
        ("client_host", _TEXT),
        ("subscribed_topics", _TEXTS),
        ("assignment", _TOPICS),
    ),
    is_flexible=True,
):
    """Kafka's ``ShareGroupDescribe``."""


DESCRIBING: tuple[tuple[str, type[OneVersion]], ...] = (
    (CONSUMER, DescribeConsumerGroup),
    (CONSUMER, DescribeConsumerGroupOfKafka3),
    (STREAMS, DescribeStreamsGroup),
    (SHARE, DescribeShareGroup),
)
"""Kind of groups -> the request for one of them."""


class ListAllGroups(
    OneVersion,
    key=16,
    version=5,
    fields=_structure(("states", _TEXTS), ("types", _TEXTS)),
    answer=_structure(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("groups", _several(("group", _TEXT), ("protocol", _TEXT), ("state", _TEXT), ("kind", _TEXT))),
    ),
    is_flexible=True,
):
    """Kafka's ``ListGroups``, of brokers from 3.7 on: the groups of all kinds that a broker coordinates.

    Librdkafka leaves out those whose protocol is neither empty nor ``consumer``.
    """


_PARTITIONS_OF_TOPIC = _several(("topic", _TEXT), ("partitions", _NUMBERS))


class FetchOffsetsOfGroups(
    OneVersion,
    key=9,
    version=8,
    fields=_structure(("groups", _several(("group", _TEXT), ("topics", _PARTITIONS_OF_TOPIC))), ("stable", Boolean)),
    answer=_structure(
        ("throttle_time_ms", Int32),
        (
            "groups",
            _several(
                ("group", _TEXT),
                (
                    "topics",
                    _several(
                        ("topic", _TEXT),
                        (
                            "partitions",
                            _several(
                                ("partition", Int32),
                                ("offset", Int64),
                                ("epoch", Int32),
                                ("metadata", _TEXT),
                                ("error_code", Int16),
                            ),
                        ),
                    ),
                ),
                ("error_code", Int16),
            ),
        ),
    ),
    is_flexible=True,
):
    """Kafka's ``OffsetFetch``, of brokers from 3.0 on, which takes several groups of one coordinator."""


class DescribeShareGroupOffsets(
    OneVersion,
    key=90,
    version=0,
    fields=_structure(("groups", _several(("group", _TEXT), ("topics", _PARTITIONS_OF_TOPIC)))),
    answer=_structure(
        ("throttle_time_ms", Int32),
        (
            "groups",
            _several(
                ("group", _TEXT),
                (
                    "topics",
                    _several(
                        ("topic", _TEXT),
                        ("id_begin", Int64),
                        ("id_end", Int64),
                        (
                            "partitions",
                            _several(
                                ("partition", Int32),
                                ("offset", Int64),
                                ("epoch", Int32),
                                ("error_code", Int16),
                                ("error_message", _TEXT),
                            ),
                        ),
                    ),
                ),
                ("error_code", Int16),
                ("error_message", _TEXT),
            ),
        ),
    ),
    is_flexible=True,
):
    """Kafka's ``DescribeShareGroupOffsets``: from where on a share group still has to read."""
