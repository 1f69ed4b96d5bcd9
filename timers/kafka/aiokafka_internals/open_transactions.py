"""Which transactions are open for long on partitions: as leaders and coordinators say (KIP-664). All is flexible.

A leader says which producer has a transaction open on a partition, and since which offset; a coordinator says in which
state the transaction is, and since when. If no coordinator has it open, no producer can end it: it hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import sessions
from timers.kafka.aiokafka_internals.requests import NO_TAGS, OneVersion, by_topic
from timers.wire.topics import partition_name

AT_ONCE = 200
"""So many partitions are asked in one request: an answer has each producer that wrote there lately."""

OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
"""States of a coordinator in which a transaction is open on partitions."""

_TAGS = ("tags", TaggedFields)
_TEXT = CompactString("utf-8")


def _several(*fields: tuple[str, Any]) -> CompactArray:
    return CompactArray(*fields, _TAGS)


_PRODUCERS = _several(
    ("producer_id", Int64),
    ("producer_epoch", Int32),
    ("last_sequence", Int32),
    ("last_ms", Int64),
    ("coordinator_epoch", Int32),
    ("start_offset", Int64),
)
_PARTITIONS = _several(("partition", Int32), ("error_code", Int16), ("error_message", _TEXT), ("producers", _PRODUCERS))


class DescribeProducers(
    OneVersion,
    key=61,
    version=0,
    fields=Schema(("topics", _several(("topic", _TEXT), ("partitions", CompactArray(Int32)))), _TAGS),
    answer=Schema(("throttle_ms", Int32), ("topics", _several(("topic", _TEXT), ("partitions", _PARTITIONS))), _TAGS),
    is_flexible=True,
):
    """Of a leader: the producers of partitions, and where the transaction of each begins; -1: none is open."""


class ListTransactions(
    OneVersion,
    key=66,
    version=0,
    fields=Schema(("states", CompactArray(_TEXT)), ("producer_ids", CompactArray(Int64)), _TAGS),
    answer=Schema(
        ("throttle_ms", Int32),
        ("error_code", Int16),
        ("unknown_states", CompactArray(_TEXT)),
        ("transactions", _several(("id", _TEXT), ("producer_id", Int64), ("state", _TEXT))),
        _TAGS,
    ),
    is_flexible=True,
):
    """Of a broker: the transactions that it coordinates, as far as this login may describe them."""


class DescribeTransactions(
    OneVersion,
    key=65,
    version=0,
    fields=Schema(("ids", CompactArray(_TEXT)), _TAGS),
    answer=Schema(
        ("throttle_ms", Int32),
        (
            "transactions",
            _several(
                ("error_code", Int16),
                ("id", _TEXT),
                ("state", _TEXT),
                ("timeout_ms", Int32),
                ("start_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", _several(("topic", _TEXT), ("partitions", CompactArray(Int32)))),
            ),
        ),
        _TAGS,
    ),
    is_flexible=True,
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
    """As its coordinator says; empty if no coordinator names it: it hangs, or this login may not describe it."""
    timeout_ms: int = 0
    """After this time its coordinator ends it, if its producer does not."""


class Looked(NamedTuple):
    """The transactions that are open, the oldest first, and what could not be asked."""

    transactions: list[OpenTransaction]
    unasked: dict[str, str]
    """Partition or broker -> why it was not asked, or did not answer."""


async def look(
    arguments: Mapping[str, Any],
    leaders: Mapping[int, Sequence[TopicPartition]],
    before_ms: int,
    check: Callable[[], None],
) -> Looked:
    """The transactions that have been open on partitions since before a time.

    Args:
        arguments: of the client.
        leaders: id of a broker -> partitions that it leads.
        before_ms: epoch milliseconds.
        check: called before each request; may raise to stop.

    Raises:
        KafkaError: no broker answers.
    """
    client = await sessions.bootstrapped(arguments)
    looking = _Looking(client, check)
    try:
        found = [each for each in await looking.ask_leaders(leaders) if each.since_ms < before_ms]
        if found:
            named = await looking.ask_coordinators({each.producer_id for each in found})
            found = [each._replace(**named.get(each.producer_id, {})) for each in found]
            # One that has ended between the two questions is named by no coordinator either.
            places = {each[:2] for each in found}
            again = {leader: [place for place in of if place in places] for leader, of in leaders.items()}
            still = {each[:3] for each in await looking.ask_leaders(again)}
            found = [each for each in found if each[:3] in still and each.since_ms < before_ms]
    finally:
        await sessions.end_in_time(client.close())
    return Looked(sorted(found, key=lambda each: each.since_ms), looking.unasked)


class _Looking:
    def __init__(self, client: Any, check: Callable[[], None]) -> None:
        self.unasked: dict[str, str] = {}
        self._client = client
        self._check = check

    async def _send(self, broker: int, request: Any) -> Any:
        """The answer of a broker; None if there is none."""
        self._check()
        try:
            return (await self._client.send(broker, request)).to_object()
        except (IncompatibleBrokerVersion, NotImplementedError):
            self.unasked.setdefault(f"broker {broker}", "it does not know the request")
        except KafkaError as error:
            self.unasked.setdefault(f"broker {broker}", repr(error))
        return None

    async def ask_leaders(self, leaders: Mapping[int, Sequence[TopicPartition]]) -> list[OpenTransaction]:
        found = []
        for leader, places in leaders.items():
            for first in range(0, len(places), AT_ONCE):
                some = by_topic(dict.fromkeys(places[first : first + AT_ONCE], ()))
                asked = DescribeProducers([(topic, numbers, NO_TAGS) for topic, numbers in some], NO_TAGS)
                answer = await self._send(leader, asked)
                for topic in () if answer is None else answer["topics"]:
                    for partition in topic["partitions"]:
                        found += self._open(topic["topic"], partition)
        return found

    def _open(self, topic: str, said: Mapping[str, Any]) -> list[OpenTransaction]:
        place = topic, said["partition"]
        if said["error_code"]:
            self.unasked[partition_name(*place)] = for_code(said["error_code"]).__name__
        return [
            OpenTransaction(*place, each["start_offset"], each["last_ms"], each["producer_id"])
            for each in said["producers"]
            if each["start_offset"] >= 0
        ]

    async def ask_coordinators(self, producer_ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """Id of a producer -> the fields that its coordinator knows of its transaction, if that is open."""
        found: dict[int, dict[str, Any]] = {}
        for broker in self._client.cluster.brokers():
            listed = await self._send(broker.nodeId, ListTransactions([*OPEN], [*producer_ids], NO_TAGS))
            ids = [] if listed is None else [each["id"] for each in listed["transactions"]]
            answer = await self._send(broker.nodeId, DescribeTransactions(ids, NO_TAGS)) if ids else None
            for each in () if answer is None else answer["transactions"]:
                if not each["error_code"] and each["state"] in OPEN:
                    fields = {"id": each["id"], "state": each["state"], "timeout_ms": each["timeout_ms"]}
                    found[each["producer_id"]] = {**fields, "since_ms": each["start_ms"]}
        return found
