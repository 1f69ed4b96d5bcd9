"""Handlers of queues that tests run in child processes and by `timers queue run`. The message says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from timers.errors import LeaseLostError


def handle(message: Any) -> None:
    """Do what the value says: a word, and after a space its argument."""
    word, _, argument = (message.value or b"").decode().partition(" ")
    match word:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(int(argument))
        case "fail":
            raise ValueError(argument)
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


def _beat(message: Any) -> None:
    with contextlib.suppress(LeaseLostError):
        while True:
            message.extend(60)


async def handle_in_task(message: Any) -> None:
    """As :func:`handle`, for an event loop."""
    await asyncio.sleep(0)
    handle(message)


not_a_function = 5
