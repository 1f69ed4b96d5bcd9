"""Answers queries about timers for all workers: reads the worker's own partitions, and asks the owners of the others.

The answer names each partition that it does not cover, with the reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

import aiohttp

from timers.clock import Clock
from timers.config.settings import Settings
from timers.core.keys import OrderKey
from timers.core.listing import NoAnswer, Page, Position, merge, share_of
from timers.core.timer import TopicPartition
from timers.kafka.request_reader import RequestReader
from timers.wire import query_signature, topics
from timers.wire.query import CountQuery, Query, Timer
from timers.worker.consumer.group import Member, Unsettled
from timers.worker.machines.pool import Pool
from timers.worker.queries.partition_sources import LocalSource, Lookup, PartitionSource
from timers.worker.queries.remote_partitions import RemoteSource
from timers.worker.queries.turns import Turns

QUICK_S = 0.1
"""A first page ends this time after its question came, with the timers found so far: a filter may skip many timers. So
the time that the question waits for others counts too. Each page reads at least once."""

MAX_READING_S = 2.0
"""Any other page ends after it was read for this time."""

PAGE_BYTES = 8 * 1024 * 1024
"""A page with values ends at this size, plus at most one read of each source."""

MAX_COUNTS = 2000
"""An answer ends after this number of counts, plus at most one read."""

GROUP_TIMEOUT_S = 3.0
"""How long to wait for the group's coordinator."""


class Answer(NamedTuple):
    """Answer to a query."""

    timers: Sequence[Timer]
    through: Position | None
    """Position after which the next page begins; None: this is the last page."""
    answered: Collection[TopicPartition]
    missing: Mapping[TopicPartition, str]
    """Partition -> why the answer does not cover it."""


class Queries:
    """Reads the timers of all workers.

    Args:
        members: asks the group for the owner of each partition.
        session: returns the HTTP session for requests to other workers.
        turns: when machines may be read, and long pages encoded.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        members: Callable[[], Awaitable[dict[TopicPartition, Member]]],
        session: Callable[[], aiohttp.ClientSession],
        turns: Turns,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._members = members
        self._session = session
        self._turns = turns
        requests = {
            topic: request_format for topic, request_format in pool.formats.items() if topic != settings.retry_topic
        }
        # The machines use another reader: queries must not delay the writing of dead letters.
        self._request_reader = RequestReader(
            settings, requests, isolation="read_committed", value_limit=pool.value_limit
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._request_reader.close)

    async def page(self, query: Query, arrived: float, *, forwarded: bool) -> Answer:
        """The next timers, in the order of their due seconds.

        Args:
            arrived: monotonic time at which the question came.
            forwarded: whether another worker asks: then only this worker's partitions are read.
        """
        sources, missing = await self._sources(self._partitions(), forwarded)
        limits = _PageLimits(_end_at(query, arrived))
        every = sum(len(source.partitions) for source in sources)
        sources_read = [_ReadAhead(source, query, every, limits) for source in sources]
        page = await merge(sources_read, query.start, query.limit, limits.used_up)
        if not query.is_quick:
            await self._turns.wait(quick=False)  # to encode a long page as JSON blocks the event loop for milliseconds
        return _answer([each.timer for each in page.listed], page.through, sources, missing)

    async def count(self, query: CountQuery, arrived: float, *, forwarded: bool) -> Answer:
        """Numbers of timers by group of due seconds and callback topic. Answers of one question are to be added.

        Args:
            arrived: monotonic time at which the question came.
            forwarded: whether another worker asks: then only this worker's partitions are read.
        """
        end_at = _end_at(query, arrived)
        wanted = self._partitions()
        if query.partition is not None:
            wanted &= {query.partition}
        sources, missing = await self._sources(wanted, forwarded)
        owner = {tp: source for source in sources for tp in source.partitions}
        counts: Counter[tuple[int, str]] = Counter()
        at, reads = query.after[1:3], 0
        through: Position | None = None
        for tp in sorted(tp for tp in owner if tp >= at):
            after: OrderKey | None = (query.after[0], query.after[3]) if tp == at else (0, 0)
            while after is not None:
                if reads and (monotonic() > end_at or len(counts) >= MAX_COUNTS):
                    through = (after[0], *tp, after[1])
                    break
                reads += 1  # at least one, so that each answer has a later `next`
                try:
                    found, after = await owner[tp].count(query, tp, after)
                except NoAnswer as why:
                    owner[tp].missing[tp] = str(why)
                    break
                counts += found
            if through is not None:
                break
        if not query.is_quick:
            await self._turns.wait(quick=False)
        shown = [{"from": group, "topic": topic, "timers": number} for (group, topic), number in sorted(counts.items())]
        return _answer(shown, through, sources, missing)

    async def find(self, id: str, with_value: bool, *, forwarded: bool) -> Answer:
        """The timer with an id, or of the record that the id names; several if two topics have the id.

        Args:
            id: from the timer's sender, or ``<topic>/<partition>/<offset>`` of a request.
            forwarded: whether another worker asks: then only this worker's partitions are read.
        """
        where = topics.parse_source(id)
        lookup = Lookup(id, where if where is not None and where[0] in self._pool.formats else None, with_value)
        # The partition of an id depends on the partitioner of its producer, so any partition may have it.
        may_have_it = {
            tp
            for tp in self._partitions()
            if self._pool.formats[tp[0]].has_ids or (lookup.record is not None and tp == lookup.record[:2])
        }
        sources, missing = await self._sources(may_have_it, forwarded)

        async def ask(source: PartitionSource) -> list[Timer]:
            try:
                return await source.find(lookup)
            except NoAnswer as why:
                source.missing.update(dict.fromkeys(source.partitions, str(why)))
                return []

        found = [timer for timers in await asyncio.gather(*map(ask, sources)) for timer in timers]
        if not found:
            held = self._pool.held_back.reasons
            missing = {tp: held[tp] for tp in may_have_it & held.keys()} | missing
        return _answer(found, None, sources, missing)

    # ---- which source answers for which partition --------------------------------------------------------------------

    def _partitions(self) -> set[TopicPartition]:
        """All partitions of all workers."""
        counts = self._pool.partitions
        return {(topic, number) for topic in self._pool.formats for number in range(counts.get(topic, 0))}

    async def _sources(
        self, wanted: set[TopicPartition], forwarded: bool
    ) -> tuple[list[PartitionSource], dict[TopicPartition, str]]:
        """The sources of these partitions, and the partitions that have none -> why."""
        sources: list[PartitionSource] = [
            LocalSource(
                runner,
                tp,
                self._pool.formats[tp[0]],
                moved=tp[0] == self._settings.retry_topic,
                hidden_topic=self._settings.canary_topic,
                request_reader=self._request_reader,
                turns=self._turns,
            )
            for tp, runner in self._pool.runners.items()
            if tp in wanted
        ]
        missing = {tp: "it is stopped: see /health/ready of its worker" for tp in self._pool.stopped if tp in wanted}
        closed = {tp: why for tp, why in self._pool.waiting.items() if tp not in self._pool.runners}
        missing |= {tp: f"its worker cannot open it now: {closed[tp].sentence}" for tp in wanted & closed.keys()}
        remote = wanted - missing.keys() - {tp for source in sources for tp in source.partitions}
        if forwarded or not remote:
            return sources, missing
        try:
            async with asyncio.timeout(GROUP_TIMEOUT_S):
                owners = await self._members()
        except (Unsettled, TimeoutError) as error:
            return sources, missing | dict.fromkeys(remote, str(error) or "the group is rebalancing")
        by_owner: dict[Member, set[TopicPartition]] = {}
        for tp in remote:
            owner = owners.get(tp)
            reason = "no worker owns it" if owner is None else self._reason_not_to_ask(owner)
            if owner is None or reason:
                missing[tp] = reason
            else:
                by_owner.setdefault(owner, set()).add(tp)
        sources += [
            RemoteSource(self._session(), partial(self._sign, owner), owner, tps) for owner, tps in by_owner.items()
        ]
        return sources, missing

    def _sign(self, owner: Member, target: str) -> dict[str, str]:
        secret, now_s = self._settings.query_secret.reveal(), Clock(self._settings.clock_offset_s).now_s()
        return query_signature.headers(secret, target, owner.worker_id, now_s)

    def _reason_not_to_ask(self, owner: Member) -> str:
        """Why a partition's owner cannot be asked; empty if it can be."""
        if owner.worker_id == self._settings.worker_id:
            return "its worker is opening it"
        if not owner.url:
            return f"worker {owner.worker_id} sent no URL when it joined the group: it has an older version"
        if owner.url == self._settings.canonical_url:
            return (
                f"worker {owner.worker_id} has the same URL as this worker, {owner.url}: set "
                "TIMERS_ADVERTISED_URL of each to where the others reach it"
            )
        return ""


class _PageLimits:
    """Limits of one page: reading time and bytes of values."""

    def __init__(self, end_at: float) -> None:
        self._end_at = end_at
        self.value_bytes = 0

    def used_up(self) -> bool:
        """Whether the page must end."""
        return monotonic() > self._end_at or self.value_bytes > PAGE_BYTES


class _ReadAhead:
    """A source that begins to read its first page before it is asked, so that all sources read at the same time.

    Args:
        every: number of partitions of all sources: a source is read by its share of them.
    """

    def __init__(self, source: PartitionSource, query: Query, every: int, limits: _PageLimits) -> None:
        self._source = source
        self._query = query
        self._limits = limits
        self._limit = min(query.limit, share_of(query.limit * len(source.partitions), every))
        first = source.page(query, query.start, self._limit)
        self._first: asyncio.Task[Page] | None = asyncio.create_task(first)

    async def read(self, after: Position, limit: int) -> Page:
        """The next timers: as many as the source's share, whatever ``limit`` says."""
        first, self._first = self._first, None
        try:
            page = await (first or self._source.page(self._query, after, self._limit))
        except NoAnswer as why:
            self._source.missing.update(dict.fromkeys(self._source.partitions, str(why)))
            raise
        if self._query.with_values:
            self._limits.value_bytes += sum(each.timer["value_bytes"] for each in page.listed)
        return page


def _end_at(query: Query | CountQuery, arrived: float) -> float:
    return arrived + QUICK_S if query.is_quick else monotonic() + MAX_READING_S


def _answer(
    timers: Sequence[Timer],
    through: Position | None,
    sources: Sequence[PartitionSource],
    missing: Mapping[TopicPartition, str],
) -> Answer:
    uncovered = {**missing, **{tp: why for source in sources for tp, why in source.missing.items()}}
    answered = {tp for source in sources for tp in source.partitions} - uncovered.keys()
    return Answer(timers, through, answered, uncovered)
