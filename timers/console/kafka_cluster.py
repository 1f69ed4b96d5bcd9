"""The cluster of the console: brokers through the client library, workers through their web ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from timers.asking import decode_answer
from timers.client.aio import AsyncTimersClient
from timers.client.config import Connection
from timers.client.publish import Publisher
from timers.client.request import TimerRequest, id_key
from timers.clock import Clock
from timers.config.settings import Settings
from timers.console import callback_lags, fleet, history, letter_box, queue_reading
from timers.console.callback_lags import CallbackLags
from timers.console.cluster import FoundWorker, WorkerAnswer
from timers.console.following import TopicsFollower
from timers.console.history import History
from timers.console.letter_box import Marks, RetryResult
from timers.console.problems import Problem
from timers.console.queue_reading import FoundQueues
from timers.core.ports import Lost
from timers.dead_letters.letters import LetterFilter, QueueTopics
from timers.dead_letters.newest import LetterPage
from timers.errors import QueryError, TimersError
from timers.kafka import topic_admin
from timers.queue.inspection import QueueStats
from timers.request_formats import enabled_formats
from timers.slots import Slot
from timers.wire import headers as h
from timers.wire import query_signature
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.verdict import VerdictMessage

if TYPE_CHECKING:
    from timers.kafka.request_reader import RequestReader

PUBLISH_TIMEOUT_S = 10.0
ANSWER_S = 12.0
"""Longer than a worker takes to ask the others."""

MAX_READERS = 2
"""Readers of dead letters at a time. Each has a consumer and a thread."""

MAX_WAIT_S = 5.0

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_LOG_RETENTION_MS = 366 * 24 * 3600 * 1000


class KafkaCluster:
    """Implements :class:`timers.console.cluster.Cluster`. Opens its connections at their first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = AsyncTimersClient(settings.brokers, timeout_s=PUBLISH_TIMEOUT_S)
        self._log: Publisher | None = None
        self._log_opening = asyncio.Lock()
        self._reading, self._retrying = asyncio.Semaphore(MAX_READERS), asyncio.Semaphore(1)
        self._reading_requests = asyncio.Semaphore(1)
        self._request_reader: RequestReader | None = None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Wait for answers under way, and disconnect."""
        await self._client.close()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
        if self._request_reader is not None:
            await asyncio.to_thread(self._request_reader.close)
        if self._session is not None:
            await self._session.close()

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def schedule(self, request: TimerRequest) -> str:
        return await self._client.schedule(**request._asdict())

    async def update(
        self,
        request: TimerRequest,
        timeout_s: float,
        condition: str | None = None,
        request_hash: bytes | None = None,
    ) -> VerdictMessage:
        return await self._client.update_if(request, condition, request_hash=request_hash, timeout_s=timeout_s)

    async def cancel(self, id: str, timeout_s: float, condition: str | None = None) -> VerdictMessage:
        return await self._client.cancel(id, if_source=condition, timeout_s=timeout_s)

    async def request_hash(self, source: str) -> bytes | None:
        found = await self._requests([source])
        return h.last(found[source].headers or (), h.TIMER_REQUEST_HASH) if source in found else None

    async def record(self, entry: bytes) -> None:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def on_result(result: str | TimersError) -> None:
            loop.call_soon_threadsafe(_finish, written, result)

        publisher = await self._open_log()
        try:
            publisher.submit_record(self._settings.console_log_topic, None, entry, None, on_result)
        except BufferError:
            raise TimersError("the producer's queue is full") from None
        await written

    async def _open_log(self) -> Publisher:
        async with self._log_opening:
            if self._log is None:
                self._log = await asyncio.to_thread(self._new_log)
        return self._log

    def _new_log(self) -> Publisher:
        settings, topic = self._settings, self._settings.console_log_topic
        retention = {"retention.ms": str(_LOG_RETENTION_MS)}
        topic_admin.create_if_missing(settings, topic, partitions=1, config=retention)
        connection = Connection.resolve(settings.brokers, None, None, PUBLISH_TIMEOUT_S, None).with_topic(topic)
        log = Publisher(connection, thread="timers-console-log")
        log.open()
        return log

    # ---- questions --------------------------------------------------------------------------------------------------

    async def ask(self, path: str, parameters: Mapping[str, str]) -> WorkerAnswer:
        url = URL(f"{self._settings.query_url}{path}").with_query(parameters)
        secret, now_s = self._settings.query_secret.reveal(), Clock(self._settings.clock_offset_s).now_s()
        headers = query_signature.headers(secret, url.raw_path_qs, query_signature.ANY_WORKER, now_s)
        status, body = await self._get(url, headers)
        return WorkerAnswer(status, decode_answer(self._settings, body))

    async def _get(self, url: URL, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._session is None:
            # Without the environment's proxy: the workers are in the same network.
            self._session = aiohttp.ClientSession(trust_env=False)
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                body = await response.content.read(_MAX_ANSWER_BYTES)
                while len(body) < _MAX_ANSWER_BYTES and (more := await response.content.read(_MAX_ANSWER_BYTES)):
                    body += more
                return response.status, body
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = str(error) or f"no answer within {ANSWER_S:.0f} s"
            raise QueryError(
                f"no worker answers at {self._settings.query_url} ({why}): see TIMERS_WORKER_URL"
            ) from None

    async def workers(self) -> list[FoundWorker]:
        return await asyncio.to_thread(fleet.find, self._settings)

    async def worker_page(self, url: str, path: str) -> tuple[int, bytes]:
        return await self._get(URL(f"{url.rstrip('/')}{path}"), {})

    # ---- dead letters and callbacks ---------------------------------------------------------------------------------

    async def letters(
        self, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None
    ) -> tuple[LetterPage, Marks]:
        async with Slot(self._reading, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(letter_box.read_page, self._settings, letter_filter, limit, ends)

    async def retry(self, letter_filter: LetterFilter, *, only_look: bool) -> RetryResult:
        async with Slot(self._reading if only_look else self._retrying, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(letter_box.retry, self._settings, letter_filter, only_look=only_look)

    async def history(self, id: str, timer: dict[str, Any]) -> History:
        async with Slot(self._reading, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(history.read, self._settings, id, timer)

    async def stored_request(self, id: str, source: str) -> TimerRequest | None:
        record = (await self._requests([source])).get(source)
        if record is None or record.key != id_key(id):
            return None
        decoded = future_by_id.decode([record], self._settings.max_request_bytes)
        for due_s, ((_, topic, key, value, headers, _),) in decoded.rows.items():
            return TimerRequest(topic, key, value, due_s, headers=headers or (), id=id)
        return None

    async def times(self, sources: Sequence[str]) -> dict[str, int]:
        found = await self._requests(sources)
        return {source: record.timestamp // 1000 for source, record in found.items()}

    async def _requests(self, sources: Sequence[str]) -> dict[str, RequestRecord]:
        async with Slot(self._reading_requests, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(self._read_requests, sources)

    def _read_requests(self, sources: Sequence[str]) -> dict[str, RequestRecord]:
        from timers.kafka.request_reader import RequestReader  # not at the top: it imports aiokafka

        if self._request_reader is None:
            formats = enabled_formats(self._settings)
            self._request_reader = RequestReader(self._settings, formats, isolation="read_committed")
        end_s = monotonic() + MAX_WAIT_S
        try:
            return self._request_reader.read(sources, lambda: monotonic() < end_s)
        except Lost as error:
            raise QueryError(f"the brokers did not return the requests in time: {error}") from None

    async def lags(self, topic: str, limit: int) -> CallbackLags:
        async with Slot(self._reading, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(callback_lags.read, self._settings, topic, limit)

    # ---- queues ----------------------------------------------------------------------------------------------------

    async def queues(self) -> FoundQueues:
        async with Slot(self._reading, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(queue_reading.read_all, self._settings)

    async def queue(self, name: str, topic: str | None) -> QueueStats:
        async with Slot(self._reading, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(queue_reading.read_one, self._settings, name, topic)

    async def queue_topics(self, name: str) -> QueueTopics:
        async with Slot(self._reading, MAX_WAIT_S, _busy):
            return await asyncio.to_thread(queue_reading.topics_of, self._settings, name)

    # ---- streams and health ----------------------------------------------------------------------------------------

    async def follow(self, topics: Sequence[str], positions: Sequence[Sequence[int]] | None) -> TopicsFollower:
        follower = TopicsFollower(self._settings, topics)
        await asyncio.to_thread(follower.open, positions)
        return follower

    async def problems(self) -> list[str]:
        async def check(what: Any) -> str:
            try:
                await what
            except TimersError as error:
                return str(error)
            return ""

        async def broker() -> None:
            await asyncio.to_thread(topic_admin.exists, self._settings, self._settings.request_topic)

        async def worker() -> None:
            url = self._settings.query_url
            _, body = await self.worker_page(url, "/health/live")
            if b'"live"' not in body:
                raise QueryError(f"what answers at {url} is no worker of timers: set TIMERS_WORKER_URL")

        found = await asyncio.gather(check(broker()), check(worker()))
        return [why for why in found if why]


def _busy() -> Problem:
    return Problem("busy", "other requests of this kind are being answered", {"Retry-After": "5"})


def _finish(future: asyncio.Future[None], result: str | TimersError) -> None:
    if future.done():
        return
    if isinstance(result, TimersError):
        future.set_exception(result)
    else:
        future.set_result(None)
