"""Calls that may take long, or never return, in threads that do not keep the process alive.

After ``os.fork()`` the child has a copy of each object and none of the threads: neither those of this package, nor
those of librdkafka. A call that waits for one of them would never return, and a lock that another thread held is held
for ever. So objects that have threads are told of the fork: :func:`tell_of_forks`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from timers.errors import SettingsError

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


def log_failure(what: str, *expected: type[BaseException]) -> Callable[[Future[Any]], None]:
    """Return a callback for a future that nothing reads: it logs an error that is not one of the expected ones.

    Args:
        what: was not done then, as a sentence.
    """

    def log(call: Future[Any]) -> None:
        error = None if call.cancelled() else call.exception()
        if error is not None and not isinstance(error, expected):
            logger.error("%s, because of an error in this program", what, exc_info=error)

    return log


def call_in_thread(name: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Call a function in a new thread, which does not keep the process alive. The future is its result."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # a call cannot be cancelled
    run = partial(_run, future, partial(function, *args, **kwargs))
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _run(future: Future[_T], call: Callable[[], _T]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_PATCHES = (
    ("gevent", "gevent.monkey", "is_module_patched", "threading"),
    ("gevent", "gevent.monkey", "is_module_patched", "queue"),
    ("eventlet", "eventlet.patcher", "is_monkey_patched", "thread"),
)
"""Library, module and function that says whether a module of Python was replaced, and its name of that of threads."""


def check_threads() -> None:
    """Check that the threads of this process are threads: a call into librdkafka would stop all greenlets of a process,
    among them the one that answers it. And that Python runs one of them at a time, which confluent-kafka needs
    (:func:`timers.kafka.records.headers_of` relies on it).

    Raises:
        SettingsError: gevent or eventlet has replaced them, or Python has no global lock.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # the function is new in Python 3.13
        raise SettingsError(
            "this Python runs without its global lock, which Kafka's client library needs: start it without "
            "PYTHON_GIL=0 and -X gil=0"
        )
    for library, module, function, patched in _PATCHES:
        if (found := getattr(sys.modules.get(module), function, None)) is not None and found(patched):
            raise SettingsError(
                f"{library} has replaced the threads of this process, and Kafka's client library would stop all of its "
                "greenlets for ever. Leave them as they are (gevent: patch_all(thread=False, queue=False); eventlet: "
                "monkey_patch(thread=False)), run your program in processes or threads, or set timers over HTTP "
                "(docs/python-client.md#gevent-and-eventlet)"
            )


END_S = 5.0
"""How long a thread that ends waits for what it has cancelled."""


class LoopThread:
    """A thread with an event loop, which does not keep the process alive.

    Args:
        on_exception: the loop's exception handler; None: asyncio's.
    """

    def __init__(self, name: str, on_exception: Callable[..., None] | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(on_exception)
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=END_S))
        self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run ``coroutine`` on the loop. Any thread. Raises RuntimeError after :meth:`close`."""
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise RuntimeError("this event loop has ended")

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop; after :meth:`close`, do nothing. Any thread."""
        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(call, *args)

    def close(self) -> None:
        """Cancel what runs on the loop, and end it with its thread. Returns at once, and may be called twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)


class BoundedThreads:
    """Calls functions in threads: in a limited number, which end when there is nothing to call.

    Args:
        most: calls that run at the same time; others wait, in their order.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.after_fork()
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Begin without threads."""
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function as soon as a thread is free, with the caller's ``contextvars``. The future is its result;
        until then it can be cancelled."""
        future: Future[_T] = Future()
        context = copy_context()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                _run(future, partial(context.run, function, *args, **kwargs))

        with self._lock:
            if self._running < self._most:
                # Before all else: it fails if the machine gives no more threads.
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._running += 1
            self._waiting.append(run)
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                run = self._waiting.popleft()
            run()


_MAX_THREAD_START_S = 0.5
"""A thread begins in less time, if one is free."""


async def result_of(call: Future[_T], timeout_s: float, *, is_bounded: bool = True) -> _T:
    """The result of a call in a thread. The call takes effect, even if this task is cancelled.

    Args:
        is_bounded: the call itself ends within ``timeout_s``, counted from its begin. If it has begun late, it is not
            waited for so long.

    Raises:
        TimeoutError: no thread was free for too long. If the call has not begun, it will not begin.
    """
    waiting = asyncio.shield(asyncio.wrap_future(call))
    try:
        done, _ = await asyncio.wait({waiting}, timeout=_MAX_THREAD_START_S)
        is_late = not done and not call.running()
        if not done:
            done, _ = await asyncio.wait(
                {waiting}, timeout=max(0.0, timeout_s - _MAX_THREAD_START_S) + _MAX_THREAD_START_S / 2
            )
        if not done and (call.cancel() or (is_late and is_bounded)):
            waiting.cancel()
            raise TimeoutError
        return await waiting
    except asyncio.CancelledError:
        waiting.cancel()
        raise


class Forked(Protocol):
    """An object that has threads, or locks that threads share."""

    def after_fork(self) -> None:
        """Note that this process is a fork. It runs before all other code of the fork."""


_told: WeakSet[Forked] = WeakSet()


def tell_of_forks(each: Forked) -> None:
    """Call ``after_fork`` of an object in each process that is forked while the object exists.

    There the object is kept for ever: the clients of librdkafka that it holds would wait for their threads when they
    are freed.
    """
    _told.add(each)


def _after_fork() -> None:
    objects = list(_told)
    if objects:
        from ctypes import py_object, pythonapi  # not at the top: only forks need it

        for each in objects:
            pythonapi.Py_IncRef(py_object(each))
            each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
