"""The queue for programs with an event loop. Its handlers run in tasks of this loop.

asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any task end the loop. Here they belong to the handler: those
that its own coroutine raises, and those of tasks that it starts. What the program's handler of a signal raises, such as
``KeyboardInterrupt`` for Ctrl-C, is not theirs, although Python raises it in whatever the main thread runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any, ParamSpec, Self, TypeVar, cast

from timers.client import tracing
from timers.client.config import LONGEST_WAIT_S, seconds
from timers.client.publish import left_s
from timers.client.request import BytesLike, HeadersLike
from timers.client.times import At
from timers.errors import QueueError
from timers.process.limits import MAX_CONCURRENCY
from timers.process.signals import END_SIGNALS
from timers.process.threads import BoundedThreads, call_in_thread, result_of
from timers.queue.inspection import QueueStats
from timers.queue.message import After, Message
from timers.queue.queue import JOIN_WAIT_S, Queue
from timers.queue.running import check_count, end_fork_of, finish, text_of
from timers.queue.sending import Sendable

_log = logging.getLogger("timers.queue")

_P = ParamSpec("_P")
_T = TypeVar("_T")

_WAIT_S = 0.5

MAX_THREADS = 64
"""Calls of a kind that wait at the same time; more wait for these. Calls on messages, receives, and other calls of a
queue are of different kinds, so none waits for one that takes longer. The threads of the event loop are few: calls that
wait there would hold up those of the program."""

_message_calls = BoundedThreads("queue-call", MAX_THREADS)

_current: ContextVar[TaskRun | None] = ContextVar("queue_run", default=None)
"""The run of the handler that this code belongs to. Tasks that the handler starts inherit it."""


class TaskRun:
    """The handlers' tasks of one call of ``AsyncQueue.run``.

    Attributes:
        running: tasks that run handlers now.
        is_interrupted: whether a handler of a signal raised an exception.
    """

    def __init__(self, queue: object) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.queue = queue
        self.is_interrupted = self._is_cancelled = False

    def is_interrupt(self, error: BaseException) -> bool:
        """Whether the exception comes from a handler of a signal."""
        return self.is_interrupted and issubclass(type(error), SystemExit | KeyboardInterrupt)

    def cuts_off(self, error: BaseException) -> bool:
        """Whether a handler raises the exception because of something that is not its own: its run was cancelled or
        failed, a signal, or the end of its event loop."""
        return self._is_cancelled or self.is_interrupt(error) or asyncio._get_running_loop() is None

    def start(self, handling: Coroutine[Any, Any, None]) -> None:
        """Run a handler in a new task."""
        context = copy_context()
        context.run(_current.set, self)
        task = asyncio.create_task(handling, context=context)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def wait(self, is_over: Callable[[], object] = bool) -> None:
        """Wait until no handler runs, or ``is_over``."""
        while self.running and not is_over():
            await asyncio.wait(self.running, timeout=_WAIT_S)

    async def cancel(self) -> int:
        """Cancel all handlers, and wait for their end. Returns how many ran."""
        self._is_cancelled, count = True, len(self.running)
        for task in self.running:
            task.cancel()
        await self.wait()
        return count

    @contextlib.contextmanager
    def noting_signals(self) -> Iterator[None]:
        """Inside the block, note which exceptions come from the program's handlers of signals."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python calls handlers of signals in the main thread
            return
        _runs.add(self)
        try:
            for number in END_SIGNALS:
                handler = signal.getsignal(number)
                if handler is not _on_signal and callable(handler):
                    _before[number] = handler
                    signal.signal(number, _on_signal)
            yield
        finally:
            _runs.discard(self)
            for number in () if _runs else END_SIGNALS:  # runs may end in another order than they began
                if signal.getsignal(number) is _on_signal:
                    signal.signal(number, _before.pop(number))


_runs: set[TaskRun] = set()
_before: dict[int, Any] = {}
"""Signal -> the program's handler."""


def _on_signal(number: int, frame: FrameType | None) -> None:
    try:
        Context().run(_before[number], number, frame)  # the interrupted code of the main thread is not the handler's
    except BaseException:
        for run in _runs:
            run.is_interrupted = True
        raise


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine that a handler runs in a task of its own. What would end the event loop is another error here."""

    def __init__(self, coroutine: Any, run: TaskRun) -> None:
        self._coroutine = coroutine
        self._run = run

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            if self._run.is_interrupt(error):
                raise
            raise RuntimeError(f"a task of a queue's handler raised {text_of(error)}") from error

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        """Give its state, frame and name, which libraries such as anyio and the text of a task ask for."""
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast(Generator[Any, Any, Any], self._coroutine.__await__())


def _contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let the tasks that handlers start in an event loop not end it."""
    before = loop.get_task_factory()
    if getattr(before, "func", None) is _new_task:
        return
    make = before or (lambda loop, coroutine, **named: asyncio.Task(coroutine, loop=loop, **named))
    loop.set_task_factory(cast(Any, partial(_new_task, make)))


def _new_task(make: Any, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> Any:
    run = _current.get()
    return make(loop, coroutine if run is None else _Contained(coroutine, run), **named)


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

    def retry(self, after: After = None, error: str = "") -> Awaitable[None]:  # type: ignore[override]
        return self._call(super().retry, after, error)

    def reject(self, reason: str) -> Awaitable[None]:  # type: ignore[override]
        return self._call(super().reject, reason)

    def extend(self, lease_s: float) -> Awaitable[None]:  # type: ignore[override]
        return self._call(super().extend, lease_s)

    def _call(self, call: Callable[..., None], *arguments: Any) -> Awaitable[None]:
        with self._driver.lock:
            if not (self.may_wait and asyncio._get_running_loop()):
                call(*arguments)
                return _Nothing()
        answer = _in_thread(call, *arguments)
        answer.add_done_callback(_log_error)
        return answer


def _in_thread(call: Callable[..., None], *arguments: Any) -> asyncio.Future[None]:
    """Make a call on a message that may wait for the brokers. It takes effect, even if the result is cancelled."""
    return asyncio.shield(asyncio.wrap_future(_message_calls.call(call, *arguments)))


def _log_error(answer: asyncio.Future[None]) -> None:
    if not answer.cancelled() and (error := answer.exception()) is not None:
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
        self.queue.message = AsyncMessage
        self._receives = BoundedThreads("queue-receive", MAX_THREADS)
        self._others = BoundedThreads("queue-other", MAX_THREADS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(
        self,
        value: str | BytesLike,
        *,
        key: str | BytesLike | None = None,
        headers: HeadersLike = (),
        at: At | None = None,
        delay: timedelta | float | None = None,
    ) -> str:
        """As :meth:`Queue.send`."""
        return await self._call(self.queue.send, value, key=key, headers=headers, at=at, delay=delay)

    async def send_many(self, messages: Iterable[Sendable]) -> list[str]:
        """As :meth:`Queue.send_many`."""
        return await self._call(self.queue.send_many, messages)

    async def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[AsyncMessage]:
        """As :meth:`Queue.receive`. If the task is cancelled, what it would have got is put back.

        64 calls wait at the same time; the others begin to wait when these have ended.
        """
        return await self._receive(self.queue.receive, limit, wait_s)

    async def _receive(
        self, receive: Callable[[int, float], list[Message]], limit: int, wait_s: float = 1.0
    ) -> list[AsyncMessage]:
        seconds("wait_s", wait_s, 0, LONGEST_WAIT_S, 1)
        within_s = wait_s + (0 if self.queue.driver.member.joined or not wait_s else JOIN_WAIT_S)
        deadline = monotonic() + within_s
        call = self._receives.call(lambda: receive(limit, min(wait_s, left_s(deadline))))
        try:
            return cast(list[AsyncMessage], await result_of(call, within_s))
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
        check_count("concurrency", concurrency, 1, MAX_CONCURRENCY)
        tasks = TaskRun(self)
        _contain_tasks(asyncio.get_running_loop())
        with self.queue.handlers.running(), tasks.noting_signals():
            try:
                while not self.queue.stopping:
                    if len(tasks.running) >= concurrency:
                        await asyncio.wait(tasks.running, timeout=_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    free = concurrency - len(tasks.running)
                    for message in await self._receive(self.queue.receive_to_run, free):
                        if self.queue.stopping:
                            message.put_back()
                        else:
                            tasks.start(self._handle(message, handler, tasks))
                await tasks.wait(self.queue.handlers.all_hang)
                self.queue.handlers.left += await tasks.cancel()  # those that hang
            except (Exception, asyncio.CancelledError):
                self.queue.handlers.left += await tasks.cancel()
                raise

    async def _handle(
        self, message: AsyncMessage, handler: Callable[[AsyncMessage], Awaitable[None]], tasks: TaskRun
    ) -> None:
        with self.queue.handlers.handling(message):
            await _handle(message, handler, tasks)

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
        run = _current.get()  # the run whose handler, or a task of it, calls this
        if run is None or run.queue is not self:
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
    """Call a handler for a message in a span of its own, and settle the message as :func:`finish` says."""
    process = os.getpid()
    failure: BaseException | None = None
    with tracing.callback_span(message) as span:
        try:
            await handler(message)
        except BaseException as error:
            if tasks.cuts_off(error):
                message.put_back()
                if tasks.is_interrupt(error) or issubclass(type(error), asyncio.CancelledError | GeneratorExit):
                    raise
                return
            failure = error
            tracing.fail(span, error)
        end_fork_of(process, failure)
        if message.may_wait:
            await _in_thread(finish, message, failure)
        else:
            finish(message, failure)
