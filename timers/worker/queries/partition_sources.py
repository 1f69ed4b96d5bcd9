"""Sources of timers: a machine of this worker answers for its partition, another worker for all of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from time import monotonic, thread_time
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from timers.core import machine as core
from timers.core.keys import MAX_OFFSET, NEVER, OrderKey
from timers.core.levels import FIRST
from timers.core.listing import NoAnswer, Page, Position
from timers.core.ports import Lost
from timers.core.progress import FEATURE_LEVEL
from timers.core.timer import TopicPartition
from timers.kafka.request_reader import Deleted, RequestReader
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.formats import RequestFormat
from timers.wire.query import CountQuery, Query, Timer
from timers.worker.machines.runner import Ended, Runner
from timers.worker.queries import reading
from timers.worker.queries.reading import Place, Recovering, TimerFilter
from timers.worker.queries.turns import Turns

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

ANSWER_S = 3.0
"""How long to wait for a machine; after this its partition is missing in the answer."""


class Lookup(NamedTuple):
    """Which timer to find."""

    id: str
    """The id that its sender gave it, or a ``timer-id`` header of a callback."""
    record: tuple[str, int, int] | None
    """(topic, partition, offset) if the id is the source of a request: ``<topic>/<partition>/<offset>``."""
    with_value: bool


Counts: TypeAlias = tuple[Counter[tuple[int, str]], OrderKey | None]
"""(first second of a group, callback topic) -> timers, and up to which key they are counted; None: to the end."""


class PartitionSource(Protocol):
    """Answers for some partitions. Raises :class:`NoAnswer`, with the reason, if it cannot answer at all."""

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions to ask about."""

    @property
    def missing(self) -> dict[TopicPartition, str]:
        """Partition that the answer did not cover -> why."""

    async def page(self, query: Query, after: Position, limit: int) -> Page:
        """The next timers."""

    async def count(self, query: CountQuery, tp: TopicPartition, after: OrderKey) -> Counts:
        """Count the next timers of one of its partitions."""

    async def find(self, lookup: Lookup) -> list[Timer]:
        """The timer, if it exists; several if two partitions have the id."""


class LocalSource:
    """A machine of this worker.

    Args:
        moved: whether its topic is the retry topic.
        hidden_topic: callback topic whose timers are listed only on request.
        request_reader: reads committed records again.
        turns: when machines may be read.
    """

    def __init__(
        self,
        runner: Runner,
        tp: TopicPartition,
        request_format: RequestFormat,
        *,
        moved: bool,
        hidden_topic: str,
        request_reader: RequestReader,
        turns: Turns,
    ) -> None:
        self._runner = runner
        self._turns = turns
        self._place = Place(*tp, moved)
        self._format = request_format
        self._hidden = hidden_topic
        self._request_reader = request_reader
        self.partitions = (tp,)
        self.missing: dict[TopicPartition, str] = {}

    async def page(self, query: Query, after: Position, limit: int) -> Page:
        """The next timers, from one slice of the store."""
        timer_filter = TimerFilter(query.topic, self._hidden, query.to_s, query.with_values, query.prefix, query.key)
        return await self._read(
            query.is_quick, lambda machine: reading.page(machine, self._place, timer_filter, after, limit)
        )

    async def count(self, query: CountQuery, tp: TopicPartition, after: OrderKey) -> Counts:
        """Count the next timers, from one slice of the store."""
        timer_filter = TimerFilter(query.topic, self._hidden, query.to_s, with_values=False)
        start = max(after, (query.from_s - 1, MAX_OFFSET))
        return await self._read(
            query.is_quick, lambda machine: reading.count(machine, self._place, timer_filter, query.by_s, start)
        )

    async def _read(self, quick: bool, read: Callable[[core.Machine], _T]) -> _T:
        """Read a slice when it may be read."""

        def measured(machine: core.Machine) -> tuple[_T, float]:
            begun_s = thread_time()
            return read(machine), thread_time() - begun_s

        await self._turns.wait(quick=quick)
        took_s = 0.0
        try:
            found, took_s = await self._ask(measured)
        finally:
            self._turns.correct(took_s)
        return found

    async def find(self, lookup: Lookup) -> list[Timer]:
        """The timer with the id, and the timer of the record that the id names; either may be missing."""
        found = []
        if self._format.has_ids:
            found.append(
                await self._ask(lambda machine: reading.find_by_id(machine, self._place, lookup.id, lookup.with_value))
            )
        if lookup.record is not None and lookup.record[:2] == self._place[:2]:
            found.append(await self._find_record(lookup, lookup.record[2]))
        return [timer for timer in found if timer is not None]

    async def _find_record(self, lookup: Lookup, offset: int) -> Timer | None:
        """Read the record again: only it has the due second, by which the store is ordered."""
        progress = await self._ask(lambda machine: machine.progress)
        if self._place.moved or offset >= progress.next_offset:
            return None
        source = topics.source(self._place.topic, self._place.partition, offset)
        deadline = monotonic() + ANSWER_S
        try:
            records = await asyncio.to_thread(self._request_reader.read, [source], lambda: monotonic() < deadline)
        except Lost:
            raise NoAnswer("the brokers did not return its records in time") from None
        sent = records.get(source)
        if isinstance(sent, Deleted):
            return await self._find_pending(offset, lookup.with_value, deadline)
        if sent is None:
            return None
        decode = self._format.decoder(progress.setting_at(FEATURE_LEVEL, offset, FIRST), rejects_overdue=False)
        decoded = decode([sent], len(sent.value or b""))
        if decoded.rejected:
            (rejected,) = decoded.rejected
            return {"id": source, "state": wire.REJECTED, "source": source, "error": rejected.message}
        if not decoded.rows:  # a cancellation
            return None
        ((due_s, (row,)),) = decoded.rows.items()
        append_s = sent.timestamp // 1000
        return await self._ask(
            lambda machine: reading.find_record(machine, self._place, row, due_s, append_s, lookup.with_value)
        )

    async def _find_pending(self, offset: int, with_value: bool, deadline: float) -> Timer | None:
        """Look through all that is pending for a request that the log no longer has. If it is not there, it has fired
        or was refused, and nothing says which.

        Raises:
            NoAnswer: the time is over before the end.
        """
        after: OrderKey | None = NEVER
        while after is not None:
            look = partial(reading.find_offset, place=self._place, offset=offset, after=after, with_value=with_value)
            found, after = await self._read(False, look)
            if found is not None:
                return found
            if monotonic() > deadline:
                raise NoAnswer(f"the request is deleted, and its timer was not found within {ANSWER_S:.0f} s")
        return None

    async def _ask(self, question: Callable[[core.Machine], _T]) -> _T:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.wrap_future(self._runner.ask(question))
        except TimeoutError:
            raise NoAnswer(f"it has been busy for {ANSWER_S:.0f} s") from None
        except Ended:
            raise NoAnswer("its worker has just closed it") from None
        except Recovering:
            raise NoAnswer("its log is being read again") from None
        except Exception:  # the machine goes on, and logs it if its store is broken
            logger.exception("%s/%d: a question was not answered", *self._place[:2])
            raise NoAnswer("its worker cannot read it; see that worker's log") from None
