"""The event loop that runs the producers of all machines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from timers.kafka.aiokafka_internals import produce
from timers.kafka.broker_answers import BrokerAnswers
from timers.partition_metrics import Heartbeat, keep_heartbeat

_T = TypeVar("_T")


class ProducerLoop:
    """A thread with an event loop for the producers of all machines.

    Attributes:
        heartbeat: of the loop.
        answers: of the brokers.
    """

    def __init__(self) -> None:
        produce.install()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(produce.log_unless_reported)
        self._thread = threading.Thread(target=self._loop.run_forever, name="timers-producers", daemon=True)
        self._thread.start()
        self.heartbeat = Heartbeat()
        self.answers = BrokerAnswers()
        self.submit(keep_heartbeat(self.heartbeat))

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run ``coroutine`` on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
