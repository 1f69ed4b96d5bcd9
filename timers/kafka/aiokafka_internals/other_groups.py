"""Requests for groups of other kinds than the classic one: those of KIP-848, of Kafka Streams and of share consumers.

A group's id is used by one kind at a time. Of a group of another kind, the classic request says that it is dead and
has no members; the brokers tell each kind by a request of its own. All are flexible (KIP-482).
"""

from __future__ import annotations

from timers.kafka.aiokafka_internals.requests import OneVersion

CONSUMER, STREAMS, SHARE = "consumer", "streams", "share"
"""Kinds of groups."""

GROUP_ID_NOT_FOUND = 69
"""Kafka's error code: there is no group of this kind with this id. aiokafka has no name for it."""


_ASKED = "groups [string], include_authorized_operations bool"


def _answer(own: str, member: str) -> str:
    """The layout of an answer, with the fields that only a group of this kind has, and those of its members."""
    return f"""
        throttle_time_ms int32,
        groups [
            error_code int16, error_message string, group string, state string, group_epoch int32,
            assignment_epoch int32, {own}, members [{member}], authorized_operations int32
        ]
    """


_PARTITIONS = "{topics [id_begin int64, id_end int64, topic string, partitions [int32]]}"
_OF_CONSUMER = f"""
    member_id string, instance_id string, rack_id string, member_epoch int32, client_id string, client_host string,
    subscribed_topics [string], subscribed_regex string, assignment {_PARTITIONS}, target_assignment {_PARTITIONS}
"""

_INTERNAL = "[topic string, partitions int32, replication_factor int16, configs [key string, value string]]"
_TASKS = "[subtopology string, partitions [int32]]"
_TASK_OFFSETS = "[subtopology string, partition int32, offset int64]"
_ALL_TASKS = f"{{active {_TASKS}, standby {_TASKS}, warmup {_TASKS}}}"


class DescribeConsumerGroup(
    OneVersion,
    key=69,
    version=1,
    fields=_ASKED,
    answer=_answer("assignor string", f"{_OF_CONSUMER}, member_type int8"),
):
    """Kafka's ``ConsumerGroupDescribe``, of brokers from 4.0 on: its members may also use the classic protocol."""


class DescribeConsumerGroupOfKafka3(
    OneVersion, key=69, version=0, fields=_ASKED, answer=_answer("assignor string", _OF_CONSUMER)
):
    """The same of brokers from 3.7 on, which do not say which protocol a member uses."""


class DescribeStreamsGroup(
    OneVersion,
    key=89,
    version=0,
    fields=_ASKED,
    answer=_answer(
        f"""
            topology ?{{
                epoch int32,
                subtopologies [
                    id string, source_topics [string], sink_topics [string],
                    changelog_topics {_INTERNAL}, repartition_topics {_INTERNAL}
                ]
            }}
        """,
        f"""
            member_id string, member_epoch int32, instance_id string, rack_id string, client_id string,
            client_host string, topology_epoch int32, process_id string, user_endpoint ?{{host string, port int16}},
            client_tags [key string, value string], task_offsets {_TASK_OFFSETS}, task_end_offsets {_TASK_OFFSETS},
            assignment {_ALL_TASKS}, target_assignment {_ALL_TASKS}, is_classic bool
        """,
    ),
):
    """Kafka's ``StreamsGroupDescribe``."""


class DescribeShareGroup(
    OneVersion,
    key=77,
    version=1,
    fields=_ASKED,
    answer=_answer(
        "assignor string",
        f"""
            member_id string, rack_id string, member_epoch int32, client_id string, client_host string,
            subscribed_topics [string], assignment {_PARTITIONS}
        """,
    ),
):
    """Kafka's ``ShareGroupDescribe``."""


DESCRIBE_REQUESTS: tuple[tuple[str, type[OneVersion]], ...] = (
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
    fields="states [string], types [string]",
    answer="""
        throttle_time_ms int32, error_code int16,
        groups [group string, protocol string, state string, kind string]
    """,
):
    """Kafka's ``ListGroups``, of brokers from 3.7 on: the groups of all kinds that a broker coordinates.

    Librdkafka leaves out those whose protocol is neither empty nor ``consumer``.
    """


class FetchOffsetsOfGroups(
    OneVersion,
    key=9,
    version=8,
    fields="groups [group string, topics [topic string, partitions [int32]]], stable bool",
    answer="""
        throttle_time_ms int32,
        groups [
            group string,
            topics [
                topic string,
                partitions [partition int32, offset int64, epoch int32, metadata string, error_code int16]
            ],
            error_code int16
        ]
    """,
):
    """Kafka's ``OffsetFetch``, of brokers from 3.0 on, which takes several groups of one coordinator."""


class DescribeShareGroupOffsets(
    OneVersion,
    key=90,
    version=0,
    fields="groups [group string, topics [topic string, partitions [int32]]]",
    answer="""
        throttle_time_ms int32,
        groups [
            group string,
            topics [
                topic string, id_begin int64, id_end int64,
                partitions [partition int32, offset int64, epoch int32, error_code int16, error_message string]
            ],
            error_code int16, error_message string
        ]
    """,
):
    """Kafka's ``DescribeShareGroupOffsets``: from where on a share group still has to read."""
