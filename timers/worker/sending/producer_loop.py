"""The event loop that runs the producers of all machines."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from timers.kafka.aiokafka_internals import produce
from timers.worker.partition_metrics import Heartbeat, keep_heartbeat

AWAKE_S = 0.5
"""Seconds; a running process checks its time-outs more often than this."""

_T = TypeVar("_T")
_Task = TypeVar("_Task", bound=asyncio.Future[Any])


class ProducerLoop:
    """A thread with an event loop for the producers of all machines.

    Attributes:
        heartbeat: of the loop.
    """

    def __init__(self) -> None:
        produce.install()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(produce.log_unless_reported)
        self._thread = threading.Thread(target=self._loop.run_forever, name="timers-producers", daemon=True)
        self._thread.start()
        self.heartbeat = Heartbeat()
        self.submit(keep_heartbeat(self.heartbeat))

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run ``coroutine`` on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)


async def wait_awake(tasks: Iterable[_Task], seconds: float, return_when: str = asyncio.FIRST_EXCEPTION) -> set[_Task]:
    """Wait for all of ``tasks``, or the first that fails. Returns those that have not ended.

    Only time in which this process was running counts. After a pause all its time-outs end together, before it has
    read any answer: then targets would seem to fail, and a takeover by another worker would be hidden.
    """
    waiting = set(tasks)
    for _ in range(math.ceil(seconds / AWAKE_S)):
        done, waiting = await asyncio.wait(waiting, timeout=AWAKE_S, return_when=return_when)
        failed = any(task.cancelled() or task.exception() for task in done)
        if not waiting or (failed and return_when == asyncio.FIRST_EXCEPTION):
            break
    return waiting
