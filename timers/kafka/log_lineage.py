"""Asks the leaders of partitions whether a log is still the one that was read [I28].

Two questions are asked: where the leader epochs of the lineage end (``OffsetForLeaderEpoch``), and whether the last
batch still stands (its header is read again). aiokafka knows neither the first request nor the epochs of the metadata,
and its fetches do not name the epoch that they expect, so no broker would tell a consumer that its log was replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from aiokafka.errors import KafkaError, KafkaTimeoutError, OffsetOutOfRangeError

from timers.core.lineage import (
    MAX_EPOCHS,
    Answer,
    Batch,
    EpochEnd,
    Lineage,
    Parted,
    PassedBatch,
    compared,
    next_question,
    parted_inside,
)
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.rescue import cut_below
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.batch_pieces import HEADER_BYTES, has_append_time, passed_batch
from timers.kafka.aiokafka_internals.leader_client import LeaderClient, Question, log_ends
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

LINEAGE_TIMEOUT_S = 5.0
"""Time for an answer of a leader."""

LINEAGE_WAIT_S = 6.0
"""Time for the answer to an opening; a little longer than one request may take."""


class LogLineages:
    """Compares lineages with logs. Call it from one event loop only.

    Args:
        client: asks the leaders, not over the connections of a consumer: there the requests would wait for a fetch.
    """

    def __init__(self, client: LeaderClient) -> None:
        self.client = client
        self._compared: dict[TopicPartition, tuple[object, Lineage]] = {}
        """Partition -> connection and lineage of the last comparison of a batch. Over one connection, a leader's log
        loses no records without a new leader epoch."""

    async def parted(
        self,
        lineages: Mapping[TopicPartition, Sequence[Lineage]],
        compacted: Collection[str] = (),
        *,
        again: bool = False,
    ) -> dict[TopicPartition, list[Answer]]:
        """Compare lineages with the logs of their partitions; each leader is asked for all its partitions at once.

        Args:
            lineages: partition -> lineages that belong to it.
            compacted: the topics that are compacted: there a batch may be rewritten, with the same offsets.
            again: whether to compare no batch over a connection over which this was done in the same leader epoch.

        Returns:
            Partition -> the answer for each of its lineages, in order. Without partitions whose leader did not answer.
        """
        if not lineages:
            return {}
        try:
            by_leader = await self.client.by_leader(lineages)
        except KafkaError as error:
            logger.debug("no broker answers: %r", error)
            return {}
        asked = (
            self._ask(leader, {tp: lineages[tp] for tp in tps}, compacted, again)
            for leader, tps in by_leader.items()
            if leader is not None
        )
        found: dict[TopicPartition, list[Answer]] = {}
        for answers in await asyncio.gather(*asked):
            found |= answers
        return found

    async def stable_ends(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns where logs end for committed readers, without those whose leader does not answer."""
        found: dict[TopicPartition, int] = {}

        async def ask(leader: int, some: Collection[TopicPartition]) -> None:
            with contextlib.suppress(KafkaError):
                found.update(await self.client.last_stable_offsets(leader, some))

        with contextlib.suppress(KafkaError):
            by_leader = await self.client.by_leader(tps)
            await asyncio.gather(*(ask(leader, some) for leader, some in by_leader.items() if leader is not None))
        return found

    async def extended(self, positions: Mapping[TopicPartition, tuple[Lineage, int]]) -> dict[TopicPartition, Lineage]:
        """Learn which logs a reader reads that sees no batches, such as Spark.

        To be sure that the result belongs to the lineages, compare these with :meth:`parted` *after* this call.

        Args:
            positions: partition -> lineage that is known, and a later position.

        Returns:
            Partition -> lineage of its position. Without partitions whose leader did not answer.
        """
        try:
            await self.client.connect({topic for topic, _ in positions})
        except KafkaError as error:
            logger.debug("no broker answers: %r", error)
            return {}
        found = await asyncio.gather(*(self._extend(tp, *known) for tp, known in positions.items()))
        return {tp: lineage for tp, lineage in zip(positions, found, strict=True) if lineage is not None}

    async def _extend(self, tp: TopicPartition, lineage: Lineage, position: int) -> Lineage | None:
        leader = self.client.leader_of(*tp)
        if leader is None:
            return None
        try:
            last = await self._last_batch(leader, tp, lineage.end, position)
            if last is None:
                return lineage
            newest = lineage.epochs[-1][0] if lineage.epochs else -1
            (epoch, batch), begun = last, list[tuple[int, int]]()
            while epoch > newest and len(begun) < MAX_EPOCHS:  # each answer says where an epoch begins
                before = (await self.client.epoch_ends(leader, {tp: epoch - 1}))[tp] if epoch else EpochEnd(-1, 0)
                first = max(before.end, lineage.end)
                if begun and first >= begun[0][1]:
                    break  # the log has no batch of this epoch
                begun.insert(0, (epoch, first))
                epoch = before.epoch
        except (KafkaError, KeyError) as error:
            logger.debug("the leader of %s does not tell its leader epochs: %r", partition_name(*tp), error)
            return None
        return Lineage((*lineage.epochs, *begun)[-MAX_EPOCHS:], batch, batch.last_offset + 1)

    async def _last_batch(self, leader: int, tp: TopicPartition, start: int, position: int) -> PassedBatch | None:
        """The last whole batch between two offsets; None if the log has none there."""
        offset = position - 1
        while offset >= start:
            try:
                fetched = await self.client.fetch(leader, tp, offset, max_bytes=HEADER_BYTES)
            except OffsetOutOfRangeError:
                return None
            if len(fetched.data) < HEADER_BYTES:
                return None
            passed = passed_batch(fetched.data)
            if passed[1].last_offset < position:
                return passed
            offset = min(offset, passed[1].base_offset) - 1
        return None

    async def _ask(
        self, leader: int, lineages: Mapping[TopicPartition, Sequence[Lineage]], compacted: Collection[str], again: bool
    ) -> dict[TopicPartition, list[Answer]]:
        wanted = {tp: each for tp, each in lineages.items() if not (again and self._was_compared(leader, tp, each))}
        connection = self.client.connection_to(leader)
        try:
            # Both questions at once: an opening waits for the answers.
            ends, batches = await asyncio.gather(
                self._epoch_ends(leader, lineages), self._present_batches(leader, wanted)
            )
            found: dict[TopicPartition, list[Answer]] = {}
            for tp in ends.keys() - (wanted.keys() - batches.keys()):
                present = batches.get(tp, {})
                found[tp] = [
                    await self._answer(leader, tp, each, ends[tp], present.get(each.batch), tp[0] in compacted)
                    for each in lineages[tp]
                ]
                if tp in wanted:
                    self._compared[tp] = connection, lineages[tp][0]
        except KafkaError as error:
            logger.debug("broker %d does not tell its leader epochs: %r", leader, error)
            return {}
        return found

    async def _answer(
        self,
        leader: int,
        tp: TopicPartition,
        lineage: Lineage,
        ends: Mapping[int, EpochEnd],
        present: Batch | None,
        is_compacted: bool,
    ) -> Answer:
        """Where a log parts from a lineage; see :func:`timers.core.lineage.compared`."""
        answer = compared(lineage, ends, present, is_compacted=is_compacted)
        if not isinstance(answer, int):
            return answer
        known, first_later = dict(ends), await self.client.offset_at(leader, tp, answer + 1)
        if first_later is not None:
            fetched = await self.client.fetch(leader, tp, first_later, max_bytes=HEADER_BYTES)
            if len(fetched.data) < HEADER_BYTES or not has_append_time(fetched.data):
                first_later = None
        while isinstance(found := parted_inside(lineage, known, first_later), int):
            answers = await self.client.epoch_ends(leader, {tp: found})
            known[found] = answers.get(tp) or EpochEnd(-1, -1)
        return found

    async def _epoch_ends(
        self, leader: int, lineages: Mapping[TopicPartition, Iterable[Lineage]]
    ) -> dict[TopicPartition, dict[int, EpochEnd]]:
        """Ask until every lineage has its answer. Without the partitions for which the leader returns an error."""
        ends: dict[TopicPartition, dict[int, EpochEnd]] = {tp: {} for tp in lineages}
        while True:
            questions = {}
            for tp, known in ends.items():
                wanted = (next_question(each, known) for each in lineages[tp])
                epoch = next((each for each in wanted if isinstance(each, int)), None)
                if epoch is not None:
                    questions[tp] = epoch
            if not questions:
                return ends
            answers = await self.client.epoch_ends(leader, questions)
            for tp, epoch in questions.items():
                if tp not in answers:
                    del ends[tp]
                    continue
                ends[tp][epoch] = answers[tp]

    def _was_compared(self, leader: int, tp: TopicPartition, lineages: Sequence[Lineage]) -> bool:
        connection, lineage = self._compared.get(tp, (None, Lineage()))
        epochs = lineage.epochs[-1:]
        return (
            connection is not None
            and connection is self.client.connection_to(leader)
            and all(each.epochs[-1:] == epochs for each in lineages)
        )

    async def _present_batches(
        self, leader: int, lineages: Mapping[TopicPartition, Iterable[Lineage]]
    ) -> dict[TopicPartition, dict[Batch | None, Batch | None]]:
        """Partition -> last batch of each of its lineages -> the batch that the log has there now; None if it is gone.

        Without the partitions for which the leader returns an error.
        """
        batches = {tp: {each.batch for each in known if each.batch is not None} for tp, known in lineages.items()}
        asked = [(tp, batch) for tp, sought in batches.items() for batch in sought]
        answers = await asyncio.gather(*(self._present_batch(leader, *each) for each in asked), return_exceptions=True)
        found: dict[TopicPartition, dict[Batch | None, Batch | None]] = {tp: {} for tp in batches}
        for (tp, batch), answer in zip(asked, answers, strict=True):
            if isinstance(answer, KafkaError):
                logger.debug("broker %d does not show a batch of %s: %r", leader, partition_name(*tp), answer)
                found.pop(tp, None)
            elif isinstance(answer, BaseException):
                raise answer
            elif tp in found:
                found[tp][batch] = answer
        return found

    async def _present_batch(self, leader: int, tp: TopicPartition, batch: Batch) -> Batch | None:
        try:
            fetched = await self.client.fetch(leader, tp, batch.base_offset, max_bytes=HEADER_BYTES)
        except OffsetOutOfRangeError:
            return None  # deleted by retention; a log that ends below the batch is noticed by its end
        return passed_batch(fetched.data)[1] if len(fetched.data) >= HEADER_BYTES else None


class AskLog:
    """What openings ask leaders, from threads, over connections that they share.

    Args:
        submit: runs a coroutine on the event loop of ``lineages``.
        compacted: the topics that may be compacted.
    """

    def __init__(
        self,
        lineages: LogLineages,
        submit: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        compacted: Collection[str],
    ) -> None:
        self._lineages, self._submit, self._compacted = lineages, submit, compacted

    def leaders(self, question: Question[_T]) -> _T:
        """See :class:`timers.kafka.aiokafka_internals.leader_client.AskLeaders`."""
        asked: Future[_T] = self._submit(question(self._lineages.client))
        try:
            return asked.result(LINEAGE_WAIT_S)
        except TimeoutError:
            asked.cancel()
            raise KafkaTimeoutError(f"no answer within {LINEAGE_WAIT_S:g} s") from None

    def compare(self, tp: TopicPartition, sought: Sequence[Lineage]) -> Sequence[Answer]:
        """Compare lineages with the log of a partition.

        Raises:
            Lost: its leader does not answer.
        """
        with contextlib.suppress(KafkaError):
            answers = self.leaders(lambda _: self._lineages.parted({tp: sought}, self._compacted)).get(tp)
            if answers is not None:
                return answers
        raise Lost("its leader does not tell its leader epochs")

    def has_same_log(self, tp: TopicPartition, machine: Machine) -> bool:
        """Whether the log of a machine has lost nothing that was read. Raises as :meth:`compare`."""
        position, answers = machine.position, self.compare(tp, machine.lineages)
        with contextlib.suppress(KafkaError):
            ends = self.leaders(partial(log_ends, places=[tp]))
            if ends is not None:
                parted = next((each for each in answers if isinstance(each, Parted)), None)
                return cut_below(position, parted, *ends[0]) is None
        raise Lost("its leader does not tell where it ends")
