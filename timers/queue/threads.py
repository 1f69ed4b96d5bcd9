"""Calls that may take long, or never return, in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def call_in_thread(name: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Call a function in a new thread, which does not keep the process alive. The future is its result."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # a call cannot be cancelled

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
