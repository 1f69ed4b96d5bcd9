"""The queue for programs with an event loop. Its handlers run in tasks that are kept apart from this loop.

asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any task or callback end the loop. Here they belong to the
handler: those that its own coroutine raises, and those of tasks and callbacks that it starts. What the program's
handler of a signal raises, such as ``KeyboardInterrupt`` for Ctrl-C, is not theirs, although Python raises it in
whatever the main thread runs.

Handlers share the event loop with the program, and so its connections. But a handler's code gets an exception if it
stops the loop, or cancels a task that must go on: the queue's, the program's main task, and those of other handlers.
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
from types import FrameType, FunctionType
from typing import Any, ParamSpec, Self, TypeVar, cast
from weakref import WeakSet

from timers.client.publish import left_s
from timers.errors import QueueError
from timers.queue.inspection import QueueStats
from timers.queue.message import Message
from timers.queue.queue import Queue
from timers.queue.running import end_fork_of, finish, text_of
from timers.queue.sending import Sendable
from timers.signals import END_SIGNALS
from timers.threads import BoundedThreads, call_in_thread, result_of

_current: ContextVar[Handling | None] = ContextVar("queue_handling", default=None)
"""The call of a handler that this code belongs to. Tasks and callbacks that the handler starts inherit it."""


class Handling:
    """One call of a handler."""

    def __init__(self, run: TaskRun) -> None:
        self.run = run


class TaskRun:
    """The handlers' tasks of one call of ``AsyncQueue.run``.

    Attributes:
        running: tasks that run handlers now.
        is_interrupted: a handler of a signal has raised an exception, which ends the event loop.
    """

    def __init__(self, queue: object) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.is_interrupted = False
        self._queue = queue
        self._is_cancelled = False

    @staticmethod
    def is_of(queue: object) -> bool:
        """Whether the caller is a handler of this queue, or a task that one started."""
        handling = _current.get()
        return handling is not None and handling.run._queue is queue

    def is_interrupt(self, error: BaseException) -> bool:
        """Whether the exception comes from a handler of a signal."""
        return self.is_interrupted and issubclass(type(error), SystemExit | KeyboardInterrupt)

    def cuts_off(self, error: BaseException) -> bool:
        """Whether a handler raises the exception because of something that is not its own: its run was cancelled or
        failed, a signal, or the end of its event loop."""
        return self._is_cancelled or self.is_interrupt(error) or asyncio._get_running_loop() is None

    def start(self, handling: Coroutine[Any, Any, None]) -> None:
        """Run a handler in a new task."""
        context, mine = copy_context(), Handling(self)
        context.run(_current.set, mine)
        task = asyncio.create_task(handling, context=context)
        self.running.add(task)
        _keep(task, "cancel", mine)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        del task.cancel  # it refers to the task, which would keep the message

    async def wait(self) -> None:
        """Wait until no handler runs."""
        if self.running:
            await asyncio.wait(self.running)

    async def cancel(self) -> None:
        """Cancel all handlers, and wait for their end."""
        self._is_cancelled = True
        for task in self.running:
            type(task).cancel(task)  # this may be code of another queue's handler
        await self.wait()

    @contextlib.contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Inside the block, no exception and no call of a handler's tasks ends the event loop or the calling task."""
        loop = asyncio.get_running_loop()
        for task in _needed_tasks():
            _keep(task, "cancel", _current.get())
        for name in _LOOP_CALLS:
            _keep(loop, name)
        for name, place in _SCHEDULING.items():
            _contain(loop, name, place)
        _runs.add(self)
        _watch_signals()
        try:
            yield
        finally:
            _runs.discard(self)
            _watch_signals()


# ---- what handlers may not call --------------------------------------------------------------------------------------

_LOOP_CALLS = ("stop", "shutdown_default_executor", "shutdown_asyncgens", "set_exception_handler")
"""Calls that end an event loop, or what all tasks of it share. ``close`` fails while the loop runs."""


def _needed_tasks() -> set[asyncio.Task[Any]]:
    """The calling task, and the program's main task, whose end stops the event loop."""
    me = asyncio.current_task()
    return {
        task
        for task in asyncio.all_tasks()
        if task is me or _ends_loop in (each for each, _ in getattr(task, "_callbacks", None) or ())
    }


_ends_loop = asyncio.base_events._run_until_complete_cb  # type: ignore[attr-defined]


def _keep(target: Any, name: str, owner: Handling | None = None) -> None:
    """Let no code of a handler call a method of a task or an event loop, except that of the handler that owns it."""
    method = getattr(target, name)
    if isinstance(method, FunctionType):  # the one below
        return

    def call(*arguments: Any, **more: Any) -> Any:
        if _current.get() not in (None, owner):
            raise RuntimeError(
                f"code of a queue's handler may not call {name}() of the event loop, or of a task that others need: to "
                "end AsyncQueue.run, call stop() of the queue"
            )
        return method(*arguments, **more)

    setattr(target, name, call)


# ---- what tasks and callbacks of handlers raise ----------------------------------------------------------------------

_SCHEDULING = {
    "call_soon": 0,  # also for each step of a task
    "call_soon_threadsafe": 0,
    "call_at": 1,  # also for call_later
    "add_reader": 1,
    "add_writer": 1,
    "add_signal_handler": 1,
}
"""Method of an event loop -> which argument is the callback."""


def _contain(loop: asyncio.AbstractEventLoop, name: str, place: int) -> None:
    """Let no callback of a handler end the event loop that calls it."""
    method = getattr(loop, name)
    if isinstance(method, FunctionType):  # the one below
        return

    def schedule(*arguments: Any, **more: Any) -> Any:
        context = more.get("context")
        handling = _current.get() if context is None else context.get(_current)
        if handling is not None:
            contained = partial(_call, handling, arguments[place])
            arguments = *arguments[:place], contained, *arguments[place + 1 :]
        return method(*arguments, **more)

    setattr(loop, name, schedule)


def _call(handling: Handling, callback: Callable[..., Any], *arguments: Any) -> None:
    try:
        callback(*arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        if handling.run.is_interrupt(error):
            raise
        if not isinstance(getattr(callback, "__self__", None), asyncio.Task):  # a task keeps what it raised
            raise RuntimeError(f"a callback of a queue's handler raised {text_of(error)}") from error


# ---- signals ---------------------------------------------------------------------------------------------------------

_runs: WeakSet[TaskRun] = WeakSet()
_before: dict[int, Any] = {}
"""Signal -> the program's handler."""


def _watch_signals() -> None:
    """While a run needs it, note which exceptions come from the program's handlers of signals."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python calls handlers of signals in the main thread
    for number in END_SIGNALS:
        present = signal.getsignal(number)
        if _runs and present is not _on_signal and callable(present):
            _before[number] = present
            signal.signal(number, _on_signal)
        elif not _runs and present is _on_signal:
            signal.signal(number, _before.pop(number))


def _on_signal(number: int, frame: FrameType | None) -> None:
    try:
        Context().run(_before[number], number, frame)  # it is no code of the handler that the main thread runs now
    except BaseException:
        for run in list(_runs):
            run.is_interrupted = True
        raise


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
        self.queue.state.message = AsyncMessage
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
