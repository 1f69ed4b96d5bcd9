"""The client for asyncio programs: the same publisher, awaited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from timers.client.by_id import ById
from timers.client.config import DEFAULT_TIMEOUT_S, Connection
from timers.client.publish import CLOSED, Answer, Publisher, queue_stayed_full
from timers.client.request import HeadersLike, TimerRequest
from timers.client.retry import DEFAULT_BACKOFF, Backoff, plan
from timers.errors import PublishError, TimersError
from timers.wire.verdict import VerdictMessage

_T = TypeVar("_T")

_FULL_QUEUE_WAIT_S = 0.01
_POLL_EVERY_S = 0.001
"""While something is on its way; a poll that finds nothing takes 2 µs."""


class AsyncTimersClient:
    """Schedules timers from a coroutine: ``async with AsyncTimersClient() as client: await client.schedule(...)``.

    Any number of coroutines of one event loop may schedule at once; their requests share batches. Arguments are those
    of :class:`~timers.client.TimersClient`. Nothing here blocks the event loop.
    """

    def __init__(
        self,
        brokers: str | None = None,
        *,
        request_topic: str | None = None,
        id_topic: str | None = None,
        producer_config: Mapping[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_request_bytes: int | None = None,
    ) -> None:
        self._to = Connection.resolve(brokers, request_topic, producer_config, timeout_s, max_request_bytes, id_topic)
        self._publisher = Publisher(self._to)
        self._ids: ById | None = None
        self._opened = False
        self._opening = asyncio.Lock()
        self._waiting = 0
        self._polling: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def schedule(
        self,
        topic: str,
        key: str | bytes | None,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
    ) -> str:
        """Have ``value`` sent to ``topic`` at the due second; see :meth:`TimersClient.schedule`.

        If the awaiting task is cancelled, the request may still reach the broker.

        Returns:
            The timer id, once the broker has the request.

        Raises:
            InvalidTimerError: an argument is wrong; the sentence says which and what it should be.
            PublishError: the broker did not take it within ``timeout_s``.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token)
        if id is not None:
            ids = self._by_id()
            await asyncio.to_thread(ids.open)
            return await asyncio.wrap_future(await self._room(partial(ids.schedule, id, request)))
        return await self._publish(partial(self._publisher.submit, request))

    async def send_later(
        self,
        key: str | bytes | None,
        value: str | bytes,
        topic: str,
        when: datetime | timedelta | float,
        *,
        headers: HeadersLike = (),
    ) -> str:
        """Have ``value`` sent to ``topic`` at an instant; see :meth:`TimersClient.send_later`."""
        at, delay = (None, when) if isinstance(when, timedelta) else (when, None)
        return await self.schedule(topic, key, value, at=at, delay=delay, headers=headers)

    async def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> str | None:
        """Have a message sent again, later each time; see :meth:`TimersClient.retry_later`."""
        planned = plan(message, attempt, backoff, topic, dead_letter_topic or self._to.settings.dead_letter_topic)
        if isinstance(planned, TimerRequest):
            return await self._publish(partial(self._publisher.submit, planned))
        await self._publish(partial(self._publisher.submit_record, *planned))
        return None

    async def update(
        self,
        id: str,
        topic: str,
        key: str | bytes | None,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> VerdictMessage:
        """Set a timer anew, and await what became of the one before; see :meth:`TimersClient.update`."""
        request = TimerRequest(topic, key, value, at, delay, headers, token)
        ids = self._by_id()
        if not ids.listening:
            await asyncio.to_thread(ids.listen)
        return await self._verdict(await self._room(partial(ids.update, id, request)), ids, timeout_s)

    async def cancel(self, id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> VerdictMessage:
        """Cancel a timer that has an id, and await what came of it; see :meth:`TimersClient.cancel`."""
        ids = self._by_id()
        if not ids.listening:
            await asyncio.to_thread(ids.listen)
        return await self._verdict(await self._room(partial(ids.cancel, id)), ids, timeout_s)

    def _by_id(self) -> ById:
        if self._publisher.closed:
            raise PublishError(CLOSED)
        if self._ids is None:
            self._ids = ById(self._to)
        return self._ids

    async def _verdict(
        self, asked: concurrent.futures.Future[VerdictMessage], ids: ById, timeout_s: float
    ) -> VerdictMessage:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), timeout_s)
        except TimeoutError:
            raise ids.silence(timeout_s) from None

    async def _room(self, hand_over: Callable[[], _T]) -> _T:
        """Hand something over once the producer's queue has room for it."""
        deadline = time.monotonic() + self._publisher.timeout_s
        while True:
            try:
                return hand_over()
            except BufferError:
                if time.monotonic() > deadline:
                    raise queue_stayed_full(self._publisher.timeout_s) from None
                await asyncio.sleep(_FULL_QUEUE_WAIT_S)

    async def _publish(self, submit: Callable[[Answer], None]) -> str:
        publisher = self._publisher
        if not self._opened:
            async with self._opening:  # a thousand coroutines at the start need one thread, not a thousand
                if not self._opened:
                    await asyncio.to_thread(publisher.open)
                    self._opened = True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        await self._room(partial(submit, partial(self._settle, future)))
        self._waiting += 1
        if self._polling is None:
            self._polling = loop.call_later(_POLL_EVERY_S, self._poll, loop)
        return await future

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Settle what has been answered; come back while there is something to wait for."""
        self._publisher.poll(0)
        self._polling = loop.call_later(_POLL_EVERY_S, self._poll, loop) if self._waiting else None

    def _settle(self, future: asyncio.Future[str], answer: str | TimersError) -> None:
        self._waiting -= 1
        if future.done():  # its task was cancelled
            return
        if isinstance(answer, TimersError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    @overload
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Schedule any number of timers; see :meth:`TimersClient.schedule_many`. ``requests`` is read in a thread."""
        return await asyncio.to_thread(self._publisher.publish_many, requests, ids=ids)

    async def close(self) -> None:
        """Wait for what is on its way and let go of the broker. May be called twice."""
        self._publisher.refuse()
        if self._ids is not None:
            await asyncio.to_thread(self._ids.close)
        give_up = time.monotonic() + self._publisher.timeout_s
        while self._waiting and time.monotonic() < give_up:
            await asyncio.sleep(_POLL_EVERY_S)  # polled by the loop; a flush would settle its futures from a thread
        await asyncio.to_thread(self._publisher.close)
