"""Calls that may take long, or never return, in threads that do not keep the process alive."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


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


class BoundedThreads:
    """Calls functions in threads: in a limited number, which end when there is nothing to call.

    Args:
        most: calls that run at the same time; others wait, in their order.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function as soon as a thread is free. The future is its result; until then it can be cancelled."""
        future: Future[_T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                _run(future, partial(function, *args, **kwargs))

        with self._lock:
            self._waiting.append(run)
            if self._running == self._most:
                return future
            self._running += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                run = self._waiting.popleft()
            run()
