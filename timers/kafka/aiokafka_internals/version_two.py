"""Sends transactions of version 2 (KIP-890) to brokers that have finalized ``transaction.version`` 2: Kafka 4.0 on.

A request that appends batches, or commits offsets, adds its partition to the transaction. Each end of a transaction
raises the epoch of the producer, or gives it another id; its answer names both, and they count from then on. So a
request of ours that a network holds back past the end of its transaction is refused. In version 1 it would land in the
next transaction, which has the same epoch. For markers, which brokers send, see ``docs/kafka-versions.md``.

aiokafka's sender speaks version 1 only: all retries are here. :data:`ANSWERS` says what follows from each error.

This module relies on:

==========================================================  ==========================================================
``AIOKafkaProducer._txn_manager``, ``_sender``              state of the transaction, the coordinators
``Sender._find_coordinator``, ``_coordinator_dead``         looks a coordinator up, unless it is known; forgets one
``Sender._acks``, ``_request_timeout_ms``                   of a produce request
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from timers.core.ports import BatchesRefused
from timers.kafka.aiokafka_internals import produce
from timers.kafka.aiokafka_internals.produce import NO_LEADER, TRANSACTION_ENDING_PAUSES, Batch, Place, Road
from timers.kafka.aiokafka_internals.refusals import RecordsRefused, refusals
from timers.kafka.aiokafka_internals.requests import (
    NO_TAGS,
    EndTransaction,
    OffsetsInTransaction,
    ProduceInTransaction,
    by_topic,
)
from timers.kafka.aiokafka_internals.transaction_errors import Does, VersionAbsent, effect_of, error_of, is_busy

_NO_ID = -1
_LAST_EPOCH = 32_767
"""No end can raise it. A coordinator gives another id before."""


class _Delivery:
    """The batches of a transaction on their way.

    Args:
        producer: with an open transaction.
        batches: sealed, by partition.
        outcomes: set when all batches of the partition are answered.
        answered: gets each partition of which a batch was answered.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        batches: Mapping[Place, Sequence[Batch]],
        outcomes: Mapping[Place, asyncio.Future[None]],
        answered: set[Place],
    ) -> None:
        self._producer = producer
        self._batches = batches
        self._outcomes = outcomes
        self._answered = answered
        self._sent = dict.fromkeys(batches, 0)
        """Partition -> number of its batches that are answered for good."""
        self._refused: dict[Place, list[tuple[Batch, RecordsRefused]]] = {}

    @property
    def left(self) -> list[Place]:
        """Partitions of which batches are not answered for good."""
        return [place for place, outcome in self._outcomes.items() if not outcome.done()]

    async def send_to(self, leader: int | None, places: Collection[Place]) -> None:
        """Send the batches of the partitions of one leader, one request after another, as far as it takes them."""
        producer, waiting = self._producer, places
        if leader is None or leader == NO_LEADER:
            producer.client.force_metadata_update()
            return
        while waiting:
            now = {place: self._batches[place][self._sent[place]] for place in waiting}
            try:
                answer = await produce.ask(producer, leader, self._request(now))
            except VersionAbsent:
                raise
            except KafkaError:
                producer.client.force_metadata_update()
                return
            waiting = self._note(answer, now)

    def _request(self, batches: Mapping[Place, Batch]) -> ProduceInTransaction:
        manager, sending = self._producer._txn_manager, self._producer._sender
        built = {place: (produce.numbered(self._producer, place, batch),) for place, batch in batches.items()}
        options = sending._acks, sending._request_timeout_ms
        return ProduceInTransaction(manager.transactional_id, *options, _tagged(built), NO_TAGS)

    def _note(self, answer: Any, sent: Mapping[Place, Batch]) -> list[Place]:
        """Note an answer. Returns the partitions that have a further batch."""
        produce.note_answer(self._producer._sender, answer, VERSION_TWO.version)
        refused, further = refusals(answer), []
        for topic, partitions, *_ in answer.topics:
            for partition, code, _, *others in partitions:
                place = topic, partition
                does = effect_of(code)
                if is_busy(code, others):
                    self._answered.add(place)
                if does is Does.REFUSED:
                    self._refused.setdefault(place, []).append((sent[place], refused[TopicPartition(*place)]))
                elif code == errors.OutOfOrderSequenceNumber.errno and place in self._refused:
                    pass  # the batch follows one that was refused: its records are not the cause
                elif does is Does.LOOK:
                    self._producer.client.force_metadata_update()
                    continue
                elif does is Does.AGAIN:
                    continue
                elif does is not Does.DONE:
                    self._answered.add(place)
                    self._settle(place, error_of(code, *place))
                    continue
                if self._count(place, sent[place]):
                    further.append(place)
        return further

    def _count(self, place: Place, batch: Batch) -> bool:
        """Count a batch that is answered for good. Returns whether another one follows."""
        self._producer._txn_manager.increment_sequence_number(TopicPartition(*place), batch.record_count())
        self._sent[place] += 1
        self._answered.add(place)
        if self._sent[place] < len(self._batches[place]):
            return True
        self._settle(place, BatchesRefused(self._refused[place]) if place in self._refused else None)
        return False

    def _settle(self, place: Place, error: Exception | None) -> None:
        outcome = self._outcomes[place]
        if outcome.done():
            return
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)


async def deliver(
    producer: AIOKafkaProducer,
    batches: Mapping[Place, Sequence[Batch]],
    outcomes: Mapping[Place, asyncio.Future[None]],
    answered: set[Place],
) -> None:
    """Send batches until each is answered for good. As :func:`timers.kafka.aiokafka_internals.produce.deliver`.

    A coordinator adds the partitions of one request at a time. If several leaders add theirs, all but one ask again
    after 20 ms (``add.partitions.to.txn.retry.backoff.ms``): with three brokers callbacks came later than in version 1,
    and the brokers needed 1.35 of the CPU (``docs/adr/0044``). Then one request adds all partitions before.
    """
    delivery = _Delivery(producer, batches, outcomes, answered)
    for tries in count(1):
        by_leader: dict[int | None, list[Place]] = {}
        for place, leader in produce.leaders(producer, delivery.left).items():
            by_leader.setdefault(leader, []).append(place)
        if tries == 1 and len(by_leader.keys() - {None, NO_LEADER}) > 1:
            await produce.add_partitions(producer, batches)  # without success the leaders add them
        await produce.together([delivery.send_to(*each) for each in by_leader.items()])
        if not delivery.left:
            return
        await asyncio.sleep(TRANSACTION_ENDING_PAUSES.after(tries))


async def send_offsets(
    producer: AIOKafkaProducer, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: str
) -> None:
    """Commit offsets of a group in the transaction.

    Raises:
        KafkaError: the group's coordinator does not take them.
    """
    manager, sending = producer._txn_manager, producer._sender
    named = {(place.topic, place.partition): (each.offset, -1, each.metadata) for place, each in offsets.items()}
    no_member = -1, "", None
    ours = manager.transactional_id, group, manager.producer_id, manager.producer_epoch
    request = OffsetsInTransaction(*ours, *no_member, _tagged(named), NO_TAGS)
    for tries in count(1):
        answer = await produce.ask_coordinator(producer, request, CoordinationType.GROUP, group)
        codes = {code for _, partitions, *_ in answer.topics for _, code, *_ in partitions} if answer else set()
        effects = {effect_of(code): code for code in codes} or {Does.LOOK: 0}
        if effects.keys() == {Does.DONE}:
            return
        for does in effects.keys() - {Does.DONE, Does.AGAIN, Does.LOOK}:
            raise error_of(effects[does], group)
        if Does.LOOK in effects:
            sending._coordinator_dead(CoordinationType.GROUP)
        await asyncio.sleep(TRANSACTION_ENDING_PAUSES.after(tries))


async def commit(producer: AIOKafkaProducer) -> None:
    """Commit the transaction. Raises as :func:`timers.kafka.aiokafka_internals.produce.end`."""
    await _end(producer, committed=True)


async def abort(producer: AIOKafkaProducer) -> None:
    """Roll the transaction back. Raises as :func:`commit`."""
    await _end(producer, committed=False)


async def _end(producer: AIOKafkaProducer, *, committed: bool) -> None:
    """End the transaction. The producer then has the id and the epoch that the coordinator names.

    Raises:
        InvalidTxnState: these do not follow its own, or no transaction can follow them (KAFKA-18660).
        KafkaError: see :func:`timers.kafka.aiokafka_internals.produce.end`.
    """
    manager = producer._txn_manager
    ours = manager.transactional_id, manager.producer_id, manager.producer_epoch
    answer = await produce.end(producer, EndTransaction(*ours, committed, NO_TAGS), committed=committed, repeats=True)
    _, id, epoch = ours
    named = answer.producer_id, answer.producer_epoch
    follows = named == (id, epoch + 1) or (named[0] not in (id, _NO_ID) and named[1] == 0)
    if not follows or named[1] >= _LAST_EPOCH:
        raise errors.InvalidTxnState(f"id and epoch {named} after {id, epoch}")
    produce.set_opening(producer, *named)


def _tagged(places: Mapping[Place, tuple[Any, ...]]) -> list[tuple[str, list[Any], dict[int, bytes]]]:
    """Partitions and their fields as flexible requests have them."""
    named = by_topic({place: (*fields, NO_TAGS) for place, fields in places.items()})
    return [(topic, partitions, NO_TAGS) for topic, partitions in named]


VERSION_TWO = Road(2, deliver, send_offsets, commit, abort)
