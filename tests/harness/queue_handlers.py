"""Handlers of queues that tests run in child processes and by `timers queue run`. The message says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from timers.errors import LeaseLostError


class Unprintable(Exception):
    """An exception whose own code fails."""

    def __repr__(self) -> str:
        raise SystemExit(3)

    __str__ = __repr__


class Unreadable:
    """An object that another process cannot read from a pipe."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class ExitsWhenRead:
    """An object that asks the process which reads it from a pipe to end."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


async def decorated(message: Any) -> None:
    """What :func:`handle` returns for ``coroutine`` in place of running it, as a decorated async function may."""
    message.reject("it has run")


RAISED: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit("bad"),
    "base": lambda: BaseException("bad"),
    "interrupt": lambda: KeyboardInterrupt(),
    "cancelled": lambda: asyncio.CancelledError(),
    "generator": lambda: GeneratorExit(),
    "stop": lambda: StopIteration(),
    "group": lambda: BaseExceptionGroup("two", [SystemExit(1), KeyboardInterrupt()]),
    "unprintable": Unprintable,
    "surrogate": lambda: ValueError("\ud800"),
}
"""What handlers may raise. Each of them makes a retry."""


def handle(message: Any) -> Any:
    """Do what the value says: a word, and after a space its argument."""
    word, _, argument = (message.value or b"").decode().partition(" ")
    match word:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(int(argument))
        case "fail":
            raise ValueError(argument)
        case "raise":
            raise RAISED[argument]()
        case "fork":
            if not os.fork():
                sys.exit(7)  # it ends the child only
            os.wait()
        case "unsendable":
            message.calls.append(lambda: None)
        case "unreadable":
            message.calls.append(Unreadable())
        case "exits-when-read":
            message.calls.append(ExitsWhenRead())
        case "coroutine":
            return decorated(message)
        case "reject":
            message.reject(argument)
        case "retry":
            message.retry(float(argument), error="as asked")
        case "settle-and-fail":
            message.ack()
            raise ValueError("after it was settled")
        case "settle-twice":
            message.ack()
            message.ack()
        case "settle-and-output":
            message.ack()
            message.output(argument, message.value)
        case "beat":  # a thread that extends the lease, also after the handler has returned
            threading.Thread(target=_beat, args=(message,), daemon=True).start()
            time.sleep(0.02)
        case "output":
            message.output(argument, message.value, key=message.key, headers={"a": b"1"})
        case "extend":
            message.extend(float(argument))
        case "hang":
            time.sleep(600)
        case "wait-for":
            while not Path(argument).exists():
                time.sleep(0.05)
    return None


_stopping = threading.Event()


def fail_and_stop(message: Any) -> None:
    """Ask the process to stop, once, and raise an exception with the text of the message."""
    if not _stopping.is_set():
        _stopping.set()
        os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError((message.value or b"").decode())


def _beat(message: Any) -> None:
    with contextlib.suppress(LeaseLostError):
        while True:
            message.extend(60)


def _cancel_others() -> None:
    """Cancel all tasks. The own one is the last, so that it does not end before."""
    me = asyncio.current_task()
    for task in sorted(asyncio.all_tasks(), key=lambda task: task is me):
        task.cancel()


def _run_another() -> None:
    coroutine = asyncio.sleep(0)
    with contextlib.closing(coroutine):
        asyncio.get_running_loop().run_until_complete(coroutine)


LOOP_ENDS: dict[str, Callable[[], object]] = {
    "stop": lambda: asyncio.get_running_loop().stop(),
    "close": lambda: asyncio.get_running_loop().close(),
    "cancel": _cancel_others,
    "run": _run_another,
    "no-executor": lambda: asyncio.get_running_loop().shutdown_default_executor(),
    "no-generators": lambda: asyncio.get_running_loop().shutdown_asyncgens(),
    "exit-handler": lambda: asyncio.get_running_loop().set_exception_handler(lambda *_: sys.exit(3)),
    "cancel-itself": lambda: asyncio.tasks.current_task().cancel() and asyncio.sleep(0),  # type: ignore[union-attr]
}
"""How handlers may try to end the event loop that runs them. Each of them makes a retry."""


async def _exit_in(schedule: Callable[..., object]) -> None:
    """Let the event loop call ``sys.exit``, wait until it has, and fail."""
    schedule(sys.exit, 3)
    await asyncio.sleep(0.01)
    raise ValueError("after the callback")


def _exit_when_writable(exit: Callable[..., object], code: int) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    def write() -> None:
        loop.remove_writer(ours)
        ours.close()
        theirs.close()
        exit(code)

    loop.add_writer(ours, write)


def _exit_when_done(exit: Callable[..., object], code: int) -> None:
    done = asyncio.get_running_loop().create_future()
    done.add_done_callback(lambda _: exit(code))
    done.set_result(None)


EXITS: dict[str, Callable[[asyncio.AbstractEventLoop], Callable[..., object]]] = {
    "soon": lambda loop: loop.call_soon,
    "threadsafe": lambda loop: loop.call_soon_threadsafe,
    "later": lambda loop: partial(loop.call_later, 0.001),
    "at": lambda loop: partial(loop.call_at, loop.time()),
    "writer": lambda loop: _exit_when_writable,
    "future": lambda loop: _exit_when_done,
}
"""Ways to a callback of the event loop. Each of them makes a retry."""


async def handle_in_task(message: Any) -> None:
    """As :func:`handle`, for an event loop; `raise-in-task` does it in a task of its own, `exit-in` in a callback, and
    `end-loop` tries to end the event loop, now or, in a callback, a moment later."""
    await asyncio.sleep(0)
    word, _, argument = (message.value or b"").decode().partition(" ")
    if word == "raise-in-task":
        await asyncio.gather(_raise(argument))
    elif word == "exit-in":
        await _exit_in(EXITS[argument](asyncio.get_running_loop()))
    elif word == "end-loop":
        asyncio.get_running_loop().call_soon(LOOP_ENDS[argument])
        ending = LOOP_ENDS[argument]()
        if asyncio.iscoroutine(ending):
            await ending
    elif word == "raise" and argument == "stop":
        raise StopAsyncIteration  # a coroutine cannot raise the other one
    else:
        handle(message)


async def _raise(name: str) -> None:
    raise RAISED[name]()


not_a_function = 5
