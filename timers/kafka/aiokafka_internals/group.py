"""What members of a consumer group say and have.

Each worker sends its URL when it joins, as workers of Faust and Kafka Streams do (``application.server``). The group's
coordinator returns what each member sent last and which partitions it has. With Faust's own assignor, the group's
leader sends the URLs with the assignment. Then the group knows the old URL of a static member that returns with a new
one, until the next rebalance, and an assertion in Faust fails (``docs/adr/0009``).

Another program that joins with the group's id is a stranger. In the classic protocol, a worker that leads the group
deals nothing to it. In the protocol of KIP-848 the brokers deal, and do not know what workers say of themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    for_code,
)
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import HeartbeatRequest

from timers.core.deals import RAISED, SUPPORTS, URL, number
from timers.core.printable import decode_json
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.other_groups import CONSUMER, DESCRIBE_REQUESTS, GROUP_ID_NOT_FOUND, SHARE
from timers.kafka.aiokafka_internals.requests import UNKNOWN_REQUEST_ERRORS

_T = TypeVar("_T")

Send: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Returns the answer of a group's coordinator to a request."""

PAUSE_S = 0.1
"""Pause between two questions. A cluster without any group has a coordinator soon after the first one."""

STABLE = "Stable"
"""State of a group whose members have their assignments. In other states its members have no metadata."""

CLASSIC = "classic"
"""Kind of a group whose leader deals: see also :mod:`timers.kafka.aiokafka_internals.other_groups`."""

SHARE_USER_DATA = b"timers"
"""User data of each share that a worker deals. With any user data there, the brokers refuse a member that would let
them deal: an assignor of the members is in use that they do not have (Kafka's ``ConsumerGroup.fromClassicGroup``)."""

RUNBOOK = "docs/operations.md#timersgrouptaken"

_DEAD = "Dead"
"""State that the classic request says of a group that does not exist, or is of another kind."""

_USES_CLASSIC = 0
"""Type of a member of a consumer group that uses the classic protocol."""

_SHOWN = 3
"""So many strangers are named in a sentence."""


class Member(NamedTuple):
    """A worker in the group, and what it said of itself when it joined."""

    worker_id: str
    url: str = ""
    """URL of its web port; empty if it sent none, like a worker of another version."""
    supports: int = 0
    """The highest feature level that it supports."""
    raised: int = 0
    """The highest one that a machine was raised to, as far as it knows."""
    topics: frozenset[str] = frozenset()
    """That it reads."""
    partitions: tuple[TopicPartition, ...] = ()
    """That it owns."""
    is_ours: bool = True
    """Whether it is a member of timers, as far as is known: it has said its URL."""
    id: str = ""
    host: str = ""
    """Address of its machine."""


class DescribedGroup(NamedTuple):
    """The coordinator's answer about a group."""

    state: str
    members: list[Member]
    kind: str = CLASSIC

    @property
    def strangers(self) -> list[Member]:
        """Members of other programs that have partitions, or because of which no worker deals any: those of another
        kind of group, and those without a worker among them, whose strategy workers may not share."""
        all_count = self.kind != CLASSIC or not any(each.is_ours for each in self.members)
        return [each for each in self.members if not each.is_ours and (each.partitions or all_count)]

    @property
    def is_taken(self) -> bool:
        """Whether other programs have the group. A share group keeps its id when its members have gone."""
        return bool(self.strangers) or self.kind == SHARE


def strangers_in(group_id: str, group: DescribedGroup) -> str:
    """A sentence about the programs that have one of our groups (:attr:`DescribedGroup.is_taken`)."""
    strangers = group.strangers
    if group.kind == SHARE and not strangers:
        return (
            f"{group_id!r} is a share group, which has no members and keeps its id: delete it with "
            f"`kafka-share-groups.sh --delete --group {group_id}` ({RUNBOOK})"
        )
    names = [f"client {each.worker_id!r} at {each.host.lstrip('/')}" for each in strangers[:_SHOWN]]
    if more := len(strangers) - len(names):
        names.append(f"{more} more")
    return (
        f"another program is in the group {group_id!r}: {', '.join(names)} (protocol {group.kind}). Stop it, or give "
        f"it another group id ({RUNBOOK})"
    )


async def ask(
    arguments: Mapping[str, Any], group: str, question: Callable[[Send, str], Awaitable[_T]], timeout_s: float
) -> _T:
    """What a question about a group returns. Errors after which its coordinator may answer are waited for.

    Raises:
        KafkaError: any other error, or the last one when ``timeout_s`` is over.
    """
    failure: KafkaError = KafkaTimeoutError(f"no answer within {timeout_s:g} s")
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                client = None
                try:
                    client = await sessions.bootstrapped(arguments)
                    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
                    return await question(partial(client.send, node, group=ConnectionGroup.COORDINATION), group)
                except KafkaError as error:
                    failure = _named(client) if client is not None and isinstance(error, NodeNotReadyError) else error
                    if not error.retriable:
                        raise
                finally:
                    if client is not None:
                        await sessions.end_in_time(client.close())
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise failure from None


def _named(client: AIOKafkaClient) -> NodeNotReadyError:
    """An error with the addresses that the brokers have named."""
    named = ", ".join(sorted(f"{each.host}:{each.port}" for each in client.cluster.brokers()))
    return NodeNotReadyError(
        f"a broker cannot be reached, of {named}: does its advertised.listeners name an address for this machine?"
    )


async def check_right(send: Send, group: str) -> None:
    """Check that this user may join a group: a heartbeat with an unknown member id needs the same right, READ on the
    group, and changes nothing.

    Raises:
        KafkaError: the coordinator refuses, which it does with a user who may join, too; or it has moved.
    """
    answer = await send(HeartbeatRequest(group, 0, "unknown-member"))
    if answer.error_code:
        raise for_code(answer.error_code)


async def describe(send: Send, group: str) -> DescribedGroup:
    """State and members of a group of any kind.

    Raises:
        KafkaError: the coordinator refuses, or has moved.
    """
    found = described(await send(DescribeGroupsRequest([group])))
    if found.state != _DEAD or found.members:
        return found
    for kind, request in DESCRIBE_REQUESTS:
        try:
            (answer,) = (await send(request([group], False, {}))).to_object()["groups"]
            if answer["error_code"] == GROUP_ID_NOT_FOUND:
                continue
            if answer["error_code"]:
                raise for_code(answer["error_code"])(answer["error_message"])
        # The broker does not know the request, or groups of this kind are switched off there.
        except UNKNOWN_REQUEST_ERRORS:
            continue
        return DescribedGroup(answer["state"], [_other_member(kind, each) for each in answer["members"]], kind)
    return found


def _other_member(kind: str, said: Mapping[str, Any]) -> Member:
    """A member of a group of another kind. Of a worker that is in such a group, the brokers tell only its names.

    A worker has its id as client id and as name; of an engine on Spark, the client id begins its name.
    """
    is_named = bool(said.get("instance_id")) and said["instance_id"].startswith(said["client_id"])
    is_ours = kind == CONSUMER and is_named and said.get("member_type", _USES_CLASSIC) == _USES_CLASSIC
    topics = said["assignment"].get("topics", ())
    return Member(
        said["client_id"],
        topics=frozenset(said.get("subscribed_topics", ())),
        partitions=tuple((each["topic"], partition) for each in topics for partition in each["partitions"]),
        is_ours=is_ours,
        id=said["member_id"],
        host=said["client_host"],
    )


def described(response: Any) -> DescribedGroup:
    """The group in an answer to a request for one group.

    Raises:
        KafkaError: the coordinator refuses, or has moved.
    """
    error_code, name, state, _, _, members, *_ = response.groups[0]
    if error_code:
        raise for_code(error_code)(name)
    found = [member_of(client, *sent)._replace(id=id, host=host) for id, client, host, *sent in members]
    return DescribedGroup(state, found)


def member_of(worker_id: str, metadata: bytes, assignment: bytes) -> Member:
    """A member, from its client id and what the coordinator has of it: no metadata while the group rebalances."""
    topics, sent = subscription_of(metadata)
    url = sent.get(URL) if isinstance(sent, dict) else None
    levels = number(sent, SUPPORTS), number(sent, RAISED)
    is_ours = isinstance(url, str) or not metadata
    return Member(worker_id, url if isinstance(url, str) else "", *levels, topics, partitions_in(assignment), is_ours)


def partitions_in(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that a leader dealt to a member; none if it did not know this member, or is another program."""
    if not assignment:
        return ()
    try:
        dealt = ConsumerProtocolMemberAssignment.decode(assignment).assignment
        return tuple((topic, partition) for topic, partitions in dealt if topic for partition in partitions)
    except (TypeError, ValueError):  # arrays of another program may be null
        return ()


def is_sealed(assignment: bytes) -> bool:
    """Whether a worker has dealt this share."""
    try:
        return bool(assignment) and ConsumerProtocolMemberAssignment.decode(assignment).user_data == SHARE_USER_DATA
    except (TypeError, ValueError):
        return False


def subscription_of(metadata: bytes) -> tuple[frozenset[str], Any]:
    """The topics that a member reads, and the JSON value that it sent with them. Of another program: none, and None."""
    try:
        decoded = ConsumerProtocolMemberMetadata.decode(metadata)
        topics = frozenset(topic for topic in decoded.subscription if topic)
    except (TypeError, ValueError):
        return frozenset(), None
    try:
        return topics, decode_json(decoded.user_data or b"null")
    except ValueError:
        return topics, None


def owners(members: Iterable[Member]) -> dict[TopicPartition, Member]:
    """Partition -> its owner."""
    return {tp: member for member in members for tp in member.partitions}


def unowned_partitions(
    members: Iterable[Member], partitions: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, list[str]]:
    """Partitions without an owner -> ids of the workers that read the topic, sorted.

    A member does not read an assigned partition of a topic that it does not subscribe, so it does not own it.

    Args:
        members: of a stable group.
        partitions: topic -> its partitions. Topics that no member subscribes are ignored.
    """
    subscribers: dict[str, list[str]] = {}
    owned = set()
    for member in members:
        for topic in member.topics:
            subscribers.setdefault(topic, []).append(member.worker_id)
        owned |= {tp for tp in member.partitions if tp[0] in member.topics}
    return {
        (topic, partition): sorted(subscribers[topic])
        for topic in subscribers.keys() & partitions.keys()
        for partition in partitions[topic]
        if (topic, partition) not in owned
    }
