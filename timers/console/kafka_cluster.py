"""The cluster of the console: brokers through the client library, workers through their web ports."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from yarl import URL

from timers.client.clients import AsyncTimersClient
from timers.client.config import Connection
from timers.client.publish import Publisher
from timers.client.request import TimerRequest, id_key
from timers.console import history
from timers.console.changes import Changes, read_changes
from timers.console.history import History
from timers.console.letter_box import FoundLetters, LetterBox, Ranges, RetryResult
from timers.console.problems import Problem
from timers.console.queue_list import FoundQueues, read_queues
from timers.console.threads import Threads, check
from timers.console.topics_follower import TopicsFollower
from timers.core.backoff import Pauses
from timers.core.ports import Lost
from timers.core.printable import decode_json, quoted
from timers.core.timer import TopicPartition
from timers.errors import PublishError, QueryError, TimersError
from timers.kafka import login_tokens, topic_admin
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import TopicOffsets
from timers.offline import app_state
from timers.offline.app_state import AppState
from timers.offline.dead_letters.letters import LetterFilter, QueueTopics
from timers.offline.fired import PastFirings, callback_topics, read_past_firings
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.http.asking import ForeignWorkerError, check_origin, decode_answer, read_answer
from timers.queue.inspection import Inspection, QueueStats
from timers.wire import headers as h
from timers.wire.dead_letter import VALUE_TOO_LARGE
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.signatures import ANY_WORKER, signed_headers
from timers.wire.topics import engine_id, queue_group, queue_returns

if TYPE_CHECKING:
    from timers.kafka.request_reader import DeletedRequest, RequestReader
    from timers.offline.targets import Found, Given, Make


logger = logging.getLogger(__name__)


class WorkerAnswer(NamedTuple):
    """The answer of a worker's page."""

    status: int
    body: dict[str, Any]


class FoundWorker(NamedTuple):
    """A member of the app's group."""

    id: str
    url: str
    """Address of its web port; empty if it sent none."""
    partitions: list[TopicPartition]
    may_be_asked: bool
    """Whether the operator trusts its address."""


class FoundGroup(NamedTuple):
    """The app's group."""

    workers: list[FoundWorker]
    taken: str = ""
    """Who has the group if other programs have it, a sentence. Then the brokers tell no addresses of workers."""


PUBLISH_TIMEOUT_S = 10.0
ANSWER_S = 12.0
"""Longer than a worker takes to ask the others, and than a worker or a broker takes to start again."""

READY_ANSWER_S = 2.0
"""In which a worker must answer for readiness. Kubernetes waits for 5 s: a worker that hangs must not take the console
out of its service."""

PAUSES = Pauses(0.2, 2.0)
"""Between two questions to a worker that is starting, or that misses the partitions of one that is. Such a question
makes the worker ask its group and the other workers, so ten are asked at most."""

MIN_ATTEMPT_S = 1.0
"""A question is not repeated when less time is left: a worker that has to ask others needs it."""

MAX_READERS = 4
"""Readers of dead letters, histories, firings, paused topics and queues at a time. Each has a consumer and a thread.

If the page or the client that asked does not wait any longer, the reader ends at its next record.
"""

MAX_LOOKS, MAX_LOGS = 6, 2
"""Calls at a time that look at the cluster, three for each page of it, and readers of the log of changes."""

MAX_FINDERS, MAX_OPENINGS = 2, 2
"""Requests for the members of the group, and streams that look for the ends of their topics, at a time."""

MAX_READING_S = 10.0
"""How long requests are read from their log. A broker may start again meanwhile."""

CLUSTER_ID_S = 60.0
"""How long the id of the brokers' cluster is used before it is read again."""

_LOG_CONFIG = {"retention.ms": str(366 * 24 * 3600 * 1000)}
_UNAVAILABLE = 503


class RequestDeletedError(TimersError):
    """The log of requests begins after a request."""


class _NoAnswer(QueryError):
    """A worker did not answer. It may be starting."""


class KafkaCluster:
    """The brokers and workers of one app. Its methods raise TimersError. Opens its connections at their first use.

    Attributes:
        client: writes requests.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.client = AsyncTimersClient(settings.brokers, timeout_s=PUBLISH_TIMEOUT_S)
        self._log_opening: asyncio.Task[Publisher] | None = None
        self._log_made_at = -math.inf
        self._reading, self._creating = Threads("reading", MAX_READERS), Threads("creating", 1)
        self._retrying, self._commanding = Threads("retrying", 1), Threads("targets", 1)
        self._looking, self._logs = Threads("looking", MAX_LOOKS), Threads("changes", MAX_LOGS)
        self._finding, self._opening = Threads("finding", MAX_FINDERS), Threads("opening", MAX_OPENINGS)
        self._requests, self._times = _Requests(settings, "requests"), _Requests(settings, "times")
        self._letters = LetterBox(settings)
        self._session: aiohttp.ClientSession | None = None
        self._identifying = asyncio.Lock()
        self._own_cluster: tuple[str, float] | None = None
        """Id of the brokers' cluster, and the monotonic time at which it was read."""

    async def close(self) -> None:
        """Wait for answers under way, and disconnect."""
        async with AsyncExitStack() as stack:  # all are closed, even if one of them fails
            if self._session is not None:
                stack.push_async_callback(self._session.close)
            threads = self._opening, self._finding, self._retrying, self._commanding, self._looking, self._logs
            for each in (*threads, self._creating, self._reading, self._times, self._requests):
                stack.push_async_callback(each.close)
            if self._log_opening is not None:
                stack.push_async_callback(self._close_log, self._log_opening)
            await self.client.close()

    @staticmethod
    async def _close_log(opening: asyncio.Task[Publisher]) -> None:
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:  # else the changes that waited for it have failed
            await asyncio.to_thread(opening.result().close)

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def request_hash(self, source: str) -> bytes | None:
        """The header ``timer-request-hash`` of a request; None if it has none."""
        found = await self._requests.read_one(source)
        return None if found is None else h.last(found.headers or (), h.TIMER_REQUEST_HASH)

    async def record(self, entry: bytes) -> None:
        """Write an entry to the log of changes. Returns when all in-sync replicas have it. If the topic was deleted, it
        is made anew, and has lost the changes before."""
        give_up_s = monotonic() + 2 * PUBLISH_TIMEOUT_S
        while True:
            publisher = await self._open_log()
            try:
                # Each entry has a key of its own: else a compacted topic would refuse it, and with it each change.
                key = uuid.uuid4().hex.encode()
                written = publisher.write(self._settings.console_log_topic, key, entry, None)
                await asyncio.wrap_future(written)
                return
            except BufferError:
                raise TimersError("the producer's queue is full") from None
            except PublishError:
                if await asyncio.to_thread(self._make_log):
                    logger.error("topic %s was deleted: it is made anew", self._settings.console_log_topic)
                    self._log_made_at, self._log_opening = monotonic(), None
                    await asyncio.to_thread(publisher.close)  # this producer would find the new topic only later
                elif monotonic() > min(give_up_s, self._log_made_at + 2 * PUBLISH_TIMEOUT_S):
                    raise  # else another entry has made it anew

    async def _open_log(self) -> Publisher:
        opening = self._log_opening
        if opening is None or (opening.done() and not self._has_open_log(opening)):
            # All requests that wait share it, and its failure: they do not wait for one attempt after the other.
            opening = self._log_opening = asyncio.create_task(self._open_log_after(opening))
        return await asyncio.shield(opening)

    @staticmethod
    def _has_open_log(opening: asyncio.Task[Publisher]) -> bool:
        """Whether an attempt has succeeded, and its producer has not ended after a fatal error."""
        return not opening.cancelled() and opening.exception() is None and opening.result().is_open

    async def _open_log_after(self, former: asyncio.Task[Publisher] | None) -> Publisher:
        if former is not None:
            await self._close_log(former)
        return await asyncio.to_thread(self._new_log)

    def _new_log(self) -> Publisher:
        settings, topic = self._settings, self._settings.console_log_topic
        self._make_log()
        connection = Connection.resolve(settings.brokers, None, None, PUBLISH_TIMEOUT_S, None).with_topic(topic)
        # After this time a topic that was deleted is one that does not exist: by default after 30 s.
        log = Publisher(connection, thread="timers-console-log", topic_metadata_propagation_max_ms=2000)
        log.open()
        return log

    def _make_log(self) -> bool:
        """Create the topic of the log, unless it exists. Returns whether it was created."""
        topic = self._settings.console_log_topic
        return topic_admin.create_if_missing(self._settings, topic, partitions=1, config=_LOG_CONFIG)

    # ---- questions --------------------------------------------------------------------------------------------------

    async def ask(self, path: str, parameters: Mapping[str, str]) -> WorkerAnswer:
        """The answer of a worker's page."""
        end_s, questions = monotonic() + ANSWER_S, 0
        partial: WorkerAnswer | None = None
        while True:
            left_s = end_s - monotonic()
            try:
                answer = await self._ask_once(path, parameters, max(MIN_ATTEMPT_S, left_s))
                if answer.status != _UNAVAILABLE:
                    return answer
                partial = answer
            except _NoAnswer:
                if partial is None and end_s - monotonic() < MIN_ATTEMPT_S:
                    raise
            if partial is not None and end_s - monotonic() < MIN_ATTEMPT_S:
                return partial  # it names the partitions that do not answer
            questions += 1
            # The last question comes when there is just time for an answer.
            await asyncio.sleep(max(PAUSES.first_s, min(PAUSES.after(questions), end_s - MIN_ATTEMPT_S - monotonic())))

    async def _ask_once(self, path: str, parameters: Mapping[str, str], timeout_s: float) -> WorkerAnswer:
        url = URL(f"{self._settings.query_url}{path}").with_query(parameters)
        secret, now_s = self._settings.query_secret.reveal(), Clock(self._settings.clock_offset_s).now_s()
        headers = signed_headers(secret, url.raw_path_qs, ANY_WORKER, now_s)
        status, body = await self._get(url, headers, timeout_s)
        try:
            return WorkerAnswer(status, decode_answer(self._settings, body, await self._cluster_id()))
        except ForeignWorkerError:
            # The brokers may be those of another cluster than before.
            return WorkerAnswer(status, decode_answer(self._settings, body, await self._cluster_id(newer_than_s=0.0)))

    async def _cluster_id(self, newer_than_s: float | None = None) -> str:
        """The id of the brokers' cluster. While no broker answers, it is the one that they had.

        Args:
            newer_than_s: an id that was read longer ago is read again; None: :data:`CLUSTER_ID_S`.

        Raises:
            Problem: no broker has answered yet.
        """
        newer_than_s = CLUSTER_ID_S if newer_than_s is None else newer_than_s
        async with self._identifying:
            if self._own_cluster is None or monotonic() - self._own_cluster[1] > newer_than_s:
                try:
                    found = await self._finding.run(topic_admin.cluster_id, self._settings)
                except TimersError as error:
                    if self._own_cluster is None:
                        why = f"so it is unknown whether the worker is one of their cluster: {error}"
                        raise Problem("brokers-unreachable", f"no broker has answered, {why}") from None
                    found = self._own_cluster[0]
                self._own_cluster = found, monotonic()
            return self._own_cluster[0]

    async def _get(self, url: URL, headers: Mapping[str, str], timeout_s: float = ANSWER_S) -> tuple[int, bytes]:
        if self._session is None:
            # Without the environment's proxy: the workers are in the same network.
            self._session = aiohttp.ClientSession(trust_env=False)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                return response.status, await read_answer(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = str(error) or f"no answer within {timeout_s:.0f} s"
            hint = ": see TIMERS_WORKER_URL" if url.origin() == URL(self._settings.query_url).origin() else ""
            raise _NoAnswer(f"no worker answers at {url.origin()} ({why}){hint}") from None

    async def group(self) -> FoundGroup:
        return await self._finding.run(find_group, self._settings)

    async def worker_page(self, url: str, path: str, timeout_s: float = ANSWER_S, **query: str) -> tuple[int, bytes]:
        """Status and body of a page of the worker at ``url``."""
        try:
            page = URL(url) / path.removeprefix("/")
            page.origin()  # raises for an address without a scheme
        except ValueError as error:
            raise QueryError(f"{quoted(url)} is no address of a worker: {error}") from None
        return await self._get(page.with_query(query), {}, timeout_s)

    async def check_worker(self, url: str, timeout_s: float = ANSWER_S) -> None:
        """Check that a worker of this app and of the brokers' cluster answers at ``url``.

        Raises:
            QueryError: another worker or program does, or none.
            Problem: no broker answers.
        """
        _, body = await self.worker_page(url, "/health/live", timeout_s=timeout_s)
        try:
            live = decode_json(body)
        except ValueError:
            live = None
        if not isinstance(live, dict) or "live" not in live:
            raise QueryError(f"what answers at {url} is no worker of timers: set TIMERS_WORKER_URL")
        if live.get("cluster") != "":  # it is not starting
            check_origin(self._settings, url, live, await self._cluster_id())

    # ---- dead letters and callbacks ---------------------------------------------------------------------------------

    async def letters(self, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None) -> FoundLetters:
        """A page of dead letters, as :meth:`LetterBox.read_page`; ``ends``: of the page before."""
        return await self._reading.run(self._letters.read_page, letter_filter, limit, ends)

    async def retry(self, letter_filter: LetterFilter, ranges: Ranges | None, *, only_look: bool) -> RetryResult:
        """Publish the requests of dead letters again, as :meth:`LetterBox.retry`."""
        threads = self._reading if only_look else self._retrying
        return await threads.run(self._letters.retry, letter_filter, ranges, only_look=only_look)

    async def targets(self) -> Found:
        """What is known of paused callback topics. Raises as :func:`timers.offline.targets.look`."""
        from timers.offline import targets  # not at the top: it imports aiokafka

        return await self._reading.run(targets.look, self._settings)

    async def command(self, make: Make) -> Given:
        """Give a command about a callback topic. Raises as :func:`timers.offline.targets.give`."""
        from timers.offline import targets

        return await self._commanding.run(targets.give, self._settings, make)

    async def create_topic(self, topic: str) -> bool:
        """Whether a callback topic was created: False if it exists. It has its own thread, so it delays no pause."""
        count = self._settings.partitions
        return await self._creating.run(topic_admin.create_if_missing, self._settings, topic, partitions=count)

    async def history(self, id: str, timer: dict[str, Any] | None) -> History:
        """What the topics say about a timer that a worker has described, or with None about an id that none knows."""
        return await self._reading.run(history.read, self._settings, self._letters, id, timer)

    async def stored_request(self, id: str, source: str, topic: str | None) -> TimerRequest | None:
        """The request of a timer with an id, as its topic has it; None if it is another one.

        Args:
            topic: of its callback; None if it is not known.

        Raises:
            RequestDeletedError: the topic no longer has it.
        """
        record = await self._requests.read_one(source)
        if record is None or record.key != id_key(id):
            return None
        if h.last(record.headers or (), h.TIMER_REPEAT) is not None:
            raise Problem("field-invalid", f"{quoted(id)} repeats, so it has no due time to change: set it again (PUT)")
        limit = self._settings.max_request_bytes
        decoded = future_by_id.decode([record], limit)
        for due_s, ((_, found, key, value, headers, _),) in decoded.rows.items():
            if topic in (None, found):
                return TimerRequest(found, key, value, due_s, headers=headers or (), id=id)
        if any(each.code == VALUE_TOO_LARGE for each in decoded.rejected):
            # It was accepted when it was written: the limit of the workers is larger, or was.
            why = f"the request of {quoted(id)} is larger than TIMERS_MAX_REQUEST_BYTES of this console ({limit} bytes)"
            raise Problem(VALUE_TOO_LARGE, f"{why}, so it cannot be written again: cancel it, or set the timer again")
        return None

    async def times(self, sources: Sequence[str]) -> dict[str, int]:
        """Source of a request -> the epoch second of its record; without those that the topics no longer have."""
        found = await self._times.read(sources)
        return {source: each.timestamp // 1000 for source, each in found.items() if isinstance(each, RequestRecord)}

    async def past_firings(self, since_s: int, may_see: Callable[[str], bool]) -> PastFirings:
        return await self._reading.run(read_past_firings, self._settings, since_s * 1000, may_see, MAX_READING_S, check)

    async def topics(self, may_see: Callable[[str], bool]) -> list[str]:
        return await self._reading.run(lambda: callback_topics(self._settings, TopicOffsets(self._settings), may_see))

    async def state(self, may_see: Callable[[str], bool], now_s: float) -> AppState:
        """Levels, topics and open transactions of the app, as :func:`timers.offline.app_state.look`."""
        return await app_state.look(self._settings, may_see, now_s, self._looking.run, check)

    async def changes(self, id: str, user: str, ends: Sequence[int] | None) -> Changes:
        """The newest entries of the log of changes, as :func:`read_changes`."""
        return await self._logs.run(read_changes, self._settings, id, user, ends)

    # ---- queues ----------------------------------------------------------------------------------------------------

    async def queues(self) -> FoundQueues:
        return await self._reading.run(read_queues, self._settings)

    async def queue(self, name: str, topic: str | None) -> QueueStats:
        return await self._reading.run(lambda: Inspection(self._settings).stats(name, topic))

    async def queue_topics(self, name: str) -> QueueTopics:
        topic = await self._reading.run(lambda: Inspection(self._settings).topic_of(name))
        return QueueTopics(topic, queue_returns(queue_group(name)))

    # ---- streams and health ----------------------------------------------------------------------------------------

    async def follow(self, topics: Sequence[str], positions: Sequence[Sequence[int]] | None) -> TopicsFollower:
        """A reader that begins at these positions, or with what comes from now on."""
        follower = TopicsFollower(self._settings, topics)
        try:
            await self._opening.run(follower.open, positions)
        except asyncio.CancelledError:
            follower.stop()  # the thread may still open the follower
            raise
        return follower

    async def problems(self) -> tuple[list[str], list[str]]:
        """Why brokers, and why workers, cannot be used now, a sentence each; empty: they can."""
        broker = asyncio.to_thread(topic_admin.exists, self._settings, self._settings.request_topic)
        worker = self.check_worker(self._settings.query_url, READY_ANSWER_S)
        found = await asyncio.gather(broker, worker, return_exceptions=True)
        for each in found:
            # A problem of the second check is that no broker answers, which the first one says.
            if isinstance(each, BaseException) and not isinstance(each, TimersError | Problem):
                raise each
        brokers, workers = ([str(each)] if isinstance(each, TimersError) else [] for each in found)
        brokers = list(dict.fromkeys([*login_tokens.troubles(self._settings), *brokers]))
        return brokers, [each for each in workers if each not in brokers]


class _Requests:
    """Reads requests from their log, one question at a time. Opens its connection at the first use."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._thread = Threads(name, 1)
        self._reader: RequestReader | None = None

    async def read_one(self, source: str) -> RequestRecord | None:
        """One request; None: there is none at this offset. Raises as :meth:`read`, and if it is deleted."""
        found = (await self.read([source])).get(source)
        if found is None or isinstance(found, RequestRecord):
            return found
        begin = f"{source.rpartition('/')[0]} begins at offset {found.begins_at}"
        raise RequestDeletedError(f"the request {source} is no longer in its log: {begin}")

    async def read(self, sources: Sequence[str]) -> dict[str, RequestRecord | DeletedRequest]:
        """The requests, by source, also which of them are deleted.

        Raises:
            Problem: other questions take too long.
            QueryError: the brokers do not answer in time.
        """
        return await self._thread.run(self._read, sources)

    def _read(self, sources: Sequence[str]) -> dict[str, RequestRecord | DeletedRequest]:
        from timers.kafka.request_reader import RequestReader  # not at the top: it imports aiokafka

        if self._reader is None:
            formats = enabled_formats(self._settings)
            self._reader = RequestReader(self._settings, formats, isolation="read_committed")
        end_s = monotonic() + MAX_READING_S
        while True:
            try:
                return self._reader.read(sources, lambda: monotonic() < end_s)
            except Lost as error:  # the leader moves, or the broker starts again
                if monotonic() + PAUSES.first_s > end_s:
                    raise QueryError(f"the brokers did not return the requests in time: {error}") from None
            sleep(PAUSES.first_s)

    async def close(self) -> None:
        """Wait for the question that is being answered, and disconnect."""
        await self._thread.close()
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)


def find_group(settings: Settings) -> FoundGroup:
    """The workers of the group; without any, the engine on Spark. Blocks. It is a QueryError if the coordinator does
    not answer."""
    from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

    from timers.kafka import group_access
    from timers.kafka.aiokafka_internals.group import strangers_in

    def found(group_id: str) -> FoundGroup:
        group = group_access.describe(settings, group_id)
        workers = [
            FoundWorker(each.worker_id, each.url, list(each.partitions), may_be_asked(settings, each.url))
            for each in group.members
            if each.is_ours
        ]
        return FoundGroup(workers, strangers_in(group_id, group) if group.is_taken else "")

    try:
        workers = found(settings.app_id)
        if not workers.workers:
            with suppress(GroupAuthorizationFailedError):  # without the right, the engine is not shown
                engine = found(engine_id(settings.app_id))
                if engine.workers or not workers.taken:
                    return engine
    except KafkaError as error:
        raise QueryError(f"the members of group {settings.app_id!r} cannot be read ({error!r})") from None
    return workers


def may_be_asked(settings: Settings, url: str) -> bool:
    """Whether the console may send requests to this address.

    Who may join the group chooses the address that is found there. So a console sends requests only to addresses that
    its operator trusts: those of this machine, that of ``TIMERS_WORKER_URL``, and ``TIMERS_CONSOLE_WORKERS``.
    """
    try:
        address = URL(url)  # judged with the parser by which it is asked
    except ValueError:
        return False
    host = address.raw_host
    if address.scheme not in ("http", "https") or not host or address.raw_user or address.raw_password:
        return False
    if address.raw_path.strip("/") or address.raw_query_string or address.raw_fragment:
        return False
    if host == URL(settings.query_url).raw_host:
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return ip.is_loopback or any(ip in network for network in map(ipaddress.ip_network, settings.console_workers))
