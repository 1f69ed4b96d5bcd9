"""Keeps the tasks in which handlers run apart from the event loop that runs them.

asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any task end the loop. Here they belong to the handler: those
that its own coroutine raises, and those of tasks that it starts. What the program's handler of a signal raises, such as
``KeyboardInterrupt`` for Ctrl-C, is not theirs, although Python raises it in whatever the main thread runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar, copy_context
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from timers.queue.running import text_of
from timers.signals import END_SIGNALS

_current: ContextVar[TaskRun | None] = ContextVar("queue_tasks", default=None)
"""The run whose handler this code belongs to. Tasks and threads that a handler starts inherit it."""


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
        run = _current.get()
        return run is not None and run._queue is queue

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

    async def wait(self) -> None:
        """Wait until no handler runs."""
        if self.running:
            await asyncio.wait(self.running)

    async def cancel(self) -> None:
        """Cancel all handlers, and wait for their end."""
        self._is_cancelled = True
        for task in self.running:
            task.cancel()
        await self.wait()

    @contextlib.contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Inside the block, no exception of a handler's tasks ends the event loop."""
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        if before is None or before is not _factories.get(loop):
            _factories[loop] = make = _factory(before)
            loop.set_task_factory(make)  # it stays: others may set theirs around it
        _runs.add(self)
        _watch_signals()
        try:
            yield
        finally:
            _runs.discard(self)
            _watch_signals()


# ---- tasks that handlers start ---------------------------------------------------------------------------------------

_factories: WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[..., Any]] = WeakKeyDictionary()


def _factory(before: Callable[..., Any] | None) -> Callable[..., Any]:
    """A task factory that keeps the tasks of handlers from ending their event loop."""

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
        if _current.get() is not None and asyncio.iscoroutine(coro):
            coro = _Kept(coro)
        return asyncio.Task(coro, loop=loop, **more) if before is None else before(loop, coro, **more)

    return make


class _Kept(Coroutine[Any, Any, Any]):
    """A coroutine that raises another exception in place of those that would end the event loop."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro
        self.__qualname__ = getattr(coro, "__qualname__", "task of a handler")

    def send(self, value: Any) -> Any:
        return self._step(self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coro.throw, *error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            run = _current.get()
            if run is not None and run.is_interrupt(error):
                raise
            raise RuntimeError(f"a task of a queue's handler raised {text_of(error)}") from error


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
        _before[number](number, frame)
    except BaseException:
        for run in list(_runs):
            run.is_interrupted = True
        raise
