"""Answers questions about timers, for all workers: its own partitions are read here, the others' workers are asked.

A partition that nobody answers for is named in the answer, with the reason: nothing is left out silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

import aiohttp

from timers.config.settings import Settings
from timers.core.listing import Page, Position, Silent, merge, share_of
from timers.core.timer import TopicPartition
from timers.kafka.request_reader import RequestReader
from timers.wire import topics
from timers.wire.query import Query, Timer
from timers.worker.consumer.group import Member, Unsettled
from timers.worker.machines.pool import Pool
from timers.worker.queries.idle_window import IdleWindow
from timers.worker.queries.partition_sources import LocalSource, PartitionSource, Sought
from timers.worker.queries.remote_partitions import RemoteSource

READING_S = 2.0
"""A page ends after this, with what there is: a filter may leave little of much."""

PAGE_BYTES = 8 * 1024 * 1024
"""A page of values ends when there are so many, give or take what each share reads at a time."""

GROUP_S = 3.0
"""How long to wait for the group's coordinator."""


class Answer(NamedTuple):
    """What is known of a question."""

    timers: Sequence[Timer]
    through: Position | None
    """Where the next page begins; None: there is none."""
    answered: Collection[TopicPartition]
    missing: Mapping[TopicPartition, str]
    """Partition -> why nobody answered for it."""


class Queries:
    """Reads the timers of all workers.

    Args:
        settings: of this worker.
        pool: its machines.
        members: asks the group who has which partition.
        session: for asking other workers.
        idle_window: when pages are read and written.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        members: Callable[[], Awaitable[dict[TopicPartition, Member]]],
        session: Callable[[], aiohttp.ClientSession],
        idle_window: IdleWindow,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._members = members
        self._session = session
        self._idle_window = idle_window
        requests = {
            topic: request_format for topic, request_format in pool.formats.items() if topic != settings.retry_topic
        }
        # Not the one that the machines share: whoever writes dead letters must not wait for somebody who looks.
        self._request_reader = RequestReader(settings, requests, isolation="read_committed")

    async def close(self) -> None:
        """Let go of the brokers."""
        await asyncio.to_thread(self._request_reader.close)

    async def page(self, query: Query, *, forwarded: bool) -> Answer:
        """The next timers, in the order in which they are due.

        Args:
            query: which.
            forwarded: another worker asks: for this one's partitions alone.
        """
        sources, missing = await self._sources(self._partitions(), forwarded)
        limit = share_of(query.limit, len(sources))
        memory_limit = _MemoryLimit()
        begun = [_Begun(source, query, limit, memory_limit) for source in sources]
        page = await merge(begun, query.start, query.limit, memory_limit.used_up)
        await self._idle_window.wait()  # a page of JSON takes the event loop for some milliseconds
        return _answer([each.timer for each in page.listed], page.through, sources, missing)

    async def find(self, id: str, with_value: bool, *, forwarded: bool) -> Answer:
        """The timer of an id, or of a record ``<topic>/<partition>/<offset>``; several if two topics have the id.

        Args:
            id: as its sender gave it, or as a receiver got it.
            with_value: also the callback's value.
            forwarded: another worker asks: for this one's partitions alone.
        """
        where = topics.parse_source(id)
        sought = Sought(id, where if where is not None and where[0] in self._pool.formats else None, with_value)
        # Which partition an id is on, only the partitioner of its producer knows.
        may_have_it = {
            tp
            for tp in self._partitions()
            if self._pool.formats[tp[0]].has_ids or (sought.record is not None and tp == sought.record[:2])
        }
        sources, missing = await self._sources(may_have_it, forwarded)

        async def ask(source: PartitionSource) -> list[Timer]:
            try:
                return await source.find(sought)
            except Silent as why:
                source.missing.update(dict.fromkeys(source.partitions, str(why)))
                return []

        found = await asyncio.gather(*map(ask, sources))
        return _answer([timer for timers in found for timer in timers], None, sources, missing)

    # ---- whom to ask ------------------------------------------------------------------------------------------------

    def _partitions(self) -> set[TopicPartition]:
        """All that there are, of every worker."""
        counts = self._pool.partitions
        return {(topic, number) for topic in self._pool.formats for number in range(counts.get(topic, 0))}

    async def _sources(
        self, timer_filter: set[TopicPartition], forwarded: bool
    ) -> tuple[list[PartitionSource], dict[TopicPartition, str]]:
        """Who is to be asked, and the partitions that nobody can be asked for."""
        sources: list[PartitionSource] = [
            LocalSource(
                runner,
                tp,
                self._pool.formats[tp[0]],
                moved=tp[0] == self._settings.retry_topic,
                hidden=self._settings.canary_topic,
                request_reader=self._request_reader,
                idle_window=self._idle_window,
            )
            for tp, runner in self._pool.runners.items()
            if tp in timer_filter
        ]
        missing = {
            tp: "it is stopped: /health/ready of its worker says why" for tp in self._pool.stopped if tp in timer_filter
        }
        rest = timer_filter - missing.keys() - {tp for source in sources for tp in source.partitions}
        if forwarded or not rest:
            return sources, missing
        try:
            async with asyncio.timeout(GROUP_S):
                owners = await self._members()
        except (Unsettled, TimeoutError) as error:
            return sources, missing | dict.fromkeys(rest, str(error) or "the group deals its partitions anew")
        by_owner: dict[Member, set[TopicPartition]] = {}
        for tp in rest:
            owner = owners.get(tp)
            why_not = "no worker has it" if owner is None else self._why_not(owner)
            if owner is None or why_not:
                missing[tp] = why_not
            else:
                by_owner.setdefault(owner, set()).add(tp)
        sources += [RemoteSource(self._session(), owner, tps) for owner, tps in by_owner.items()]
        return sources, missing

    def _why_not(self, owner: Member) -> str:
        """Why a partition's owner cannot be asked; empty if it can."""
        if owner.worker_id == self._settings.worker_id:
            return "its worker is opening it"
        if not owner.url:
            return f"worker {owner.worker_id} does not say where it answers: it is of an older version"
        if owner.url == self._settings.canonical_url:
            return (
                f"worker {owner.worker_id} says that it answers at {owner.url}, as this one does: set "
                "TIMERS_ADVERTISED_URL of each to where the others reach it"
            )
        return ""


class _MemoryLimit:
    """What one page may take."""

    def __init__(self) -> None:
        self._give_up = monotonic() + READING_S
        self.value_bytes = 0

    def used_up(self) -> bool:
        """Whether to end the page."""
        return monotonic() > self._give_up or self.value_bytes > PAGE_BYTES


class _Begun:
    """A source whose first page is being read already, so that none waits for the one before it."""

    def __init__(self, source: PartitionSource, query: Query, limit: int, memory_limit: _MemoryLimit) -> None:
        self._source = source
        self._query = query
        self._memory_limit = memory_limit
        self._first: asyncio.Task[Page] | None = asyncio.create_task(source.page(query, query.start, limit))

    async def read(self, after: Position, limit: int) -> Page:
        """The next timers."""
        first, self._first = self._first, None
        try:
            page = await (first or self._source.page(self._query, after, limit))
        except Silent as why:
            self._source.missing.update(dict.fromkeys(self._source.partitions, str(why)))
            raise
        if self._query.with_values:
            self._memory_limit.value_bytes += sum(each.timer["value_bytes"] for each in page.listed)
        return page


def _answer(
    timers: Sequence[Timer],
    through: Position | None,
    sources: Sequence[PartitionSource],
    missing: Mapping[TopicPartition, str],
) -> Answer:
    silent = {**missing, **{tp: why for source in sources for tp, why in source.missing.items()}}
    answered = {tp for source in sources for tp in source.partitions} - silent.keys()
    return Answer(timers, through, answered, silent)
