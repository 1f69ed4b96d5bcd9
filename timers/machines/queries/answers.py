"""Answers queries about timers for all workers: reads the worker's own partitions, and asks the owners of the others.

The answer names each partition that it does not cover, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, thread_time
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from timers.core import machine as core
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.listing import Listed, NoAnswer, Page, Position, merge, share_of
from timers.core.ports import Lost
from timers.core.printable import decode_json
from timers.core.timer import Decoded, Definition, TopicPartition
from timers.kafka.aiokafka_internals.group import Member
from timers.kafka.request_reader import DeletedRequest, RequestReader
from timers.machines.queries import reading
from timers.machines.queries.reading import Place, Turns
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.http.asking import read_answer
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.formats import RequestFormat
from timers.wire.query import Query, Timer
from timers.wire.signatures import signed_headers

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

MACHINE_ANSWER_S = 3.0
"""How long to wait for a machine of this worker."""


class Lookup(NamedTuple):
    """Which timer to find."""

    id: str
    """The id that its sender gave it, or a ``timer-id`` header of a callback."""
    record: tuple[str, int, int] | None
    """(topic, partition, offset) if the id is the source of a request: ``<topic>/<partition>/<offset>``."""
    with_value: bool


class Pace(NamedTuple):
    """How machines are read."""

    answer_s: float = MACHINE_ANSWER_S
    """How long to wait for a machine; after this its partition is missing in the answer."""
    look_up_s: float = MACHINE_ANSWER_S
    """The same for the look-up of one timer, from its begin to its end."""
    slices: int = 1
    """Slices that are read at once."""
    at_once: bool = False
    """Whether the first reads of all partitions begin together, each for a whole page: a read takes long, whatever is
    read. Such reads are used although the time of a page is over."""


IN_A_WORKER = Pace()


class Asked(Protocol):
    """A machine that can be asked."""

    def ask(self, question: Callable[[core.Machine], _T]) -> Future[_T]:
        """Call ``question`` where the machine is, between two of its steps. It can be pickled, and so can its answer.
        Any thread."""


class Machines(Protocol):
    """The machines of a process, which it answers for."""

    @property
    def formats(self) -> Mapping[str, RequestFormat]: ...

    @property
    def partitions(self) -> Mapping[str, int]:
        """Number of partitions of each topic of :attr:`formats` that exists."""

    @property
    def runners(self) -> Mapping[TopicPartition, Asked]:
        """Those that can be asked now."""

    @property
    def closed(self) -> Mapping[TopicPartition, str]:
        """Partitions of this process that cannot be asked -> why."""

    @property
    def held(self) -> Mapping[TopicPartition, str]:
        """Partitions whose newest requests are not read -> why."""

    def value_limit(self, partition: TopicPartition) -> int | None:
        """The size in bytes above which no value of a partition is accepted; None: not known."""


Want: TypeAlias = Callable[[TopicPartition], None]
"""Called where the machine is, in a question: so it can be pickled if the question must be."""

Counts: TypeAlias = tuple[Counter[tuple[int, str]], OrderKey | None]
"""(first second of a group, callback topic) -> timers, and up to which key they are counted; None: to the end."""


@dataclass(eq=False)
class LocalSource:
    """A machine of this process.

    Attributes:
        turns: when machines may be read.
    """

    runner: Asked
    place: Place
    request_format: RequestFormat
    request_reader: RequestReader
    turns: Turns
    pace: Pace = IN_A_WORKER
    missing: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return (self.place[:2],)

    async def page(self, query: Query, after: Position, limit: int) -> Page:
        """The next timers, from one slice of the store."""
        look = partial(reading.page, place=self.place, query=query, after=after, limit=limit)
        return await self._read(query.is_quick, look)

    async def count(self, query: Query, tp: TopicPartition, after: OrderKey) -> Counts:
        """Count the next timers, from one slice of the store."""
        start = max(after, (query.from_s - 1, MAX_OFFSET))
        look = partial(reading.count, place=self.place, query=query, after=start)
        return await self._read(query.is_quick, look)

    async def _read(self, quick: bool, read: Callable[[core.Machine], _T], until: float | None = None) -> _T:
        """Read a slice when it may be read."""
        await self.turns.wait(quick=quick)
        took_s = 0.0
        try:
            found, took_s = await self._ask(partial(_measured, read), until)
        finally:
            self.turns.correct(took_s)
        return found

    async def find(self, lookup: Lookup) -> list[Timer]:
        """The timer with the id, and the timer of the record that the id names; either may be missing."""
        asked: list[asyncio.Task[Timer | None]] = []
        until = monotonic() + self.pace.look_up_s
        if self.request_format.has_ids:
            look = partial(reading.find_by_id, place=self.place, id=lookup.id, with_value=lookup.with_value)
            asked.append(asyncio.create_task(self._ask(look, until)))
        if lookup.record is not None and lookup.record[:2] == self.place[:2]:
            asked.append(asyncio.create_task(self._find_record(lookup, lookup.record[2], until)))
        try:
            return [timer for timer in await asyncio.gather(*asked) if timer is not None]
        finally:
            await _end(asked)

    async def take(self, want: Want | None) -> list[Timer]:
        """Want a snapshot of the machine, unless it is empty. The list of timers is empty."""
        if want is None:
            raise NoAnswer(NO_SNAPSHOTS)
        await self._ask(partial(reading.want_snapshot, want=partial(want, self.place[:2])))
        return []

    async def _find_record(self, lookup: Lookup, offset: int, until: float) -> Timer | None:
        """Read the record again: only it has the due second, by which the store is ordered. Then ask the machine once:
        on Spark an answer takes a micro-batch. Only the machine knows at which feature level it has read the record."""
        if self.place.moved:
            return None
        source, is_over = topics.source(self.place.topic, self.place.partition, offset), threading.Event()
        read = partial(self.request_reader.read, [source], lambda: not is_over.is_set() and monotonic() < until)
        try:
            records = await asyncio.to_thread(read)
        except Lost:
            raise NoAnswer("the brokers did not return its records in time") from None
        finally:
            is_over.set()  # a cancel of this task does not end its thread
        sent = records.get(source)
        if isinstance(sent, DeletedRequest):
            return await self._find_pending(offset, lookup.with_value, until)
        if sent is None:
            return None
        decoders = {0: self.request_format.decode, **self.request_format.decode_from_level}
        decoded = {level: decode([sent], len(sent.value or b"")) for level, decode in decoders.items()}
        requests = {level: _request(each) for level, each in decoded.items()}
        for each in decoded.values():
            for definition in each.definitions.values():
                return await self._find_definition(definition, source, lookup, until)
        look = partial(reading.find_sent, place=self.place, offset=offset, append_s=sent.timestamp // 1000)
        found = await self._ask(partial(look, requests=requests), until)
        if found is None:
            return None
        level, state, stored, hold = found
        for rejected in decoded[level].rejected:
            return {"id": source, "state": wire.REJECTED, "source": source, "error": rejected.message}
        if state is None:
            return None
        ((due_s, (row,)),) = decoded[level].rows.items()
        return reading.with_state(stored or row, due_s, self.place, state, lookup.with_value, hold)

    async def _find_definition(self, definition: Definition, source: str, lookup: Lookup, until: float) -> Timer | None:
        """The timer that repeats by the definition in a record."""
        assert definition.row[5] is not None
        id = definition.row[5].timer_id
        look = partial(reading.find_by_id, place=self.place, id=id, with_value=lookup.with_value)
        timer = await self._ask(look, until)
        if timer is None or wire.version_of(timer) == source:
            return timer
        return {"id": id, "state": wire.REPLACED, "source": source}

    async def _find_pending(self, offset: int, with_value: bool, until: float) -> Timer | None:
        """Look through all that is pending for a request that the log no longer has. If it is not there, it has fired
        or was refused, and nothing says which.

        Raises:
            NoAnswer: the time is over before the end.
        """
        after: OrderKey | None = NOTHING_FIRED
        while after is not None:
            look = partial(reading.find_offset, place=self.place, offset=offset, after=after, with_value=with_value)
            found, after = await self._read(False, look, until)
            if found is not None:
                return found
            if monotonic() > until:
                within = f"within {self.pace.look_up_s:.0f} s"
                raise NoAnswer(f"the request is deleted, and its timer was not found {within}")
        return None

    async def _ask(self, question: Callable[[core.Machine], _T], until: float | None = None) -> _T:
        """Ask the machine, and wait until the end of a look-up, or for the usual time."""
        longest_s = self.pace.answer_s if until is None else self.pace.look_up_s
        try:
            async with asyncio.timeout(longest_s if until is None else until - monotonic()):
                return await asyncio.wrap_future(self.runner.ask(question))
        except TimeoutError:
            raise NoAnswer(f"it has been busy for {longest_s:.0f} s") from None
        except Lost:
            raise NoAnswer("its worker has just closed it") from None
        except NoAnswer:
            raise
        except Exception:  # the machine goes on: it logs the error itself if its store is damaged
            logger.exception("%s/%d: a question was not answered", *self.place[:2])
            raise NoAnswer("its worker cannot read it; see that worker's log") from None


def _request(decoded: Decoded) -> tuple[str | None, int, int | None] | None:
    """The id and the due second of the one request that was decoded, and the offset of the definition of which it is an
    occurrence; None: it asks for no timer."""
    for due_s, (row,) in decoded.rows.items():
        follows = decoded.follows.get(row[0])
        return None if row[5] is None else row[5].timer_id, due_s, None if follows is None else follows.version
    return None


def _measured(read: Callable[[core.Machine], _T], machine: core.Machine) -> tuple[_T, float]:
    """Returns what was read, and the seconds that it took."""
    begun_s = thread_time()
    return read(machine), thread_time() - begun_s


_WRONG = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading an answer may raise that no worker wrote."""

WORKER_ANSWER_S = 8.0
"""Longer than a worker takes for an answer; see :data:`MAX_READING_S`."""


@dataclass(eq=False)
class RemoteSource:
    """The partitions of another worker.

    Attributes:
        sign: returns the headers that sign a question, given its path with parameters.
        partitions: those to ask about; answers about others are ignored.
    """

    session: aiohttp.ClientSession
    sign: Callable[[str], Mapping[str, str]]
    member: Member
    partitions: Collection[TopicPartition]
    missing: dict[TopicPartition, str] = field(default_factory=dict)

    async def page(self, query: Query, after: Position, limit: int) -> Page:
        """The next timers."""
        asked = query._replace(limit=limit, after=after if after[1] else query.after)
        answer = await self._get(wire.LIST_PATH, wire.parameters_of(asked), quick=query.is_quick)
        with self._read_as_worker():
            listed = [Listed(wire.position_of(timer), timer) for timer in answer["timers"]]
            through = None if answer["next"] is None else wire.parse_cursor(answer["next"])
        return Page([each for each in listed if each.position[1:3] in self.partitions], through)

    async def count(self, query: Query, tp: TopicPartition, after: OrderKey) -> Counts:
        """Count the next timers of one partition."""
        alone = RemoteSource(self.session, self.sign, self.member, {tp})
        asked = query._replace(after=(after[0], *tp, after[1]), partition=tp)
        answer = await alone._get(wire.COUNT_PATH, wire.parameters_of(asked), quick=query.is_quick)
        with self._read_as_worker():
            counts = Counter(
                {(int(each["from"]), str(each["topic"])): int(each["timers"]) for each in answer["timers"]}
            )
            through = None if answer["next"] is None else wire.parse_cursor(answer["next"])
        self.missing |= alone.missing
        return counts, through and (through[0], through[3])

    async def find(self, lookup: Lookup) -> list[Timer]:
        """The timer, if it exists."""
        answer = await self._get(wire.FIND_PATH, {"id": lookup.id, "value": str(int(lookup.with_value))})
        with self._read_as_worker():
            named: list[tuple[Timer, Any]] = [
                (timer, topics.parse_source(timer["source"])) for timer in answer["timers"]
            ]
        return [timer for timer, where in named if where is not None and where[:2] in self.partitions]

    async def take(self, want: Want | None) -> list[Timer]:
        """Let the other worker want snapshots of its machines. The list of timers is empty."""
        await self._get(wire.SNAPSHOT_PATH, {})
        return []

    async def _get(self, path: str, parameters: Mapping[str, str], *, quick: bool = False) -> Any:
        try:
            asked = f"{path}?{urlencode(parameters, errors='surrogateescape')}"
            url = URL(self.member.url).join(URL(asked, encoded=True))
            forwarded = wire.FORWARDED_QUICK if quick else "1"
            headers = {wire.FORWARDED: forwarded, **self.sign(url.raw_path_qs)}
            async with (
                asyncio.timeout(WORKER_ANSWER_S),
                self.session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                body = await read_answer(response.content)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            why = str(error) or f"no answer within {WORKER_ANSWER_S:.0f} s"
            raise NoAnswer(f"worker {self.member.worker_id} does not answer at {self.member.url}: {why}") from None
        with self._read_as_worker():
            answer = decode_json(body)
            if response.status not in (200, 404):
                raise NoAnswer(f"worker {self.member.worker_id} answered: {answer['error']}")
            answered = set(answer["partitions"])
            reasons = {each["partition"]: each["reason"] for each in answer["missing"]}
        for tp in self.partitions:
            name = topics.partition_name(*tp)
            if name not in answered:
                self.missing[tp] = reasons.get(name, f"worker {self.member.worker_id} does not own it any more")
        return answer

    @contextmanager
    def _read_as_worker(self) -> Iterator[None]:
        """An answer that cannot be read in the block is none of a worker."""
        try:
            yield
        except _WRONG:
            raise NoAnswer(f"the server at {self.member.url} is not a timers worker") from None


QUICK_S = 0.1
"""A first page ends this time after its question came, with the timers found so far: a filter may skip many timers. So
the time that the question waits for others counts too. Each page reads at least once."""

MAX_READING_S = 2.0
"""Any other page ends after it was read for this time."""

PAGE_BYTES = 8 * 1024 * 1024
"""A page with values ends at this size, plus at most one read of each source."""

MAX_COUNTS = 2000
"""An answer ends after this number of counts, plus at most one read."""

NO_SNAPSHOTS = "its worker has TIMERS_SNAPSHOT_FACTOR=0"

GROUP_TIMEOUT_S = 3.0
"""How long to wait for the group's coordinator."""


PartitionSource: TypeAlias = LocalSource | RemoteSource
"""Answers for some partitions. It raises :class:`NoAnswer`, with the reason, if it cannot answer at all. ``missing``
names those that an answer did not cover, and why."""


class Answer(NamedTuple):
    """Answer to a query."""

    timers: Sequence[Timer]
    through: Position | None
    """Position after which the next page begins; None: this is the last page."""
    answered: Collection[TopicPartition]
    missing: Mapping[TopicPartition, str]
    """Partition -> why the answer does not cover it."""


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End those of these tasks that still run."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_all(
    sources: Iterable[PartitionSource], ask: Callable[[PartitionSource], Awaitable[list[Timer]]]
) -> list[Timer]:
    """Ask all at once. The partitions of a source without an answer are missing in it then."""

    async def asked(source: PartitionSource) -> list[Timer]:
        try:
            return await ask(source)
        except NoAnswer as why:
            source.missing.update(dict.fromkeys(source.partitions, str(why)))
            return []

    return [timer for timers in await asyncio.gather(*map(asked, sources)) for timer in timers]


class Queries:
    """Reads the timers of all workers.

    Args:
        members: asks the group for the owner of each partition.
        session: returns the HTTP session for requests to other workers.
        turns: when machines may be read, and long pages encoded.
        want: lets a machine have a snapshot although none is due; None: none has one.
        pace: how machines are read.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Machines,
        members: Callable[[], Awaitable[dict[TopicPartition, Member]]],
        session: Callable[[], aiohttp.ClientSession],
        turns: Turns,
        want: Want | None = None,
        pace: Pace = IN_A_WORKER,
    ) -> None:
        self._pace = pace
        self._settings = settings
        self._pool = pool
        self._want = want
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
        end_at, every = _end_at(query, arrived), sum(len(source.partitions) for source in sources)
        share = 1 if self._pace.at_once else every
        sources_read = [_ReadAhead(source, query, share) for source in sources]

        def is_used_up() -> bool:
            return monotonic() > end_at or sum(each.value_bytes for each in sources_read) > PAGE_BYTES

        page = await merge(sources_read, query.start, query.limit, is_used_up)
        if not query.is_quick:
            await self._turns.wait(quick=False)  # to encode a long page as JSON blocks the event loop for milliseconds
        return _answer([each.timer for each in page.listed], page.through, sources, missing)

    async def count(self, query: Query, arrived: float, *, forwarded: bool) -> Answer:
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
        starts: dict[TopicPartition, OrderKey] = {
            tp: (query.after[0], query.after[3]) if tp == at else (0, 0) for tp in sorted(owner) if tp >= at
        }
        begun = {
            tp: asyncio.create_task(owner[tp].count(query, tp, after))
            for tp, after in starts.items()
            if self._pace.at_once
        }
        try:
            for tp, start in starts.items():
                after: OrderKey | None = start
                while after is not None:
                    if reads and ((monotonic() > end_at and tp not in begun) or len(counts) >= MAX_COUNTS):
                        through = (after[0], *tp, after[1])
                        break
                    reads += 1  # at least one read for each answer, so that each answer has a later `next`
                    try:
                        read: Awaitable[Counts] = begun.pop(tp) if tp in begun else owner[tp].count(query, tp, after)
                        found, after = await read
                    except NoAnswer as why:
                        owner[tp].missing[tp] = str(why)
                        break
                    counts += found
                if through is not None:
                    break
        finally:
            await _end(begun.values())
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
        found = await _ask_all(sources, lambda source: source.find(lookup))
        if not found:
            held = self._pool.held
            missing = {tp: held[tp] for tp in may_have_it & held.keys()} | missing
        return _answer(found, None, sources, missing)

    async def take(self, *, forwarded: bool) -> Answer:
        """Let all machines have a snapshot soon.

        Args:
            forwarded: whether another worker asks: then only this worker's machines are meant.
        """
        sources, missing = await self._sources(self._partitions(), forwarded)
        return _answer(await _ask_all(sources, lambda source: source.take(self._want)), None, sources, missing)

    # ---- which source answers for which partition --------------------------------------------------------------------

    def _partitions(self) -> set[TopicPartition]:
        """All partitions of all workers."""
        return {(topic, number) for topic, count in self._pool.partitions.items() for number in range(count)}

    async def _sources(
        self, wanted: set[TopicPartition], forwarded: bool
    ) -> tuple[list[PartitionSource], dict[TopicPartition, str]]:
        """The sources of these partitions, and the partitions that have none -> why."""
        sources: list[PartitionSource] = [
            LocalSource(
                runner,
                Place(
                    *tp,
                    tp[0] == self._settings.retry_topic,
                    self._settings.canary_topic,
                    self._pace.slices,
                    request_format.all_have_ids,
                ),
                request_format,
                self._request_reader,
                self._turns,
                self._pace,
            )
            for tp, runner in self._pool.runners.items()
            if tp in wanted
            for request_format in (self._pool.formats[tp[0]],)
        ]
        missing = {tp: why for tp, why in self._pool.closed.items() if tp in wanted}
        remote = wanted - missing.keys() - {tp for source in sources for tp in source.partitions}
        if forwarded or not remote:
            return sources, missing
        try:
            async with asyncio.timeout(GROUP_TIMEOUT_S):
                owners = await self._members()
        except (NoAnswer, TimeoutError) as error:
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
        return signed_headers(secret, target, owner.worker_id, now_s)

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


class _ReadAhead:
    """A source that begins to read its first page before it is asked, so that all sources read at the same time.

    Args:
        every: number of partitions that share the page: a source is read by its share of it.

    Attributes:
        value_bytes: size of the values that were read, if they are shown.
    """

    def __init__(self, source: PartitionSource, query: Query, every: int) -> None:
        self._source = source
        self._query = query
        self.value_bytes = 0
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
            self.value_bytes += sum(each.timer["value_bytes"] for each in page.listed)
        return page


def _end_at(query: Query, arrived: float) -> float:
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
