"""Runs handlers in threads, and settles each message as its handler ended.

Whatever a handler raises belongs to its message: also ``SystemExit``, which argparse raises, ``KeyboardInterrupt``,
which Python raises for a real Ctrl-C in the main thread only, where no handler runs, and exceptions whose own code
fails. None of them may end a thread of the queue: without this rule the process would end in order, would not count the
attempt, and would begin with the same message after each restart.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from timers.errors import InvalidTimerError, LeaseLostError, SettingsError
from timers.queue.message import Message
from timers.wire.printable import quoted

_log = logging.getLogger("timers.queue")


class Handlers:
    """Counts the threads that run handlers of a queue, and tells them to end.

    Attributes:
        stopping: no handler begins any more.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.after_fork()

    def after_fork(self) -> None:
        """Begin without threads."""
        self._running: set[int] = set()
        self._changed = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the calling thread while the block runs."""
        me = threading.get_ident()
        with self._changed:
            self._running.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(me)
                self._changed.notify_all()

    def wait(self, wait_s: float) -> bool:
        """Wait until no other thread runs handlers; False if one does so after ``wait_s``."""
        deadline = monotonic() + wait_s
        with self._changed:
            while self._running - {threading.get_ident()}:
                if not self._changed.wait(deadline - monotonic()) and monotonic() >= deadline:
                    return False
        return True


def check_handler(handler: Callable[..., object]) -> None:
    """Check that a call of a handler runs it.

    Raises:
        SettingsError: it is an async function, or has ``yield``.
    """
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        raise SettingsError(f"the handler {handler!r} is async: give it to AsyncQueue.run, or use a plain function")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise SettingsError(f"the handler {handler!r} has a yield, so a call does not run it: use a plain function")


def call(handler: Callable[[Any], object], message: object) -> None:
    """Call a handler.

    Raises:
        TypeError: it has not run, because it returned a coroutine, as a decorated async function may.
    """
    result = handler(message)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            "the handler returned a coroutine, which nothing has run: is it async? Give it to AsyncQueue.run"
        )


def handle(message: Message, handler: Callable[[Message], None]) -> None:
    """Call a handler for a message, and settle the message as :func:`finish` says. It raises nothing of the handler."""
    process = os.getpid()
    try:
        call(handler, message)
    except BaseException as error:
        end_fork_of(process, error)
        finish(message, error)
    else:
        end_fork_of(process)
        finish(message)


def finish(message: Message, error: BaseException | None = None) -> None:
    """Settle a message whose handler ended: acknowledge it, unless the handler settled it. If the handler raised an
    exception, retry the message; reject it if it is too large for a retry. If the lease is over, only log this.
    """
    if error is not None:
        log_failure(message, error)
    if message.is_settled or issubclass(type(error), LeaseLostError):
        return
    try:
        if error is None:
            message.ack()
            return
        text = text_of(error)
        try:
            message.retry(error=text)
        except InvalidTimerError as too_large:
            message.reject(f"{text}, and it cannot be retried: {too_large}")
    except LeaseLostError as lost:
        _log.warning("%s", lost)


def log_failure(message: Message, error: BaseException) -> None:
    """Log a handler's exception, with its traceback unless it only says that the lease was lost. It raises nothing: the
    handler may have closed what the log writes to."""
    with suppress(BaseException):
        if issubclass(type(error), LeaseLostError):
            _log.warning("%s", text_of(error))
            return
        try:
            _log.warning("message %s failed in attempt %d", message.source, message.attempt, exc_info=error)
        except BaseException:  # code of the exception, which the log calls
            _log.warning("message %s failed in attempt %d: %s", message.source, message.attempt, text_of(error))


def text_of(error: BaseException) -> str:
    """``repr`` of a handler's exception, or its class if that fails."""
    try:
        return plain(quoted(error))
    except BaseException as second:
        return f"an exception of {type.__repr__(type(error))}, whose repr raises {type.__repr__(type(second))}"


def plain(text: object) -> str:
    """The text of an object as a str that has no code of its own."""
    return str.__str__(str(text))


def end_fork_of(process: int, error: BaseException | None = None) -> None:
    """End this process if a handler made it by ``os.fork`` and returned in it.

    It has a copy of the message, which is the other process's to settle, and none of the queue's threads.

    Args:
        process: the process that called the handler.
        error: what the handler raised; the exit code is that of a Python program.
    """
    if os.getpid() == process:
        return
    code = 0 if error is None else 1
    with suppress(BaseException):
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            code = (error.code or 0) & 0xFF
        elif error is not None:
            traceback.print_exception(error)
    with suppress(BaseException):
        sys.stdout.flush()
    os._exit(code)
