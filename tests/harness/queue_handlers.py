"""Handlers of queues that tests run in child processes and by `timers queue run`. The message says what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any


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
        case "output":
            message.output(argument, message.value, key=message.key, headers={"a": b"1"})
        case "extend":
            message.extend(float(argument))
        case "hang":
            time.sleep(600)
        case "wait-for":
            while not Path(argument).exists():
                time.sleep(0.05)


async def handle_in_task(message: Any) -> None:
    """As :func:`handle`, for an event loop."""
    await asyncio.sleep(0)
    handle(message)


not_a_function = 5
