"""Runs handlers in threads or in child processes, and settles each message as its handler ended.

Whatever a handler raises belongs to its message: also ``SystemExit``, which argparse raises, ``KeyboardInterrupt``,
which Python raises for a real Ctrl-C in the main thread only, where no handler runs, and exceptions whose own code
fails. None of them may end a thread of the queue: without this rule the process would end in order, would not count the
attempt, and would begin with the same message after each restart.

Child processes are for work that uses the processor, and for work that may end its process. The parent owns the
consumer, the ledgers and the commits. A child has one message at a time, so the parent knows which message ended it.
This is ``multiprocessing`` with pipes and not ``concurrent.futures.ProcessPoolExecutor``: the pool does not say which
task its lost process had, gives up all others with it, and cannot end a process that hangs.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, TypeAlias

from timers.client import tracing
from timers.client.request import BytesLike, HeadersLike
from timers.core.printable import quoted
from timers.errors import InvalidTimerError, LeaseLostError, QueueError, SettingsError
from timers.queue import records
from timers.queue.message import After, Message

_log = logging.getLogger("timers.queue")


def check_count(name: str, count: int, least: int, most: int) -> None:
    """Raises SettingsError unless ``count`` is an integer from ``least`` to ``most``."""
    if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
        raise SettingsError(f"{name}={quoted(count)} is not an integer from {least} to {most}")


class Handlers:
    """The threads that run handlers of a queue, and their messages. It tells them to end.

    Attributes:
        stopping: no handler begins any more.
        left: how many handlers ran when a run of them returned. Threads of theirs may hang.
    """

    def __init__(self) -> None:
        self.stopping, self.left = False, 0
        self.after_fork()

    def after_fork(self) -> None:
        """Begin without threads."""
        self._running: set[int] = set()
        self._handled: dict[Message, int] = {}
        self._closing: set[int] = set()
        self._changed = threading.Condition()  # reentrant

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
                self._closing.discard(me)
                self._changed.notify_all()

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Count a handler that runs in the calling thread while the block runs."""
        with self._changed:
            self._handled[message] = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._handled.pop(message, None)

    def are_running(self) -> bool:
        """Whether a thread runs handlers, or waits for messages for them."""
        return bool(self._running)

    @property
    def hanging(self) -> int:
        """How many handlers run although the leases of their messages are over."""
        with self._changed:
            return sum(message.is_overdue for message in self._handled)

    def hanging_threads(self) -> set[int]:
        """Return the threads all of whose handlers hang."""
        with self._changed:
            working = {thread for message, thread in self._handled.items() if not message.is_overdue}
            return {*self._handled.values()} - working

    def all_hang(self) -> bool:
        """Whether handlers run, and all of them hang."""
        with self._changed:
            return bool(self._handled) and all(message.is_overdue for message in self._handled)

    def wait(self, idle_s: float) -> bool:
        """Wait until no other thread runs handlers, except those that hang or wait here; False if there are such.

        Args:
            idle_s: how long to wait for a thread without a message. It ends soon, unless its event loop was stopped.
        """
        me, deadline = threading.get_ident(), monotonic() + idle_s
        with self._changed:
            self._closing.add(me)
            while others := self._running - self.hanging_threads() - self._closing:
                if monotonic() >= deadline and others.isdisjoint(self._handled.values()):
                    break
                self._changed.wait(_POLL_S)
            return not self._running - {me}


def check_handler(handler: Callable[..., object]) -> None:
    """Check that a call of a handler runs it.

    Raises:
        SettingsError: it is no function, is async, or has ``yield``.
    """
    if not callable(handler):
        raise SettingsError(f"the handler {quoted(handler):.100} is not a function")
    if is_async(handler):
        raise SettingsError(f"the handler {handler!r} is async: give it to AsyncQueue.run, or use a plain function")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise SettingsError(f"the handler {handler!r} has a yield, so a call does not run it: use a plain function")


def is_async(handler: Callable[..., object]) -> bool:
    """Return whether a call of a handler makes a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


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


def handle(
    message: Message | RemoteMessage,
    handler: Callable[[Message], None],
    traced: Callable[[Any], AbstractContextManager[Any]] = tracing.callback_span,
    ended: Callable[[Any, BaseException | None], None] | None = None,
) -> None:
    """Call a handler for a message, and settle the message. It raises nothing of the handler.

    Args:
        traced: returns the block in which this is done, with a span or None.
        ended: settles it; None: :func:`finish`.
    """
    settle: Callable[[Any, BaseException | None], None] = ended or finish
    process = os.getpid()
    with traced(message) as span:
        try:
            call(handler, message)
        except BaseException as error:  # kept in a local, it would keep its frames, and with them the message
            end_fork_of(process, error)
            tracing.fail(span, error)
            settle(message, error)
        else:
            end_fork_of(process, None)
            settle(message, None)


def finish(message: Message, error: BaseException | None) -> None:
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


_shown: dict[str, None] = {}
"""The places in handlers whose traceback was logged: a message that fails ten times would log it ten times."""
_MOST_SHOWN = 1000


def log_failure(message: Message, error: BaseException) -> None:
    """Log a handler's exception in one line, and the first one of its kind and place with its traceback; at the level
    DEBUG, each one. It raises nothing: the handler may have closed what the log writes to."""
    with suppress(BaseException):
        if issubclass(type(error), LeaseLostError):
            _log.warning("%s", text_of(error))
            return
        failed = ("message %s failed in attempt %d: %s", message.source, message.attempt, text_of(error))
        place = error.place if isinstance(error, RemoteError) else _place(error)
        if place in _shown and not _log.isEnabledFor(logging.DEBUG):
            _log.warning(*failed)
            return
        if len(_shown) >= _MOST_SHOWN:
            _shown.clear()
        _shown[place] = None
        try:
            if isinstance(error, RemoteError):
                _log.warning(f"{failed[0]}\n%s", *failed[1:], error.trace)
            else:
                _log.warning(*failed, exc_info=error)
        except BaseException:  # repr() of the exception, which the log calls, may fail too
            _log.warning(*failed)


def _place(error: BaseException) -> str:
    """The class of an exception, and the line that raised it."""
    where = [f" {frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return type.__repr__(type(error)) + "".join(where[-1:])


def text_of(error: BaseException) -> str:
    """``repr`` of a handler's exception, or its class if that fails."""
    try:
        return plain(quoted(error))
    except BaseException as second:
        return f"an exception of {type.__repr__(type(error))}, whose repr raises {type.__repr__(type(second))}"


def plain(text: object) -> str:
    """The text of an object as a str that has no code of its own."""
    return str.__str__(str(text))


def end_fork_of(process: int, error: BaseException | None) -> None:
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


_POLL_S = 0.5
_JOIN_S = 5.0

Handler: TypeAlias = Callable[[Any], None]


@dataclass
class RemoteMessage:
    """A message in a child process. Its calls take effect in the parent when the handler has returned.

    Attributes:
        id: the same in all deliveries of the message; see :attr:`Message.id`.
        group: as :attr:`Message.group`.
        is_over: the handler has returned, and the parent was told so.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    attempt: int
    source: str
    sent_ms: int
    id: str
    group: str
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    is_settled: bool = False
    is_over: bool = False

    @classmethod
    def of(cls, message: Message) -> RemoteMessage:
        """Copy what a handler may read."""
        one = message
        return cls(one.key, one.value, one.headers, one.attempt, one.source, one.sent_ms, one.id, one.group)

    def ack(self) -> None:
        """As :meth:`Message.ack`."""
        self._settle("ack")

    def retry(self, after: After = None, error: str = "") -> None:
        """As :meth:`Message.retry`."""
        if after is not None:
            after = records.delay_s(after, self.attempt)
        self._settle("retry", after, plain(error))

    def reject(self, reason: str) -> None:
        """As :meth:`Message.reject`."""
        self._settle("reject", plain(reason))

    def output(
        self,
        topic: str,
        value: str | BytesLike | None,
        *,
        key: str | BytesLike | None = None,
        headers: HeadersLike = (),
    ) -> None:
        """As :meth:`Message.output`."""
        self._check_open()
        made = records.output(self.source, topic, key, value, headers)
        self.calls.append(("output", (made.topic, made.value), {"key": made.key, "headers": made.headers}))

    def extend(self, lease_s: float) -> None:
        """As :meth:`Message.extend`. It takes effect at once, also after the other calls, which wait for the end of the
        handler."""
        if not _extend(self, records.seconds("lease_s", lease_s)):
            raise LeaseLostError(f"message {self.source} is no longer this receiver's")

    def _settle(self, name: str, *arguments: Any) -> None:
        self._check_open()
        self.is_settled = True
        self.calls.append((name, arguments, {}))

    def _check_open(self) -> None:
        if self.is_settled or self.is_over:
            raise LeaseLostError(f"message {self.source} was settled before")


# ---- the child -------------------------------------------------------------------------------------------------------

_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)
_to_parent: Connection | None = None
_asking = threading.Lock()


def _extend(message: RemoteMessage, lease_s: float) -> bool:
    """Ask the parent for a longer lease, and return its answer; False after the handler of the message has returned."""
    assert _to_parent is not None
    with _asking:  # the handler may have threads
        if message.is_over:
            return False
        _to_parent.send(lease_s)
        answer: bool = _to_parent.recv()
        return answer


def _end(message: RemoteMessage, error: BaseException | None) -> None:
    """Tell the parent what the handler did: its calls, whether one of them settles the message, text, traceback and
    place of its exception, and the trace context.

    No question of this message follows: its answer would be taken for the next message, or the next message for its
    answer."""
    assert _to_parent is not None
    with _asking:
        message.is_over = True
        try:
            failure = None if error is None else _texts(error)
            _to_parent.send((message.calls, message.is_settled, failure, tracing.current()))
        except OSError:
            raise
        except BaseException as unsent:  # the handler put something into the message that cannot be sent
            _to_parent.send(([], False, _texts(unsent), tracing.current()))


def _texts(error: BaseException) -> tuple[str, str, str]:
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:  # code of the exception
        trace = ""
    return text_of(error), trace, _place(error)


def _serve(pipe: Connection, handler: Handler) -> None:
    """Handle messages until the parent closes the pipe or is gone."""
    global _to_parent
    _to_parent = pipe
    # Ctrl-C and a supervisor's signal may reach the whole group: the parent lets the handlers end first.
    for number in _OF_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
    try:
        pipe.send("ready")
        while True:
            message: RemoteMessage = pipe.recv()
            handle(message, handler, ended=_end)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


# ---- the parent ------------------------------------------------------------------------------------------------------


class RemoteError(Exception):
    """A handler raised an exception in its process. The text is the ``repr`` of the exception.

    Attributes:
        trace: its traceback.
        place: its class and the line that raised it.
    """

    def __init__(self, text: str, trace: str, place: str) -> None:
        super().__init__(text)
        self.trace, self.place = trace, place

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str, str], dict[str, object]]:
        return type(self), (str(self), self.trace, self.place), self.__dict__


def _is_over(message: Message) -> bool:
    return message.is_settled or message.is_overdue


class Child:
    """One process at a time that runs a handler. It belongs to one thread.

    Args:
        handler: a function that can be imported by its name.
        stopping: whether a process that starts is not needed any more.
    """

    def __init__(self, handler: Handler, stopping: Callable[[], bool] = lambda: False) -> None:
        self._handler = handler
        self._stopping = stopping
        self._process: Any = None
        self._is_ready = False  # the process has imported the handler
        self._pipe: Connection

    def start(self, message: Message | None = None) -> bool:
        """Start the process, unless it runs. To import the handler may take any time: returns False if it is stopping,
        or the lease of ``message`` is over, before that is done.

        Raises:
            QueueError: it cannot import the handler.
        """
        try:
            if self._process is None:
                self._launch()
            while not (self._is_ready or self._pipe.poll(_POLL_S)):
                if self._stopping():
                    self.end(kill=True)
                    return False
                if message is not None and _is_over(message):
                    # The process is not ended here: an import that takes longer than a lease would begin anew with each
                    # message.
                    _log.warning(
                        "message %s: its lease is over, and a process still imports its handler: the next message "
                        "waits for this process",
                        message.source,
                    )
                    return False
            if not self._is_ready:
                self._pipe.recv()
                self._is_ready = True
        except Exception as error:
            code = self.end(kill=True)
            raise QueueError(
                f"a process for {self._handler!r} does not start (exit code {code}, {error!r}): the handler must be a "
                "function of a module that can be imported, and a program that calls run() needs "
                '`if __name__ == "__main__":` around it'
            ) from error
        return message is None or not _is_over(message)  # the lease of the message may have ended since the last look

    def _launch(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy librdkafka's locks without its threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._handler), name="queue-handler", daemon=True)
        # Blocked until the child ignores them: Ctrl-C while it imports the handler would write its traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def handle(self, message: Message) -> None:
        """Run the handler for a message, and settle the message as the handler said.

        Raises:
            QueueError: the process cannot be started.
        """
        if not self.start(message):
            if not _is_over(message):
                message.put_back()
            return
        try:
            self._pipe.send(RemoteMessage.of(message))
            reply = self._reply(message)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self.end(kill=False)
            how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
            _log.error("message %s: the process of its handler %s", message.source, how)
            with suppress(LeaseLostError):
                message.crashed(how)
            return
        except BaseException as error:  # the handler put something into the message that this process cannot read
            self.end(kill=True)
            finish(message, error)
            return
        if reply is None:
            self.end(kill=True)
            _log.warning("message %s: its lease is over, so its process was ended", message.source)
            return
        *_, trace = reply
        # The span is in the handler's process. What is current here is no part of it.
        Context().run(handle, message, partial(self._settle, reply), lambda _: tracing.given(trace))

    def _reply(self, message: Message) -> Any:
        """What the handler did; None if the delivery is over and the handler still runs."""
        while True:
            while not self._pipe.poll(_POLL_S):
                if _is_over(message):
                    return None
            reply = self._pipe.recv()
            if not isinstance(reply, float):
                return reply
            try:
                message.extend(reply)
                self._pipe.send(True)
            except LeaseLostError:
                self._pipe.send(False)

    def _settle(self, reply: Any, message: Message) -> None:
        """Settle the message as the handler said. Errors of these calls are errors of the handler."""
        calls, is_settled, failure, _ = reply
        if failure is not None:
            if not is_settled:
                raise RemoteError(*failure)
            log_failure(message, RemoteError(*failure))
        for name, arguments, more in calls:
            getattr(message, name)(*arguments, **more)

    def end(self, *, kill: bool) -> int | None:
        """End the process, and return its exit code; None if there is none."""
        process, self._process = self._process, None
        is_ready, self._is_ready = self._is_ready, False
        if process is None:
            return None
        self._pipe.close()
        if process.pid is None:
            return None
        if kill or not is_ready:  # an import does not look at the pipe
            process.kill()
        process.join(_JOIN_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        code: int | None = process.exitcode
        process.close()
        return code
