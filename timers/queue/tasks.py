"""Keeps the tasks in which handlers run apart from the event loop that runs them.

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
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import FrameType, FunctionType
from typing import Any
from weakref import WeakSet

from timers.queue.running import text_of
from timers.signals import END_SIGNALS

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
