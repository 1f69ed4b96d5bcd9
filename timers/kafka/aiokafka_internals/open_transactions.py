"""Which transactions are open for long on partitions: as leaders and coordinators say (KIP-664). All is flexible.

A leader says which producer has a transaction open on a partition, and since which offset; a coordinator says in which
state the transaction is, and since when. If no coordinator has it open, no producer can end it: it hangs. This cannot
be seen from here: a coordinator leaves out what a login may not describe, and one that is down says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from aiokafka.errors import (
    KafkaError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.requests import NO_TAGS, UNKNOWN_REQUEST_ERRORS, OneVersion, by_topic
from timers.wire.topics import partition_name

AT_ONCE = 200
"""So many partitions are asked in one request: an answer has each producer that wrote there lately."""

REQUEST_S = 3.0
"""A broker that has not answered a request after this time is not asked again."""

LOOK_S = 8.0
"""What was not asked after this time is left out."""

NO_LEADER = -1

_MOST_NAMED = 5

_NO_START = (
    "no coordinator tells since when a transaction is open there (this login may lack Describe on its transactional id)"
)
_NO_RIGHT = "this login lacks Read on them"
_MOVING = "their leaders move, or they were deleted just now"
_REASONS = {
    TopicAuthorizationFailedError: _NO_RIGHT,
    NotLeaderForPartitionError: _MOVING,
    UnknownTopicOrPartitionError: _MOVING,
}

_NO_SUCH_ID = 105
"""The transaction has ended, and its id is forgotten."""

OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States of a coordinator in which a transaction is open on partitions."""


class DescribeProducers(
    OneVersion,
    key=61,
    version=0,
    fields="topics [topic string, partitions [int32]]",
    answer="""
        throttle_ms int32,
        topics [
            topic string,
            partitions [
                partition int32, error_code int16, error_message string,
                producers [
                    producer_id int64, producer_epoch int32, last_sequence int32, last_ms int64,
                    coordinator_epoch int32, start_offset int64
                ]
            ]
        ]
    """,
):
    """Of a leader: the producers of partitions, and where the transaction of each begins; -1: none is open."""


class ListTransactions(
    OneVersion,
    key=66,
    version=0,
    fields="states [string], producer_ids [int64]",
    answer="""
        throttle_ms int32, error_code int16, unknown_states [string],
        transactions [id string, producer_id int64, state string]
    """,
):
    """Of a broker: the transactions that it coordinates, as far as this login may describe them."""


class DescribeTransactions(
    OneVersion,
    key=65,
    version=0,
    fields="ids [string]",
    answer="""
        throttle_ms int32,
        transactions [
            error_code int16, id string, state string, timeout_ms int32, start_ms int64,
            producer_id int64, producer_epoch int16, topics [topic string, partitions [int32]]
        ]
    """,
):
    """Of a coordinator: since when transactions are open, and which partitions they have."""


class OpenTransaction(NamedTuple):
    """A transaction that is open on a partition."""

    topic: str
    partition: int
    start_offset: int
    """Committed readers get no record from here on."""
    since_ms: int
    """When it began; of one that no coordinator names, when its producer wrote there last."""
    producer_id: int
    id: str = ""
    """Its transactional id; empty if no coordinator names it."""
    state: str = ""
    """As its coordinator says; empty if no coordinator names it: it may hang, or this login may not describe it."""
    timeout_ms: int = 0
    """After this time its coordinator ends it, if its producer does not."""


class Looked(NamedTuple):
    """The transactions that are open, the oldest first, and what is not known."""

    transactions: list[OpenTransaction]
    unknown: list[str]
    """What was not asked, or not answered, and why: sentences. Empty: the transactions are all that there are."""


async def look(
    arguments: Mapping[str, Any],
    leaders: Mapping[int, Sequence[TopicPartition]],
    before_ms: int,
    check: Callable[[], None],
) -> Looked:
    """The transactions that have been open on partitions since before a time.

    Args:
        leaders: id of a broker -> partitions that it leads; -1: those without a leader.
        check: called before each request; may raise to stop.

    Raises:
        KafkaError: no broker answers.
    """
    client = await sessions.bootstrapped({**arguments, "request_timeout_ms": int(1000 * REQUEST_S)})
    looking = _Looking(client, check)
    try:
        found = await looking.ask_leaders(leaders)
        if found:
            named = await looking.ask_coordinators({each.producer_id for each in found})
            found = [each._replace(**named.get((each.producer_id, *each[:2]), {})) for each in found]
            # A transaction that ended between the two questions is named by no coordinator either.
            places = {each[:2] for each in found if not each.id}
            again = {leader: [place for place in of if place in places] for leader, of in leaders.items()}
            still = {each[:3] for each in await looking.ask_leaders(again)}
            found = [each for each in found if each.id or each[:3] in still]
    finally:
        await sessions.end_in_time(client.close())
    # The producer has written just now, so only a coordinator would know since when the transaction is open.
    looking.leave_out(_NO_START, [each[:2] for each in found if each.since_ms >= before_ms and not each.id])
    known = [each for each in found if each.since_ms < before_ms]
    return Looked(sorted(known, key=lambda each: each.since_ms), looking.unknown())


class _Looking:
    def __init__(self, client: Any, check: Callable[[], None]) -> None:
        self._client = client
        self._check = check
        self._end_s = monotonic() + LOOK_S
        self._failed: dict[int, str] = {}
        """Broker that is not asked again -> why."""
        self._untold: dict[int, str] = {}
        """Coordinator that does not tell all its transactions -> why."""
        self._left_out: dict[str, list[TopicPartition]] = {}
        """Why partitions were left out -> which."""

    def leave_out(self, why: str, places: Collection[TopicPartition]) -> None:
        if places:
            self._left_out.setdefault(why, []).extend(places)

    def unknown(self) -> list[str]:
        """What is not known, a sentence for each reason."""
        found = [f"broker {broker} {why}" for broker, why in (*self._failed.items(), *self._untold.items())]
        for why, places in self._left_out.items():
            names = sorted({partition_name(*place) for place in places})
            more = f" and {len(names) - _MOST_NAMED:,} others" if len(names) > _MOST_NAMED else ""
            found.append(f"{', '.join(names[:_MOST_NAMED])}{more}: {why}")
        return found

    async def _send(self, broker: int, request: Any) -> Any:
        """The answer of a broker; None if there is none."""
        self._check()
        if broker in self._failed:
            return None
        if monotonic() > self._end_s:
            self._failed[broker] = f"was not asked all within {LOOK_S:.0f} s"
            return None
        try:
            return (await self._client.send(broker, request)).to_object()
        except UNKNOWN_REQUEST_ERRORS:
            self._failed[broker] = "does not know such questions, which Kafka 3.0 and later answer"
        except KafkaError as error:
            self._failed[broker] = f"did not answer ({type(error).__name__})"
        return None

    async def ask_leaders(self, leaders: Mapping[int, Sequence[TopicPartition]]) -> list[OpenTransaction]:
        """The transactions that are open on partitions, without what a coordinator knows."""
        self.leave_out("they have no leader", leaders.get(NO_LEADER, ()))
        asked = (self._ask_leader(leader, of) for leader, of in leaders.items() if leader != NO_LEADER)
        return [each for found in await asyncio.gather(*asked) for each in found]

    async def _ask_leader(self, leader: int, places: Sequence[TopicPartition]) -> list[OpenTransaction]:
        found = []
        for first in range(0, len(places), AT_ONCE):
            some = by_topic(dict.fromkeys(places[first : first + AT_ONCE], ()))
            asked = DescribeProducers([(topic, numbers, NO_TAGS) for topic, numbers in some], NO_TAGS)
            answer = await self._send(leader, asked)
            if answer is None:
                self.leave_out(f"broker {leader} leads them", places[first:])
                break
            for topic in answer["topics"]:
                for partition in topic["partitions"]:
                    found += self._open(topic["topic"], partition)
        return found

    def _open(self, topic: str, said: Mapping[str, Any]) -> list[OpenTransaction]:
        place = topic, said["partition"]
        if said["error_code"]:
            kind = for_code(said["error_code"])
            self.leave_out(_REASONS.get(kind, f"their leaders answer {kind.__name__}"), [place])
        return [
            OpenTransaction(*place, each["start_offset"], each["last_ms"], each["producer_id"])
            for each in said["producers"]
            if each["start_offset"] >= 0
        ]

    async def ask_coordinators(self, producer_ids: Collection[int]) -> dict[tuple[int, str, int], dict[str, Any]]:
        """Id of a producer, topic, partition -> what a coordinator knows of the transaction that is open there."""
        brokers = [each.nodeId for each in self._client.cluster.brokers()]
        found = await asyncio.gather(*(self._ask_coordinator(broker, producer_ids) for broker in brokers))
        return {place: fields for of in found for place, fields in of.items()}

    async def _ask_coordinator(
        self, broker: int, producer_ids: Collection[int]
    ) -> dict[tuple[int, str, int], dict[str, Any]]:
        listed = await self._send(broker, ListTransactions([*OPEN], [*producer_ids], NO_TAGS))
        ids = [] if listed is None else [each["id"] for each in listed["transactions"]]
        answer = await self._send(broker, DescribeTransactions(ids, NO_TAGS)) if ids else None
        described = [] if answer is None else answer["transactions"]
        for said in (*([] if listed is None else [listed]), *described):
            if said["error_code"] not in (0, _NO_SUCH_ID):
                kind = for_code(said["error_code"]).__name__
                self._untold[broker] = f"does not tell all the transactions that it coordinates ({kind})"
        return {
            (each["producer_id"], topic["topic"], partition): {
                "id": each["id"],
                "state": each["state"],
                "timeout_ms": each["timeout_ms"],
                "since_ms": each["start_ms"],
            }
            for each in described
            if not each["error_code"] and each["state"] in OPEN
            for topic in each["topics"]
            for partition in topic["partitions"]
        }
