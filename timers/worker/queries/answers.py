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
from timers.kafka.progress_log import Machine
from timers.kafka.request_reader import Originals
from timers.wire import topics
from timers.wire.query import Query, Timer
from timers.worker.consumer.group import Member, Unsettled
from timers.worker.machines.pool import Pool
from timers.worker.queries.idle_window import Lull
from timers.worker.queries.partition_sources import Here, Share, Sought
from timers.worker.queries.remote_partitions import Peer

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
    answered: Collection[Machine]
    missing: Mapping[Machine, str]
    """Partition -> why nobody answered for it."""


class Queries:
    """Reads the timers of all workers.

    Args:
        settings: of this worker.
        pool: its machines.
        members: asks the group who has which partition.
        session: for asking other workers.
        lull: when pages are read and written.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        members: Callable[[], Awaitable[dict[Machine, Member]]],
        session: Callable[[], aiohttp.ClientSession],
        lull: Lull,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._members = members
        self._session = session
        self._lull = lull
        requests = {topic: door for topic, door in pool.doors.items() if topic != settings.retry_topic}
        # Not the one that the machines share: whoever writes dead letters must not wait for somebody who looks.
        self._originals = Originals(settings, requests, isolation="read_committed")

    async def close(self) -> None:
        """Let go of the brokers."""
        await asyncio.to_thread(self._originals.close)

    async def page(self, query: Query, *, forwarded: bool) -> Answer:
        """The next timers, in the order in which they are due.

        Args:
            query: which.
            forwarded: another worker asks: for this one's partitions alone.
        """
        shares, missing = await self._shares(self._partitions(), forwarded)
        limit = share_of(query.limit, len(shares))
        budget = _Budget()
        sources = [_Begun(share, query, limit, budget) for share in shares]
        page = await merge(sources, query.start, query.limit, budget.used_up)
        await self._lull.wait()  # a page of JSON takes the event loop for some milliseconds
        return _answer([each.timer for each in page.listed], page.through, shares, missing)

    async def find(self, id: str, with_value: bool, *, forwarded: bool) -> Answer:
        """The timer of an id, or of a record ``<topic>/<partition>/<offset>``; several if two topics have the id.

        Args:
            id: as its sender gave it, or as a receiver got it.
            with_value: also the callback's value.
            forwarded: another worker asks: for this one's partitions alone.
        """
        where = topics.parse_source(id)
        sought = Sought(id, where if where is not None and where[0] in self._pool.doors else None, with_value)
        # Which partition an id is on, only the partitioner of its producer knows.
        may_have_it = {
            machine
            for machine in self._partitions()
            if self._pool.doors[machine[0]].indexed or (sought.record is not None and machine == sought.record[:2])
        }
        shares, missing = await self._shares(may_have_it, forwarded)

        async def ask(share: Share) -> list[Timer]:
            try:
                return await share.find(sought)
            except Silent as why:
                share.missing.update(dict.fromkeys(share.partitions, str(why)))
                return []

        found = await asyncio.gather(*map(ask, shares))
        return _answer([timer for timers in found for timer in timers], None, shares, missing)

    # ---- whom to ask ------------------------------------------------------------------------------------------------

    def _partitions(self) -> set[Machine]:
        """All that there are, of every worker."""
        counts = self._pool.partitions
        return {(topic, number) for topic in self._pool.doors for number in range(counts.get(topic, 0))}

    async def _shares(self, wanted: set[Machine], forwarded: bool) -> tuple[list[Share], dict[Machine, str]]:
        """Who is to be asked, and the partitions that nobody can be asked for."""
        shares: list[Share] = [
            Here(
                runner,
                machine,
                self._pool.doors[machine[0]],
                moved=machine[0] == self._settings.retry_topic,
                hidden=self._settings.canary_topic,
                originals=self._originals,
                lull=self._lull,
            )
            for machine, runner in self._pool.runners.items()
            if machine in wanted
        ]
        missing = {
            machine: "it is stopped: /health/ready of its worker says why"
            for machine in self._pool.stopped
            if machine in wanted
        }
        rest = wanted - missing.keys() - {machine for share in shares for machine in share.partitions}
        if forwarded or not rest:
            return shares, missing
        try:
            async with asyncio.timeout(GROUP_S):
                owners = await self._members()
        except (Unsettled, TimeoutError) as error:
            return shares, missing | dict.fromkeys(rest, str(error) or "the group deals its partitions anew")
        by_owner: dict[Member, set[Machine]] = {}
        for machine in rest:
            owner = owners.get(machine)
            why_not = "no worker has it" if owner is None else self._why_not(owner)
            if owner is None or why_not:
                missing[machine] = why_not
            else:
                by_owner.setdefault(owner, set()).add(machine)
        shares += [Peer(self._session(), owner, machines) for owner, machines in by_owner.items()]
        return shares, missing

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


class _Budget:
    """What one page may take."""

    def __init__(self) -> None:
        self._give_up = monotonic() + READING_S
        self.value_bytes = 0

    def used_up(self) -> bool:
        """Whether to end the page."""
        return monotonic() > self._give_up or self.value_bytes > PAGE_BYTES


class _Begun:
    """A share as a source whose first page is being read already, so that none waits for the one before it."""

    def __init__(self, share: Share, query: Query, limit: int, budget: _Budget) -> None:
        self._share = share
        self._query = query
        self._budget = budget
        self._first: asyncio.Task[Page] | None = asyncio.create_task(share.page(query, query.start, limit))

    async def read(self, after: Position, limit: int) -> Page:
        """The next timers."""
        first, self._first = self._first, None
        try:
            page = await (first or self._share.page(self._query, after, limit))
        except Silent as why:
            self._share.missing.update(dict.fromkeys(self._share.partitions, str(why)))
            raise
        if self._query.with_values:
            self._budget.value_bytes += sum(each.timer["value_bytes"] for each in page.listed)
        return page


def _answer(
    timers: Sequence[Timer], through: Position | None, shares: Sequence[Share], missing: Mapping[Machine, str]
) -> Answer:
    silent = {**missing, **{machine: why for share in shares for machine, why in share.missing.items()}}
    answered = {machine for share in shares for machine in share.partitions} - silent.keys()
    return Answer(timers, through, answered, silent)
