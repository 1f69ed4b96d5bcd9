"""Handlers of queues that tests run in child processes and by `timers queue run`. The message says what to do."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.waiting import DEADLINE_S
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
        case "retry-list":
            message.retry([float(each) for each in argument.split()])
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
            begun = threading.Event()
            threading.Thread(target=_beat, args=(message, begun), daemon=True).start()
            begun.wait(DEADLINE_S)
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


def _beat(message: Any, begun: threading.Event) -> None:
    with contextlib.suppress(LeaseLostError):
        while True:
            message.extend(60)
            begun.set()


async def handle_in_task(message: Any) -> None:
    """As :func:`handle`, for an event loop; `raise-in-task` raises in a task of its own."""
    await asyncio.sleep(0)
    word, _, argument = (message.value or b"").decode().partition(" ")
    if word == "raise-in-task":
        await asyncio.gather(_raise(argument))
    elif word == "raise" and argument == "stop":
        raise StopAsyncIteration  # a coroutine cannot raise the other one
    else:
        handle(message)


async def _raise(name: str) -> None:
    raise RAISED[name]()


not_a_function = 5
