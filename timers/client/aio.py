"""The client for asyncio programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Literal, Self, TypeVar, overload

from timers.client.by_id import ById
from timers.client.config import DEFAULT_TIMEOUT_S
from timers.client.parts import FULL_QUEUE_WAIT_S, ClientParts, Submission, when_of
from timers.client.publish import OnResult, set_result
from timers.client.request import BytesLike, HeadersLike, TimerRequest
from timers.client.retry import DEFAULT_BACKOFF, Backoff
from timers.core.operation import ABSENT
from timers.errors import TimersError
from timers.wire.verdict import VerdictMessage

_T = TypeVar("_T")

_POLL_EVERY_S = 0.001
"""Interval of polls while requests are unanswered. A poll without an answer takes 2 µs."""


class AsyncTimersClient(ClientParts):
    """Schedules timers from a coroutine: ``async with AsyncTimersClient() as client: await client.schedule(...)``.

    Any number of coroutines of one event loop may schedule at once; their requests share batches. Arguments are those
    of :class:`~timers.client.TimersClient`. Nothing here blocks the event loop.
    """

    _opened = False
    _unanswered = 0
    _polling: asyncio.TimerHandle | None = None

    @cached_property
    def _opening(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def schedule(
        self,
        topic: str,
        key: str | BytesLike | None,
        value: str | BytesLike,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
        if_absent: Literal[False] = False,
    ) -> str: ...
    @overload
    async def schedule(
        self,
        topic: str,
        key: str | BytesLike | None,
        value: str | BytesLike,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str,
        if_absent: Literal[True],
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> VerdictMessage: ...
    async def schedule(
        self,
        topic: str,
        key: str | BytesLike | None,
        value: str | BytesLike,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
        if_absent: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> str | VerdictMessage:
        """Schedule a timer; see :meth:`TimersClient.schedule`.

        If the awaiting task is cancelled, the request may still reach the broker.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token, id)
        if if_absent:
            return await self.update_if(request, ABSENT, timeout_s=timeout_s)
        if id is not None:
            ids = self._by_id()
            await asyncio.to_thread(ids.open)
            return await asyncio.wrap_future(await self._retry_while_full(partial(ids.schedule, request)))
        return await self._publish(partial(self._publisher.submit, request))

    async def send_later(
        self,
        key: str | BytesLike | None,
        value: str | BytesLike,
        topic: str,
        when: datetime | timedelta | float,
        *,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
    ) -> str:
        """Schedule a timer; see :meth:`TimersClient.send_later`."""
        return await self.schedule(topic, key, value, **when_of(when), headers=headers, token=token, id=id)

    async def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> str | None:
        """Send a message again later; see :meth:`TimersClient.retry_later`."""
        submit, is_dead_letter = self._next_try(message, attempt, backoff, topic, dead_letter_topic)
        timer_id = await self._publish(submit)
        return None if is_dead_letter else timer_id

    async def update(
        self,
        id: str,
        topic: str,
        key: str | BytesLike | None,
        value: str | BytesLike,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        if_source: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> VerdictMessage:
        """Replace a timer, and await the verdict; see :meth:`TimersClient.update`."""
        request = TimerRequest(topic, key, value, at, delay, headers, token, id)
        return await self.update_if(request, if_source, timeout_s=timeout_s)

    async def update_if(
        self,
        request: TimerRequest,
        condition: str | None,
        *,
        request_hash: bytes | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> VerdictMessage:
        """Publish a request with an id, and await the verdict.

        Args:
            condition: ``absent``, or the source of the version that the request was made for; None: none.
            request_hash: value of the header ``timer-request-hash``, by which a repeated request is known.
        """
        ids = await self._open_for_verdicts()
        submit = partial(ids.update, request, condition, request_hash)
        return await self._await_verdict(await self._retry_while_full(submit), ids, timeout_s)

    async def cancel(
        self, id: str, *, if_source: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> VerdictMessage:
        """Cancel a timer with an id, and await the verdict; see :meth:`TimersClient.cancel`."""
        ids = await self._open_for_verdicts()
        submit = partial(ids.cancel, id, if_source)
        return await self._await_verdict(await self._retry_while_full(submit), ids, timeout_s)

    async def _open_for_verdicts(self) -> ById:
        ids = self._by_id()
        if not ids.listening:
            await asyncio.to_thread(ids.listen)
        return ids

    async def _await_verdict(
        self, future: concurrent.futures.Future[VerdictMessage], ids: ById, timeout_s: float
    ) -> VerdictMessage:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            raise ids.no_verdict_error(future, timeout_s) from None

    async def _retry_while_full(self, submit: Callable[[], _T]) -> _T:
        submission = Submission(submit, self._publisher.timeout_s)
        while not submission.is_done():
            await asyncio.sleep(FULL_QUEUE_WAIT_S)
        return submission.result

    async def _publish(self, submit: Callable[[OnResult], None]) -> str:
        publisher = self._publisher
        if not self._opened:
            async with self._opening:  # many coroutines may start at once; one thread is enough to connect
                if not self._opened:
                    await asyncio.to_thread(publisher.open)
                    self._opened = True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        await self._retry_while_full(partial(submit, partial(self._set_result, future)))
        self._unanswered += 1
        if self._polling is None:
            self._polling = loop.call_later(_POLL_EVERY_S, self._poll, loop)
        return await future

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the results that have arrived, and poll again while requests are unanswered."""
        self._publisher.poll(0)
        self._polling = loop.call_later(_POLL_EVERY_S, self._poll, loop) if self._unanswered else None

    def _set_result(self, future: asyncio.Future[str], result: str | TimersError) -> None:
        self._unanswered -= 1
        if not future.done():  # its task was not cancelled
            set_result(future, result)

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
        """Wait for the answers to requests under way, and disconnect. May be called twice."""
        self._publisher.refuse()
        if self._ids is not None:
            await asyncio.to_thread(self._ids.close)
        deadline = time.monotonic() + self._publisher.timeout_s
        while self._unanswered and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_EVERY_S)  # the loop polls; a flush would set its futures from another thread
        await asyncio.to_thread(self._publisher.close)
