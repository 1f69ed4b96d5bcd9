"""The queue for programs with an event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future
from datetime import timedelta
from time import monotonic
from typing import Any, ParamSpec, Self, TypeVar, cast

from timers.client.publish import left_s
from timers.errors import QueueError
from timers.queue.inspection import QueueStats
from timers.queue.message import Message
from timers.queue.queue import Queue
from timers.queue.running import end_fork_of, finish
from timers.queue.sending import Sendable
from timers.queue.tasks import TaskRun
from timers.threads import BoundedThreads, call_in_thread, result_of

_log = logging.getLogger("timers.queue")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Nothing:
    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class AsyncMessage(Message):
    """A delivery in a program with an event loop. Its calls take effect at once, and may be awaited.

    A call that must wait for the brokers, as :meth:`Message.ack` says, waits in a thread. Await it to learn whether it
    counts; otherwise its error is logged.
    """

    __slots__ = ()

    def ack(self) -> Awaitable[None]:  # type: ignore[override]  # a program may ignore the result
        return self._call(super().ack)

    def retry(self, after: float | timedelta | None = None, error: str = "") -> Awaitable[None]:  # type: ignore[override]
        return self._call(super().retry, after, error)

    def reject(self, reason: str) -> Awaitable[None]:  # type: ignore[override]
        return self._call(super().reject, reason)

    def extend(self, lease_s: float) -> Awaitable[None]:  # type: ignore[override]
        return self._call(super().extend, lease_s)

    def _call(self, call: Callable[..., None], *arguments: Any) -> Awaitable[None]:
        with self._state.lock:
            if not (self.may_wait and asyncio._get_running_loop()):
                call(*arguments)
                return _Nothing()
        task = asyncio.create_task(_in_thread(call, *arguments))
        _calls.add(task)
        task.add_done_callback(_end_call)
        return task


MAX_THREADS = 64
"""Calls of a kind that wait at the same time; more wait for these. Calls on messages, receives, and other calls of a
queue are of different kinds, so none waits for one that takes longer. The threads of the event loop are few: calls that
wait there would hold up those of the program."""

_message_calls = BoundedThreads("queue-call", MAX_THREADS)


async def _in_thread(call: Callable[..., None], *arguments: Any) -> None:
    """Make a call on a message that may wait for the brokers. It takes effect, even if this task is cancelled."""
    await asyncio.shield(asyncio.wrap_future(_message_calls.call(call, *arguments)))


_calls: set[asyncio.Task[None]] = set()
"""An event loop refers to its tasks weakly."""


def _end_call(task: asyncio.Task[None]) -> None:
    _calls.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("%s", error)


class AsyncQueue:
    """:class:`Queue` with coroutines; it takes the same arguments.

    ::

        async with AsyncQueue("orders") as queue:
            async for message in queue:
                await message.ack()
    """

    def __init__(self, topic: str | Queue, **arguments: Any) -> None:
        self.queue = topic if isinstance(topic, Queue) else Queue(topic, **arguments)
        self.queue.deliveries.kind = AsyncMessage
        self._receives = BoundedThreads("queue-receive", MAX_THREADS)
        self._others = BoundedThreads("queue-other", MAX_THREADS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, value: Any, **arguments: Any) -> str:
        """As :meth:`Queue.send`."""
        return await self._call(self.queue.send, value, **arguments)

    async def send_many(self, messages: Iterable[Sendable]) -> list[str]:
        """As :meth:`Queue.send_many`."""
        return await self._call(self.queue.send_many, messages)

    async def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[AsyncMessage]:
        """As :meth:`Queue.receive`. If the task is cancelled, what it would have got is put back.

        64 calls wait at the same time; the others begin to wait when these have ended.
        """
        deadline = monotonic() + wait_s
        call = self._receives.call(lambda: self.queue.receive(limit, left_s(deadline)))
        try:
            return cast(list[AsyncMessage], await result_of(call, wait_s))
        except TimeoutError:
            call.add_done_callback(_put_back)
            return []
        except asyncio.CancelledError:
            if not call.cancel():  # it has begun
                call.add_done_callback(_put_back)
            raise

    async def messages(self, limit: int = 100) -> AsyncIterator[AsyncMessage]:
        """Yield messages until :meth:`stop` or :meth:`close` is called."""
        while not self.queue.stopping:
            for message in await self.receive(limit):
                yield message

    def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        """As :meth:`Queue.__iter__`: ``async for message in queue``."""
        return self.messages(1)

    async def run(self, handler: Callable[[AsyncMessage], Awaitable[None]], *, concurrency: int = 1) -> None:
        """As :meth:`Queue.run`, with ``concurrency`` tasks.

        If the awaiting task is cancelled, as by Ctrl-C in ``asyncio.run``, so are the handlers, and their messages are
        put back.
        """
        tasks = TaskRun(self)
        with self.queue.handlers.running(), tasks.kept_apart():
            try:
                while not self.queue.stopping:
                    if len(tasks.running) >= concurrency:
                        await asyncio.wait(tasks.running, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    for message in await self.receive(concurrency - len(tasks.running)):
                        if self.queue.stopping:
                            message.put_back()
                        else:
                            tasks.start(_handle(message, handler, tasks))
                await tasks.wait()
            except (Exception, asyncio.CancelledError):
                await tasks.cancel()
                raise

    def stop(self) -> None:
        """As :meth:`Queue.stop`."""
        self.queue.stop()

    async def stats(self) -> QueueStats:
        """As :meth:`Queue.stats`."""
        return await self._call(self.queue.stats)

    async def settle(self) -> None:
        """As :meth:`Queue.settle`."""
        await self._call(self.queue.settle)

    async def close(self) -> None:
        """As :meth:`Queue.close`. In a handler it is :meth:`stop`, because a handler cannot wait for itself."""
        self.queue.stop()
        if not TaskRun.is_of(self):
            await asyncio.shield(asyncio.wrap_future(call_in_thread("queue-close", self.queue.close)))

    async def _call(self, call: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """The result of a call that takes effect, even if this task is cancelled."""
        try:
            return await result_of(self._others.call(call, *arguments, **named), self.queue.timeout_s)
        except TimeoutError:
            raise QueueError(
                f"{MAX_THREADS} other calls of the queue {self.queue.name!r} wait for the brokers, for more than "
                f"{self.queue.timeout_s:g} s, and this one has no answer"
            ) from None


def _put_back(call: Future[list[Message]]) -> None:
    if not call.cancelled() and call.exception() is None:
        for message in call.result():
            message.put_back()


async def _handle(message: AsyncMessage, handler: Callable[[AsyncMessage], Awaitable[None]], tasks: TaskRun) -> None:
    """Call a handler for a message, and settle the message as :func:`finish` says."""
    process = os.getpid()
    failure: BaseException | None = None
    try:
        await handler(message)
    except BaseException as error:
        if tasks.cuts_off(error):
            message.put_back()
            if tasks.is_interrupt(error) or issubclass(type(error), asyncio.CancelledError | GeneratorExit):
                raise
            return
        failure = error
    end_fork_of(process, failure)
    if message.may_wait:
        await _in_thread(finish, message, failure)
    else:
        finish(message, failure)
