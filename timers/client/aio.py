"""The client for asyncio programs: the same publisher, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

from timers.client.config import DEFAULT_TIMEOUT_S
from timers.client.publish import Publisher
from timers.client.request import HeadersLike, TimerRequest
from timers.errors import PublishError, TimersError

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
        producer_config: Mapping[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_request_bytes: int | None = None,
    ) -> None:
        self._publisher = Publisher(
            brokers,
            request_topic=request_topic,
            producer_config=producer_config,
            timeout_s=timeout_s,
            max_request_bytes=max_request_bytes,
        )
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
        key: str | bytes,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
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
        publisher = self._publisher
        if not self._opened:
            async with self._opening:  # a thousand coroutines at the start need one thread, not a thousand
                if not self._opened:
                    await asyncio.to_thread(publisher.open)
                    self._opened = True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        deadline = time.monotonic() + publisher.timeout_s
        while True:
            try:
                publisher.submit(request, partial(self._settle, future))
            except BufferError:
                if time.monotonic() > deadline:
                    raise PublishError(f"the producer's queue stayed full for {publisher.timeout_s:g} s") from None
                await asyncio.sleep(_FULL_QUEUE_WAIT_S)
            else:
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
        give_up = time.monotonic() + self._publisher.timeout_s
        while self._waiting and time.monotonic() < give_up:
            await asyncio.sleep(_POLL_EVERY_S)  # polled by the loop; a flush would settle its futures from a thread
        await asyncio.to_thread(self._publisher.close)
