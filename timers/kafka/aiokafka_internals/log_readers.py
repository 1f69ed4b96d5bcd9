"""Which consumer groups, of any kind, have an offset in a topic.

A broker lists the groups that it coordinates, so it is also the one to ask for what they have committed. Share groups
keep their offsets elsewhere (KIP-932), and the brokers tell them by a request of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import ListGroupsRequest

from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.group import CLASSIC
from timers.kafka.aiokafka_internals.other_groups import (
    CONSUMER,
    GROUP_ID_NOT_FOUND,
    SHARE,
    STREAMS,
    DescribeShareGroupOffsets,
    FetchOffsetsOfGroups,
    ListAllGroups,
)
from timers.kafka.aiokafka_internals.requests import UNKNOWN_REQUEST_ERRORS

GROUPS_A_REQUEST = 100
"""So many groups are asked in one request. Its answer takes about 13 ms to decode, with 12 partitions."""

COMMITTING = frozenset({CLASSIC, CONSUMER, STREAMS})
"""Kinds of groups whose offsets are asked as those of consumers."""

UNSTABLE_OFFSET_COMMIT = 88
"""Kafka's error code: an open transaction commits an offset of this partition. aiokafka has no name for it."""


class ReadingGroup(NamedTuple):
    """A group that may read a topic."""

    group: str
    kind: str
    unasked: str = ""
    """Why the brokers do not say whether it has an offset there; empty: it has one."""
    offsets: tuple[tuple[int, int], ...] = ()
    """Partition and offset of what a group of consumers has committed there."""


async def log_readers(
    arguments: Mapping[str, Any],
    topic: str,
    partitions: int,
    but: Collection[str],
    check: Callable[[], None],
) -> list[ReadingGroup]:
    """The groups that have an offset in a topic, and those of which this is not known, as far as the brokers list them.

    Args:
        but: ids of groups that are not asked.
        check: called before each request; may raise to stop.

    Raises:
        KafkaError: a broker does not answer, or a group moves from one to another.
    """
    client = await sessions.bootstrapped(arguments)
    found = []
    try:
        for broker in client.cluster.brokers():
            by_kind: dict[str, list[str]] = {}
            for group, kind in await _listed(client, broker.nodeId):
                if group not in but:
                    by_kind.setdefault(kind, []).append(group)
            for kind, groups in by_kind.items():
                for first in range(0, len(groups), GROUPS_A_REQUEST):
                    check()
                    some = groups[first : first + GROUPS_A_REQUEST]
                    found += await _readers(client, broker.nodeId, kind, some, topic, partitions)
    finally:
        await sessions.end_in_time(client.close())
    return found


async def _listed(client: Any, broker: int) -> list[tuple[str, str]]:
    """Id and kind of each group that a broker coordinates."""
    try:
        answer = await client.send(broker, ListAllGroups([], [], {}))
    except UNKNOWN_REQUEST_ERRORS:  # the broker knows no other kinds of groups
        answer = await client.send(broker, ListGroupsRequest())
    if answer.error_code:  # a group of this broker may read the topic, too
        raise for_code(answer.error_code)(f"broker {broker} does not list its groups")
    return [(each[0], each[3].lower() if len(each) > 3 else CLASSIC) for each in answer.groups]


async def _readers(
    client: Any, broker: int, kind: str, groups: list[str], topic: str, partitions: int
) -> list[ReadingGroup]:
    """Those of some groups of one kind and one coordinator that have an offset in a topic, or may have one."""
    # A share group that has not yet read to the end of a batch has -1 where it reads, as where it never read. So it is
    # asked for all that it reads, which names the topic only in the first case.
    asked: list[Any] | None = None if kind == SHARE else [(topic, [*range(partitions)], {})]
    named: list[Any] = [(group, asked, {}) for group in groups]
    try:
        if kind == SHARE:
            answer = await client.send(broker, DescribeShareGroupOffsets(named, {}))
        elif kind in COMMITTING:
            answer = await client.send(broker, FetchOffsetsOfGroups(named, True, {}))
        else:
            return [ReadingGroup(group, kind, "groups of this kind are not known") for group in groups]
    except UNKNOWN_REQUEST_ERRORS as error:
        return [ReadingGroup(group, kind, type(error).__name__) for group in groups]
    found = []
    for said in answer.to_object()["groups"]:
        places = [place for each in said["topics"] if each["topic"] == topic for place in each["partitions"]]
        codes = {said["error_code"], *(place["error_code"] for place in places)}
        # The group has gone, or has read nothing in the topic.
        codes -= {0, GROUP_ID_NOT_FOUND, UnknownTopicOrPartitionError.errno}
        # The first offset of a group may be in a transaction that is open.
        if UNSTABLE_OFFSET_COMMIT in codes or any(
            not place["error_code"] and (kind == SHARE or place["offset"] >= 0) for place in places
        ):
            known = [place for place in places if kind != SHARE and not place["error_code"] and place["offset"] >= 0]
            offsets = tuple((place["partition"], place["offset"]) for place in known)
            found.append(ReadingGroup(said["group"], kind, offsets=offsets))
        elif codes:
            refusal: type[KafkaError] = for_code(min(codes))
            if refusal.retriable:
                raise refusal(said["group"])
            found.append(ReadingGroup(said["group"], kind, refusal.message))
    return found
